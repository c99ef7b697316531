"""What every store promises beside what `test_differential.py` compares: that markers mask, that
checks compare, and what is read of it."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from txn.clock import SystemClock
from txn.errors import InvalidRequestError, StoreError, TableUnavailable
from txn.model import Cell, Check, Edit, Family, Key, RowExclusion, Stamp
from txn.stores import open_store
from txn.stores.base import Store, TableSize, measure_tables
from txn.stores.hbase.native.store import NativeStore
from txn.stores.hbase.store import HBaseStore
from txn.stores.local import LocalStore

if TYPE_CHECKING:
    from tests.contract.conftest import Subject

OUT = frozenset({b"out"})
with_its_own_table = pytest.mark.usefixtures("own_table")
only_atomic = pytest.mark.parametrize("subject", ["memory", "embedded"], indirect=True)
by_row = ["memory", "embedded", "emulator", "native", "thrift 2"]
only_by_row = pytest.mark.parametrize("subject", by_row, indirect=True)
only_thrift_1 = pytest.mark.parametrize("subject", ["thrift 1"], indirect=True)


def put_if(key: Key, expected: bytes, *puts: tuple[Key, bytes]) -> Check:
    return Check(key, expected, puts)


@contextmanager
def running(step: Callable[[int], None], times: int = 0) -> Iterator[None]:
    """Run the step with 1, 2 and so on in a thread beside the block, or so many times; its failure
    fails the test."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            for count in itertools.count(1):
                step(count)
                if count == times or (not times and stop.is_set() and count > 1):
                    return
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures, failures


def test_the_names_of_all_tables_are_listed_in_order(subject: Subject) -> None:
    names = subject.store.list_tables()
    assert subject.table in names
    assert names == sorted(names)
    assert not [name for name in names if name.startswith(b"hbase:")]


def test_an_empty_batch_does_nothing(subject: Subject) -> None:
    """The protocol calls with what there is, without asking whether there is anything."""
    assert subject.store.read([]) == {}
    assert subject.store.read() == {}
    assert subject.store.read_versions([], 3) == {}
    subject.store.write([])
    assert subject.store.check_and_put([]) == []
    assert subject.store.check_and_read([], []) == ([], {}, {})


@pytest.mark.parametrize("durable", [True, False])
def test_what_returned_has_taken_effect_for_all_clients(subject: Subject, durable: bool) -> None:
    key = subject.key("r", "x")
    with subject.another_client() as other:
        subject.store.write([Edit(key, b"1", 10)], durable=durable)
        assert other.read([key]) == {key: Cell(b"1", 10)}
        checks = [put_if(key, b"1", (key, b"2"))]
        assert subject.store.check_and_put(checks, durable=durable) == [True]
        assert other.check_and_put([put_if(key, b"1", (key, b"3"))]) == [False]


def test_cells_of_one_row_come_from_one_instant(subject: Subject) -> None:
    x, y, z = (subject.key("r", column, family) for column, family in ("xd", "yd", "ze"))
    subject.maker.check_and_put([put_if(x, b"", (x, b"0"), (y, b"0"), (z, b"0"))])

    def write(count: int) -> None:
        value, old = b"%d" % count, b"%d" % (count - 1)
        check = put_if(x, old, (x, value), (y, value), (z, value))
        assert subject.maker.check_and_put([check], durable=False) == [True]

    with running(write):
        for _ in range(200):
            cells = subject.store.read([z, x, y])
            assert len({cell and cell.value for cell in cells.values()}) == 1, cells


@only_atomic
def test_all_cells_come_from_one_instant_where_the_store_says_so(subject: Subject) -> None:
    """An atomic read then looks once. One row is put after the other, so whoever sees a number in
    the last row sees it, or the next one, in the first."""
    assert "instant_reads" in subject.store.features
    rows = [subject.key(row, "x") for row in "abc"]
    subject.store.write([Edit(key, b"1", 1) for key in rows])

    def write(count: int) -> None:
        for key in rows:
            subject.store.write([Edit(key, b"%d" % count, count + 1)], durable=False)

    with running(write):
        for wanted in 100 * list(itertools.permutations(rows)):
            found = subject.store.read(wanted)
            first, second, last = (cell.timestamp for key in rows if (cell := found[key]))
            assert last <= second <= first <= last + 1, found


