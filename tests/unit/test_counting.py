"""The store that counts: costs are asserted with it, so it must count what is asked for."""

from __future__ import annotations

import pytest

from txn import Engine, Key, Mutation, NotApplied
from txn.clock import ManualClock
from txn.model import Check, Edit, Family
from txn.stores import open_store
from txn.testing.counting import Counted, CountingStore
from txn.testing.faulty import Fault, FaultyStore, Reply

TABLE = b"data"
X, Y = Key("x", "d", "v", TABLE), Key("y", "d", "v", TABLE)


def test_it_counts_calls_and_items_and_answers_as_the_store_below() -> None:
    """A batch is one call and many items: transports pay for either."""
    store = CountingStore(open_store("memory://", ManualClock()))
    store.ensure_table(TABLE, {b"d": Family()})
    store.write([Edit(X, b"1", 5), Edit(Y, b"1", 5)])
    assert store.check_and_put([Check(X, b"2", ((X, b"3"),))]) == [False]
    assert store.read([X])[X] == (b"1", 5)
    assert store.read([X, Y])[Y] == (b"1", 5)
    assert [row.row for row in store.scan(TABLE)] == [b"x", b"y"]
    assert store.describe(TABLE) == {b"d": Family()}
    assert store.calls == {
        "ensure_table": 1,
        "write": 1,
        "check_and_put": 1,
        "read": 2,
        "scan": 1,
        "describe": 1,
    }
    assert store.items["read"] == 3
    assert store.items["write"] == 2
    store.close()


def test_what_is_counted_is_what_runs_below() -> None:
    """A counter that took another way than the store's own would count what nobody pays for."""
    below = CountingStore(open_store("memory://", ManualClock()))
    store = CountingStore(below)
    store.ensure_table(TABLE, {b"d": Family()})
    store.read([X], [Y])
    store.atomically(lambda: store.write([Edit(X, b"1", 5)]))
    store.compact(TABLE, 1)
    store.check_and_read([Check(X, b"1", ((X, b"2"),))], [Y])
    methods = ["ensure_table", "read", "atomically", "write", "compact", "check_and_read"]
    assert [call.method for call in store.trace] == methods
    assert below.trace == store.trace


def test_the_engine_s_calls_are_those_of_the_store_below() -> None:
    """Of a commit, of reads and of a scan."""
    clock = ManualClock()
    below = CountingStore(open_store("memory://", clock))
    store = CountingStore(below)
    engine = Engine(store, clock=clock)
    engine.ensure_table(TABLE, ["d"])
    engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    engine.read([X, Y])
    assert [row.row for row in engine.scan(TABLE)] == [b"x", b"y"]
    assert {"atomically", "read", "check_and_put", "scan"} <= set(store.calls)
    assert below.trace == store.trace


def test_the_trace_is_in_order_and_can_be_forgotten() -> None:
    """What is asserted is the cost of one thing, not of its set-up."""
    store = CountingStore(open_store("memory://", ManualClock()))
    store.ensure_table(TABLE, {b"d": Family()})
    store.reset()
    store.read([X])
    store.read([Y])
    assert store.trace == [Counted("read", (X,)), Counted("read", (Y,))]


def test_a_call_that_fails_is_counted() -> None:
    """Retries cost as much as successes."""
    refused = Fault(applied=frozenset(), reply=Reply.NOT_APPLIED)
    faulty = FaultyStore(open_store("memory://", ManualClock()), lambda call: refused)
    store = CountingStore(faulty)
    with pytest.raises(NotApplied):
        store.write([Edit(X, b"1", 5)])
    assert store.calls == {"write": 1}
