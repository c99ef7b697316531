"""The change feed beside clients, fsck and readers that stop: each transaction once, and each part
the same when it is read again. With a rule taken out, schedules find what is skipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.simulation import feeding
from tests.simulation.feeding import run_feeds
from txn.model import Row
from txn.protocol.row import created_ms
from txn.protocol.statuses import PROTOCOLS, ProtocolName
from txn.reading import feed
from txn.reading.feed import Bounds, Offset, Survey

SCHEDULES = 150
MOST_SCHEDULES = 300
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_transaction_is_told_once(protocol: ProtocolName) -> None:
    run_feeds(range(SCHEDULES), protocol)


def forget_undecided(patch: Patch) -> None:
    make_offset = Survey.make_offset

    def make(self: Survey, until_ms: int, bounds: Bounds) -> Offset:
        return replace(make_offset(self, until_ms, bounds), undecided=frozenset())

    patch.setattr(Survey, "make_offset", make)


def scan_from_now_on(patch: Patch) -> None:
    make_offset = Survey.make_offset

    def make(self: Survey, until_ms: int, bounds: Bounds) -> Offset:
        return replace(make_offset(self, until_ms, bounds), low_ms=self.began_ms)

    patch.setattr(Survey, "make_offset", make)


def order_by_row_keys(patch: Patch) -> None:
    find_decision = feed.find_decision

    def find(row: Row) -> int | None:
        at_ms = find_decision(row)
        return created_ms(row.row) if at_ms else at_ms

    patch.setattr(feed, "find_decision", find)


def trust_all_clocks(patch: Patch) -> None:
    patch.setattr(feeding, "JUMPS_MS", -200)


def expect_rows_at_once(patch: Patch) -> None:
    patch.setattr(feeding, "LATENESS_MS", 0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "take_out",
    [
        forget_undecided,
        scan_from_now_on,
        order_by_row_keys,
        trust_all_clocks,
        expect_rows_at_once,
    ],
)
def test_without_a_rule_something_is_skipped(
    take_out: Callable[[Patch], None], protocol: ProtocolName, monkeypatch: Patch
) -> None:
    take_out(monkeypatch)
    with pytest.raises(AssertionError, match=r"not told: |a part has changed"):
        run_feeds(range(MOST_SCHEDULES), protocol)
