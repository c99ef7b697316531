"""Every store beside a naive model of HBase, on any history of calls.

The local stores are told the time, HBase has its own: what it stamped is only known to be of the
present. So where the clock is not ours all other timestamps are far in the past or in the future.
"""

import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.hbase import HBase
from tests.integration.scoped import ScopedStore
from txn.clock import Clock, ManualClock, SystemClock
from txn.model import Cell, Check, Edit, Family, Key
from txn.stores import open_store
from txn.stores.base import Store
from txn.stores.local import LocalStore
from txn.tables.kv.lmdb import LmdbStore
from txn.tables.kv.memory import MemoryStore

NOW_MS = 1_000
FAR_MS = 30 * 86_400_000  # from the present, however long the tests before this one took
START_MS = SystemClock().wall_ms()
FAMILIES = {b"d": Family(3), b"e": Family(1), b"t": Family(2, ttl_ms=4)}
LASTING = {b"d": Family(3), b"e": Family(1)}
ROWS = [b"a", b"a\0", b"a\0\xff", b"k" * 700, b"k" * 700 + b"z"]
COLUMNS = [b"x", b"y", b"x:z"]
COLUMN = (b"d", b"x")
NUMBERS = itertools.count()


@dataclass
class Model:
    """Every put and marker in order of arrival; a read looks at all of them."""

    clock: Clock
    arrived: list[Edit] = field(default_factory=list)

    def versions(self, key: Key) -> list[Cell]:
        family = FAMILIES[key.family]
        edits = [edit for edit in self.arrived if edit.key == key]
        marker = max((edit.timestamp or 0 for edit in edits if edit.value is None), default=-1)
        puts = ((edit.timestamp or 0, edit.value) for edit in edits if edit.value is not None)
        seen = {timestamp: value for timestamp, value in puts if timestamp > marker}
        oldest = 0 if family.ttl_ms is None else self.clock.wall_ms() - family.ttl_ms
        newest = sorted(seen.items(), reverse=True)[: family.versions]
        return [Cell(value, timestamp) for timestamp, value in newest if timestamp >= oldest]

    def read(self, keys: Sequence[Key]) -> dict[Key, Cell | None]:
        return {key: next(iter(self.versions(key)), None) for key in keys}

    def write(self, edits: Sequence[Edit]) -> None:
        self.arrived += edits

    def check_and_put(self, checks: Sequence[Check]) -> list[bool]:
        return [self._check(check) for check in checks]

    def compact(self, _: bytes, purge_before_ms: int) -> None:
        keys = dict.fromkeys(edit.key for edit in self.arrived)
        self.arrived = [
            Edit(key, cell.value, cell.timestamp) for key in keys for cell in self.versions(key)
        ] + [e for e in self.arrived if e.value is None and (e.timestamp or 0) >= purge_before_ms]

    def _check(self, check: Check) -> bool:
        cell = None if check.expected is None else self.read([check.key])[check.key]
        if check.expected is not None and (b"" if cell is None else cell.value) != check.expected:
            return False
        now = max(self.clock.wall_ms(), 0 if cell is None else cell.timestamp)
        self.arrived += [Edit(key, value, now) for key, value in check.puts]
        self.arrived += check.edits
        return True


def calls(times: st.SearchStrategy[int], families: list[bytes]) -> st.SearchStrategy[Any]:
    """Calls by name, with keys that have no table yet."""
    cells = st.tuples(st.sampled_from(families), st.sampled_from(COLUMNS))
    values = st.sampled_from([b"", b"1", b"2"])
    rows = st.sampled_from(ROWS)
    edits = st.tuples(rows, cells, st.one_of(st.none(), values), times)
    puts = st.lists(st.tuples(cells, values), max_size=3, unique_by=lambda put: put[0])
    more = st.lists(
        st.tuples(cells, st.one_of(st.none(), values), times),
        max_size=3,
        unique_by=lambda edit: edit[0],
    )
    expected = st.one_of(st.none(), values)
    checks = st.tuples(rows, cells, expected, puts, more).filter(lambda c: bool(c[3] or c[4]))
    return st.one_of(
        st.tuples(st.just("write"), st.lists(edits, min_size=1, max_size=4)),
        st.tuples(st.just("check"), st.lists(checks, min_size=1, max_size=3)),
        st.tuples(st.just("compact"), times),
        st.tuples(st.just("clock"), times),
    )


def possible(check: Any, features: frozenset[Any]) -> tuple[Any, ...]:
    """Return the check without what its store cannot do."""
    row, cell, expected, puts, more = check
    if "multi_cell_check" not in features:
        puts = puts[:1]
    if "row_mutations" not in features and expected is not None:
        more = []
    return row, cell, expected, puts, more


