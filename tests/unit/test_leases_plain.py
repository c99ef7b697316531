"""Why leases are not decided by the plain algorithm: look, insert, then confirm that one is first.

Every interleaving of two grabbers of one object is run, each step being a transaction of its own,
as under READ COMMITTED. docs/leases.md tells the stories that are found here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, product

import pytest

DURATIONS = (10, 100)
STEPS = 5


@dataclass(frozen=True)
class Row:
    number: int
    end: int


@dataclass
class World:
    """What is committed, and the numbers that were handed out."""

    rows: set[Row] = field(default_factory=set)
    last: int = 0

    def next_number(self) -> int:
        self.last += 1
        return self.last


Denies = Callable[[Row, Row], bool]
"""Whether another row denies ours."""

Grabber = Iterator[bool | None]
"""Stops after each step; what it says last is whether it got the lease."""


def by_end_and_number(other: Row, mine: Row) -> bool:
    return (other.end, other.number) < (mine.end, mine.number)


def by_number(other: Row, mine: Row) -> bool:
    return other.number < mine.number


def whoever_it_is(other: Row, mine: Row) -> bool:
    return True


def numbered_early(world: World, duration: int, denies: Denies) -> Grabber:
    """A sequence hands out the number; others see the row when its insert is committed."""
    if world.rows:
        yield False
        return
    yield None
    number = world.next_number()
    yield None
    yield from _insert_and_confirm(world, Row(number, duration), denies)


def numbered_by_the_insert(world: World, duration: int, denies: Denies) -> Grabber:
    """One writer at a time: rows appear in the order of their numbers."""
    if world.rows:
        yield False
        return
    yield None
    yield from _insert_and_confirm(world, Row(world.next_number(), duration), denies)


def in_a_turn(world: World, duration: int, denies: Denies) -> Grabber:
    """All steps in one, as the service does it."""
    *_, last = numbered_by_the_insert(world, duration, denies)
    yield last


def _insert_and_confirm(world: World, mine: Row, denies: Denies) -> Grabber:
    world.rows.add(mine)
    yield None
    if any(denies(other, mine) for other in world.rows - {mine}):
        yield None
        world.rows.remove(mine)
        yield False
    else:
        yield True


def winners(grab: Callable[..., Grabber], denies: Denies) -> set[int]:
    """How many of two may have the lease in the end, by any schedule."""
    found = set()
    schedules = combinations(range(2 * STEPS), STEPS)
    for durations, firsts in product(product(DURATIONS, repeat=2), schedules):
        world = World()
        grabbers = [grab(world, duration, denies) for duration in durations]
        last: list[bool | None] = [None, None]
        for turn in range(2 * STEPS):
            which = 0 if turn in firsts else 1
            last[which] = next(grabbers[which], last[which])
        assert None not in last
        found.add(sum(map(bool, last)))
    return found


@pytest.mark.parametrize(
    ("grab", "denies", "expected"),
    [
        (numbered_early, by_end_and_number, {1, 2}),
        (numbered_early, by_number, {1, 2}),
        (numbered_early, whoever_it_is, {0, 1}),
        (numbered_by_the_insert, by_end_and_number, {1, 2}),
        (numbered_by_the_insert, by_number, {1}),
        (numbered_by_the_insert, whoever_it_is, {0, 1}),
        (in_a_turn, whoever_it_is, {1}),
    ],
)
def test_how_many_of_two_grabbers_may_get_one_object(
    grab: Callable[..., Grabber], denies: Denies, expected: set[int]
) -> None:
    """Two is wrong, and none is a pity: each was denied by somebody who did not get it either."""
    assert winners(grab, denies) == expected
