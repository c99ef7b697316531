"""Scans by columns: the same rows as by cells, whatever the locks hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fake_region_server import encode_cell
from tests.unit.worlds import STEP_ALONE, TABLE, World, after_status
from txn.client.engine import Engine
from txn.errors import ConflictError, NotApplied, TableUnavailable, TxnError
from txn.model import Edit, Family, Key, Mutation
from txn.protocol.statuses import ProtocolName, Status
from txn.reading.columns import group_columns
from txn.spans import make_span
from txn.stores.base import ColumnPage, Store
from txn.stores.hbase.native.messages import Cells
from txn.testing.faulty import Call, Crash, Fault

COLUMNS = [(b"e", b"x"), (b"d", b"y"), (b"d", b"x")]
ROWS = [b"a", b"b", b"c", b"c\0", b"d"]
GHOST = b"transaction.1700000000000." + b"0" * 32
LOCKS: dict[ProtocolName, list[bytes]] = {
    "six-phase": [b"", GHOST, b"foreign"],
    "fenced": [b"", b"0", b"3 0a1b2c3d,-", b"3@" + GHOST, b"3@" + GHOST + b" 0a1b2c3d", GHOST],
}
STATUSES: dict[ProtocolName, list[Status]] = {
    "six-phase": [Status.WRITTEN, Status.LOCKED, Status.ASSERTED, Status.PUT, Status.CLEANING],
    "fenced": [Status.WRITTEN, Status.ASSERTED, Status.COMPLETE],
}
places = st.tuples(st.sampled_from(ROWS), st.sampled_from(COLUMNS))


class ColumnStore:
    """A store that reads by columns, two rows a page, from cells as HBase sends them; some pages
    have no rows. errors: raised by the next calls, one by one."""

    def __init__(self, inner: Store, errors: Iterable[Exception] = ()) -> None:
        self._inner = inner
        self._errors = list(errors)
        self.pages = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read_columns(
        self, table: bytes, start: bytes, stop: bytes | None, columns: Sequence[tuple[bytes, bytes]]
    ) -> ColumnPage:
        if self._errors:
            raise self._errors.pop(0)
        self.pages += 1
        if self.pages == 2:
            return ColumnPage([], [[] for _ in columns], start)
        rows = list(islice(self._inner.scan(table, start, stop, columns), 2))
        cells = [(key, cell) for row in rows for key, cell in row.cells.items()]
        block = b"".join(encode_cell(*key[:3], cell.value) for key, cell in cells)
        found = Cells(block).take_columns([len(row.cells) for row in rows], columns)
        return ColumnPage(*found, rows[-1].row + b"\0" if len(rows) == 2 else None)


class QuietWorld(World):
    """A world whose clients measure no calls, so that they see what their store can do."""

    listens = False


def make_world(protocol: ProtocolName) -> World:
    world = QuietWorld(protocol=protocol)
    world.store.ensure_table(TABLE, {name: Family(database=b"txn") for name in (b"d", b"e")})
    return world


def open_by_columns(world: World, store: ColumnStore | None = None) -> Engine:
    return world.client(store or ColumnStore(world.store))  # type: ignore[arg-type]


def scan(engine: Engine, **asked: Any) -> list[tuple[bytes | None, ...]]:
    """Return the rows that a scan by columns finds, each with its values."""
    span = make_span(TABLE, columns=COLUMNS, **asked)
    pages = list(engine.backend.scan_columns(span, COLUMNS))
    assert all(page.rows for page in pages)
    return [each for page in pages for each in zip(page.rows, *page.values, strict=True)]


def scan_cells(engine: Engine) -> list[tuple[bytes | None, ...]]:
    """Return the same from a scan of cells."""
    pages = group_columns(engine.scan(TABLE, columns=COLUMNS), TABLE, COLUMNS)
    return [each for page in pages for each in zip(page.rows, *page.values, strict=True)]


def strand(world: World, status: Status, mutations: Sequence[Mutation]) -> None:
    """Let a client die when its row has reached a status, or meet somebody's lock."""
    after_status(world, status, STEP_ALONE)
    with suppress(Crash, ConflictError, TxnError):
        world.client(world.faults, seed=len(world.rows()) + 100).commit(mutations)
    world.faults.crashed = False
    world.faults.plan = lambda call: Fault()


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
@given(data=st.data())
def test_columns_are_what_cells_are(protocol: ProtocolName, data: st.DataObject) -> None:
    world = make_world(protocol)
    values = data.draw(st.dictionaries(places, st.sampled_from([b"1", b"22", b""]), max_size=12))
    world.store.write([Edit(Key(row, *at, TABLE), value, 5) for (row, at), value in values.items()])
    dead = st.tuples(st.sampled_from(STATUSES[protocol]), st.sets(places, min_size=1, max_size=3))
    for status, keys in data.draw(st.lists(dead, max_size=3)):
        strand(world, status, [Mutation(Key(row, *at, TABLE), b"new") for row, at in sorted(keys)])
    lock_of = world.engine.context.rules.lock_of
    locks = st.dictionaries(places, st.sampled_from(LOCKS[protocol]), max_size=3)
    for (row, at), value in data.draw(locks).items():
        world.put(lock_of(Key(row, *at, TABLE)), value)
    outcomes: list[object] = []
    for read, engine in (
        (scan_cells, world.client()),
        (scan, world.client()),
        (scan, open_by_columns(world)),
    ):
        try:
            outcomes.append(read(engine))
        except TxnError as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1] == outcomes[2]


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_free_rows_are_read_once(protocol: ProtocolName) -> None:
    world = make_world(protocol)
    keys = [Key(row, *at, TABLE) for row in ROWS for at in COLUMNS]
    world.engine.commit([Mutation(key, b"1") for key in keys])
    world.engine.flush()
    store = ColumnStore(world.faults)
    engine = open_by_columns(world, store)
    calls: list[str] = []

    def plan(call: Call) -> Fault:
        calls.append(call.method)
        return Fault()

    world.faults.plan = plan
    assert scan(engine) == [(row, b"1", b"1", b"1") for row in ROWS]
    assert "read" not in calls
    assert store.pages == 4


def test_a_failing_store_is_asked_again() -> None:
    world = make_world("six-phase")
    world.engine.commit([Mutation(Key(b"a", *COLUMNS[0], TABLE), b"1")])
    store = ColumnStore(world.store, [NotApplied("busy")])
    assert scan(open_by_columns(world, store)) == [(b"a", b"1", None, None)]
    store = ColumnStore(world.store, [TableUnavailable("no such table", TABLE)])
    with pytest.raises(TxnError, match="no such table"):
        scan(open_by_columns(world, store))
