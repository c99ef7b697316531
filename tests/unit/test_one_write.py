"""One read and one write leave what the phases leave: byte for byte, with the same results."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.worlds import TABLE, in_memory, list_stored
from txn import (
    Committed,
    DeadlineError,
    Delete,
    Engine,
    Exact,
    Key,
    Mutation,
    Policy,
    Request,
    Some,
    Version,
)
from txn.clock import ManualClock
from txn.events import BatchStarted, Ended, Event, Listener, Phase, StoreCall, silent
from txn.model import Check, Edit, Family
from txn.protocol import commit as commit_module
from txn.protocol.recovery import poison
from txn.protocol.row import status_key
from txn.protocol.statuses import ProtocolName, Status
from txn.protocol.transaction import Transaction
from txn.stores import open_store
from txn.testing.counting import CountingStore

# Two columns of one row share its lock in the fenced protocol; the second family has its own.
KEYS = [
    *(Key("x", "d", column, TABLE) for column in ("a", "b")),
    *(Key("x", "e", "a", TABLE), Key("y", "d", "a", TABLE)),
]
DAY_MS = 24 * 3_600_000
HOLDER = b"transaction.0000000000007.%032x" % 7
POLICY = Policy(attempts=2, lock_ttl_ms=100, courtesy_ms=20, deadline_ms=2_000)

Stray = tuple[Key, bytes | None, int]
"""An edit past the protocol, at a time relative to the clock."""
Asked = tuple[Sequence[Mutation | Delete], Sequence[Any], bytes | None]
"""Mutations, assertions and a token. In every other round what is only asserted is validated."""


def list_cells(key: Key) -> list[Key]:
    return [key, key.lock, key.tag, key.row_lock]


strays = st.tuples(
    st.sampled_from([cell for key in KEYS for cell in list_cells(key)]),
    st.sampled_from([b"", b"1", b"2", b"3 x", b"no number", HOLDER, b"3@" + HOLDER, None]),
    st.sampled_from([-9, -1, 0, 1, 2, 700, DAY_MS, 40 * DAY_MS]),
)
mutations = st.builds(
    lambda key, value: Delete(key) if value is None else Mutation(key, value),
    st.sampled_from(KEYS),
    st.sampled_from([b"1", b"2", None]),
)
assertions = st.one_of(
    st.builds(Exact, st.sampled_from(KEYS), st.sampled_from([b"1", b"2"])),
    st.builds(lambda key: ~Some(key), st.sampled_from(KEYS)),
    st.builds(Version, st.sampled_from(KEYS), st.sampled_from([None, 999_999])),
)
asked = st.tuples(
    st.lists(mutations, min_size=1, max_size=3, unique_by=lambda each: each.key),
    st.lists(assertions, max_size=1),
    st.sampled_from([None, None, b"token"]),
)


def open_engine(
    protocol: ProtocolName, clock: ManualClock | None = None, listener: Listener = silent
) -> Engine:
    """Return an engine over a memory store with both families."""
    clock = clock or ManualClock()
    clock.advance(1_000_000)
    store = CountingStore(open_store("memory://", clock))
    store.ensure_table(TABLE, {b"d": Family(database=b"txn"), b"e": Family(database=b"txn")})
    given = {"policy": POLICY, "clock": clock, "rng": Random(1), "on_event": listener}
    return Engine(store, table=TABLE, protocol=protocol, **given)  # type: ignore[arg-type]


def run(
    protocol: ProtocolName, found: Sequence[Stray], rounds: Sequence[Sequence[Asked]]
) -> tuple[list[object], dict[bytes, bytes]]:
    clock = ManualClock()
    engine = open_engine(protocol, clock)
    store = engine.context.store
    for key, value, ahead_ms in found:
        store.write([Edit(key, value, clock.wall_ms() + ahead_ms)])
    results: list[object] = []
    for number, each in enumerate(rounds):
        answers = engine.commit_many(
            [Request(tuple(changes), tuple(held), once=once) for changes, held, once in each],
            validate=bool(number % 2),
        )
        results += [
            answer.timestamp if isinstance(answer, Committed) else (type(answer), str(answer))
            for answer in answers
        ]
        clock.advance(3)
    return results, list_stored(store)


PUT = [Mutation(KEYS[0], b"1"), Mutation(KEYS[3], b"1")]
LOCK, ROW_LOCK, TAG = KEYS[0].lock, KEYS[0].row_lock, KEYS[0].tag
ONCE: list[list[Asked]] = [[(PUT, [], None)]]
WITH_ANOTHER: list[list[Asked]] = [[(PUT, [], None), ([Delete(KEYS[2])], [], None)]]


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
@given(st.lists(strays, max_size=3), st.lists(st.lists(asked, min_size=1, max_size=3), max_size=3))
@example([], ONCE * 2)
@example([(LOCK, HOLDER, -9), (ROW_LOCK, b"3@" + HOLDER, -9)], WITH_ANOTHER)
@example([(LOCK, b"", 1), (ROW_LOCK, b"3", 1)], ONCE)
@example([(LOCK, None, 1), (ROW_LOCK, None, 1)], ONCE)
@example([(KEYS[0], b"1", DAY_MS)], ONCE)
@example([(KEYS[0], b"1", 40 * DAY_MS)], WITH_ANOTHER)
@example([(TAG, b"no number", -9)], WITH_ANOTHER)
@example([], [[(PUT, [Exact(KEYS[0], b"2")], None), ([Delete(KEYS[2])], [], None)]])
@example(
    [], [[], [(PUT, [~Some(KEYS[2])], None)], [], [([Delete(KEYS[3])], [Some(KEYS[0])], None)]]
)
@example(
    [(KEYS[2].lock, HOLDER, 0), (KEYS[2].row_lock, b"3@" + HOLDER, 0)],
    [[], [(PUT, [~Some(KEYS[2])], None)]],
)
@settings(max_examples=75, deadline=None)
def test_both_ways_leave_the_same(
    protocol: ProtocolName, found: Sequence[Stray], rounds: Sequence[Sequence[Asked]]
) -> None:
    quick = run(protocol, found, rounds)
    with patch.object(commit_module, "commit_in_one_write", lambda *_: False):
        assert quick == run(protocol, found, rounds)


both_protocols = pytest.mark.parametrize("protocol", ["six-phase", "fenced"])


class Jumping(ManualClock):
    """A clock that jumps past a deadline at a reading."""

    left = 0

    def monotonic_ms(self) -> int:
        self.left -= 1
        if self.left == 0:
            self.advance(POLICY.deadline_ms)
        return super().monotonic_ms()


@both_protocols
@pytest.mark.parametrize("reads", range(1, 12))
def test_a_commit_that_becomes_late_in_it_does_not_happen(
    protocol: ProtocolName, reads: int
) -> None:
    clock = Jumping()
    engine = open_engine(protocol, clock)
    engine.commit(PUT)
    clock.left = reads
    is_late = False
    try:
        engine.commit([Mutation(KEYS[0], b"2")])
    except DeadlineError:
        is_late = True
    cell = engine.read([KEYS[0]])[KEYS[0]]
    assert cell is not None and cell.value == (b"1" if is_late else b"2")
    assert clock.left <= 0 or not is_late


@both_protocols
def test_a_row_that_was_poisoned_is_not_overwritten(protocol: ProtocolName) -> None:
    foreseen = open_engine(protocol).commit(PUT).transaction
    engine = open_engine(protocol)
    assert poison(engine.context, Transaction(foreseen, Request(())))
    status = status_key(b"txn", foreseen)
    assert engine.commit(PUT).transaction != foreseen
    cell = engine.context.store.read([status])[status]
    assert cell is not None and cell.value == Status.ABORTED.encoded


@pytest.mark.parametrize("ahead_ms", range(4))
def test_a_marker_that_hides_the_value_hides_the_lock_too(ahead_ms: int) -> None:
    """The value would be reported as committed and not be there."""
    clock = ManualClock()
    engine = open_engine("six-phase", clock)
    engine.commit([Mutation(KEYS[3], b"1")])
    key, store = KEYS[0], engine.context.store
    for cell in (key, key.lock, key.tag):
        store.write([Edit(cell, None, clock.wall_ms() + ahead_ms)])
    inner = CountingStore.check_and_put

    def write_later(self: Any, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        clock.advance(2)
        return inner(self, checks, durable=durable)

    with patch.object(CountingStore, "check_and_put", write_later):
        engine.commit([Mutation(key, b"1")])
    found = engine.read([key])[key]
    assert found is not None and found.value == b"1"


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_a_listener_hears_of_one_write_and_makes_no_other_calls(protocol: ProtocolName) -> None:
    """Otherwise metrics and traces cost several times what they observe."""
    calls: dict[bool, list[str]] = {}
    events: list[Event] = []
    for is_heard in (False, True):
        memory, clock = in_memory()
        store = CountingStore(memory)
        store.ensure_table(TABLE, {b"d": Family(), b"e": Family()})
        listener = events.append if is_heard else silent
        engine = Engine(store, table=TABLE, clock=clock, on_event=listener, protocol=protocol)
        engine.commit(PUT)
        events.clear()
        store.reset()
        engine.commit(PUT)
        calls[is_heard] = [call.method for call in store.trace]
    assert calls[True] == calls[False] == ["atomically", "read", "write"]
    assert [e.call for e in events if isinstance(e, StoreCall)] == ["read", "write", "atomically"]
    phases = [event for event in events if isinstance(event, Phase)]
    assert [(e.name, e.outcome, e.transactions, e.failed) for e in phases] == [
        ("decide", "started", 1, 0),
        ("decide", "done", 1, 0),
    ]
    assert phases[0].at_ns <= phases[1].at_ns and phases[1].elapsed_ms
    assert [type(events[0]), type(events[-1])] == [BatchStarted, Ended]