def test_versions_are_those_that_the_family_keeps_and_no_marker_hides(subject: Subject) -> None:
    kept, single = subject.key("r", "x"), subject.key("r", "x", "e")
    absent = subject.key("s", "z", "e")
    for timestamp in (10, 40, 20, 30):
        value = b"%d" % timestamp
        subject.store.write([Edit(kept, value, timestamp), Edit(single, value, timestamp)])
    cells = [Cell(b"%d" % timestamp, timestamp) for timestamp in (40, 30, 20)]
    for count in (1, 2, 3, 10):
        found = subject.store.read_versions([absent, kept, single], count)
        assert found == {absent: [], kept: cells[:count], single: cells[:1]}
    subject.store.write([Edit(kept, None, 30), Edit(single, None, 40)])
    found = subject.store.read_versions([kept, single], 10)
    assert found == {kept: [Cell(b"40", 40)], single: []}


@with_its_own_table
def test_versions_of_many_rows_and_tables_are_told_apart(subject: Subject) -> None:
    """Two tables may have the same row, and a request of thousands of rows is cut."""
    table = b"other-" + subject.table
    subject.maker.ensure_table(table, {b"d": Family()})
    here = [subject.key(b"%04d" % number, "x") for number in range(1_100)]
    there = here[0]._replace(table=table)
    subject.store.write([Edit(key, key.row, 10) for key in here])
    subject.store.write([Edit(there, b"there", 7)])
    found = subject.store.read_versions([*here, there, here[0]], 2)
    assert found == {key: [Cell(key.row, 10)] for key in here} | {there: [Cell(b"there", 7)]}


@pytest.mark.parametrize("count", [0, 1 << 31])
def test_a_number_of_versions_that_nobody_can_ask_for_is_refused(
    subject: Subject, count: int
) -> None:
    """HBase takes 0 for something of its own, and a gateway has 32 bits for it."""
    with pytest.raises(InvalidRequestError, match=f"versions.*count={count}"):
        subject.store.read_versions([subject.key("r", "x")], count)


def test_a_value_of_ten_megabytes_is_kept(subject: Subject) -> None:
    key = subject.key("r", "x")
    value = b"0123456789abcdef" * (10 * 1024 * 64 - 64)
    subject.store.write([Edit(key, value, 10)])
    assert subject.get(key) == Cell(value, 10)


def test_a_put_may_have_the_time_of_the_server_as_a_check_has(subject: Subject) -> None:
    """The skew of a cell from the future is judged by the locks' timestamps."""
    x, y, clock = subject.key("r", "x"), subject.key("r", "y"), SystemClock()
    before = clock.wall_ms()
    subject.store.write([Edit(x, b"1", None)])
    assert subject.store.check_and_put([put_if(y, b"", (y, b"1"))]) == [True]
    for cell in subject.store.read([x, y]).values():
        assert cell is not None and before <= cell.timestamp <= clock.wall_ms()


def test_of_many_that_compare_and_set_one_cell_one_wins(subject: Subject) -> None:
    keys = [subject.key(f"r{row}", "x_lock") for row in range(50)]
    wins: list[list[bool]] = []

    def compete(owner: bytes) -> None:
        with subject.another_client() as client:
            won = [client.check_and_put([put_if(key, b"", (key, owner))])[0] for key in keys]
        wins.append(won)

    threads = [threading.Thread(target=compete, args=(b"%d" % owner,)) for owner in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sum(column) for column in zip(*wins, strict=True)] == [1] * len(keys)


@pytest.mark.parametrize("expected", [b"", None])
def test_the_cells_of_a_check_are_of_one_row(subject: Subject, expected: bytes | None) -> None:
    """HBase is atomic within a row only, so other puts are refused before anything is written."""
    key, other = subject.key("r", "x"), subject.key("s", "x")
    with pytest.raises(InvalidRequestError, match="one row"):
        subject.store.check_and_put([Check(key, expected, ((key, b"1"), (other, b"1")))])
    with pytest.raises(InvalidRequestError, match="one row"):
        subject.store.check_and_read([Check(key, expected, ((other, b"1"),))], [key])
    if "row_mutations" in subject.store.features:
        with pytest.raises(InvalidRequestError, match="one row"):
            subject.store.check_and_put([Check(key, expected, edits=(Edit(other, b"1", 13),))])
    assert subject.store.read([key, other]) == {key: None, other: None}


