"""The search for transactions: order, exactly once, filters, and a cost without the table's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.bounds import ReadLimits, Stop
from recovery.scan import AHEAD_MS
from recovery.search import Query, SearchPage, find_page
from tests.unit.worlds import TABLE, BreakingOff, World, X, Y, after_status
from txn.clock import ManualClock
from txn.errors import InvalidRequestError
from txn.events import silent
from txn.model import Cell, Edit, Family, Key, Mutation, Row
from txn.policy import Policy
from txn.protocol.codec import encode_buffer
from txn.protocol.context import Context
from txn.protocol.listing import MAX_PARTS, find_buckets, scan_transactions, strip_bucket
from txn.protocol.row import child_key, column, new_row_key
from txn.protocol.statuses import FENCED, SIX_PHASE, Status
from txn.request import Request
from txn.stores import open_store
from txn.stores.base import Store
from txn.testing.counting import CountingStore
from txn.testing.faulty import Crash, Fault, Reply

TXN = b"txn"
NOW_MS = 1_700_000_000_000
ALL = Query()
MOST = ReadLimits(rows=10**9, bytes_=10**12, ms=10**9)


class Rows:
    """A transaction table with rows that were put there, and nothing else."""

    def __init__(self, uri: str = "memory://") -> None:
        self.clock = ManualClock(NOW_MS)
        self.store: Store = open_store(uri, self.clock)
        self.store.ensure_table(TXN, {b"t": Family()})
        rules, rng = SIX_PHASE, Random(1)
        self.context = Context(self.store, TXN, self.clock, rng, Policy(), silent, rules)

    def put(
        self,
        row_keys: list[bytes],
        status: Status | None = Status.COMPLETE,
        request: Request | None = None,
        at_ms: int | None = None,
    ) -> list[bytes]:
        buffer = encode_buffer(request or Request(()), 1_000)
        cells = {b"buffer": buffer} if status is None else {b"buffer": buffer, **told(status)}
        self.store.write(
            [
                Edit(column(TXN, row, name), value, at_ms or NOW_MS)
                for row in row_keys
                for name, value in cells.items()
            ]
        )
        return row_keys


def told(status: Status) -> dict[bytes, bytes]:
    return {b"status": status.encoded, status.at: b""}


def order(row_key: bytes) -> bytes:
    return row_key[row_key.index(b"transaction.") :]


def list_pages(
    context: Context, query: Query = ALL, limits: ReadLimits = MOST, count: int = 50
) -> Iterator[SearchPage]:
    """Go through all pages."""
    before: bytes | None = None
    while True:
        page = find_page(context, query, before, limits, count)
        yield page
        if page.next is None:
            return
        assert page.next != before, "no way forward"
        before = page.next


def list_keys_found(context: Context, *args: Any, **options: Any) -> list[bytes]:
    return [row.row_key for page in list_pages(context, *args, **options) for row in page.rows]


MOMENTS = st.one_of(
    st.integers(NOW_MS - 5, NOW_MS + 5),  # many of one ms
    st.integers(0, 10**13 - 1),
    st.integers(NOW_MS - 10**8, NOW_MS),
)
UIDS = st.one_of(st.integers(0, 40), st.integers(0, 2**128 - 1), st.just(2**128 - 1))
PREFIXES = st.sampled_from([b"", b"00.", b"01.", b"07.", b"99."])
PARTS = st.one_of(st.none(), st.tuples(st.integers(0, 99_999), st.integers(0, 99_999)))
KEYS = st.builds(
    lambda prefix, ms, uid, part: (
        prefix + new_row_key(ms, uid)
        if part is None
        else child_key(prefix + new_row_key(ms, uid), *part)
    ),
    PREFIXES,
    MOMENTS,
    UIDS,
    PARTS,
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(KEYS, max_size=60, unique_by=order),  # what is random in a key gives it its bucket
    st.integers(1, 9),
    st.integers(1, 12),
    st.booleans(),
    st.booleans(),
)
def test_pages_have_each_row_once_and_in_order(
    row_keys: list[bytes], count: int, most: int, with_parts: bool, with_statuses: bool
) -> None:
    rows = Rows()
    half = len(row_keys) // 2 if with_statuses else len(row_keys)
    rows.put(row_keys[:half])
    rows.put(row_keys[half:], None)
    limits = replace(MOST, rows=most)
    found = list_keys_found(rows.context, Query(with_parts=with_parts), limits, count)
    due = [row for row in row_keys if with_parts or b".part-" not in row]
    in_use = {b"", *(row[: row.index(b"transaction.")] for row in row_keys[:half])}
    due = [row for row in due if row[: row.index(b"transaction.")] in in_use]
    assert found == sorted(due, key=order, reverse=True)


def test_a_page_can_begin_at_a_time_or_a_row() -> None:
    rows = Rows()
    keys = rows.put([new_row_key(NOW_MS - number, 5) for number in range(10)])
    found = find_page(rows.context, Query(), b"%013d" % (NOW_MS - 7))
    assert [row.row_key for row in found.rows] == keys[8:]
    found = find_page(rows.context, Query(), keys[7])
    assert [row.row_key for row in found.rows] == keys[8:]
    with pytest.raises(InvalidRequestError, match="13 digits"):
        find_page(rows.context, Query(), b"yesterday")


class Fetching(CountingStore):
    """A store that counts what is taken from it: rows of scans, bytes in all and in one call at
    most. A row may take its time."""

    rows = largest = total = 0

    def __init__(self, inner: Store, on_row: Callable[[], object] = lambda: None) -> None:
        super().__init__(inner)
        self._on_row = on_row

    def read(self, *groups: Any, **options: Any) -> dict[Key, Cell | None]:
        found = super().read(*groups, **options)
        self._weigh([cell for cell in found.values() if cell])
        return found

    def read_versions(self, keys: Any, count: int) -> dict[Key, list[Cell]]:
        found = super().read_versions(keys, count)
        self._weigh([cell for cells in found.values() for cell in cells])
        return found

    def scan(self, *args: Any, **options: Any) -> Iterator[Row]:
        for row in super().scan(*args, **options):
            self.rows += 1
            self._weigh(list(row.cells.values()))
            self._on_row()
            yield row

    def _weigh(self, cells: list[Cell]) -> None:
        size = sum(len(cell.value) for cell in cells)
        self.total, self.largest = self.total + size, max(self.largest, size)


def find_cost(rows: Rows, query: Query) -> tuple[int, int, int]:
    """How many calls a page takes, how many rows it is sent, and reads."""
    store = Fetching(rows.store)
    page = find_page(replace(rows.context, store=store), query)
    return sum(store.calls.values()), store.rows, page.read


@pytest.mark.parametrize(
    ("query", "most"),
    [
        (ALL, 50),
        (Query(statuses=frozenset({Status.LOCKED})), 2_000),
        (Query(key=X), 2_000),
        (Query(older_than_ms=200_000), 2_000),
        (Query(id_=b"f00f"), 2_000),
    ],
    ids=["all", "status", "key", "age", "id"],
)
@pytest.mark.parametrize("uri", ["memory://", "embedded"])
def test_the_cost_of_a_page_is_not_that_of_the_table(
    query: Query, most: int, uri: str, tmp_path: Path
) -> None:
    costs = []
    for number in (3_000, 6_000):
        place = uri if uri == "memory://" else f"embedded://{tmp_path}/{number}?sync=off"
        rows, rng = Rows(place), Random(3)
        rows.put([new_row_key(NOW_MS - 100 * at, rng.getrandbits(128)) for at in range(number)])
        costs.append(find_cost(rows, query))
        rows.store.close()
    small, large = costs
    assert small == large
    assert large == (2, most, most)


@pytest.mark.parametrize(
    ("stop", "limits"),
    [
        (Stop.ROWS, replace(MOST, rows=200)),
        (Stop.BYTES, replace(MOST, bytes_=1_000_000)),
        (Stop.TIME, replace(MOST, ms=2_000)),
    ],
)
@pytest.mark.parametrize("query", [ALL, Query(key=X)], ids=["all", "key"])
def test_a_page_is_bounded(stop: Stop, limits: ReadLimits, query: Query) -> None:
    """And says how far it has read."""
    rows, rng = Rows(), Random(7)
    small, big = (Request((Mutation(X, b"x" * size),)) for size in (1, 100_000))
    keys = rows.put([new_row_key(NOW_MS, rng.getrandbits(128)) for _ in range(300)], request=small)
    if stop is Stop.BYTES:
        keys = rows.put(keys[:80], request=big) + keys[80:]
    store = Fetching(rows.store, lambda: rows.clock.advance(100 if stop is Stop.TIME else 0))
    context, before, found = replace(rows.context, store=store), None, list[bytes]()
    while True:
        store.total = 0
        page = find_page(context, query, before, limits, 250)
        found += [row.row_key for row in page.rows]
        assert page.read <= limits.rows and store.largest < 101_000
        assert store.total < limits.bytes_ + store.largest
        if page.next is None:
            break
        assert (page.stopped, page.back_to, page.next) == (stop, NOW_MS, found[-1])
        before = page.next
    assert before is not None and found == sorted(keys, reverse=True)


def test_a_piece_of_a_row_key_is_found() -> None:
    rows, rng = Rows(), Random(5)
    keys = [
        b"0%d." % (at % 3) + new_row_key(NOW_MS - at * 50_000, rng.getrandbits(128))
        for at in range(3_000)
    ]
    rows.put(keys)
    wanted = keys[2_990]
    name, uid = wanted[3:], wanted[-32:]
    for piece in (wanted, wanted[:30], name, name[:29], name[12:], name[12:28], name[12:25]):
        calls, _, on_row = find_cost(rows, Query(id_=piece))
        assert on_row <= 2, piece
        assert calls < 20, piece
        assert list_keys_found(rows.context, Query(id_=piece)) == [wanted], piece
    for piece in (uid, uid[:9], uid[-9:]):
        assert list_keys_found(rows.context, Query(id_=piece)) == [wanted], piece
    assert list_keys_found(rows.context, Query(id_=b"transaction.0")) == []


def test_parts_are_found_by_what_only_they_have() -> None:
    rows = Rows()
    whole = new_row_key(NOW_MS, 1)
    parts = [child_key(whole, 3, number) for number in range(5)]
    rows.put([whole])
    rows.put(parts, Status.PART)
    assert list_keys_found(rows.context, Query(id_=b"part-00003-00002")) == [parts[2]]
    assert list_keys_found(rows.context, Query(id_=parts[2][:-1])) == parts[::-1]
    assert list_keys_found(rows.context, Query(id_=parts[2])) == [parts[2]]
    assert list_keys_found(rows.context) == [whole]
    assert list_keys_found(rows.context, Query(with_parts=True)) == [
        *parts[::-1],
        whole,
    ]


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_transactions_are_found_by_what_they_name(protocol: Any) -> None:
    world = World(protocol=protocol)
    context = world.engine.context
    other, far_away = Key("x", "d", "x", "other"), Key("z", "d", "x", TABLE)
    world.store.ensure_table(b"other", {b"d": Family()})
    found = []
    for number, keys in enumerate(([X], [X, Y], [Y, other])):
        world.clock.advance(10)
        labels = {"job": f"load{number}"}
        mutations = [Mutation(key, b"1") for key in keys]
        found.append(world.engine.commit(mutations, labels=labels).transaction)
    world.clock.advance(10)
    after_status(world, Status.ASSERTED, Fault(reply=Reply.CRASH))
    with pytest.raises(Crash):
        world.client(world.faults, seed=9).commit([Mutation(X, b"2"), Mutation(far_away, b"2")])
    world.faults.crashed, world.faults.plan = False, lambda call: Fault()
    stuck = world.rows()[-1].row_key
    one, both, far = found

    def list_found(**wanted: Any) -> list[bytes]:
        return list_keys_found(context, Query(**wanted))

    assert list_found() == [stuck, far, both, one]
    assert list_found(key=X) == [stuck, both, one]
    assert list_found(key=other) == [far]
    assert list_found(table=b"other") == [far]
    assert list_found(label="job=load1") == [both]
    assert list_found(label="job=load") == []
    assert list_found(label="load") == [far, both, one]
    assert list_found(statuses=frozenset({Status.ASSERTED})) == [stuck]
    assert list_found(statuses=frozenset({Status.COMPLETE}), key=Y) == [far, both]
    assert list_found(older_than_ms=11) == [both, one]
    assert list_found(newer_than_ms=10) == [stuck, far]


def test_rows_of_others_are_no_transactions() -> None:
    rows = Rows()
    (done,) = rows.put([b"03." + new_row_key(NOW_MS, 1)])
    strange = [b"transaction.0junk", b"03.transaction.0junk", b"05.transaction.x", b"03.zebra"]
    rows.store.write([Edit(column(TXN, row, b"status"), b"x", 1) for row in strange])
    assert list_keys_found(rows.context) == [done]
    (plain,) = rows.put([new_row_key(NOW_MS - 1, 1)])
    assert list_keys_found(rows.context) == [done, plain]


def test_the_old_are_gone_straight_to() -> None:
    """A clock may have been ahead by an hour."""
    rows = Rows()
    old_ms = NOW_MS - 10 * AHEAD_MS
    (old,) = rows.put([new_row_key(old_ms + AHEAD_MS - 1, 1)], at_ms=old_ms)
    rows.put([new_row_key(NOW_MS - at, 1) for at in range(300)])
    wanted = Query(older_than_ms=10 * AHEAD_MS)
    page = find_page(rows.context, wanted)
    assert [row.row_key for row in page.rows] == [old]
    assert page.read == 1


def test_a_fenced_row_is_as_old_as_the_server_says() -> None:
    rows = Rows()
    context = replace(rows.context, rules=FENCED)
    row_key = new_row_key(NOW_MS - 9_000, 1)
    at = column(TXN, row_key, Status.COMPLETE.at)
    status = column(TXN, row_key, b"status")
    rows.store.write([Edit(status, b"5-COMPLETE", 1), Edit(at, b"", NOW_MS - 100)])
    assert list_keys_found(context, Query(newer_than_ms=100)) == [row_key]
    assert list_keys_found(context, Query(older_than_ms=101)) == []


def test_buckets_are_found_by_skipping() -> None:
    rows = Rows()
    assert find_buckets(rows.context) == [b""]
    for prefix in (b"", b"00.", b"07.", b"99."):
        rows.put([prefix + new_row_key(NOW_MS - at, at) for at in range(700)])
    rows.store.write(
        [
            Edit(column(TXN, row, b"status"), b"x", 1)
            for row in (b"05.transaction.x", b"06.zebra", b"once.a", b"protocol", b"z")
        ]
    )
    store = Fetching(rows.store)
    context = replace(rows.context, store=store)
    assert find_buckets(context) == [b"00.", b"05.", b"07.", b"99.", b""]
    assert store.calls["scan"] <= 7
    assert store.rows <= 6


@given(st.lists(KEYS, max_size=40, unique_by=order), st.booleans(), st.booleans())
def test_rows_of_all_buckets_are_merged_in_the_order_of_beginnings(
    row_keys: list[bytes], reverse: bool, with_parts: bool
) -> None:
    rows = Rows()
    rows.put(row_keys)
    found = scan_transactions(rows.context, reverse=reverse, with_parts=with_parts)
    keys = [row.row for row in found if with_parts or b".part-" not in row.row]
    due = [row for row in row_keys if with_parts or b".part-" not in row]
    assert keys == sorted(due, key=strip_bucket, reverse=reverse)


@pytest.mark.parametrize("reverse", [True, False])
def test_a_scan_goes_on_behind_its_last_row_where_the_store_failed(reverse: bool) -> None:
    rows = Rows()
    keys = rows.put([new_row_key(NOW_MS - at, at, salt_buckets=3) for at in range(300)])
    broken: Any = BreakingOff(rows.store, 17)
    found = scan_transactions(replace(rows.context, store=broken), reverse=reverse)
    assert [row.row for row in found] == sorted(keys, key=strip_bucket, reverse=reverse)


@pytest.mark.parametrize("reverse", [True, False])
def test_parts_are_skipped_both_ways(reverse: bool) -> None:
    rows = Rows()
    wholes = [b"03." + new_row_key(NOW_MS + at, at) for at in range(3)]
    rows.put(wholes)
    rows.put([child_key(whole, 1, number) for whole in wholes for number in range(200)])
    found = list(scan_transactions(rows.context, with_parts=False, reverse=reverse))
    keys = [row.row for row in found if b".part-" not in row.row]
    assert keys == sorted(wholes, reverse=reverse)
    assert len(found) == 3 * (1 + MAX_PARTS + 1)
