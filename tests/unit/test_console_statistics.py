"""The last hour from a bounded sample: estimates, what is kept, and a bounded cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from recovery.console import statistics
from recovery.console.pages import list_latencies
from recovery.console.statistics import (
    MINUTE_MS,
    MINUTES,
    Hour,
    Latency,
    Minute,
    Reason,
    Sampler,
    measure_latency,
    read_reason,
)
from tests.unit.test_search import NOW_MS, TXN, Fetching, Rows
from tests.unit.worlds import TABLE, World, X, Y, Z
from txn.assertions import Some, Version
from txn.errors import AbortedError, AssertionFailedError, ConflictError, DeadlineError
from txn.model import Edit, Key, Mutation, Row
from txn.protocol.codec import Plan, encode_plan
from txn.protocol.row import child_key, column, marker_key, new_row_key
from txn.protocol.statuses import Status
from txn.request import Request
from txn.text import reason_text

THIS = NOW_MS - NOW_MS % MINUTE_MS
PAST = 10 * MINUTE_MS


def sample_all(rows: Rows) -> Hour:
    return Sampler(rows.context).refresh(10**9)


def find_minute(hour: Hour, began_ms: int) -> Minute:
    return next(each for each in hour.minutes if each.began_ms == began_ms)


def put_reason(rows: Rows, row_keys: list[bytes], reason: str) -> None:
    edits = [Edit(column(TXN, row, b"reason"), reason.encode(), 1) for row in row_keys]
    rows.store.write(edits)


@pytest.mark.parametrize("prefixes", [[b""], [b"00.", b"01.", b"02."]])
def test_a_minute_of_few_rows_is_counted(prefixes: list[bytes]) -> None:
    """Nothing is estimated where all is read."""
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
        10 * many,
        True,
        started=10 * many,
        outcomes=Counter(committed=6 * many, aborted=3 * many, undecided=many),
        statuses=Counter({"5-COMPLETE": 6 * many, "7-ABORTED": 3 * many, "1-LOCKED": many}),
        reasons=Counter({"key is locked": many}),
        conflicts=many,
        conflicts_by_table=Counter({b"data": many}),
        whole_rows=10 * many,
    )


def make_keys(rng: Random, prefixes: list[bytes], began_ms: int, number: int) -> list[bytes]:
    """Return row keys in any of the salt buckets, ten milliseconds apart."""
    return [
        rng.choice(prefixes) + new_row_key(began_ms + 10 * at, rng.getrandbits(128))
        for at in range(number)
    ]


@pytest.mark.parametrize("prefixes", [[b""], [b"00.", b"01."]])
def test_a_minute_of_many_rows_is_estimated(prefixes: list[bytes]) -> None:
    """From what its first and its last rows say of the rest."""
    rows, rng = Rows(), Random(2)
    began = THIS - PAST
    keys = make_keys(rng, prefixes, began, 6_000)
    rows.put([key for at, key in enumerate(keys) if at % 4])
    rows.put(keys[::4], Status.ABORTED)
    put_reason(rows, keys[::8], "key is locked: key data/r/d:x, holder transaction.1")
    hour = sample_all(rows)
    found = find_minute(hour, began)
    assert not found.is_whole
    assert found.sampled == 200
    assert found.started == pytest.approx(6_000, rel=0.2)
    assert found.outcomes["aborted"] == pytest.approx(1_500, rel=0.4)
    assert found.conflicts == pytest.approx(750, rel=0.5)
    assert found.outcomes.total() == pytest.approx(found.started, abs=2)
    assert hour.conflicts_by_table == [(b"data", found.conflicts)]
    assert hour.reasons == [("key is locked", found.conflicts)]


@pytest.mark.parametrize("prefixes", [[b""], [b"00.", b"01."]])
def test_the_end_of_a_busy_minute_is_in_its_sample(prefixes: list[bytes]) -> None:
    """A crash after a burst of commits must show beside them."""
    rows, rng = Rows(), Random(4)
    began = THIS - PAST
    keys = make_keys(rng, prefixes, began, 1_500)
    rows.put(keys[:1_200])
    rows.put(keys[1_200:], Status.LOCKED)
    found = find_minute(sample_all(rows), began)
    assert (found.sampled, found.is_whole) == (200, False)
    assert found.outcomes["committed"] > 100
    assert found.outcomes["undecided"] > 100


@pytest.mark.parametrize("number", [100, 101, 150, 200, 201, 202])
def test_every_row_of_a_minute_is_counted_once(number: int) -> None:
    """Where its first and its last rows meet."""
    rows = Rows()
    began = THIS - PAST
    rows.put([new_row_key(began + at, at) for at in range(number)])
    found = find_minute(sample_all(rows), began)
    assert (found.sampled, found.is_whole) == ((number, True) if number < 202 else (200, False))


def test_the_cost_of_a_refresh_is_not_that_of_the_table() -> None:
    """A busy hour is looked at as quickly as a quiet one."""
    costs = []
    for number in (13_000, 26_000):
        rows, rng = Rows(), Random(3)
        rows.put(
            [
                new_row_key(THIS - at * 60 * MINUTE_MS // number, rng.getrandbits(128))
                for at in range(number)
            ]
        )
        store = Fetching(rows.store)
        hour = Sampler(replace(rows.context, store=store)).refresh(10**9)
        assert hour.missing == 0
        costs.append((sum(store.calls.values()), store.rows))
    assert [calls for calls, _ in costs] == [costs[0][0]] * 2
    assert costs[1][0] <= 10 * MINUTES
    assert costs[1][1] <= MINUTES * 202


def test_the_hottest_keys_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what was read wholly, which is bounded in rows and bytes."""
    rows = Rows()
    hot, cold = Key("hot", "d", "x", "data"), Key("cold", "d", "x", "data")
    for at in range(30):
        keys = [hot, cold] if at % 3 == 0 else [hot]
        request = Request(tuple(Mutation(key, b"1") for key in keys))
        rows.put([new_row_key(THIS - PAST + at, at)], request=request)
    hour = sample_all(rows)
    assert hour.keys == [(hot, 30), (cold, 10)]
    assert hour.whole_rows == 30
    with monkeypatch.context() as patch:
        patch.setattr(statistics, "WHOLE_ROWS", 6)
        patch.setattr(statistics, "MOST_NAMED", 1)
        few = sample_all(rows)
        assert (few.whole_rows, few.keys) == (6, [(hot, 6)])
    with monkeypatch.context() as patch:
        patch.setattr(statistics, "WHOLE_BYTES", 1)
        assert sample_all(rows).whole_rows == 1
    monkeypatch.setattr(statistics, "KEYS_OF_REQUEST", 1)
    assert sample_all(rows).keys == [(hot, 30)]