def expect(key: Key, value: bytes, *edits: tuple[bytes | None, int]) -> Check:
    return Check(key, value, edits=tuple(Edit(key, *each) for each in edits))


@with_its_own_table
@pytest.mark.parametrize("subject", [*by_row, "served"], indirect=True)
def test_groups_are_put_if_all_of_their_cells_match(subject: Subject) -> None:
    """Local stores can do all of them, HBase itself those of a region, gateways single checks."""
    store, new = subject.store, (b"1", 10)
    joins = isinstance(store, LocalStore | NativeStore)
    a, b, c, d = (subject.key(row, "x") for row in "abcd")
    groups = [[expect(a, b"", new), expect(b, b"", new)], [expect(c, b"", new)]]
    assert store.put_if_all([*groups, [expect(d, b"1", new)]]) == [joins or None, True, False]
    if joins:
        groups = [
            [expect(a, b"1", (b"2", 20)), expect(b, b"", (b"2", 20))],  # only the first is met
            [expect(a, b"1"), expect(b, b"1")],
            [expect(c, b"1"), expect(d, b"1")],
            [expect(c, b"1"), expect(d, b"", (b"2", 11), (None, 10))],
        ]
        assert store.put_if_all(groups) == [False, True, False, True]
        assert store.put_if_all([[expect(a, b"1", (None, 10)), expect(b, b"1")]]) == [True]
    old = Cell(b"1", 10)
    found = [None, old, old, Cell(b"2", 11)] if joins else [None, None, old, None]
    assert [*store.read([a, b, c, d]).values()] == found


@with_its_own_table
@pytest.mark.parametrize("subject", [*by_row, "served"], indirect=True)
def test_groups_of_several_regions_or_tables_are_whole_or_not_done(subject: Subject) -> None:
    table, new = b"regions-" + subject.table, (b"1", 10)
    subject.maker.ensure_table(table, {b"d": Family()}, [b"m"])
    keys = [Key("a", "d", "x", table), Key("z", "d", "x", table), subject.key("a", "x")]
    groups = [[expect(key, b"", new) for key in some] for some in (keys[:2], keys[1:])]
    is_local = isinstance(subject.store, LocalStore)
    assert subject.store.put_if_all(groups) == ([True, False] if is_local else [None, None])
    found = [is_local or None, is_local or None, None]
    assert [cell and True for cell in subject.store.read(keys).values()] == found


@with_its_own_table
@pytest.mark.parametrize("subject", ["memory", "embedded", "native"], indirect=True)
def test_a_group_is_put_at_one_instant_beside_other_writers(subject: Subject) -> None:
    """Two equal looks at its cells are never of half a group; and no other writer gets between its
    conditions and its edits."""
    a, b = keys = [subject.key(row, "x") for row in "ab"]
    subject.store.write([Edit(key, b"0", 1) for key in keys])

    def write(number: int) -> None:
        values = [b"%d of %d" % (writer, number) for writer in range(2)]
        (old,) = {cell.value for cell in subject.maker.read(keys).values() if cell}
        groups = [[expect(key, old, (value, number + 1)) for key in keys] for value in values]
        with ThreadPoolExecutor(2) as pool:
            answers = [*pool.map(lambda group: subject.store.put_if_all([group]), groups)]
        assert answers in ([[True], [False]], [[False], [True]])

    with running(write), subject.another_client() as reader:
        ends, count = time.monotonic() + 1, 0
        while time.monotonic() < ends:
            first, second = (reader.read([b], [a]) for _ in range(2))
            assert first != second or first[a] == first[b], first
            count += first == second
    assert count > 10


