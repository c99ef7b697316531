"""One column's state answers as HBase does, whatever arrives in whatever order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txn.model import Cell
from txn.tables import cells


def test_the_newest_put_is_seen_whatever_arrived_last() -> None:
    """Late duplicates land below what came later: the protocol's steps 4 and 5 rely on it."""
    state = cells.put(b"", 20, b"new", 3)
    state = cells.put(state, 10, b"late", 3)
    assert cells.newest(state) == Cell(b"new", 20)
    assert cells.versions(state) == [Cell(b"new", 20), Cell(b"late", 10)]


def test_at_one_timestamp_the_later_arrival_replaces() -> None:
    """A checked put may get the checked cell's own timestamp, and must be seen all the same."""
    state = cells.put(cells.put(b"", 10, b"first", 3), 10, b"second", 3)
    assert cells.versions(state) == [Cell(b"second", 10)]


@pytest.mark.parametrize("timestamp", [9, 10])
def test_a_put_at_or_below_a_marker_is_masked_for_ever(timestamp: int) -> None:
    """This is why commit timestamps must lie above every timestamp that was read."""
    marked = cells.delete(b"", 10)
    assert cells.newest(cells.put(marked, timestamp, b"masked", 3)) is None


def test_a_put_above_a_marker_is_seen_and_the_marker_stays() -> None:
    """The marker must go on masking what is still to arrive below it."""
    state = cells.put(cells.delete(b"", 10), 11, b"seen", 1)
    state = cells.put(state, 12, b"newer", 1)
    assert cells.versions(state) == [Cell(b"newer", 12)]
    assert cells.newest(cells.delete(state, 12)) is None
    assert cells.put(cells.delete(state, 12), 11, b"late", 1) == cells.delete(b"", 12)


def test_a_marker_spares_what_is_above_it() -> None:
    """A late duplicate of a delete must not remove what a later transaction wrote."""
    state = cells.put(cells.put(b"", 10, b"old", 3), 20, b"new", 3)
    assert cells.versions(cells.delete(state, 10)) == [Cell(b"new", 20)]


def test_no_more_versions_are_kept_than_the_family_has() -> None:
    """Without this, the state of a hot cell would grow without end."""
    state = b""
    for timestamp in (30, 10, 20, 40):
        state = cells.put(state, timestamp, b"%d" % timestamp, 2)
    assert cells.versions(state) == [Cell(b"40", 40), Cell(b"30", 30)]


def test_a_put_that_changes_nothing_returns_the_same_object() -> None:
    """The tables skip the write then."""
    state = cells.put(cells.delete(b"", 10), 20, b"kept", 1)
    assert cells.put(state, 15, b"too old", 1) is state
    assert cells.put(state, 10, b"masked", 1) is state
    assert cells.delete(state, 10) is state
    assert cells.delete(state, 9) is state


def test_an_empty_value_is_a_value() -> None:
    """A free lock and a cleared tag are empty values, whose timestamps are read."""
    assert cells.newest(cells.put(b"", 10, b"", 3)) == Cell(b"", 10)


def test_a_value_that_looks_like_a_marker_is_not_one() -> None:
    """States are walked from the front, never searched."""
    trap = cells.delete(b"", 10)
    state = cells.put(cells.put(b"", 20, trap, 2), 30, trap, 2)
    assert cells.versions(state) == [Cell(trap, 30), Cell(trap, 20)]
    assert cells.compact(state) == state


def test_a_purged_marker_lets_a_late_put_be_seen() -> None:
    """The danger that `hbase.hstore.time.to.purge.deletes` is set against; tests emulate it."""
    state = cells.delete(cells.put(b"", 10, b"old", 3), 20)
    assert cells.newest(cells.put(cells.compact(state, 0, 20), 10, b"late", 3)) is None
    purged = cells.compact(state, 0, 21)
    assert purged == b""
    assert cells.newest(cells.put(purged, 10, b"late", 3)) == Cell(b"late", 10)


def test_expired_versions_are_hidden_and_then_dropped() -> None:
    """A family's TTL decides at the read; a compaction frees the room."""
    state = cells.put(cells.put(b"", 10, b"old", 3), 20, b"new", 3)
    assert cells.versions(state, 11) == [Cell(b"new", 20)]
    assert cells.newest(state, 20) == Cell(b"new", 20)
    assert cells.newest(state, 21) is None
    assert cells.compact(state, 11) == cells.put(b"", 20, b"new", 3)
    assert cells.compact(state, 21) == b""


@dataclass
class Column:
    """HBase's own way: every cell and marker that arrived, looked at anew by each read."""

    limit: int
    puts: list[tuple[int, bytes]] = field(default_factory=list)
    markers: list[int] = field(default_factory=list)

    def versions(self, oldest: int) -> list[Cell]:
        marker = max(self.markers, default=-1)
        seen = {timestamp: value for timestamp, value in self.puts if timestamp > marker}
        newest = sorted(seen.items(), reverse=True)[: self.limit]
        return [Cell(value, timestamp) for timestamp, value in newest if timestamp >= oldest]

    def compact(self, oldest: int, purge_before: int) -> None:
        self.puts = [(timestamp, value) for value, timestamp in self.versions(oldest)]
        self.markers = [timestamp for timestamp in self.markers if timestamp >= purge_before]


TIMES = st.integers(0, 9)
STEPS = st.one_of(
    st.tuples(st.just("put"), TIMES, st.binary(max_size=3)),
    st.tuples(st.just("delete"), TIMES, st.none()),
    st.tuples(st.just("compact"), TIMES, TIMES),
)


@given(st.integers(1, 4), st.lists(STEPS, max_size=20), TIMES)
def test_any_history_reads_as_from_the_whole_list_of_arrivals(
    limit: int, steps: list[tuple[str, int, object]], oldest: int
) -> None:
    """What is dropped early could never have been seen again."""
    column, state = Column(limit), b""
    for step, time, other in steps:
        match step, other:
            case "put", bytes(value):
                column.puts.append((time, value))
                state = cells.put(state, time, value, limit)
            case "compact", int(purge_before):
                column.compact(time, purge_before)
                state = cells.compact(state, time, purge_before)
            case _:
                column.markers.append(time)
                state = cells.delete(state, time)
        expected = column.versions(oldest)
        assert cells.versions(state, oldest) == expected
        assert (cells.newest(state, oldest) if state else None) == next(iter(expected), None)
