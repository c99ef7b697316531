"""Browsing transactions backwards: order, exactly once, filters, and a cost without the table's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.bounds import MOST_AT_ONCE, Budget, LookLimits, Stop
from recovery.console.browsing import TransactionPage, WantedTransactions, browse
from recovery.console.positions import PARTS_PASSED, Positions, find_buckets
from recovery.scan import AHEAD_MS
from tests.unit.worlds import TABLE, World, X, Y, after_status
from txn.clock import ManualClock
from txn.errors import InvalidRequestError
from txn.events import silent
from txn.model import Cell, Edit, Family, Key, Mutation, Row
from txn.policy import Policy
from txn.protocol.codec import encode_buffer
from txn.protocol.context import Context
from txn.protocol.row import child_key, column, created_ms, is_row_key, new_row_key
from txn.protocol.statuses import FENCED, SIX_PHASE, Status
from txn.request import Request
from txn.stores import open_store
from txn.stores.base import Store
from txn.testing.counting import CountingStore
from txn.testing.faulty import Crash, Fault, Reply

TXN = b"txn"
NOW_MS = 1_700_000_000_000
ALL = WantedTransactions()
MOST = LookLimits(rows=10**9, bytes_=10**12, ms=10**9)


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


def order(row_key: bytes) -> tuple[int, bytes]:
    return created_ms(row_key), row_key


def list_pages(
    context: Context, wanted: WantedTransactions = ALL, limits: LookLimits = MOST, count: int = 50
) -> Iterator[TransactionPage]:
    """Go through all pages."""
    before: bytes | None = None
    while True:
        page = browse(context, wanted, before, limits, count)
        yield page
        if page.next is None:
            return
        assert page.next != before, "no way forward"
        before = page.next


def list_keys_found(context: Context, *args: Any, **options: Any) -> list[bytes]:
    return [row.row_key for page in list_pages(context, *args, **options) for row in page.rows]


# ------------------------------------------------------------------- exactly once, in order


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
    st.lists(KEYS, max_size=60, unique=True),
    st.integers(1, 9),
    st.integers(1, 12),
    st.booleans(),
    st.booleans(),
)
def test_pages_have_each_row_once_and_in_order(
    row_keys: list[bytes], count: int, most: int, with_parts: bool, with_statuses: bool
) -> None:
    """However small the limits are: buckets, equal times, clocks that are ahead, parts."""
    rows = Rows()
    half = len(row_keys) // 2 if with_statuses else len(row_keys)
    rows.put(row_keys[:half])
    rows.put(row_keys[half:], None)
    limits = replace(MOST, rows=most)
    found = list_keys_found(rows.context, WantedTransactions(with_parts=with_parts), limits, count)
    due = [row for row in row_keys if with_parts or b".part-" not in row]
    in_use = {row[: row.index(b"transaction.")] for row in row_keys[:half]} or {b""}
    due = [row for row in due if row[: row.index(b"transaction.")] in in_use]
    assert found == sorted(due, key=order, reverse=True)


@pytest.mark.parametrize("random", [True, False])
@pytest.mark.parametrize("prefixes", [[b""], [b"00.", b"01."]])
def test_thousands_of_one_millisecond_are_paged_through(
    random: bool, prefixes: list[bytes]
) -> None:
    """There the row key is all that a page can be bounded by, also where its digits are alike."""
    rows, rng = Rows(), Random(7)
    many = 700 // len(prefixes)
    uids = [rng.getrandbits(128) if random else number for number in range(many)]
    due = rows.put([prefix + new_row_key(NOW_MS, uid) for uid in uids for prefix in prefixes])
    limits = replace(MOST, rows=200)
    pages = list(list_pages(rows.context, WantedTransactions(), limits, 60))
    found = [row.row_key for page in pages for row in page.rows]
    assert found == sorted(due, key=order, reverse=True)
    assert all(page.looked <= 300 for page in pages)


def test_a_page_can_begin_at_a_time_or_a_row() -> None:
    """A person goes to where something has happened."""
    rows = Rows()
    keys = rows.put([new_row_key(NOW_MS - number, 5) for number in range(10)])
    found = browse(rows.context, WantedTransactions(), b"%013d" % (NOW_MS - 7))
    assert [row.row_key for row in found.rows] == keys[8:]
    found = browse(rows.context, WantedTransactions(), keys[7])
    assert [row.row_key for row in found.rows] == keys[8:]
    with pytest.raises(InvalidRequestError, match="13 digits"):
        browse(rows.context, WantedTransactions(), b"yesterday")


def test_an_empty_table_is_a_page_without_rows() -> None:
    """It has been made, and nobody has committed yet."""
    page = browse(Rows().context, WantedTransactions())
    assert page == TransactionPage([], None, 0, Stop.BEGINNING)


# --------------------------------------------------------------------------------- its cost


class Fetching(CountingStore):
    """A store that counts the rows that are taken from its scans."""

    rows = 0

    def scan(self, *args: Any, **options: Any) -> Iterator[Row]:
        for row in super().scan(*args, **options):
            self.rows += 1
            yield row


def find_cost(
    rows: Rows, wanted: WantedTransactions, before: bytes | None = None
) -> tuple[int, int, int]:
    """How many calls a page takes, how many rows it is sent, and looks at."""
    store = Fetching(rows.store)
    page = browse(replace(rows.context, store=store), wanted, before)
    return sum(store.calls.values()), store.rows, page.looked


@pytest.mark.parametrize(
    "wanted",
    [
        WantedTransactions(),
        WantedTransactions(statuses=frozenset({Status.LOCKED})),
        WantedTransactions(key=X),
        WantedTransactions(older_than_ms=200_000),
        WantedTransactions(id_=b"f00f"),
    ],
    ids=["all", "status", "key", "age", "id"],
)
@pytest.mark.parametrize("uri", ["memory://", "embedded"])
def test_the_cost_of_a_page_is_not_that_of_the_table(
    wanted: WantedTransactions, uri: str, tmp_path: Path
) -> None:
    """A table of 100 million rows is looked at as quickly as one of some thousands."""
    costs = []
    for number in (3_000, 20_000):
        place = uri if uri == "memory://" else f"embedded://{tmp_path}/{number}?sync=off"
        rows, rng = Rows(place), Random(3)
        rows.put([new_row_key(NOW_MS - 100 * at, rng.getrandbits(128)) for at in range(number)])
        costs.append(find_cost(rows, wanted))
        rows.store.close()
    small, large = costs
    assert small == large
    assert large[1] <= 2_600
    assert large[0] <= 100


def test_a_quiet_store_is_gone_through_in_few_calls() -> None:
    """Windows that hold nothing become longer."""
    rows = Rows()
    rows.put([new_row_key(NOW_MS - 10**9 * at, at) for at in range(20)])
    calls, sent, looked = find_cost(rows, WantedTransactions())
    assert looked == 20
    assert sent < 60
    assert calls < 120


def test_parts_are_leapt_over() -> None:
    """A transaction may have 100,000 of them, between it and the next."""
    rows = Rows()
    whole, other = (new_row_key(NOW_MS, uid) for uid in (1, 2))
    rows.put([whole, other])
    rows.put([child_key(whole, 0, number) for number in range(2_000)], Status.PART)
    calls, sent, looked = find_cost(rows, WantedTransactions(statuses=frozenset(Status)))
    assert looked == 2
    assert sent < 10 * PARTS_PASSED
    assert calls < 60


def test_a_page_says_how_far_it_looked() -> None:
    """A person is told, and may go on."""
    rows = Rows()
    rows.put([new_row_key(NOW_MS - at, at) for at in range(1_000)])
    wanted = WantedTransactions(statuses=frozenset({Status.LOCKED}))
    page = browse(rows.context, wanted, limits=replace(MOST, rows=300))
    assert page.rows == []
    assert page.stopped is Stop.ROWS
    assert 150 <= page.looked <= 400
    assert page.back_to == NOW_MS - page.looked + 1
    assert page.next == b"%013d" % page.back_to


def test_a_page_is_bounded_in_bytes() -> None:
    """One row may have ten megabytes."""
    rows = Rows()
    big = Request((Mutation(X, b"x" * 100_000),))
    due = rows.put([new_row_key(NOW_MS - at, at) for at in range(60)], request=big)
    for wanted in (WantedTransactions(), WantedTransactions(key=X)):
        pages = list(list_pages(rows.context, wanted, replace(MOST, bytes_=1_000_000)))
        assert [row.row_key for page in pages for row in page.rows] == due
        assert all(len(page.rows) < 30 for page in pages)
        assert pages[0].stopped is Stop.BYTES


class Weighing(CountingStore):
    """A store that tells how many bytes it has returned, in all and in one call at most."""

    largest = 0
    total = 0

    def read(self, *groups: Any, **options: Any) -> dict[Key, Cell | None]:
        found = super().read(*groups, **options)
        self._weigh([cell for cell in found.values() if cell])
        return found

    def read_versions(self, keys: Any, count: int) -> dict[Key, list[Cell]]:
        found = super().read_versions(keys, count)
        self._weigh([cell for cells in found.values() for cell in cells])
        return found

    def _weigh(self, cells: list[Cell]) -> None:
        size = sum(len(cell.value) for cell in cells)
        self.total, self.largest = self.total + size, max(self.largest, size)


def test_few_rows_are_read_at_once() -> None:
    """Behind small ones there may be large ones, which nobody knows before they are there."""
    rows = Rows()
    rows.put([new_row_key(NOW_MS - at, at) for at in range(20)])
    big = Request((Mutation(X, b"x" * 100_000),))
    rows.put([new_row_key(NOW_MS - at, at) for at in range(20, 80)], request=big)
    store = Weighing(rows.store)
    page = browse(replace(rows.context, store=store), ALL, limits=replace(MOST, bytes_=1_000_000))
    assert page.stopped is Stop.BYTES
    assert store.largest < (MOST_AT_ONCE + 1) * 100_000
    assert store.total < 1_000_000 + store.largest


def test_a_page_is_bounded_in_time() -> None:
    """A slow store is looked at in short steps."""
    rows = Rows()
    due = rows.put([new_row_key(NOW_MS - 1_000 * at, at) for at in range(300)])
    slow = replace(rows.context, store=Slow(rows.store, rows.clock))
    pages = list(list_pages(slow, WantedTransactions(), replace(MOST, ms=2_000)))
    assert [row.row_key for page in pages for row in page.rows] == due
    assert any(page.stopped is Stop.TIME for page in pages)


class Slow(CountingStore):
    """A store whose every scan takes half a second."""

    def __init__(self, inner: Store, clock: ManualClock) -> None:
        super().__init__(inner)
        self._clock = clock

    def scan(self, *args: Any, **options: Any) -> Iterator[Row]:
        self._clock.advance(500)
        yield from super().scan(*args, **options)


# ------------------------------------------------------------------------------ what is wanted


def test_a_piece_of_a_row_key_is_found() -> None:
    """As `txn show` takes it; a whole key and one with its time at once."""
    rows, rng = Rows(), Random(5)
    keys = [
        b"0%d." % (at % 3) + new_row_key(NOW_MS - at * 50_000, rng.getrandbits(128))
        for at in range(3_000)
    ]
    rows.put(keys)
    wanted = keys[2_990]
    name, uid = wanted[3:], wanted[-32:]
    for piece in (wanted, wanted[:30], name, name[:29], name[12:], name[12:28], name[12:25]):
        calls, _, looked = find_cost(rows, WantedTransactions(id_=piece))
        assert looked <= 2, piece
        assert calls < 20, piece
        assert list_keys_found(rows.context, WantedTransactions(id_=piece)) == [wanted], piece
    for piece in (uid, uid[:9], uid[-9:]):
        assert list_keys_found(rows.context, WantedTransactions(id_=piece)) == [wanted], piece
    assert list_keys_found(rows.context, WantedTransactions(id_=b"transaction.0")) == []


def test_parts_are_found_by_what_only_they_have() -> None:
    """Nothing else has a `-`."""
    rows = Rows()
    whole = new_row_key(NOW_MS, 1)
    parts = [child_key(whole, 3, number) for number in range(5)]
    rows.put([whole])
    rows.put(parts, Status.PART)
    assert list_keys_found(rows.context, WantedTransactions(id_=b"part-00003-00002")) == [parts[2]]
    assert list_keys_found(rows.context, WantedTransactions(id_=parts[2][:-1])) == parts[::-1]
    assert list_keys_found(rows.context, WantedTransactions(id_=parts[2])) == [parts[2]]
    assert list_keys_found(rows.context) == [whole]
    assert list_keys_found(rows.context, WantedTransactions(with_parts=True)) == [
        *parts[::-1],
        whole,
    ]


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_transactions_are_found_by_what_they_name(protocol: Any) -> None:
    """By a key, a table, a label, a status; each alone and together."""
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
        return list_keys_found(context, WantedTransactions(**wanted))

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


def test_rows_come_with_all_that_they_have() -> None:
    """What a page shows is not read again."""
    world = World()
    world.engine.commit([Mutation(X, b"1")], labels={"job": "load"})
    (row,) = browse(world.engine.context, WantedTransactions()).rows
    assert row == world.rows()[0]
    assert row.buffer is not None
    assert row.began


def test_rows_without_a_status_are_shown() -> None:
    """They are what is left of rows that were deleted."""
    rows = Rows()
    (done,) = rows.put([new_row_key(NOW_MS - 2, 1)])
    (debris,) = rows.put([new_row_key(NOW_MS - 1, 2)], None)
    strange = new_row_key(NOW_MS, 3)
    rows.store.write([Edit(column(TXN, strange, b"status"), b"9-NEW", NOW_MS)])
    assert list_keys_found(rows.context) == [strange, debris, done]
    assert list_keys_found(rows.context, WantedTransactions(statuses=frozenset({None}))) == [
        strange,
        debris,
    ]
    assert list_keys_found(
        rows.context, WantedTransactions(statuses=frozenset({Status.COMPLETE}))
    ) == [done]


def test_rows_of_others_are_no_transactions() -> None:
    """Also where they begin as those do, and come before all of them."""
    rows = Rows()
    (done,) = rows.put([b"03." + new_row_key(NOW_MS, 1)])
    strange = [b"transaction.0junk", b"03.transaction.0junk", b"05.transaction.x", b"03.zebra"]
    rows.store.write([Edit(column(TXN, row, b"status"), b"x", 1) for row in strange])
    assert find_buckets(rows.context) == (b"03.",)
    assert list_keys_found(rows.context) == [done]
    (plain,) = rows.put([new_row_key(NOW_MS - 1, 1)])
    assert list_keys_found(rows.context) == [done, plain]


def test_a_look_for_the_young_stops_where_rows_were_begun_before() -> None:
    """What was begun long ago and ended just now comes behind that, for who wants it."""
    rows = Rows()
    (late,) = rows.put([new_row_key(NOW_MS - 10**9, 1)], at_ms=NOW_MS - 10)
    (young,) = rows.put([new_row_key(NOW_MS - 500, 1)], at_ms=NOW_MS - 400)
    rows.put([new_row_key(NOW_MS - 2_000, 1)], at_ms=NOW_MS - 1_900)
    first, second = list_pages(rows.context, WantedTransactions(newer_than_ms=1_000))
    assert [row.row_key for row in first.rows] == [young]
    assert (first.stopped, first.back_to) == (Stop.AGE, NOW_MS - 1_000)
    assert [row.row_key for row in second.rows] == [late]


def test_the_old_are_gone_straight_to() -> None:
    """A clock may have been ahead by an hour."""
    rows = Rows()
    old_ms = NOW_MS - 10 * AHEAD_MS
    (old,) = rows.put([new_row_key(old_ms + AHEAD_MS - 1, 1)], at_ms=old_ms)
    rows.put([new_row_key(NOW_MS - at, 1) for at in range(3_000)])
    wanted = WantedTransactions(older_than_ms=10 * AHEAD_MS)
    page = browse(rows.context, wanted)
    assert [row.row_key for row in page.rows] == [old]
    assert page.looked == 1


def test_a_fenced_row_is_as_old_as_the_server_says() -> None:
    """The timestamp of its status is its owner's."""
    rows = Rows()
    context = replace(rows.context, rules=FENCED)
    row_key = new_row_key(NOW_MS - 9_000, 1)
    at = column(TXN, row_key, Status.COMPLETE.at)
    status = column(TXN, row_key, b"status")
    rows.store.write([Edit(status, b"5-COMPLETE", 1), Edit(at, b"", NOW_MS - 100)])
    assert list_keys_found(context, WantedTransactions(newer_than_ms=100)) == [row_key]
    assert list_keys_found(context, WantedTransactions(older_than_ms=101)) == []