@only_by_row
@pytest.mark.parametrize("way", ["check", "write"])
def test_the_edits_of_a_row_take_effect_at_once(subject: Subject, way: str) -> None:
    """A row and its buffer are both there, or neither. Who finds a lock free finds what its holder
    has put, or deleted."""
    lock, x, y = (subject.key("r", *where) for where in (("_lock",), ("x",), ("y", "e")))

    def write(count: int) -> None:
        number, new, old = b"%d" % count, *((x, y) if count % 2 else (y, x))
        edits = (Edit(new, number, count), Edit(old, None, count), Edit(lock, number, count))
        if way == "write":
            subject.maker.write(edits, durable=False, by_row=True)
        else:
            subject.maker.check_and_put([Check(x, None, (), edits, is_deferred=True)])

    with running(write):
        for _ in range(100):
            cells = [cell for cell in subject.store.read([x, y, lock]).values() if cell]
            assert len(cells) in (0, 2), cells
            assert len(set(cells)) < 2, cells


@only_thrift_1
def test_a_store_that_can_do_less_says_so(subject: Subject) -> None:
    """Thrift 1 would write an empty value in place of a delete, and let others see half a row."""
    lock = subject.key("r", "x_lock")
    with pytest.raises(InvalidRequestError, match="Thrift 2"):
        subject.store.write([Edit(lock, b"1", 10)], by_row=True)
    assert subject.get(lock) is None
    subject.store.write([Edit(lock, b"me", 10)])
    with pytest.raises(InvalidRequestError, match="Thrift 2"):
        subject.store.check_and_put([Check(lock, b"me", edits=(Edit(lock, None, 10),))])
    assert subject.get(lock) == Cell(b"me", 10)


def scan(subject: Subject, *args: Any, **kwargs: Any) -> list[bytes]:
    return [row.row for row in subject.store.scan(subject.table, *args, **kwargs)]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_yields_rows_from_start_to_stop_in_byte_order(
    subject: Subject, reverse: bool
) -> None:
    """Rows are bytes, and nothing in them is special, not even 00 and FF. The start is included and
    the stop is excluded in both directions."""
    rows = [b"a", b"a\0", b"a\0\0", b"a\0\xff", b"a\x01", b"a\xff", b"b", b"\xff", b"\xff\xff"]
    subject.fill(list(reversed(rows)))
    bounds = [*rows, b"", b"\0", b"a\0\x01", b"A", b"zz"]
    for start, stop in itertools.product(bounds, [*bounds, None]):
        expected = [row for row in rows if start <= row and (not stop or row < stop)]
        if reverse:
            expected.reverse()
        assert scan(subject, start, stop, reverse=reverse) == expected, (start, stop)


def test_rows_of_a_kilobyte_and_longer_are_in_order_too(subject: Subject) -> None:
    """HBase allows rows of almost 32 KB; a store on this machine keeps their keys in slices."""
    long = [b"k" * count + end for count in (480, 500, 1024, 32_740) for end in (b"", b"a")]
    rows = sorted([*long, b"k" * 1024 + b"\xff" * 31_717, b"k\0" * 600, b"j", b"l"])
    subject.fill(rows)
    assert scan(subject) == rows
    assert scan(subject, reverse=True) == rows[::-1]
    for start, stop in itertools.product(rows, rows[::3]):
        expected = [row for row in rows if start <= row < stop]
        assert scan(subject, start, stop) == expected, (start[-5:], stop[-5:])
        assert scan(subject, start, stop, reverse=True) == expected[::-1], (start[-5:], stop[-5:])
    keys = [subject.key(row, "x") for row in rows]
    assert subject.store.read(keys) == {key: Cell(key.row[:10], 10) for key in keys}


