"""How much of a check is done: never less than before, and never all before its end."""

from __future__ import annotations

from random import Random

import pytest

from recovery.console.progress import PARTS, CheckProgress, find_bounds, find_position
from recovery.fsck import check
from tests.unit.test_search import NOW_MS, TXN, Rows
from txn.model import Edit, Family, Key
from txn.protocol.row import new_row_key
from txn.protocol.statuses import Status

DATA = b"data"


def fill(rows: Rows, number: int) -> None:
    """Put unfinished transactions over an hour, and rows of data in two heaps."""
    rng = Random(1)
    for prefix in (b"00.", b"01."):
        keys = [
            prefix + new_row_key(NOW_MS - rng.randrange(3_600_000), rng.getrandbits(128))
            for _ in range(number)
        ]
        rows.put(keys, Status.LOCKED)
    rows.store.ensure_table(DATA, {b"d": Family()})
    names = [b"a%05d" % at for at in range(number)] + [b"zz%05d" % at for at in range(number)]
    rows.store.write([Edit(Key(name, b"d", b"x", DATA), b"1", 1) for name in names])


@pytest.mark.parametrize("tables", [(), (DATA,), (TXN, DATA)])
def test_progress_grows_with_what_is_read(tables: tuple[bytes, ...]) -> None:
    rows = Rows()
    fill(rows, 400)
    progress = CheckProgress(rows.context, tables)
    seen: list[int] = []

    def note(table: bytes, row: bytes) -> None:
        progress.reach(table, row)
        seen.append(progress.percent)

    assert progress.percent == 0
    for _ in check(rows.context, scan=tables, on_progress=note):
        pass
    assert seen == sorted(seen)
    assert seen[-1] == 99
    gaps = [later - earlier for earlier, later in zip([0, *seen], seen, strict=False)]
    assert max(gaps) <= 35, "a third of it in one leap"
    half = seen.index(next(percent for percent in seen if percent >= 50))
    assert 0.1 < half / len(seen) < 0.9


def test_an_empty_table_is_done_at_once() -> None:
    rows = Rows()
    assert find_bounds(rows.context, TXN) == [b"", b""]
    progress = CheckProgress(rows.context, ())
    progress.reach(TXN, b"any")
    assert progress.percent <= 99


def test_bounds_divide_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows()
    fill(rows, 2_000)
    bounds = find_bounds(rows.context, DATA)
    assert bounds == sorted(set(bounds))
    assert (bounds[0], bounds[-1]) == (b"a00000", b"zz01999")
    assert PARTS // 2 < len(bounds) <= PARTS + 2
    monkeypatch.setattr(type(rows.store), "find_splits", lambda *_: [])
    assert find_bounds(rows.context, DATA) == [b"a00000", b"zz01999"]


@pytest.mark.parametrize(
    ("row", "position"),
    [(b"", 0.0), (b"b0", 0.0), (b"b2", 0.5), (b"b4", 1.0), (b"c", 2.0), (b"d", 2.0)],
)
def test_a_position_lies_between_the_bounds(row: bytes, position: float) -> None:
    assert find_position([b"b0", b"b4", b"c"], row) == position
