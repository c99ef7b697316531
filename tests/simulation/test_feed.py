"""The change feed beside clients, fsck and readers that stop: each transaction once, and each part
the same when it is read again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation import feeding
from tests.simulation.feeding import run_feeds
from tests.simulation.rules import Patch, TakeOut
from txn.model import Row
from txn.protocol.row import created_ms
from txn.protocol.statuses import PROTOCOLS, ProtocolName
from txn.reading import feed
from txn.reading.feed import Bounds, Offset, Survey

SCHEDULES = 150
MOST_SCHEDULES = 300
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


@each_protocol
def test_each_transaction_is_told_once(protocol: ProtocolName) -> None:
    run_feeds(range(SCHEDULES), protocol)


def spoil_offsets(patch: Patch, **changes: Any) -> None:
    make_offset = Survey.make_offset

    def make(self: Survey, until_ms: int, bounds: Bounds) -> Offset:
        found = {name: change(self) for name, change in changes.items()}
        return make_offset(self, until_ms, bounds)._replace(**found)

    patch.setattr(Survey, "make_offset", make)


def order_by_row_keys(patch: Patch) -> None:
    find_decision = feed.find_decision

    def find(row: Row) -> int | None:
        at_ms = find_decision(row)
        return created_ms(row.row) if at_ms else at_ms

    patch.setattr(feed, "find_decision", find)


BROKEN: dict[str, TakeOut] = {
    "the undecided are forgotten": lambda patch: spoil_offsets(
        patch, undecided=lambda survey: frozenset()
    ),
    "scans begin now": lambda patch: spoil_offsets(patch, low_ms=lambda survey: survey.began_ms),
    "row keys give the order": order_by_row_keys,
    "all clocks are trusted": lambda patch: patch.setattr(feeding, "JUMPS_MS", -200),
    "rows are expected at once": lambda patch: patch.setattr(feeding, "LATENESS_MS", 0),
}


@each_protocol
@pytest.mark.parametrize("name", BROKEN)
def test_without_a_rule_something_is_skipped(
    name: str, protocol: ProtocolName, monkeypatch: Patch
) -> None:
    BROKEN[name](monkeypatch)
    with pytest.raises(AssertionError, match=r"not told: |a part has changed"):
        run_feeds(range(MOST_SCHEDULES), protocol)
