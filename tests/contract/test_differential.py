"""The local stores beside a naive model of HBase, on any history of calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from txn.clock import ManualClock
from txn.model import Cell, Check, Edit, Family, Key
from txn.stores.local import LocalStore
from txn.tables.kv.lmdb import LmdbStore
from txn.tables.kv.memory import MemoryStore

NOW_MS = 1_000
FAMILIES = {b"d": Family(3), b"e": Family(1), b"t": Family(2, ttl_ms=4)}
ROWS = [b"a", b"a\0", b"a\0\xff", b"k" * 700, b"k" * 700 + b"z"]
NUMBERS = itertools.count()


@dataclass
class HBase:
    """Every put and marker in order of arrival; a read looks at all of them."""

    clock: ManualClock
    arrived: list[Edit] = field(default_factory=list)

    def versions(self, key: Key) -> list[Cell]:
        family = FAMILIES[key.family]
        edits = [edit for edit in self.arrived if edit.key == key]
        marker = max((edit.timestamp for edit in edits if edit.value is None), default=-1)
        seen = {
            edit.timestamp: edit.value
            for edit in edits
            if edit.value is not None and edit.timestamp > marker
        }
        oldest = 0 if family.ttl_ms is None else self.clock.wall_ms() - family.ttl_ms
        newest = sorted(seen.items(), reverse=True)[: family.versions]
        return [Cell(value, timestamp) for timestamp, value in newest if timestamp >= oldest]

    def read(self, keys: Sequence[Key]) -> dict[Key, Cell | None]:
        return {key: next(iter(self.versions(key)), None) for key in keys}

    def write(self, edits: Sequence[Edit]) -> None:
        self.arrived += edits

    def check_and_put(self, checks: Sequence[Check]) -> list[bool]:
        return [self._check(check) for check in checks]

    def compact(self, purge_before_ms: int) -> None:
        keys = dict.fromkeys(edit.key for edit in self.arrived)
        markers = [
            edit
            for edit in self.arrived
            if edit.value is None and edit.timestamp >= purge_before_ms
        ]
        self.arrived = [
            Edit(key, cell.value, cell.timestamp) for key in keys for cell in self.versions(key)
        ] + markers

    def scan(self) -> dict[bytes, dict[Key, Cell]]:
        cells = self.read(sorted(dict.fromkeys(edit.key for edit in self.arrived)))
        seen = [(key, cell) for key, cell in cells.items() if cell is not None]
        return {
            row: dict(group) for row, group in itertools.groupby(seen, lambda item: item[0].row)
        }

    def _check(self, check: Check) -> bool:
        cell = None if check.expected is None else self.read([check.key])[check.key]
        if check.expected is not None and (b"" if cell is None else cell.value) != check.expected:
            return False
        now = max(self.clock.wall_ms(), 0 if cell is None else cell.timestamp)
        self.arrived += [Edit(key, value, now) for key, value in check.puts]
        self.arrived += check.edits
        return True


@dataclass(frozen=True)
class ToKey:
    """A key without its table, which is another one in each example."""

    row: bytes
    family: bytes
    column: bytes


keys = st.builds(
    ToKey, st.sampled_from(ROWS), st.sampled_from(sorted(FAMILIES)), st.sampled_from([b"x", b"y"])
)
times = st.integers(NOW_MS - 6, NOW_MS + 6)
values = st.sampled_from([b"", b"1", b"2"])
edits = st.tuples(keys, st.one_of(st.none(), values), times)
expected = st.one_of(st.none(), values)
checks = st.tuples(keys, expected, st.lists(st.tuples(keys, values), min_size=1, max_size=3))
editing = st.tuples(keys, expected, st.lists(edits, min_size=1, max_size=3))
calls = st.one_of(
    st.tuples(st.just("write"), st.lists(edits, min_size=1, max_size=4)),
    st.tuples(st.just("check"), st.lists(checks, min_size=1, max_size=3)),
    st.tuples(st.just("edit"), st.lists(editing, min_size=1, max_size=3)),
    st.tuples(st.just("compact"), times),
    st.tuples(st.just("clock"), times),
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LocalStore]]:
    path: Path = tmp_path_factory.mktemp("differential")
    found = {
        "memory": LocalStore(MemoryStore(), CLOCK),
        "embedded": LocalStore(LmdbStore(str(path / "store"), sync=False), CLOCK),
    }
    yield found
    for store in found.values():
        store.close()


CLOCK = ManualClock(NOW_MS)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=st.lists(calls, max_size=12))
def test_any_history_answers_as_the_whole_list_of_arrivals(
    stores: dict[str, LocalStore], history: list[tuple[str, object]]
) -> None:
    """Everything above is built on these semantics; both stores are trusted to have them."""
    CLOCK.set_wall_ms(NOW_MS)
    model = HBase(CLOCK)
    table = b"t%d" % next(NUMBERS)
    for store in stores.values():
        store.ensure_table(table, FAMILIES)
    for call, given_ in history:
        step(call, given_, table, model, list(stores.values()))
        compare(table, model, stores)


def step(
    call: str, given_: object, table: bytes, model: HBase, stores: Sequence[LocalStore]
) -> None:
    match call, given_:
        case "write", list(items):
            batch = [Edit(key(table, one), value, time) for one, value, time in items]
            model.write(batch)
            for store in stores:
                store.write(batch)
        case "check", list(items):
            ask(
                [
                    Check(key(table, one), expected, of_row(table, one.row, part))
                    for one, expected, part in items
                ],
                model,
                stores,
            )
        case "edit", list(items):
            ask(
                [
                    Check(
                        key(table, one),
                        expected,
                        edits=tuple(
                            Edit(key(table, other)._replace(row=one.row), value, time)
                            for other, value, time in part
                        ),
                    )
                    for one, expected, part in items
                ],
                model,
                stores,
            )
        case "compact", int(purge_before_ms):
            model.compact(purge_before_ms)
            for store in stores:
                store.compact(table, purge_before_ms)
        case "clock", int(now_ms):
            CLOCK.set_wall_ms(now_ms)
        case _:
            raise AssertionError(call)


def ask(checks: Sequence[Check], model: HBase, stores: Sequence[LocalStore]) -> None:
    expected = model.check_and_put(checks)
    assert [store.check_and_put(checks) for store in stores] == [expected] * 2


def compare(table: bytes, model: HBase, stores: dict[str, LocalStore]) -> None:
    everything = [
        Key(row, family, column, table)
        for row in ROWS
        for family in FAMILIES
        for column in (b"x", b"y")
    ]
    cells, rows = model.read(everything), model.scan()
    for name, store in stores.items():
        assert store.read(everything) == cells, name
        found = {row.row: row.cells for row in store.scan(table)}
        assert found == rows, name
        assert list(found) == sorted(rows), name
        assert [row.row for row in store.scan(table, reverse=True)] == sorted(rows)[::-1], name


def key(table: bytes, one: ToKey) -> Key:
    return Key(one.row, one.family, one.column, table)


def of_row(table: bytes, row: bytes, part: list[tuple[ToKey, Any]]) -> tuple[tuple[Key, Any], ...]:
    return tuple((Key(row, one.family, one.column, table), given_) for one, given_ in part)
