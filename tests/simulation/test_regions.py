"""The regions and their logs: what a crash loses, and what it leaves."""

from __future__ import annotations

from random import Random

import pytest

from tests.simulation.regions import Region, RegionStore, divide_by_hash, divide_by_row
from tests.simulation.world import D, key
from txn.clock import ManualClock
from txn.model import Check, Edit, Family
from txn.stores.local import LocalStore
from txn.tables.kv.memory import MemoryStore

DATA = b"data"


def stored(store: RegionStore) -> dict[bytes, bytes]:
    return dict(store.ordered.read(lambda reader: dict(reader.items(b"", b"\xff"))))


@pytest.mark.parametrize("seed", range(40))
def test_a_crash_is_exact_whatever_came_before(seed: int) -> None:
    random = Random(seed)
    clock = ManualClock()
    store = RegionStore(
        LocalStore(MemoryStore(), clock), random.choice((divide_by_row, divide_by_hash({DATA: 2})))
    )
    store.ensure_table(DATA, {D: Family()})
    cells = [key(row, column) for row in ("x", "y", "x\0y") for column in "vw"]
    copies: dict[Region, list[dict[bytes, bytes]]] = {}

    def rows_of(region: Region) -> dict[bytes, bytes]:
        own = {c.row for c in cells if store.region_of(c) == region}
        found = stored(store)
        return {
            name: state
            for row in own
            for name, state in found.items()
            if name[4:].startswith(row.replace(b"\0", b"\0\xff") + b"\0\0")
        }

    for _ in range(60):
        clock.advance(random.choice((0, 0, 3)))
        cell = random.choice(cells)
        region = store.region_of(cell)
        new = random.choice((None, b"", b"1", b"2"))
        expected = random.choice((None, b"", b"1"))
        time = random.choice((None, clock.wall_ms() + random.randint(-9, 9)))
        edit = Edit(cell, new, time or clock.wall_ms() if new is None else time)
        before = rows_of(region)
        match random.randrange(12):
            case 0:
                store.write([edit])
                copies.pop(region, None)
            case 9:
                store.flush(region)
                copies.pop(region, None)
            case 10:
                store.compact(DATA)
                copies.clear()
            case 11:
                store.atomically(lambda: None)
                copies.clear()
            case 1 if copies.get(region):
                keep = random.randint(0, len(copies[region]) - 1)
                others = {r: rows_of(r) for r in copies if r != region}
                assert store.crash(region, keep) == len(copies[region]) - keep
                assert rows_of(region) == copies.pop(region)[keep]
                assert {r: rows_of(r) for r in others} == others
            case kind:
                check = Check(cell, expected, edits=(edit,), is_deferred=kind > 2)
                if store.check_and_put([check]) == [True]:
                    if check.is_deferred:
                        copies.setdefault(region, []).append(before)
                    else:
                        copies.pop(region, None)
        assert {r: len(p) for r, p in store.pending.items()} == {
            r: len(c) for r, c in copies.items()
        }