def test_rows_of_the_library_itself_are_not_named() -> None:
    """Somebody asks for locks or uses tokens all the time: that is no news of a program's keys."""
    rows = Rows()
    shown = [Key("shop", "d", "x", "data"), Key("shop", "d", "x", "locks")]
    own = [Key("shop", family, "queue", "locks") for family in ("o", "s")]
    own.append(marker_key(TXN, b"token"))
    request = Request(tuple(Mutation(key, b"1") for key in (*own, *shown)))
    rows.put([new_row_key(THIS - PAST, 1)], request=request)
    assert {key for key, _ in sample_all(rows).keys} == set(shown)


def put_times(rows: Rows, row_key: bytes, times: Mapping[Status, int]) -> None:
    """Put a row with the times of its statuses; it has the last one."""
    rows.put([row_key], [*times][-1])
    cells = {column(TXN, row_key, status.at): at for status, at in times.items()}
    rows.store.write([Edit(key, b"", at) for key, at in cells.items()])
    plan = encode_plan(Plan(NOW_MS, ()))
    rows.store.write([Edit(column(TXN, row_key, b"plan"), plan, NOW_MS)])


def test_the_time_of_each_phase_is_that_between_statuses() -> None:
    """Of those that committed; by the times in their rows, which are the server's."""
    rows = Rows()
    for at in range(1, 101):
        now_ms = NOW_MS + 1
        times = {
            Status.WRITTEN: now_ms,
            Status.LOCKED: now_ms + at,
            Status.ASSERTED: now_ms + at + 5,
        }
        put_times(rows, new_row_key(THIS - PAST + at, at), times)
    gone = {Status.WRITTEN: NOW_MS + 1, Status.ABORTING: NOW_MS + 9_000}
    rows.put([new_row_key(THIS - PAST, 999)], Status.ABORTING)
    rows.store.write(
        [
            Edit(column(TXN, new_row_key(THIS - PAST, 999), status.at), b"", at)
            for status, at in gone.items()
        ]
    )
    hour = sample_all(rows)
    assert list_latencies(hour) == [
        Latency("lock", 100, 50, 95, 99),
        Latency("assert", 100, 5, 5, 5),
    ]