def test_a_scan_leaves_out_rows_by_the_newest_value_of_a_cell(subject: Subject) -> None:
    """fsck passes over a million finished transactions, of which nothing is sent to it."""
    at = {row: subject.key(row, "x") for row in ("b", "c", "d", "e", "f", "g")}
    beside = {row: subject.key(row, "a", "e") for row in at}
    values = {"b": b"in", "c": b"it's, out", "d": b"", "e": b"out", "f": b"in"}
    edits = [Edit(at[row], value, 5) for row, value in values.items()]
    edits += [Edit(key, b"1", 5) for key in (*beside.values(), subject.key("none", "y"))]
    subject.store.write(edits)
    subject.store.write([Edit(at["e"], b"in", 6), Edit(at["f"], b"out", 6)])
    exclude = RowExclusion(b"d", b"x", frozenset({b"out", b"it's, out"}))
    found = list(subject.store.scan(subject.table, b"", None, None, exclude))
    assert [row.row for row in found] == [b"b", b"d", b"e", b"g", b"none"]
    back = subject.store.scan(subject.table, b"", None, None, exclude, reverse=True)
    assert list(back) == found[::-1]
    assert found[0].cells == {beside["b"]: Cell(b"1", 5), at["b"]: Cell(b"in", 5)}
    assert found[2].cells == {beside["e"]: Cell(b"1", 5), at["e"]: Cell(b"in", 6)}
    named = subject.store.scan(subject.table, b"b", b"e", [(b"d", b"x")], exclude)
    assert [row.cells for row in named] == [{at["b"]: Cell(b"in", 5)}, {at["d"]: Cell(b"", 5)}]
    nothing = RowExclusion(b"d", b"x", frozenset())
    assert scan(subject, b"", None, None, nothing) == [*map(str.encode, at), b"none"]


@pytest.mark.parametrize("reverse", [False, True])
def test_what_rows_are_left_out_by_is_among_the_columns_and_families(
    subject: Subject, reverse: bool
) -> None:
    """HBase's filters see nothing of other columns, and would leave out nothing."""
    with pytest.raises(InvalidRequestError, match="lack the one"):
        scan(subject, columns=[(b"d", b"y")], exclude=RowExclusion(b"d", b"x", OUT))
    absent = RowExclusion(b"nothing", b"x", OUT)
    subject.fill([b"a"])
    with pytest.raises(TableUnavailable, match=r"no such family.*'nothing'"):
        scan(subject, columns=[(b"nothing", b"x")], exclude=absent, reverse=reverse)
    with pytest.raises(TableUnavailable, match=r"no such table.*'nowhere'"):
        list(subject.store.scan(b"nowhere", reverse=reverse))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_is_lazy_and_goes_on_over_any_number_of_rows_beside_writers(
    subject: Subject, reverse: bool
) -> None:
    """fsck repairs what it finds while it scans. No row is missed or met twice where one page ends
    and the next begins; and a page may hold none of the rows that were asked for. An abandoned scan
    holds nothing that others wait for."""
    rows = [b"%05d" % number for number in range(2600)]
    subject.fill(rows)
    in_order = rows[::-1] if reverse else rows
    abandoned = subject.store.scan(subject.table, reverse=reverse)
    assert next(abandoned).row == in_order[0]
    found = []
    for row in subject.store.scan(subject.table, reverse=reverse):
        found.append(row.row)
        if len(found) % 500 == 0:
            new = subject.key("+" if reverse else "zzz", "x")
            subject.store.write([Edit(subject.key(row.row, "x"), None, 10), Edit(new, b"1", 10)])
    assert [row for row in found if row not in (b"+", b"zzz")] == in_order
    del abandoned
    subject.store.write([Edit(subject.key(row, "x"), b"out", 11) for row in rows])
    kept = [rows[0], rows[700], rows[2598]]
    subject.store.write([Edit(subject.key(row, "x"), b"in", 12) for row in kept])
    exclude = RowExclusion(b"d", b"x", OUT)
    found = scan(subject, b"0", b"1", None, exclude, reverse=reverse)
    assert found == (kept[::-1] if reverse else kept)
    column = [(b"d", b"x")]
    assert scan(subject, rows[1], rows[2598], column, exclude, reverse=reverse) == [rows[700]]


@with_its_own_table
def test_a_reverse_scan_goes_from_region_to_region(subject: Subject) -> None:
    """The region of the rows before a key is the one before the region that begins with the key."""
    table, splits = b"reverse-" + subject.table, [b"b", b"bb", b"m"]
    subject.maker.ensure_table(table, {b"d": Family()}, splits)
    rows = [b"a", b"az", b"b", b"ba\xff", b"m", b"m\0", b"z"]  # none in one of the regions
    subject.store.write([Edit(Key(row, "d", "x", table), b"1", 10) for row in rows])
    bounds = [b"", *rows, *splits, b"bb\0"]
    with subject.another_client() as other:
        for known in (subject.store, other):  # knows regions; has to find them
            for start, stop in itertools.product(bounds, [*bounds, None]):
                expected = [row for row in rows if start <= row and (not stop or row < stop)]
                found = [row.row for row in known.scan(table, start, stop, reverse=True)]
                assert found == expected[::-1], (start, stop)