# --------------------------------------------------------------------------- its pieces


def test_buckets_are_found_by_skipping() -> None:
    """One short scan for each, whatever lies between."""
    rows = Rows()
    assert find_buckets(rows.context) == ()
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
    assert find_buckets(context) == (b"00.", b"07.", b"99.", b"")
    assert store.calls["scan"] <= 8
    assert store.rows <= 8


@given(KEYS, st.sets(PREFIXES))
def test_a_position_is_that_of_a_row_key(row_key: bytes, prefixes: set[bytes]) -> None:
    """There and back, and as a range of row keys."""
    prefix = row_key[: row_key.index(b"transaction.")]
    at = Positions([*prefixes, prefix])
    position = at.find_row(row_key)
    cursor = at.make_cursor(position)
    assert at.read_cursor(cursor) == position
    assert not is_row_key(cursor) or cursor == row_key
    rank = at.salt_buckets.index(prefix)
    assert at.find_start(rank, position) <= row_key < at.find_start(rank, position + 1)
    assert at.find_created_ms(position) == created_ms(row_key)


@given(KEYS, KEYS)
def test_positions_are_in_the_order_of_beginnings(one: bytes, other: bytes) -> None:
    """And of row keys, where these are equal; also of a bucket that is not in use."""
    known = {row[: row.index(b"transaction.")] for row in (one, other)}
    at = Positions(list(known))
    assert (at.find_row(one) < at.find_row(other)) == (order(one) < order(other))
    few = Positions([one[: one.index(b"transaction.")]])
    assert (few.find_row(one) < few.find_row(other)) <= (order(one) <= order(other))


