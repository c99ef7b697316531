"""The overview of the console, where it tells of unfinished transactions and their owners."""

from __future__ import annotations

import pytest

from recovery.console.overview import describe_owner
from tests.unit.worlds import World, stopped_at
from txn.protocol.phases import Status


@pytest.mark.parametrize(
    ("beyond_ms", "words"), [(0, "within its lease"), (1, "its lease has expired")]
)
def test_an_owner_is_late_once_its_lease_has_expired(beyond_ms: int, words: str) -> None:
    """From then on whoever needs the keys ends the transaction: a person sees who holds them up."""
    world = World()
    stopped_at(world, Status.LOCKED)
    row = world.rows()[-1]
    assert row.buffer is not None
    since_ms, lease_ms = max(row.since, row.beat), row.buffer.lease_ms
    found = describe_owner(row, since_ms + lease_ms + beyond_ms)
    assert found == (row, lease_ms + beyond_ms, 1, words)
    assert describe_owner(row, since_ms - 1).silent_ms == 0