@pytest.mark.parametrize(("times", "found"), [([7], (7, 7, 7)), ([1, 9], (1, 9, 9))])
def test_percentiles_of_few_times_are_among_them(
    times: list[int], found: tuple[int, int, int]
) -> None:
    """Nothing is made up between two of them."""
    assert measure_latency("put", times) == Latency("put", len(times), *found)


def test_a_request_that_does_not_decode_is_passed_over() -> None:
    """What has become of its transaction counts all the same."""
    rows = Rows()
    (row_key,) = rows.put([new_row_key(THIS - PAST, 1)])
    rows.store.write([Edit(column(TXN, row_key, b"buffer"), b"junk", NOW_MS + 1)])
    hour = sample_all(rows)
    assert (hour.whole_rows, find_minute(hour, THIS - PAST).outcomes["committed"]) == (0, 1)


def test_rows_of_parts_are_not_counted() -> None:
    """A transaction in parts is one."""
    rows = Rows()
    whole = new_row_key(THIS - PAST, 1)
    rows.put([whole])
    rows.put([child_key(whole, 0, number) for number in range(1_000)], Status.PART)
    hour = sample_all(rows)
    found = find_minute(hour, THIS - PAST)
    assert (found.started, found.sampled, found.is_whole) == (1, 1, True)
    assert hour.whole_rows == 1


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
    """The newest first; the last three each time, and the others once."""
    rows = Rows()
    rows.put([new_row_key(THIS, 1)])
    store = Lasting(rows)
    sampler = Sampler(replace(rows.context, store=store))
    hours = []
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
    """What was begun in it may end a while later; so it is sampled again until then."""
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


def test_an_empty_table_had_a_quiet_hour() -> None:
    """Nothing is missing then."""
    hour = sample_all(Rows())
    assert (hour.missing, hour.whole_rows, len(hour.minutes)) == (0, 0, MINUTES)
    assert {each.started for each in hour.minutes} == {0}


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
        (AssertionFailedError(Some(Y) | Version(Y, 1), {Y: None}), "assertion failed", None),
        (AssertionFailedError(Version(Z, 7), {Z: None}), "value changed after read", TABLE),
        (
            AssertionFailedError(Version(Z, None), {Z: None}),
            "value changed after read",
            TABLE,
        ),
        (
            ConflictError("key is locked", key=Key("a, holder /b", "d", "x", b"\xff"), holder=b"t"),
            "key is locked",
            b"\xff",
        ),
    ],
)
def test_a_reason_tells_of_a_conflict(error: AbortedError, words: str, table: bytes | None) -> None:
    """Another transaction was in the way; where a version has changed one was, as well."""
    assert read_reason(reason_text(error)) == Reason(words, table)


def test_a_reason_that_somebody_else_wrote_is_taken_as_it_is() -> None:
    """It is only told."""
    assert read_reason("") == Reason("", None)
    assert read_reason(r"key is locked: key a\q/b") == Reason("key is locked", b"")
    assert read_reason("z" * 500) == Reason("z" * 80, None)


def test_real_aborts_are_counted() -> None:
    """As the library writes them, and not only as these tests do."""
    world = World()
    world.engine.commit([Mutation(X, b"1")])
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"2")], [Version(X, 5)])
    hour = Sampler(world.engine.context).refresh()
    (minute,) = [each for each in hour.minutes if each.started]
    assert (minute.outcomes, minute.conflicts) == ({"committed": 1, "aborted": 1}, 1)
    assert hour.conflicts_by_table == [(TABLE, 1)]
