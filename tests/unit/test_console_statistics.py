"""The last hour: counts in steps, what is kept, and a bounded cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from recovery.console import statistics
from recovery.console.charts import LEAST, WIDTH, draw_timeline
from recovery.console.pages import describe_owner, list_latencies
from recovery.console.statistics import (
    MINUTE_MS,
    MINUTES,
    Hour,
    Latency,
    Minute,
    Reason,
    Sampler,
    read_reason,
)
from recovery.inspect import explain
from tests.unit.test_search import NOW_MS, TXN, Fetching, Rows
from tests.unit.worlds import TABLE, World, X, Y, Z, stopped_at
from txn.assertions import Some, Version
from txn.errors import AbortedError, AssertionFailedError, ConflictError, DeadlineError
from txn.model import Edit, Key, Mutation, Row
from txn.protocol.codec import Plan, encode_plan
from txn.protocol.row import child_key, column, new_row_key
from txn.protocol.statuses import ProtocolName, Status
from txn.request import Request
from txn.text import reason_text

THIS = NOW_MS - NOW_MS % MINUTE_MS
PAST = 10 * MINUTE_MS
ODD = Key("a, holder /b", "d", "x", b"\xff")


def sample_all(rows: Rows) -> Hour:
    return Sampler(rows.context).refresh(10**9)


def find_minute(hour: Hour, began_ms: int) -> Minute:
    return next(each for each in hour.minutes if each.began_ms == began_ms)


def count_whole(hour: Hour) -> int:
    return sum(each.whole_rows for each in hour.minutes)


def put_reason(rows: Rows, row_keys: list[bytes], reason: str) -> None:
    edits = [Edit(column(TXN, row, b"reason"), reason.encode(), 1) for row in row_keys]
    rows.store.write(edits)


@pytest.mark.parametrize("prefixes", [[b""], [b"00.", b"01.", b"02."]])
def test_a_minute_of_few_rows_is_counted(prefixes: list[bytes]) -> None:
    rows = Rows()
    began = THIS - PAST
    keys = [prefix + new_row_key(began + at, at) for at in range(10) for prefix in prefixes]
    many = len(prefixes)
    rows.put(keys[4 * many :])
    rows.put(keys[: 3 * many], Status.ABORTED)
    rows.put(keys[3 * many : 4 * many], Status.LOCKED)
    put_reason(rows, keys[:many], "key is locked: key data/r/d:x, holder transaction.1")
    rows.put([new_row_key(began - 1, 1), new_row_key(began + MINUTE_MS, 1)])
    found = find_minute(sample_all(rows), began)
    assert found == Minute(
        began,
        NOW_MS,
        started=10 * many,
        outcomes=Counter(committed=6 * many, aborted=3 * many, undecided=many),
        statuses=Counter({"5-COMPLETE": 6 * many, "7-ABORTED": 3 * many, "1-LOCKED": many}),
        reasons=Counter({"key is locked": many}),
        conflicts_by_table=Counter({b"data": many}),
        whole_rows=10 * many,
    )


@pytest.mark.parametrize("prefixes", [[b""], [b"00.", b"01."]])
@pytest.mark.parametrize("number", [1_999, 2_000, 2_001, 6_000])
def test_a_burst_is_counted(prefixes: list[bytes], number: int) -> None:
    """It was taken for what a few rows say of a whole minute: for 203, 5,000 rows or 100,000."""
    rows, rng = Rows(), Random(2)
    began = THIS - PAST
    keys = [
        rng.choice(prefixes) + new_row_key(began + 800 * at // number, rng.getrandbits(128))
        for at in range(number)
    ]
    rows.put(keys[: number // 2])
    rows.put(keys[number // 2 :], Status.ABORTED)
    put_reason(rows, keys[-700:], "key is locked: key data/r/d:x, holder transaction.1")
    hour = sample_all(rows)
    found = find_minute(hour, began)
    assert (found.started, found.is_whole, hour.is_partial) == (number, True, False)
    assert found.outcomes == Counter(committed=number // 2, aborted=number - number // 2)
    assert (found.conflicts, hour.conflicts_by_table) == (700, [(b"data", 700)])
    assert hour.reasons == [("key is locked", 700)]


def test_a_count_that_is_under_way_is_a_lower_bound() -> None:
    rows = Rows()
    rows.put([new_row_key(THIS + at, at) for at in range(1_000)])
    rows.put([new_row_key(THIS + 1_000, at) for at in range(6_000)])
    sampler = Sampler(replace(rows.context, store=Lasting(rows)))
    shown = [find_minute(sampler.refresh(1), THIS) for _ in range(6)]
    assert [each.started for each in shown] == [2_000, 4_000, 6_000, 7_000, 7_000, 7_000]
    assert [each.is_whole for each in shown] == [False] * 3 + [True] * 3


def test_the_hottest_keys_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows()
    hot, cold = Key("hot", "d", "x", "data"), Key("cold", "d", "x", "data")
    for at in range(30):
        keys = [hot, cold] if at % 3 == 0 else [hot]
        request = Request(tuple(Mutation(key, b"1") for key in keys))
        rows.put([new_row_key(THIS - PAST + at, at)], request=request)
    hour = sample_all(rows)
    assert hour.keys == [(hot, 30), (cold, 10)]
    assert count_whole(hour) == 30
    monkeypatch.setattr(statistics, "WHOLE_ROWS", 6)
    monkeypatch.setattr(statistics, "MOST_NAMED", 1)
    few = sample_all(rows)
    assert (count_whole(few), few.keys) == (6, [(hot, 6)])


def put_times(rows: Rows, row_key: bytes, times: Mapping[Status, int]) -> None:
    """Put a row with the times of its statuses; it has the last one."""
    rows.put([row_key], [*times][-1])
    cells = {column(TXN, row_key, status.at): at for status, at in times.items()}
    rows.store.write([Edit(key, b"", at) for key, at in cells.items()])
    plan = encode_plan(Plan(NOW_MS, ()))
    rows.store.write([Edit(column(TXN, row_key, b"plan"), plan, NOW_MS)])


def test_the_time_of_each_phase_is_that_between_statuses() -> None:
    rows = Rows()
    for at in range(1, 101):
        since = {Status.WRITTEN: 1, Status.LOCKED: at + 1, Status.ASSERTED: at + 6}
        times = {status: NOW_MS + ms for status, ms in since.items()}
        put_times(rows, new_row_key(THIS - PAST + at, at), times)
    (gone,) = rows.put([new_row_key(THIS - PAST, 999)], Status.ABORTING)
    times = {Status.WRITTEN: NOW_MS + 1, Status.ABORTING: NOW_MS + 9_000}
    rows.store.write([Edit(column(TXN, gone, each.at), b"", at) for each, at in times.items()])
    hour = sample_all(rows)
    assert list_latencies(hour) == [
        Latency("lock", 100, 50, 95, 99),
        Latency("assert", 100, 5, 5, 5),
    ]


def test_rows_of_parts_are_not_counted() -> None:
    rows = Rows()
    whole = new_row_key(THIS - PAST, 1)
    rows.put([whole])
    rows.put([child_key(whole, 0, number) for number in range(1_000)], Status.PART)
    hour = sample_all(rows)
    found = find_minute(hour, THIS - PAST)
    assert (found.started, found.is_whole) == (1, True)
    assert count_whole(hour) == 1
    rows.store.write([Edit(column(TXN, whole, b"buffer"), b"junk", NOW_MS + 1)])
    hour = sample_all(rows)  # what does not decode is passed over
    assert (count_whole(hour), find_minute(hour, THIS - PAST).outcomes["committed"]) == (0, 1)


class Lasting(Fetching):
    """A store whose scans take a tenth of a second, and which notes their beginnings."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows.store)
        self.starts: list[bytes] = []
        self._clock = rows.clock

    def scan(self, *args: Any, **options: Any) -> Iterator[Row]:
        self._clock.advance(100)
        self.starts.append(args[1])
        yield from super().scan(*args, **options)


