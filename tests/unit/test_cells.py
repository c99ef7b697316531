"""One column's state answers as HBase does, whatever arrives in whatever order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txn.model import Cell
from txn.tables import cells


def test_a_put_that_changes_nothing_returns_the_same_object() -> None:
    state = cells.put_version(cells.delete(b"", 10), 20, b"kept", 1)
    assert cells.put_version(state, 15, b"too old", 1) is state
    assert cells.put_version(state, 10, b"masked", 1) is state
    assert cells.delete(state, 10) is state
    assert cells.delete(state, 9) is state
    exact = cells.delete_exact(state, 20)
    assert cells.put_version(exact, 20, b"late", 3) is exact
    assert cells.delete_exact(exact, 20) is exact


def test_a_value_that_looks_like_a_marker_is_not_one() -> None:
    trap = cells.delete(b"", 10)
    state = cells.put_version(cells.put_version(b"", 20, trap, 2), 30, trap, 2)
    assert cells.versions(state) == [Cell(trap, 30), Cell(trap, 20)]
    assert cells.compact_cell(state) == state


def test_a_version_with_a_ttl_of_its_own_uncovers_what_it_hid() -> None:
    """As in HBase, where an expired cell counts for nothing: neither for reads nor for limits."""
    old = cells.put_version(b"", 10, b"old", 2)
    state = cells.put_version(old, 20, b"new", 2, ttl_ms=5)
    assert cells.find_ttl(state, 20) == 5
    assert cells.find_ttl(state, 10) is None
    assert cells.newest(state, 0, 25) == Cell(b"new", 20)
    assert cells.newest(state, 0, 26) == Cell(b"old", 10)
    assert cells.compact_cell(state, 0, None, 26) == old
    newer = cells.put_version(state, 30, b"newer", 2, 26)
    assert cells.versions(newer, 0, 26) == [Cell(b"newer", 30), Cell(b"old", 10)]
    late = cells.put_version(cells.put_version(b"", 20, b"new", 1, ttl_ms=5), 15, b"late", 1, 26)
    assert cells.newest(late, 0, 26) == Cell(b"late", 15)


@pytest.mark.parametrize("ttl_ms", [cells.FOREVER - 1, -1, 0])
def test_a_ttl_that_ends_before_now_or_beyond_64_bits_is_over(ttl_ms: int) -> None:
    assert cells.versions(cells.put_version(b"", 10, b"v", 1, ttl_ms=ttl_ms), 0, 11) == []
    state = cells.put_version(cells.put_version(b"", 10, b"old", 1), 20, b"older", 2)
    assert cells.put_version(state, 20, b"v", 2, 21, ttl_ms=ttl_ms) is state


@dataclass
class Column:
    """HBase's own way: every cell and marker that arrived, looked at anew by each read.

    What VERSIONS hides is flushed away at once, as the module says of itself.
    """

    limit: int
    puts: list[tuple[int, bytes, int | None]] = field(default_factory=list)
    markers: list[int] = field(default_factory=list)
    exact: set[int] = field(default_factory=set)
    now: int = 0

    def versions(
        self, oldest: int, since: int = 0, until: int = 99, at_least: int = 0
    ) -> list[Cell]:
        marker = max(self.markers, default=-1)
        seen = {
            timestamp: (value, ttl)
            for timestamp, value, ttl in self.puts
            if timestamp > marker and timestamp not in self.exact
        }
        alive = {
            timestamp: value
            for timestamp, (value, ttl) in seen.items()
            if ttl is None or timestamp + ttl >= self.now
        }
        newest = sorted(alive.items(), reverse=True)[: self.limit]
        within = [item for item in newest if since <= item[0] < until]
        return [
            Cell(value, timestamp)
            for number, (timestamp, value) in enumerate(within)
            if timestamp >= oldest or number < at_least
        ]

    def flush(self) -> None:
        self.keep(self.versions(0))

    def keep(self, kept: list[Cell]) -> None:
        ttls = {timestamp: ttl for timestamp, _, ttl in self.puts}
        self.puts = [(timestamp, value, ttls[timestamp]) for value, timestamp in kept]

    def compact(self, oldest: int, purge_before: int, at_least: int) -> None:
        self.keep(self.versions(oldest, at_least=at_least))
        self.markers = [timestamp for timestamp in self.markers if timestamp >= purge_before]
        self.exact = {timestamp for timestamp in self.exact if timestamp >= purge_before}


TIMES = st.integers(0, 9)
TTLS = st.none() | st.integers(-2, 12)
STEPS = st.one_of(
    st.tuples(st.just("put"), TIMES, st.tuples(st.binary(max_size=3), TTLS)),
    st.tuples(st.just("put"), TIMES, st.tuples(st.binary(max_size=3), TTLS)),
    st.tuples(st.sampled_from(["delete", "exact", "drop", "drop exact"]), TIMES, st.none()),
    st.tuples(st.just("compact"), TIMES, TIMES),
)


@given(st.integers(1, 4), st.lists(STEPS, max_size=20), st.tuples(TIMES, TIMES, TIMES))
def test_any_history_reads_as_from_the_whole_list_of_arrivals(
    limit: int, steps: list[tuple[str, int, object]], asked: tuple[int, int, int]
) -> None:
    oldest, since, until = asked
    column, state = Column(limit), b""
    for now, (step, time, other) in enumerate(steps):
        column.now = now
        state = _step(column, state, step, time, other)
        column.flush()
        assert cells.versions(state, oldest, now) == column.versions(oldest)
        newest = cells.newest(state, oldest, now) if state else None
        assert newest == next(iter(column.versions(oldest)), None)
        assert cells.versions(
            state, oldest, now, since=since, until=until, at_least=1
        ) == column.versions(oldest, since, until, 1)
        masked = time <= max(column.markers, default=-1) or time in column.exact
        assert cells.masks(state, time) == masked


def _step(column: Column, state: bytes, step: str, time: int, other: object) -> bytes:
    match step, other:
        case "put", (bytes(value), (int() | None) as ttl):
            if ttl is None or time + ttl >= column.now:
                column.puts.append((time, value, ttl))
            return cells.put_version(state, time, value, column.limit, column.now, ttl_ms=ttl)
        case "compact", int(purge_before):
            column.compact(time, purge_before, 1)
            return cells.compact_cell(
                state, time, purge_before, column.now, limit=column.limit, at_least=1
            )
        case "exact", _:
            column.exact.add(time)
            return cells.delete_exact(state, time)
        case "drop", _:
            column.puts = [put for put in column.puts if put[0] > time]
            column.markers = [marker for marker in column.markers if marker > time]
            column.exact = {marker for marker in column.exact if marker > time}
            return cells.drop_versions(state, time)
        case "drop exact", _:
            column.puts = [put for put in column.puts if put[0] != time]
            return cells.drop_exact(state, time)
        case _:
            column.markers.append(time)
            return cells.delete(state, time)