@with_its_own_table
def test_ensure_table_adds_what_is_missing_and_may_be_repeated(subject: Subject) -> None:
    families = subject.store.describe(subject.table)
    assert families is not None
    assert {name: family.versions for name, family in families.items()} == {b"d": 3, b"e": 1}
    assert subject.store.describe(b"no-such-table") is None
    key = subject.key("r", "x", "f")
    with subject.another_client() as other:
        with pytest.raises(TableUnavailable, match="no such family"):
            other.read([key])
        for _ in range(2):
            subject.maker.ensure_table(subject.table, {b"f": Family(versions=2)})
        assert set(other.describe(subject.table) or ()) == {b"d", b"e", b"f"}
        other.write([Edit(key, b"1", 10)])
    assert subject.get(key) == Cell(b"1", 10)


def test_ensure_table_refuses_other_settings_of_a_family(subject: Subject) -> None:
    families = {b"new": Family(), b"d": Family(versions=7)}
    with pytest.raises(InvalidRequestError, match="other settings"):
        subject.store.ensure_table(subject.table, families)
    assert set(subject.store.describe(subject.table) or ()) == {b"d", b"e"}


def test_an_absent_table_or_family_is_named(subject: Subject) -> None:
    key, other = subject.key("r", "x"), subject.key("r", "x", "nothing")
    gone = Key("r", "d", "x", "nowhere")
    calls: list[Callable[[], object]] = [
        lambda: subject.store.read([key, gone]),
        lambda: subject.store.check_and_read([put_if(gone, b"", (gone, b"1"))], [key]),
        lambda: subject.store.check_and_read([put_if(key, b"not", (key, b"1"))], [gone]),
    ]
    for call in calls:
        with pytest.raises(TableUnavailable, match=r"no such table.*'nowhere'") as caught:
            call()
        assert caught.value.table == b"nowhere"
    calls = [
        lambda: subject.store.read_versions([key, other], 3),
        lambda: subject.store.write([Edit(key, b"1", 1), Edit(other, b"1", 1)]),
        lambda: subject.store.check_and_put([put_if(key, b"", (other, b"1"))]),
    ]
    for call in calls:
        with pytest.raises(TableUnavailable, match=r"no such family.*'nothing'") as caught:
            call()
        assert caught.value.table == subject.table


@with_its_own_table
def test_a_disabled_table_is_the_store_s_trouble(subject: Subject) -> None:
    """After the request was checked nothing is its author's mistake: a decided transaction waits
    for the table, and must not be told as one that wrote nothing. HBase's gateways do not answer a
    write to one for a long time."""
    table = f"disabled-{uuid.uuid4().hex}".encode()
    subject.maker.ensure_table(table, {b"d": Family()})
    key, well = Key("r", "d", "x", table), subject.key("r", "x")
    hurry = "?timeout_ms=4000" if subject.uri.startswith("hbase") else ""
    with subject.another_client(hurry) as store:
        calls: list[Callable[[Key], object]] = [
            lambda key: store.read([well, key]),
            lambda key: store.read([well], [key]),
            lambda key: store.read_versions([well, key], 3),
            lambda key: store.write([Edit(well, b"1", 1), Edit(key, b"1", 1)]),
            lambda key: store.check_and_put([put_if(key, b"", (key, b"1"))]),
            lambda key: list(store.scan(table)),
        ]
        with subject.disabled(table):
            for call in calls:
                with pytest.raises(TableUnavailable, match="disabled") as caught:
                    call(key)
                assert caught.value.table == table
            assert store.describe(table) is not None
        for call in calls:
            call(key)
    assert subject.get(well) == Cell(b"1", 1)