def test_a_refresh_goes_on_where_it_stopped() -> None:
    rows = Rows()
    rows.put([new_row_key(THIS, 1)])
    store = Lasting(rows)
    sampler = Sampler(replace(rows.context, store=store))
    hours: list[Hour] = []
    while not hours or hours[-1].missing:
        began_ms = rows.clock.monotonic_ms()
        hours.append(sampler.refresh(2_000))
        assert rows.clock.monotonic_ms() - began_ms <= 3_000
    assert 3 < len(hours) < 10
    assert hours[0].minutes[-1].began_ms == THIS
    missing = [hour.missing for hour in hours]
    assert missing == sorted(missing, reverse=True)
    store.starts.clear()
    sampler.refresh(2_000)
    times = {int(start[-13:]) for start in store.starts if len(start) > 20}
    assert len(times) == 3


def test_a_minute_is_kept_once_it_has_settled() -> None:
    rows = Rows()
    began = THIS
    (row_key,) = rows.put([new_row_key(began, 1)], Status.LOCKED)
    sampler = Sampler(rows.context)
    assert find_minute(sampler.refresh(10**9), began).outcomes["undecided"] == 1
    rows.put([row_key], Status.COMPLETE, at_ms=NOW_MS + 1)
    rows.clock.advance(3 * MINUTE_MS)
    assert find_minute(sampler.refresh(10**9), began).outcomes["committed"] == 1
    rows.put([new_row_key(began, 2)])
    rows.clock.advance(MINUTE_MS)
    assert find_minute(sampler.refresh(10**9), began).started == 1
    rows.clock.advance(MINUTES * MINUTE_MS)
    hour = sampler.refresh(10**9)
    assert hour.minutes[0].began_ms > began
    assert len(hour.minutes) == MINUTES


