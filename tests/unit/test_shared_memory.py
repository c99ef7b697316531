"""What a client remembers, threads share: others may forget it between any two looks at it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.test_tables_gone import NEAR, Tables
from tests.unit.worlds import World
from txn import Mutation
from txn.client.schema import Families
from txn.errors import ConflictError, DeadlineError
from txn.model import Family


class Forgetful(dict[Any, Any]):
    """Has forgotten everything as soon as somebody has asked whether it knows something."""

    def __contains__(self, key: object) -> bool:
        known = super().__contains__(key)
        self.clear()
        return known


def test_a_holder_that_others_forget_meanwhile_is_in_the_way_all_the_same() -> None:
    """It was a KeyError of the commit that met it."""
    world = Tables()
    world.left_decided()
    other = world.client(seed=2)
    other._backend._resolver._sightings = Forgetful()
    with pytest.raises((ConflictError, DeadlineError), match="disabled"):
        other.commit([Mutation(NEAR, b"2")])


class Meddling(bytes):
    """The name of a table; another thread meets one more as somebody compares it."""

    families: Families

    def __eq__(self, other: object) -> bool:
        self.families._known[b"more", b"%d" % len(self.families._known)] = Family()
        return super().__eq__(other)

    __hash__ = bytes.__hash__


def test_a_table_is_forgotten_while_others_meet_more() -> None:
    families = World().engine._backend._families
    name = Meddling(b"odd")
    name.families = families
    families._known[name, b"d"] = families._known[b"gone", b"d"] = Family()
    families.forget(b"gone")
    assert (b"gone", b"d") not in families._known