class Histories:
    """A model and stores that do the same, in a table of their own or in rows of their own."""

    def __init__(self, clock: Clock, table: bytes, stores: dict[str, Store]) -> None:
        self.table, self.stores = table, stores
        self.clock, self.is_ours = clock, isinstance(clock, ManualClock)
        self.model = Model(clock)
        self.features = frozenset.intersection(*(store.features for store in stores.values()))
        self.families = FAMILIES if self.is_ours else LASTING
        cells = itertools.product(ROWS, self.families, COLUMNS)
        self.everything = [Key(*cell, table) for cell in cells]

    def key(self, row: bytes, cell: tuple[bytes, bytes]) -> Key:
        return Key(row, *cell, self.table)

    def do(self, call: str, given_: Any) -> None:
        if call == "write":
            edits = [Edit(self.key(row, cell), value, time) for row, cell, value, time in given_]
            self.ask(methodcaller("write", edits))
        elif call == "check":
            checks = [
                Check(
                    self.key(row, cell),
                    expected,
                    tuple((self.key(row, cell), value) for cell, value in puts),
                    tuple(Edit(self.key(row, cell), value, time) for cell, value, time in more),
                )
                for row, cell, expected, puts, more in (possible(e, self.features) for e in given_)
                if puts or more
            ]
            # Elsewhere only items that have a condition are carried out in their order.
            is_one = self.is_ours or all(check.expected is not None for check in checks)
            for batch in [checks] if is_one else [[check] for check in checks]:
                self.ask(methodcaller("check_and_put", batch))
        elif isinstance(self.clock, ManualClock):
            if call == "compact":
                self.ask(methodcaller("compact", self.table, given_))
            else:
                self.clock.set_wall_ms(given_)

    def ask(self, call: Callable[[Any], object]) -> None:
        expected = call(self.model)
        assert {name: call(each) for name, each in self.stores.items()} == dict.fromkeys(
            self.stores, expected
        )

    def compare(self, *, scans: bool) -> None:
        cells = {key: self.timeless(cell) for key, cell in self.model.read(self.everything).items()}
        for name, store in self.stores.items():
            found = {key: self.timeless(cell) for key, cell in store.read(self.everything).items()}
            assert found == cells, name
            if scans:
                seen = [(key, cell) for key, cell in sorted(cells.items()) if cell]
                assert self.scanned(store) == seen, name
                assert sorted(self.scanned(store, reverse=True)) == seen, name
                some = [(key, cell) for key, cell in seen if (key.family, key.column) == COLUMN]
                assert self.scanned(store, columns=[COLUMN]) == some, name

    def scanned(self, store: Store, **options: Any) -> list[tuple[Key, Cell | None]]:
        rows = list(store.scan(self.table, **options))
        names = [row.row for row in rows]
        assert names == sorted(set(names), reverse=options.get("reverse", False))
        cells = [each for row in rows for each in sorted(row.cells.items())]
        return [(key, self.timeless(cell)) for key, cell in cells]

    def timeless(self, cell: Cell | None) -> Cell | None:
        """The cell, with one timestamp for all that is the present, where that is not ours."""
        if self.is_ours or cell is None or abs(cell.timestamp - START_MS) > FAR_MS // 2:
            return cell
        return cell._replace(timestamp=START_MS)


CLOCK = ManualClock(NOW_MS)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Store]]:
    path: Path = tmp_path_factory.mktemp("differential")
    found: dict[str, Store] = {
        "memory": LocalStore(MemoryStore(), CLOCK),
        "embedded": LocalStore(LmdbStore(str(path / "store"), sync=False), CLOCK),
    }
    yield found
    for store in found.values():
        store.close()


@settings(max_examples=300)
@given(st.lists(calls(st.integers(NOW_MS - 6, NOW_MS + 6), sorted(FAMILIES)), max_size=12))
def test_any_history_answers_as_the_whole_list_of_arrivals(
    stores: dict[str, Store], history: list[tuple[str, Any]]
) -> None:
    """Everything above is built on these semantics; both stores are trusted to have them."""
    CLOCK.set_wall_ms(NOW_MS)
    table = b"t%d" % next(NUMBERS)
    for store in stores.values():
        store.ensure_table(table, FAMILIES)
    histories = Histories(CLOCK, table, stores)
    for call, given_ in history:
        histories.do(call, given_)
        histories.compare(scans=False)
    histories.compare(scans=True)


@pytest.fixture(scope="module", params=["emulator", "served", "native", "thrift 2", "thrift 1"])
def elsewhere(request: pytest.FixtureRequest) -> Iterator[tuple[bytes, Store]]:
    """A store whose clock is not ours, and its table."""
    table = f"differential-{uuid.uuid4().hex}".encode()
    if request.param == "served":
        uri = maker_uri = request.getfixturevalue("txn_server")
    else:
        name = "emulator" if request.param == "emulator" else "hbase"
        found: HBase = request.getfixturevalue(name)
        uri = maker_uri = found.thrift2
        if request.param in ("native", "thrift 1"):
            uri = found.native if request.param == "native" else found.thrift1
    with ExitStack() as stack:
        store, maker = (stack.enter_context(closing(open_store(each))) for each in (uri, maker_uri))
        maker.ensure_table(table, LASTING)
        yield table, store


far = st.one_of(st.integers(1, 6), st.integers(START_MS + FAR_MS, START_MS + FAR_MS + 5))


@settings(max_examples=60)
@given(st.lists(calls(far, sorted(LASTING)), max_size=12))
def test_any_history_elsewhere_answers_so_too(
    elsewhere: tuple[bytes, Store], history: list[tuple[str, Any]]
) -> None:
    """All that is proven on the local stores is worth as much as they are like HBase."""
    table, store = elsewhere
    scoped = ScopedStore(store, uuid.uuid4().hex.encode() + b"/", {table: LASTING})
    histories = Histories(SystemClock(), table, {"it": scoped})
    for call, given_ in history:
        histories.do(call, given_)
        histories.compare(scans=False)
    histories.compare(scans=True)
