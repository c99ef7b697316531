"""Stores around others: that fail as planned, that count, and that tell how long calls take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from unittest.mock import patch

import pytest

from tests.unit.worlds import TABLE, World, X, Y
from txn import InvalidRequestError, MaybeApplied, Mutation, NotApplied, StoreError, TxnError
from txn.client.engine import Engine
from txn.client.measured import MeasuredStore
from txn.clock import ManualClock
from txn.events import Event, StoreCall, silent
from txn.model import Cell, Check, Edit, Family
from txn.spark.partitions import EventCounter
from txn.stores import open_store
from txn.testing.counting import CountingStore
from txn.testing.faulty import Crash, Fault, FaultyStore, Plan, Reply, at, faultless

WRITES = [Edit(X, b"1", 5), Edit(Y, b"1", 5)]
CHECKS = [Check(X, b"", ((X, b"1"),)), Check(Y, b"", ((Y, b"1"),))]
NONE: frozenset[int] = frozenset()
FIRST, BOTH = frozenset({0}), frozenset({0, 1})


def store_of(plan: Plan = faultless) -> FaultyStore:
    inner = open_store("memory://", ManualClock())
    inner.ensure_table(TABLE, {b"d": Family()})
    return FaultyStore(inner, plan)


def there(store: FaultyStore) -> str:
    """Return which of the two keys have a value, without a fault."""
    store.plan, store.crashed = faultless, False
    cells = store.read([X, Y])
    return "".join(name for name, key in (("x", X), ("y", Y)) if cells[key])


@pytest.mark.parametrize("method", ["write", "check_and_put"])
@pytest.mark.parametrize(
    ("applied", "expected"), [(None, "xy"), (NONE, ""), (FIRST, "x"), (BOTH, "xy")]
)
def test_a_lost_reply_leaves_what_was_applied(
    method: str, applied: frozenset[int] | None, expected: str
) -> None:
    store = store_of(at({1: Fault(applied=applied, reply=Reply.MAYBE_APPLIED)}))
    with pytest.raises(MaybeApplied):
        getattr(store, method)(WRITES if method == "write" else CHECKS)
    assert there(store) == expected


def test_a_crashed_client_makes_no_further_call() -> None:
    store = store_of(at({1: Fault(applied=FIRST, reply=Reply.CRASH)}))
    with pytest.raises(Crash):
        store.write(WRITES)
    with pytest.raises(Crash):  # whatever code still runs, such as a finally
        store.read([X])
    assert store.calls == 1
    assert there(store) == "x"


@pytest.mark.parametrize("early", [True, False])
def test_a_read_with_checks_comes_early_or_late(early: bool) -> None:
    """The two ends of what a transport with two connections does."""
    check = Check(X, b"1", edits=(Edit(X, b"2", 6),))
    store = store_of()
    store.reads_early = lambda: early
    store.write(WRITES)
    answers, found, _ = store.check_and_read([check], [X])
    assert answers == [True]
    assert found == {X: (b"1", 5) if early else (b"2", 6)}
    assert there(store) == "xy"


def test_a_read_that_fails_after_checks_does_not_deny_them() -> None:
    """NotApplied promises that the whole call had no effect."""
    refused = Fault(applied=NONE, reply=Reply.NOT_APPLIED)
    store = store_of(at({2: refused, 3: refused}))
    with pytest.raises(MaybeApplied):
        store.check_and_read(CHECKS[:1], [X])
    assert there(store) == "x"
    store = store_of(at({2: refused}))
    with pytest.raises(NotApplied):
        store.check_and_read([], [X])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"applied": NONE}, "has taken effect"),
        ({"reply": Reply.NOT_APPLIED}, "no effect"),
        ({"reply": Reply.NOT_APPLIED, "applied": NONE, "late": FIRST}, "no effect"),
    ],
)
def test_faults_that_break_the_contract_are_refused(fault: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fault(**fault)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault(reply=Reply.MAYBE_APPLIED), "xy"),
        (Fault(reply=Reply.CRASH), "xy"),
        (Fault(applied=NONE, reply=Reply.MAYBE_APPLIED), ""),
        (Fault(applied=NONE, reply=Reply.NOT_APPLIED), ""),
        (Fault(applied=NONE, reply=Reply.CRASH), ""),
    ],
)
def test_where_it_is_one_transaction_it_is_one_call_with_one_fault(
    fault: Fault, expected: str
) -> None:
    store = store_of(at({1: fault}))
    store.features |= {"atomic"}
    done: list[str] = []

    def work() -> None:
        store.write(WRITES[:1])
        store.atomically(lambda: store.write(WRITES[1:]))
        done.append("all")

    with pytest.raises((StoreError, Crash)):
        store.atomically(work)
    assert (store.calls, done) == (1, ["all"])
    assert there(store) == expected


def told(events: list[Event]) -> list[tuple[str, str, int]]:
    return [(e.call, e.outcome, e.items) for e in events if isinstance(e, StoreCall)]


def test_each_call_is_told_once_and_passed_on_as_it_is() -> None:
    below, events = CountingStore(open_store("memory://", ManualClock())), list[Event]()
    store = MeasuredStore(below, events.append)
    store.ensure_table(TABLE, {b"d": Family()})
    store.write([Edit(X, b"1", 5), Edit(X, b"2", 6)])
    assert store.check_and_put([Check(X, b"2", ((X, b"3"),))]) == [True]
    assert (store.read([X], [X.lock])[X] or Cell(b"", 0)).value == b"3"
    assert [cell.value for cell in store.read_versions([X], 2)[X]] == [b"3", b"2"]
    assert [row.row for row in store.scan(TABLE)] == [b"x"]
    assert store.describe(TABLE) == {b"d": Family()}
    assert store.find_splits(TABLE, 3) == below.find_splits(TABLE, 3)
    store.compact(TABLE, 1)
    with pytest.raises(InvalidRequestError):
        store.write([Edit(X._replace(row=b"r" * 40_000), b"1", 5)])
    assert told(events).pop() == ("write", "refused", 1)
    events.pop()
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