@with_its_own_table
@pytest.mark.parametrize("row", [b"", b"k" * 32_768])
def test_a_row_that_hbase_refuses_is_refused(subject: Subject, row: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="row"):
        subject.store.write([Edit(subject.key(row, "x"), b"1", 10)])


def test_a_closed_store_cannot_be_used_and_closing_twice_is_closing(subject: Subject) -> None:
    key = subject.key("r", "x")
    client = open_store(subject.uri)
    client.close()
    client.close()
    with pytest.raises(StoreError, match="closed"):
        client.read([key])
    assert subject.get(key) is None


def test_checks_and_a_read_are_answered_together(subject: Subject) -> None:
    """Half an answer would be taken for absent cells. A read of what a check writes may come before
    it."""
    x, absent, lock = (subject.key("r", column) for column in ("x", "absent", "x_lock"))
    other = subject.key("s", "x", "e")
    subject.store.write([Edit(x, b"1", 10), Edit(other, b"2", 10)])
    checks = [put_if(lock, owner, (lock, b"me")) for owner in (b"", b"other", b"me")]
    answers, found, _ = subject.store.check_and_read(checks, [x, absent, other])
    assert answers == [True, False, True]
    assert found == {x: Cell(b"1", 10), absent: None, other: Cell(b"2", 10)}
    assert subject.value_of(lock) == b"me"
    answers, found, _ = subject.store.check_and_read([put_if(lock, b"me", (lock, b""))], [lock])
    assert answers == [True]
    assert (cell := found[lock]) is not None and cell.value in (b"me", b"")
    assert subject.store.check_and_read([put_if(lock, b"", (lock, b"1"))], []) == ([True], {}, {})
    assert subject.value_of(lock) == b"1"
    assert subject.store.check_and_read([], [x]) == ([], {x: Cell(b"1", 10)}, {})


@pytest.mark.parametrize("column", ["x", "other", "it's"])
def test_of_stamps_only_the_timestamp_is_told(subject: Subject, column: str) -> None:
    """Whatever else is read of their rows, such as columns of another family with the same name."""
    rows, absent = [subject.key(row, column) for row in "rs"], subject.key("gone", column)
    others = [key for each in rows for key in (each.lock, each.tag, each._replace(family=b"e"))]
    others += [each._replace(column=b"another") for each in rows]
    subject.store.write([Edit(each, each.row + each.column, 10) for each in (*rows, *others)])
    subject.store.write([Edit(rows[0], b"new", 12)])
    plain = {each: Cell(each.row + each.column, 10) for each in others}
    times = {rows[0]: Stamp(12), rows[1]: Stamp(10), absent: None}
    check = put_if(subject.key("t", "x_lock"), b"", (subject.key("t", "x_lock"), b"taken"))
    assert subject.store.check_and_read([check], others, [*times]) == ([True], plain, times)
    assert subject.store.check_and_read([], [], [*times]) == ([], {}, times)


def test_many_checks_and_a_read_of_many_rows_are_answered_in_full(subject: Subject) -> None:
    """They are divided into several requests, as those of any other call are."""
    keys = [subject.key(b"%04d" % number + bytes(40), "x") for number in range(1_100)]
    subject.store.write([Edit(key, key.row, 10) for key in keys])
    checks = [put_if(key, key.row, (key, b"new")) for key in keys[:40]]
    for wanted in (keys[40:], keys[40:80]):
        answers, found, _ = subject.store.check_and_read(checks, wanted)
        assert answers == [wanted == keys[40:]] * 40
        assert found == {key: Cell(key.row, 10) for key in wanted}


@only_atomic
def test_what_is_done_together_is_one_transaction_where_the_store_says_so(
    subject: Subject,
) -> None:
    """A commit is one such function: half of it must not be seen. In memory who looks waits for the
    end of it."""
    assert "atomic" in subject.store.features
    key, other = subject.key("r", "x"), subject.key("s", "x")
    seen: list[list[Cell | None]] = []

    with subject.another_client() as client:
        reader = threading.Thread(
            target=lambda: seen.append(list(client.read([key, other]).values()))
        )

        def work() -> None:
            subject.store.write([Edit(key, b"1", 10)])
            reader.start()
            reader.join(0.2)
            subject.store.check_and_put([put_if(other, b"", (other, b"1"))])

        subject.store.atomically(work)
        reader.join()
    assert seen and all((cells[0] is None) == (cells[1] is None) for cells in seen)


