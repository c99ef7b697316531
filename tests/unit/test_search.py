"""The search for transactions; `fsck` and `ls` find what a look at every row finds."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from recovery import Finding, check
from recovery.bounds import ReadLimits, Stop
from recovery.commands import app
from recovery.findings import judge
from recovery.fsck import find_future
from recovery.scan import AHEAD_MS, find_transaction
from recovery.search import Query, SearchPage, find_page
from tests.unit.worlds import TABLE, World, X, Y, after_status
from txn.clock import ManualClock
from txn.errors import InvalidRequestError
from txn.events import silent
from txn.model import Cell, Edit, Family, Key, Mutation, Row
from txn.policy import Policy
from txn.protocol import listing
from txn.protocol.codec import encode_buffer
from txn.protocol.context import Context
from txn.protocol.listing import (
    find_buckets,
    scan_transactions,
    strip_bucket,
)
from txn.protocol.row import (
    child_key,
    column,
    created_ms,
    decode_row,
    is_row_key,
    new_row_key,
    parent_of,
)
from txn.protocol.statuses import FENCED, FINISHED, SIX_PHASE, Status
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


@pytest.fixture
def rows() -> Rows:
    return Rows()


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


def test_a_page_can_begin_at_a_time_or_a_row(rows: Rows) -> None:
    keys = rows.put([new_row_key(NOW_MS - number, 5) for number in range(10)])
    found = find_page(rows.context, Query(), b"%013d" % (NOW_MS - 7))
    assert [row.row_key for row in found.rows] == keys[8:]
    found = find_page(rows.context, Query(), keys[7])
    assert [row.row_key for row in found.rows] == keys[8:]
    with pytest.raises(InvalidRequestError, match="13 digits"):
        find_page(rows.context, Query(), b"yesterday")


class Fetching(CountingStore):
    """A store that counts the rows of scans, the bytes in all, and those of the largest call."""

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


def test_a_fenced_row_is_as_old_as_the_server_says(rows: Rows) -> None:
    context = replace(rows.context, rules=FENCED)
    row_key = new_row_key(NOW_MS - 9_000, 1)
    at = column(TXN, row_key, Status.COMPLETE.at)
    status = column(TXN, row_key, b"status")
    rows.store.write([Edit(status, b"5-COMPLETE", 1), Edit(at, b"", NOW_MS - 100)])
    assert list_keys_found(context, Query(newer_than_ms=100)) == [row_key]
    assert list_keys_found(context, Query(older_than_ms=101)) == []


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


DAY_MS = 24 * 3_600_000
AGES_MS = (0, 1, 7, 600, 50_000, DAY_MS - 1, DAY_MS + 1, 9 * DAY_MS, -AHEAD_MS - 1, -60_000)
VALUES = (None, b"9-NEW", *(status.encoded for status in Status))


def make_rows(seed: int, salt_buckets: int, count: int = 400) -> Rows:
    """A table of some hundred rows in any state, many of them begun at one time."""
    rng, rows = Random(seed), Rows()
    finished = [status.encoded for status in FINISHED]
    for _ in range(count):
        age_ms = rng.choice(AGES_MS) + rng.choice((0, 0, rng.randrange(100)))
        key = new_row_key(NOW_MS - age_ms, rng.getrandbits(128), salt_buckets)
        if rng.random() < 0.2:
            key = child_key(key, rng.randrange(2), rng.randrange(2))
        value = rng.choice(finished if rng.random() < 0.6 else VALUES)
        cells = {b"buffer": bytes(rng.randrange(300)), b"status": value}
        if rng.random() < 0.3:
            cells[rng.choice(list(Status)).at] = b""
        at_ms = NOW_MS - rng.choice(AGES_MS)
        edits = [Edit(column(TXN, key, n), v, at_ms) for n, v in cells.items() if v is not None]
        rows.store.write(edits)
    for name in (b"protocol", b"stranger", b"transaction.x", b"07.transaction.y"):
        rows.store.write([Edit(column(TXN, name, b"status"), b"5-COMPLETE", NOW_MS)])
    return rows


def find_all(context: Context) -> Iterator[tuple[str, bytes | None]]:
    """Judge every row. A key that is young hides only what is finished."""
    old_ms, ahead_ms = NOW_MS - DAY_MS, NOW_MS + AHEAD_MS
    for row in context.store.scan(TXN):
        if not is_row_key(row.row):
            if row.row != b"protocol" and not is_hidden(row, old_ms, ahead_ms):
                yield "foreign-row", row.row
            continue
        seen = find_transaction(context, row.row)
        assert seen is not None
        whole = parent_of(row.row)
        above = find_transaction(context, whole) if whole else None
        if is_hidden(row, old_ms, ahead_ms):
            continue
        is_kept = decode_row(row).status in FINISHED and above is not None and not above.is_over
        if (finding := judge(seen, NOW_MS)) and not is_kept:
            yield show(finding)
        yield from map(show, find_future(context, row))


def is_hidden(row: Row, old_ms: int, ahead_ms: int) -> bool:
    is_young = is_row_key(row.row) and old_ms < created_ms(row.row) < ahead_ms
    return is_young and read_status(row) in FINISHED


def read_status(row: Row) -> Status | None:
    """The known status in the cell that stores go by."""
    values = [cell.value for key, cell in row.cells.items() if key.column == b"status"]
    return next((status for status in Status if status.encoded in values), None)


def show(finding: Finding) -> tuple[str, bytes | None]:
    row = finding.key.row if finding.key else None
    return finding.kind.value, finding.transaction or row


@pytest.mark.parametrize("salt_buckets", [1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_fsck_finds_what_a_look_at_every_row_finds(seed: int, salt_buckets: int) -> None:
    rows = make_rows(seed, salt_buckets)
    expected = Counter(find_all(rows.context))
    assert Counter(map(show, check(rows.context))) == expected
    assert {"undecided", "aborting", "expired", "debris", "unreadable"} <= {
        kind for kind, _ in expected
    }


@pytest.mark.parametrize(
    ("salt_buckets", "size"), [(3, listing.MOST_TURNED_BYTES), (3, 3_000), (3, 0), (1, 0)]
)
def test_ls_lists_what_a_look_at_every_row_lists(
    salt_buckets: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MOST_TURNED_BYTES", size)
    rows = make_rows(5, salt_buckets, 100)
    serve(rows, monkeypatch)
    for status in (*Status, None):
        query = Query(statuses=frozenset({status}), with_parts=status is Status.PART)
        expected = [
            row.row.decode()
            for row in rows.context.store.scan(TXN)
            if read_status(row) is status and query.match(row, NOW_MS)
        ]
        expected.sort(key=lambda row_key: order(row_key.encode()))
        for limit in (7, 10_000):
            found = run("--status", str(status or "none"), "--limit", str(limit))
            assert [line["transaction"] for line in found] == expected[-limit:]
    usual = Query(statuses=frozenset({*Status, None} - {Status.PART}))
    everything = [row.row for row in rows.context.store.scan(TXN) if usual.match(row, NOW_MS)]
    found = run("--limit", "10000")
    assert [line["transaction"].encode() for line in found] == sorted(everything, key=order)


def serve(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def open_store_of(*_: Any) -> Iterator[Context]:
        yield rows.context

    monkeypatch.setattr(sys.modules["recovery.commands.ls"], "open_store_of", open_store_of)


def run(*options: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["ls", "--store", "memory://", "--json", *options])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("state") != "foreign"]


def test_rows_of_others_are_no_bucket() -> None:
    rows = Rows()
    (row_key,) = rows.put([new_row_key(NOW_MS, 1, salt_buckets=10)])
    rows.put([b"57.unknown"])
    assert find_buckets(rows.context) == [row_key[:3], b""]
