"""The line at an object, as its row keeps it: who holds it, and who waits, in order of arrival.

row     = {"token": the last fencing token, "line": [entry, ..]}     JSON
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from txn.errors import CorruptRowError
from txn.locks.manager import Lock, Owner
from txn.locks.requests import LockRequest, Mode, Path, path
from txn.model import Cell

OBJECTS, COLUMN = "o", "line"
"""Where an object's row keeps it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One request in an object's line; granted, or a place that others wait behind."""

    ticket: str
    mode: Mode
    session: str | None
    owner: str
    host: str
    query: str
    since_ms: int
    granted: bool
    token: int


class LineState(NamedTuple):
    """An object's row: the last fencing token, and the line in the order of arrival."""

    token: int
    line: tuple[Entry, ...]


def has(state: LineState, ticket: str) -> bool:
    """Whether the ticket is in the line."""
    return any(entry.ticket == ticket for entry in state.line)


def drop_tickets(state: LineState, tickets: Collection[str]) -> LineState:
    """Return the line without these tickets."""
    return LineState(state.token, tuple(e for e in state.line if e.ticket not in tickets))


def as_locks(at: Path, line: Iterable[Entry]) -> list[Lock]:
    """Return a line as others see it."""
    return [
        Lock(
            LockRequest(at, entry.mode),
            Owner(entry.owner, entry.host, entry.query),
            entry.since_ms,
            entry.granted,
            entry.session is None,
            entry.token,
        )
        for entry in line
    ]


def encode_line(state: LineState) -> bytes:
    """Return what the row keeps."""
    line = [asdict(entry) | {"mode": entry.mode.value} for entry in state.line]
    return json.dumps({"token": state.token, "line": line}).encode()


def decode_line(row: bytes, cell: Cell | None) -> LineState:
    """Return the line that the row of an object keeps."""
    return parse_line(row, cell and cell.value)


def parse_line(row: bytes, value: bytes | None) -> LineState:
    """Return the line that the bytes of an object's row are; an absent row has an empty one."""
    if value is None:
        return LineState(0, ())
    try:
        stored: dict[str, Any] = json.loads(value)
        line = (Entry(**entry | {"mode": Mode(entry["mode"])}) for entry in stored["line"])
        return LineState(int(stored["token"]), tuple(line))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRowError("not a line of locks", row=row) from error


def decode_path(row: bytes) -> Path:
    """Return the object whose row it is."""
    try:
        return path(row.decode())
    except ValueError as error:
        raise CorruptRowError("not the row of an object that is locked", row=row) from error