@only_atomic
def test_what_raises_together_is_undone_together(subject: Subject) -> None:
    """Whoever meets a lock gives up all of it, and what it raised is raised."""
    key, other = subject.key("r", "x"), subject.key("s", "x")
    subject.store.write([Edit(key, b"0", 10)])

    def work() -> None:
        subject.store.write([Edit(key, b"1", 20)])
        subject.store.atomically(lambda: subject.store.write([Edit(other, b"1", 20)]))
        raise KeyError("a lock")

    with pytest.raises(KeyError, match="a lock"):
        subject.store.atomically(work)
    assert subject.store.read([key, other]) == {key: Cell(b"0", 10), other: None}
    subject.store.write([Edit(other, b"2", 5)])  # the next call is one of its own
    assert subject.get(other) == Cell(b"2", 5)


@only_atomic
def test_nobody_else_writes_meanwhile(subject: Subject) -> None:
    key = subject.key("r", "x")
    subject.store.write([Edit(key, b"0", 1)])

    def add(client: Store) -> None:
        cell = client.read([key])[key]
        assert cell is not None
        new = Edit(key, b"%d" % (int(cell.value) + 1), cell.timestamp + 1)
        client.write([new], durable=False)

    with (
        subject.another_client() as other,
        running(lambda _: other.atomically(lambda: add(other)), times=50),
    ):
        for _ in range(50):
            subject.store.atomically(lambda: add(subject.store))
    assert subject.value_of(key) == b"100"


@with_its_own_table
def test_splits_are_rows_in_order_between_which_all_is_found(subject: Subject) -> None:
    """A job reads the parts beside each other: no row may be in two of them, or in none."""
    assert subject.store.find_splits(subject.table, 7) == []
    rows = [b"row-%03d" % number for number in range(100)]
    subject.fill(rows)
    splits = subject.store.find_splits(subject.table, 7)
    assert splits == sorted(set(splits))
    assert b"" not in splits
    parts = zip([b"", *splits], [*splits, None], strict=True)
    assert [row for part in parts for row in scan(subject, *part)] == rows
    inner = subject.store.find_splits(subject.table, 7, rows[20], rows[40])
    assert inner == sorted(row for row in set(inner) if rows[20] < row < rows[40])


@with_its_own_table
def test_splits_are_where_regions_begin(subject: Subject) -> None:
    table, splits = b"split-" + subject.table, [b"b", b"m"]
    subject.maker.ensure_table(table, {b"d": Family()}, splits)
    if not isinstance(subject.store, HBaseStore | NativeStore):
        splits = []
    assert subject.store.find_splits(table, 1) == splits
    assert subject.store.find_splits(table, 1, b"b", b"n") == splits[1:]
    assert subject.store.find_splits(table, 1, b"a", b"m") == splits[:1]


@with_its_own_table
def test_a_size_is_what_a_store_can_tell(subject: Subject) -> None:
    """Regions of HBase, natively with the bytes of its files; the cells of a store on this machine;
    nothing of a server's store. A table that is absent has no size."""
    table = b"sizes-" + subject.table
    subject.maker.ensure_table(table, {b"d": Family()}, [b"m"])
    subject.store.write([Edit(Key(row, b"d", b"x", table), b"12345", 10) for row in (b"a", b"z")])
    deadline = time.monotonic() + 60
    while True:
        sizes = measure_tables(subject.store, [table, b"absent-" + table])
        # Region servers report to the master every few seconds.
        is_reported = not isinstance(subject.store, NativeStore) or table in sizes
        if is_reported or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    assert b"absent-" + table not in sizes
    match subject.store:
        case LocalStore():
            size = sizes[table]
            assert (size.regions, size.cells, size.is_whole) == (None, 2, True)
            assert size.bytes_ is not None and 10 < size.bytes_ < 200
        case NativeStore():
            assert sizes[table].regions == 2
            assert sizes[table].bytes_ is not None
        case HBaseStore():
            assert sizes == {table: TableSize(regions=2)}
        case _:
            assert sizes == {}