@pytest.mark.parametrize(
    ("error", "words", "table"),
    [
        (ConflictError("key is locked", key=X, holder=b"t"), "key is locked", TABLE),
        (ConflictError("scanned rows keep changing"), "scanned rows keep changing", b""),
        (
            DeadlineError("deadline passed waiting for a lock", key=Y, holder=None),
            "deadline passed waiting for a lock",
            TABLE,
        ),
        (DeadlineError("deadline passed"), "deadline passed", None),
        (AssertionFailedError(Some(Y), {Y: None}), "assertion failed", None),
        (AssertionFailedError(Version(Z, 7), {Z: None}), "value changed after read", TABLE),
        (ConflictError("key is locked", key=ODD, holder=b"t"), "key is locked", b"\xff"),
    ],
)
def test_a_reason_tells_of_a_conflict(error: AbortedError, words: str, table: bytes | None) -> None:
    assert read_reason(reason_text(error)) == Reason(words, table)


def test_real_aborts_are_counted() -> None:
    world = World()
    world.engine.commit([Mutation(X, b"1")])
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"2")], [Version(X, 5)])
    hour = Sampler(world.engine.context).refresh()
    (minute,) = [each for each in hour.minutes if each.started]
    assert (minute.outcomes, minute.conflicts) == ({"committed": 1, "aborted": 1}, 1)
    assert hour.conflicts_by_table == [(TABLE, 1)]


@pytest.mark.parametrize(
    ("beyond_ms", "words"), [(0, "alive: within its lock TTL"), (1, "dead: lock TTL expired")]
)
def test_an_owner_is_late_once_its_lease_has_expired(beyond_ms: int, words: str) -> None:
    world = World()
    stopped_at(world, Status.LOCKED)
    row = world.rows()[-1]
    assert row.buffer is not None
    since_ms, lock_ttl_ms = max(row.since, row.heartbeat), row.buffer.lock_ttl_ms
    found = describe_owner(row, since_ms + lock_ttl_ms + beyond_ms)
    assert found == (lock_ttl_ms + beyond_ms, 1, words)
    assert describe_owner(row, since_ms - 1)[0] == 0
    fast = replace(row, heartbeat=since_ms + 3_600_000)
    assert describe_owner(fast, since_ms + lock_ttl_ms + beyond_ms) == found


def test_what_is_unfinished_goes_on_until_now() -> None:
    world = World()
    found = explain(world.client().context, stopped_at(world, Status.LOCKED))
    assert found is not None
    drawn = draw_timeline(found, found.statuses[-1].since + 3_600_000)
    assert drawn is not None
    assert [each.is_open for each in drawn.segments] == [False, True]
    assert drawn.segments[-1].duration == "1 h 0 m"
    assert drawn.segments[0].width >= LEAST
    assert drawn.segments[-1].x + drawn.segments[-1].width < WIDTH
    assert draw_timeline(replace(found, statuses=()), 0) is None


@pytest.mark.parametrize(
    ("protocol", "names"),
    [
        ("six-phase", ["lock", "assert", "put", "clean", "unlock, wait"]),
        ("fenced", ["lock, assert", "put, unlock, wait"]),
    ],
)
def test_a_finished_transaction_is_a_closed_line(
    protocol: ProtocolName, names: Sequence[str]
) -> None:
    """Each status stands where the work before it ends, and nothing goes on."""
    world = World(protocol=protocol)
    done = world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    found = explain(world.engine.context, done.transaction)
    assert found is not None
    drawn = draw_timeline(found, world.clock.wall_ms() + 60_000)
    assert drawn is not None
    assert [mark.name for mark in drawn.marks] == [str(each.status) for each in found.statuses]
    ends = [each.x + each.width for each in drawn.segments]
    assert ends == pytest.approx([mark.x for mark in drawn.marks[1:]])
    assert not any(each.is_open for each in drawn.segments)
    assert [each.name for each in drawn.segments] == names
