"""The store that tells how long its calls take, and what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from unittest.mock import patch

import pytest

from tests.unit.worlds import TABLE, BreakingOff, World, X
from txn import Mutation, NotApplied, TxnError
from txn.client.engine import Engine
from txn.client.measured import MeasuredStore
from txn.clock import ManualClock
from txn.events import Event, StoreCall, silent
from txn.model import Check, Edit, Family
from txn.spark.partitions import EventCounter
from txn.stores import open_store
from txn.testing.counting import CountingStore


def told(events: list[Event]) -> list[tuple[str, str, int]]:
    return [(e.call, e.outcome, e.items) for e in events if isinstance(e, StoreCall)]


def test_each_call_is_told_once_and_passed_on_as_it_is() -> None:
    below, events = CountingStore(open_store("memory://", ManualClock())), list[Event]()
    store = MeasuredStore(below, events.append)
    store.ensure_table(TABLE, {b"d": Family()})
    store.write([Edit(X, b"1", 5), Edit(X, b"2", 6)])
    assert store.check_and_put([Check(X, b"2", ((X, b"3"),))]) == [True]
    found = store.read([X], [X.lock])
    assert found[X] is not None and found[X].value == b"3"
    assert [cell.value for cell in store.read_versions([X], 2)[X]] == [b"3", b"2"]
    assert [row.row for row in store.scan(TABLE)] == [b"x"]
    assert store.describe(TABLE) == {b"d": Family()}
    assert store.find_splits(TABLE, 3) == below.find_splits(TABLE, 3)
    store.compact(TABLE, 1)
    assert store.features == below.features
    calls = ["ensure_table", "write", "check_and_put", "read", "read_versions", "scan", "describe"]
    items = [1, 2, 1, 2, *[1] * 5]
    expected = zip([*calls, "find_splits", "compact"], ["done"] * 9, items, strict=True)
    assert told(events) == list(expected)
    assert {name for name, _, _ in told(events)} == set(below.calls)
    assert all(e.elapsed_ms >= 0 for e in events if isinstance(e, StoreCall))
    store.close()


class Breaking(CountingStore):
    """A store whose writes take effect, and then raise; atomic or not."""

    def __init__(self, error: type[BaseException], *, atomic: bool) -> None:
        super().__init__(open_store("memory://", ManualClock()))
        self._error = error
        if not atomic:
            self.features -= {"atomic"}

    def write(self, edits: Sequence[Edit], *, durable: bool = True, by_row: bool = False) -> None:
        super().write(edits, durable=durable, by_row=by_row)
        raise self._error


@pytest.mark.parametrize(
    ("error", "atomic", "outcomes"),
    [
        (KeyboardInterrupt, True, ["maybe applied"] * 3),
        (KeyboardInterrupt, False, ["maybe applied"] * 3),
        (OSError, True, ["maybe applied", "refused", "refused"]),
        (OSError, False, ["maybe applied"] * 3),
        (TxnError, True, ["refused"] * 3),
        (TxnError, False, ["refused", "refused", "maybe applied"]),
        (NotApplied, True, ["not applied"] * 3),
        (NotApplied, False, ["not applied", "not applied", "maybe applied"]),
    ],
)
def test_only_what_certainly_had_no_effect_is_told_so(
    error: type[BaseException], atomic: bool, outcomes: list[str]
) -> None:
    """An interrupt may come when the write is there already; and only an atomic store undoes what
    was done together before. Of a write alone, one within, and all that was done together."""
    events: list[Event] = []
    store = MeasuredStore(Breaking(error, atomic=atomic), events.append)
    store.ensure_table(TABLE, {b"d": Family()})
    events.clear()

    def write() -> None:
        store.write([Edit(X, b"1", 5)])

    for call in (write, lambda: store.atomically(write)):
        with pytest.raises(error):
            call()
    assert [outcome for _, outcome, _ in told(events)] == outcomes


def test_what_is_done_together_is_told_when_it_is_over() -> None:
    """A listener that commits would wait in there for itself."""
    inner, events = open_store("memory://", ManualClock()), list[Event]()
    store = MeasuredStore(inner, events.append)
    store.ensure_table(TABLE, {b"d": Family()})
    events.clear()
    seen: list[int] = []

    def work() -> None:
        store.atomically(lambda: store.write([Edit(X, b"1", 5)]))
        seen.append(len(events))

    store.atomically(work)
    assert seen == [0]
    assert told(events) == [("write", "done", 1), ("atomically", "done", 1)]
    events.clear()
    with pytest.raises(ZeroDivisionError):
        store.atomically(lambda: seen.append(1 // 0))
    assert told(events) == [("atomically", "refused", 1)]
    store.write([Edit(X, b"1", 5)])
    assert told(events)[1:] == [("write", "done", 1)]


def test_an_engine_measures_what_is_watched_and_nothing_else() -> None:
    world = World()
    below = CountingStore(world.store)
    watched = world.client(below, seed=3)  # type: ignore[arg-type]
    below.reset()
    world.events.clear()
    with patch("txn.protocol.commit.commit_in_one_write", lambda *_: False):
        watched.commit([Mutation(X, b"1")])
    calls = Counter(name for name, _, _ in told(world.events))
    assert calls["check_and_put"] > 1
    # One `together` within another just runs, and is no call of its own.
    assert {**calls, "atomically": 2} == below.calls
    world.on_event = silent  # type: ignore[method-assign]
    plain = world.client(below, seed=4)  # type: ignore[arg-type]
    assert plain.context.store is below
    counting = Engine(below, on_event=EventCounter(), clock=world.clock)
    assert counting.context.store is below


def test_a_scan_that_breaks_off_tells_how_far_it_came() -> None:
    world = World()
    for name in "xyz":
        world.put(X._replace(row=name.encode()), b"1")
    events: list[Event] = []
    store = MeasuredStore(BreakingOff(world.store, rows=2), events.append)
    with pytest.raises(NotApplied) as caught:
        list(store.scan(TABLE))
    assert caught.value.call == "scan"
    assert told(events) == [("scan", "not applied", 2)]
