"""The same random calls on the local stores and on a real HBase, natively and by both gateways.

The local stores are told the time, HBase has its own: what a checked put was stamped with is only
known to be the present. So all other timestamps here are far in the past or in the future.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.integration.hbase import HBase
from tests.integration.scoped import ScopedStore
from txn.clock import ManualClock, SystemClock
from txn.model import Cell, Check, Edit, Family, Key
from txn.stores import open_store
from txn.stores.base import Store
from txn.stores.local import LocalStore
from txn.tables.kv.lmdb import LmdbStore
from txn.tables.kv.memory import MemoryStore

FAR_MS = 30 * 86_400_000  # from the present, however long the tests before this one took
TABLE = b"differential"
FAMILIES = {b"d": Family(3), b"e": Family(1)}
ROWS = [b"a", b"a\0", b"a\0\xff", b"k" * 700]
START_MS = SystemClock().wall_ms()

cells = st.tuples(
    st.sampled_from(ROWS), st.sampled_from(sorted(FAMILIES)), st.sampled_from([b"x", b"y", b"x:z"])
)
times = st.one_of(st.integers(1, 6), st.integers(START_MS + FAR_MS, START_MS + FAR_MS + 5))
values = st.sampled_from([b"", b"1", b"2"])
edits = st.tuples(cells, st.one_of(st.none(), values), times)
puts = st.lists(st.tuples(cells, values), min_size=1, max_size=3, unique_by=lambda put: put[0][1:])
checks = st.tuples(cells, values, puts)


def key(cell: tuple[bytes, bytes, bytes]) -> Key:
    return Key(*cell, TABLE)


EVERYTHING = [key(cell) for cell in itertools.product(ROWS, FAMILIES, [b"x", b"y", b"x:z"])]


def timeless(cell: Cell | None) -> Cell | None:
    """The cell, with one timestamp for all that is the present."""
    if cell is None or abs(cell.timestamp - START_MS) > FAR_MS // 2:
        return cell
    return cell._replace(timestamp=START_MS)


class Histories(RuleBasedStateMachine):
    """Any calls in any order: after each of them all stores answer alike."""

    shared: ClassVar[dict[str, Store]] = {}
    clock: ClassVar = ManualClock(START_MS)

    def __init__(self) -> None:
        super().__init__()
        prefix = uuid.uuid4().hex.encode() + b"/"
        self.stores = {
            name: ScopedStore(store, prefix, {TABLE: FAMILIES})
            for name, store in self.shared.items()
        }

    def all_do(self, call: object) -> None:
        self.clock.advance(1)
        answers = {name: call(store) for name, store in self.stores.items()}  # type: ignore[operator]
        assert len({repr(answer) for answer in answers.values()}) == 1, answers

    @rule(batch=st.lists(edits, min_size=1, max_size=5))
    def write(self, batch: list[tuple[tuple[bytes, bytes, bytes], bytes | None, int]]) -> None:
        self.all_do(lambda store: store.write([Edit(key(c), v, t) for c, v, t in batch]))

    @rule(batch=st.lists(checks, min_size=1, max_size=4))
    def check(self, batch: list[tuple[tuple[bytes, bytes, bytes], bytes, list]]) -> None:  # type: ignore[type-arg]
        asked = [
            Check(
                key(cell),
                expected,
                tuple((key((cell[0], *where[1:])), value) for where, value in written),
            )
            for cell, expected, written in batch
        ]
        self.all_do(lambda store: store.check_and_put(asked))

    @rule(
        start=st.sampled_from([b"", *ROWS]),
        stop=st.one_of(st.none(), st.sampled_from(ROWS)),
        reverse=st.booleans(),
    )
    def scan_a_range(self, start: bytes, stop: bytes | None, reverse: bool) -> None:
        self.all_do(
            lambda store: [row.row for row in store.scan(TABLE, start, stop, reverse=reverse)]
        )

    @rule(columns=st.sets(st.tuples(st.sampled_from([b"d", b"e"]), st.sampled_from([b"x", b"y"]))))
    def scan_columns(self, columns: set[tuple[bytes, bytes]]) -> None:
        if columns:
            self.all_do(
                lambda store: [
                    (row.row, sorted((k, timeless(c)) for k, c in row.cells.items()))
                    for row in store.scan(TABLE, columns=columns)
                ]
            )

    @invariant()
    def all_cells_are_alike(self) -> None:
        self.all_do(lambda s: [timeless(cell) for cell in s.read(EVERYTHING).values()])


@pytest.fixture(scope="module")
def stores(hbase: HBase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Store]]:
    path: Path = tmp_path_factory.mktemp("differential")
    found: dict[str, Store] = {
        "memory": LocalStore(MemoryStore(), Histories.clock),
        "embedded": LocalStore(LmdbStore(str(path / "store"), sync=False), Histories.clock),
        "native": open_store(hbase.native),
        "thrift 2": open_store(hbase.thrift2),
        "thrift 1": open_store(hbase.thrift1),
    }
    for name, store in found.items():
        if name != "thrift 1":
            store.ensure_table(TABLE, FAMILIES)
    yield found
    for store in found.values():
        store.close()


def test_hbase_answers_as_the_local_stores_do(stores: dict[str, Store]) -> None:
    """All that is proven on the local stores is worth as much as they are like HBase. The rows of
    its three ways are apart, so each of them is compared."""
    apart = {
        name: ScopedStore(stores[name], prefix, {TABLE: FAMILIES})
        for name, prefix in (("thrift 1", b"1/"), ("native", b"2/"))
    }
    Histories.shared = {**stores, **apart}
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Histories,
        settings=settings(
            max_examples=25,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
