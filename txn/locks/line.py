"""The line at an object, wherever it is kept: who is denied what, and who waits where.

Requests stand in the order of their arrival. A request that is denied at an object keeps its place
there and at the objects before it, in the order of paths: so a request that has a place waits for
none whose place comes earlier, and places cannot deny each other in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from txn.locks.manager import Lock, LockDenied
from txn.locks.patience import Patience
from txn.locks.requests import LockRequest, Mode, Path

T = TypeVar("T")


class Contender(Protocol):
    """One request in an object's line."""

    @property
    def ticket(self) -> str:
        """The name of the request."""

    @property
    def mode(self) -> Mode:
        """What it asks for there."""


class Denied(NamedTuple):
    """What a request was denied, and the places that deny it."""

    wanted: LockRequest
    before: tuple[Any, ...]

    def keeps(self, at: Path) -> bool:
        """Whether the denied request keeps its place at an object, where lines are fair."""
        return at <= self.wanted.path


def first_denied(
    lines: Mapping[Path, Iterable[Contender]], ticket: str, wanted: Sequence[LockRequest]
) -> Denied | None:
    """Return the first object that others keep from a ticket: those before it in the line, and all
    of them where it is not in it."""
    for request in wanted:
        before = []
        for place in lines[request.path]:
            if place.ticket == ticket:
                break
            if not request.mode.allows(place.mode):
                before.append(place)
        if before:
            return Denied(request, tuple(before))
    return None


def list_denying(line: Sequence[Lock], place: int) -> list[Lock]:
    """Return which others of an object's line keep the one at this place waiting: the holders that
    it does not go with, and those before it that it does not go with either. None, if it holds."""
    waiting = line[place]
    return [
        each
        for at, each in enumerate(line)
        if not waiting.granted
        and (each.granted or at < place)
        and not waiting.request.mode.allows(each.request.mode)
    ]


def wait_in_line(
    attempt: Callable[[], T | Denied],
    patience: Patience,
    wait: Callable[[Denied, int], None],
    name_holders: Callable[[Denied], Sequence[Lock]],
) -> T:
    """Return what an attempt is granted, or raise LockDenied once there is no patience left. `wait`
    waits for as long as it is told (ms), or until the line moves."""
    before: tuple[Any, ...] = ()
    while isinstance(found := attempt(), Denied):
        if found.before != before:
            patience.note_move()
        before = found.before
        pause_ms = patience.next_pause_ms()
        if pause_ms is None:
            raise LockDenied(found.wanted, name_holders(found))
        wait(found, pause_ms)
    return found
