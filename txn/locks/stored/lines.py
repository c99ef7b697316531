"""The line at an object, as its row keeps it: who holds it, and who waits, in order of arrival.

row     = {"token": the last fencing token, "line": [entry, ..]}     JSON
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from txn.locks.manager import Lock, Owner
from txn.locks.requests import LockRequest, Mode, Path
from txn.model import Cell

OBJECTS, COLUMN = "o", "line"
"""Where an object's row keeps it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One request in an object's line; granted, or a place that others wait behind."""

    ticket: str
    mode: str
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


class Denied(NamedTuple):
    """What a request was denied, and by whom."""

    wanted: LockRequest
    by: tuple[Entry, ...]


def first_denied(
    states: Mapping[Path, LineState],
    ticket: str,
    wanted: Sequence[LockRequest],
    *,
    fair: bool,
) -> Denied | None:
    """Return the first object that others keep from the ticket: those before it in the line."""
    for request in wanted:
        before = []
        for entry in states[request.path].line:
            if entry.ticket == ticket:
                break
            if (fair or entry.granted) and not request.mode.allows(Mode(entry.mode)):
                before.append(entry)
        if before:
            return Denied(request, tuple(before))
    return None


def has(state: LineState, ticket: str) -> bool:
    """Whether the ticket is in the line."""
    return any(entry.ticket == ticket for entry in state.line)


def without(state: LineState, tickets: Collection[str]) -> LineState:
    """Return the line without these tickets."""
    return LineState(state.token, tuple(e for e in state.line if e.ticket not in tickets))


def as_locks(at: Path, line: Iterable[Entry]) -> list[Lock]:
    """Return a line as others see it."""
    return [
        Lock(
            LockRequest(at, Mode(entry.mode)),
            Owner(entry.owner, entry.host, entry.query),
            entry.since_ms,
            entry.granted,
            entry.session is None,
            entry.token,
        )
        for entry in line
    ]


def encoded(state: LineState) -> bytes:
    """Return what the row keeps."""
    line = [asdict(entry) for entry in state.line]
    return json.dumps({"token": state.token, "line": line}).encode()


def decoded(cell: Cell | None) -> LineState:
    """Return the line that the row keeps."""
    return parse_line(cell and cell.value)


def parse_line(value: bytes | None) -> LineState:
    """Return the line that these bytes are; an absent row has an empty one."""
    if value is None:
        return LineState(0, ())
    stored: dict[str, Any] = json.loads(value)
    return LineState(stored["token"], tuple(Entry(**entry) for entry in stored["line"]))