def test_a_budget_says_which_limit_is_reached() -> None:
    """In the order in which a person can do something about it."""
    clock = ManualClock()
    row = Row(b"r", {})
    budget = Budget(clock, LookLimits(rows=2, bytes_=100, ms=5))
    assert budget.over is None
    clock.advance(5)
    assert budget.over is Stop.TIME
    budget.spend(row)
    budget.spend(row, again=True)
    assert (budget.rows, budget.over) == (1, Stop.TIME)
    budget.spend(row)
    assert budget.over is Stop.ROWS


def test_what_is_read_together_is_as_much_as_the_last_ones_promise() -> None:
    """Small rows are not to cost a call each, and large ones not to come in one call."""
    key = Key("x", "d", "x", "data")
    budget = Budget(ManualClock(), replace(MOST, bytes_=10_000))
    sizes = []
    for some in budget.divide(range(60)):
        sizes.append(len(some))
        for number in some:
            budget.spend(Row(b"r", {key: Cell(b"x" * (500 if number > 20 else 1), 1)}))
    assert sizes[:6] == [1, 2, 4, 8, 8, 8]
    assert set(sizes[7:]) == {1}
    fresh = Budget(ManualClock(), MOST)
    assert [len(some) for some in fresh.divide(range(8), cost=4)] == [1, 2, 2, 2, 1]
