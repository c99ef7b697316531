"""Batches: what befalls one transaction of a `commit_many` leaves the others alone."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.simulation.breaking import CHANGING, NONE, deliver_all, faults
from tests.simulation.world import World, key
from txn import CommitOutcomeUnknown, Committed, Exact, Mutation, StoreError
from txn.errors import AssertionFailedError
from txn.protocol.statuses import PROTOCOLS, ProtocolName, Status
from txn.testing.faulty import Call, Crash, Fault, Reply

pytestmark = pytest.mark.usefixtures("rows_for_all")

A, X, Y, Z, Z2 = key("a"), key("x"), key("y"), key("z"), key("z", "w")
REQUESTS = [
    ([Mutation(X, b"1")], []),
    ([Mutation(Y, b"1")], [Exact(A, b"other")]),
    ([Mutation(Z, b"1"), Mutation(Z2, b"1")], []),
]


each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


def run(
    protocol: ProtocolName, batch_faults: dict[int, Fault]
) -> tuple[list[bool], list[object], list[Call]]:
    """Send the batch, and mend; return what is there, which must be what the client was told."""
    world = World(protocol=protocol)
    calls: list[Call] = []

    def plan(call: Call) -> Fault:
        calls.append(call)
        return batch_faults.get(call.number, Fault())

    engine, store = world.client(plan)
    results: list[object] = []
    with suppress(Crash):
        results = list(engine.commit_many(REQUESTS))
    world.mend()
    deliver_all(store)
    world.mend()
    values = world.values([X, Y, Z, Z2])
    there = [values[key] is not None for key in (X, Y, Z)]
    assert values[Z] == values[Z2]
    assert not there[1]
    for happened, result in zip(there, results, strict=False):
        if not isinstance(result, CommitOutcomeUnknown):
            assert happened is isinstance(result, Committed), result
    return there, results, calls


@each_protocol
def test_each_transaction_of_a_batch_is_all_or_nothing_and_told_the_truth(
    protocol: ProtocolName,
) -> None:
    _, results, calls = run(protocol, {})
    assert [type(result) for result in results] == [Committed, AssertionFailedError, Committed]
    for call in calls:
        for fault in faults(call):
            run(protocol, {call.number: fault})
        if call.method in CHANGING:
            late = frozenset(range(len(call.items)))
            run(protocol, {call.number: Fault(late=late)})
            for reply in (Reply.MAYBE_APPLIED, Reply.CRASH):
                run(protocol, {call.number: Fault(applied=NONE, reply=reply, late=late)})


@each_protocol
def test_any_two_calls_of_a_batch_may_fail(protocol: ProtocolName) -> None:
    """The look that follows a refused item may fail as well, which costs a retry."""
    _, _, calls = run(protocol, {})
    for call in calls:
        for first in faults(call):
            if first.reply is not Reply.MAYBE_APPLIED:
                continue
            for number in (call.number + 1, call.number + 2):
                both = {call.number: first, number: Fault(NONE, Reply.NOT_APPLIED)}
                _, results, _ = run(protocol, both)
                assert not any(isinstance(result, StoreError) for result in results)
                assert isinstance(results[0], Committed)


@each_protocol
def test_a_batch_of_which_a_part_was_decided_is_finished_by_fsck(protocol: ProtocolName) -> None:
    _, _, calls = run(protocol, {})
    decision = next(c for c in calls if Status.ASSERTED.value in repr(c.items).encode())
    assert len(decision.items) == 2
    for only in (0, 1):
        there, _, _ = run(protocol, {decision.number: Fault(frozenset({only}), Reply.CRASH)})
        assert there == [only == 0, False, only == 1]
