"""Every way in which one client can stop, be misinformed, or be repeated late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest

from tests.simulation.breaking import (
    CHANGING,
    NONE,
    STAGES,
    Run,
    Stage,
    deliver_all,
    faults,
    faults_together,
    follow,
    late_parts,
    live_on,
    reach,
    run,
    stop_fsck,
    verify,
)
from tests.simulation.keys import A, X, Y, Z
from tests.simulation.rules import both_protocols
from tests.simulation.shapes import BY_NAME, FENCED, PARTED, REGIONAL, SHAPES, Shape
from tests.simulation.world import World, key
from txn import AssertionFailedError, CommitOutcomeUnknown, Committed, Exact, Mutation, StoreError
from txn.protocol.statuses import ProtocolName
from txn.testing.faulty import Call, Crash, Fault, Reply

pytestmark = pytest.mark.slow
every_shape = pytest.mark.parametrize("shape", [*SHAPES, *FENCED], ids=str)
also_in_parts = pytest.mark.parametrize("shape", [*SHAPES, *FENCED, *PARTED], ids=str)
six_phases = pytest.mark.parametrize("shape", SHAPES, ids=str)
alone = pytest.mark.parametrize("shape", [*(s for s in FENCED if s.is_alone), *REGIONAL], ids=str)


@pytest.fixture(autouse=True)
def rows_for_others(request: pytest.FixtureRequest) -> None:
    if "alone" not in request.node.name:
        request.getfixturevalue("rows_for_all")


def points(shape: Shape, call: Call, last: int) -> Iterator[int | Stage]:
    yield from range(call.number + 1, last + 1, 3 if shape.in_parts else 1)
    yield from STAGES


@also_in_parts
def test_an_undisturbed_transaction_does_what_it_says(shape: Shape) -> None:
    done = run(shape)
    assert isinstance(done.result, Committed if shape.holds else AssertionFailedError)
    assert not done.world.leftovers()
    live_on(done)


@also_in_parts
def test_any_call_may_fail_or_be_the_last(shape: Shape) -> None:
    """After fsck it is there as a whole or not at all, and its client was not lied to."""
    for call in run(shape).calls:
        for fault in faults(call):
            live_on(run(shape, {call.number: fault}))


@six_phases
@pytest.mark.parametrize("way", ["one_cell", "reads_early"])
def test_the_same_by_other_ways_to_call(shape: Shape, way: str) -> None:
    """The status is never there without the buffer or the plan; an abort makes 1-LOCKED fail."""
    run_so = partial(run, shape, one_cell=way == "one_cell", reads_early=way == "reads_early")
    calls = run_so().calls
    for call in calls:
        for fault in faults(call):
            live_on(run_so({call.number: fault}))
        for late in late_parts(call) if way == "one_cell" else ():
            for point in points(shape, call, len(calls)):
                again = {call.number: Fault(late=late)}
                live_on(run_so(again, point), point)
    if way == "reads_early":
        assert [call.method for call in calls[1:3]] == ["read", "check_and_put"]


@every_shape
def test_the_same_where_it_is_one_local_transaction(shape: Shape) -> None:
    calls = run(shape, atomic=True).calls
    assert [call.method for call in calls] == ["atomically"]
    for first in faults_together():
        broken = run(shape, {1: first}, atomic=True)
        assert not broken.world.leftovers()  # fsck has nothing to do
        assert all(row.status and row.status.is_finished for row in broken.world.rows())
        for call in broken.calls[1:]:
            for second in faults_together():
                both = {1: first, call.number: second}
                assert not run(shape, both, atomic=True).world.leftovers()
                live_on(run(shape, both, atomic=True))
        live_on(broken)


@also_in_parts
def test_a_reader_sees_all_or_nothing_of_what_a_client_left(shape: Shape) -> None:
    """Readers wait only for one that may have validated, and abort it once its lock TTL is over."""
    for call in run(shape).calls:
        for fault in faults(call):
            broken = run(shape, {call.number: fault})
            reader = broken.world.engine()
            began_ms = broken.world.clock.monotonic_ms()
            seen = reader.read(shape.keys)
            scanned = {k: c for row in reader.scan() for k, c in row.cells.items()}
            assert {k: c for k, c in seen.items() if c} == {k: scanned[k] for k in seen if seen[k]}
            if not shape.validate and not shape.in_parts:
                assert broken.world.clock.monotonic_ms() == began_ms
            broken.world.mend()
            if not shape.validate:  # the reader may have poisoned it: then nobody knows
                verify(broken)
            assert reader.read(shape.keys) == seen
            assert broken.world.values(shape.keys) in (shape.before, shape.after)


@pytest.mark.parametrize("atomic", [False, True])
@also_in_parts
def test_the_next_client_finishes_what_one_left(shape: Shape, atomic: bool) -> None:
    """Also one that commits in one local transaction, and then goes step by step itself."""
    for call in run(shape).calls:
        for fault in faults(call):
            broken = run(shape, {call.number: fault})
            expected = follow(broken, atomic=atomic)
            broken.world.mend()
            assert broken.world.values(expected) == expected


@also_in_parts
def test_any_write_may_happen_again_at_any_later_point(shape: Shape) -> None:
    """A gateway repeats requests for minutes, also after fsck and a second transaction."""
    calls = run(shape).calls
    for call in calls:
        for late in late_parts(call):
            for point in points(shape, call, len(calls)):
                live_on(run(shape, {call.number: Fault(late=late)}, point), point)


@also_in_parts
def test_any_write_may_happen_only_later(shape: Shape) -> None:
    """A request whose reply was lost may still be on its way, whether its client goes on or not."""
    calls = run(shape).calls
    for call in calls:
        for late in late_parts(call):
            rest = frozenset(range(len(call.items))) - late
            for reply in (Reply.CRASH,) if shape.in_parts else (Reply.MAYBE_APPLIED, Reply.CRASH):
                delayed = {call.number: Fault(applied=rest, reply=reply, late=late)}
                for point in points(shape, call, len(calls) + 2 * (not shape.in_parts)):
                    live_on(run(shape, delayed, point), point)


@also_in_parts
def test_what_a_dead_client_wrote_may_happen_again(shape: Shape) -> None:
    """The client dies later than the request that is repeated: every pair of the two."""
    calls = run(shape).calls
    for call in calls:
        if call.method not in CHANGING:
            continue
        again = {call.number: Fault(late=frozenset(range(len(call.items))))}
        for last in range(call.number + 1, len(calls) + 1, 2 if shape.in_parts else 1):
            for applied in (None,) if shape.in_parts else (None, NONE):
                crash = {last: Fault(applied=applied, reply=Reply.CRASH)}
                for stage in STAGES:
                    live_on(run(shape, again | crash, stage), stage)


@also_in_parts
def test_fsck_may_be_stopped_at_any_call(shape: Shape) -> None:
    """A client that dies while it reads leaves what it left at the call before."""
    calls = run(shape).calls
    for call in calls:
        if call.method not in CHANGING and call is not calls[-1]:
            continue
        for applied in (NONE,) if shape.in_parts else (None, NONE):
            fault = {call.number: Fault(applied=applied, reply=Reply.CRASH)}
            number, stopped = 0, True
            while stopped:
                number += 1
                broken = run(shape, fault)
                stopped = stop_fsck(broken.world, number, None if shape.in_parts else applied)
                live_on(broken)


@every_shape
@pytest.mark.parametrize("applied", [None, NONE], ids=["applied", "lost"])
def test_the_store_may_go_away_at_any_call(shape: Shape, applied: frozenset[int] | None) -> None:
    """The client gives up after a bounded number of tries, and what it says is true."""
    calls = run(shape).calls
    for first in range(1, len(calls) + 1):
        away = {
            number: Fault(applied=applied, reply=Reply.MAYBE_APPLIED)
            for number in range(first, first + 100)
        }
        broken = run(shape, away)
        assert broken.store.calls < first + 100
        live_on(broken)
        refused = {number: Fault(applied=NONE, reply=Reply.NOT_APPLIED) for number in away}
        live_on(run(shape, refused))


TWICE = ("two rows, asserted", "false assertion", "once")


@pytest.mark.parametrize("name", [*TWICE, *(f"fenced, {name}" for name in TWICE)])
def test_any_two_calls_may_fail(name: str) -> None:
    """The second fault hits what the first one has set going: reads, releases."""
    shape = BY_NAME[name]
    for call in run(shape).calls:
        for first in coarse(call):
            if first.reply is Reply.CRASH:
                continue
            once_broken = run(shape, {call.number: first})
            for later in once_broken.calls[call.number :]:
                for fault in coarse(later):
                    live_on(run(shape, {call.number: first, later.number: fault}))


def coarse(call: Call) -> list[Fault]:
    everything = frozenset(range(len(call.items)))
    return [fault for fault in faults(call) if fault.applied in (None, NONE, everything)]


@alone
def test_what_is_alone_is_whole_by_itself(shape: Shape) -> None:
    """There is nobody to finish or to undo what its client did."""
    for call in run(shape).calls:
        for fault in faults(call):
            broken = run(shape, {call.number: fault})
            assert not broken.world.leftovers()
            verify_alone(broken)
            follow(broken)


@alone
def test_what_is_alone_may_come_late_once_more(shape: Shape) -> None:
    """Whatever came meanwhile stays: the lock that it compares has counted on."""
    calls = run(shape).calls
    for call in calls:
        for late in late_parts(call):
            for point in points(shape, call, len(calls)):
                again = run(shape, {call.number: Fault(late=late)}, point)
                reach(again, "ended", point)
                reach(again, "mended", point)
                verify_alone(again)
                expected = follow(again)
                reach(again, "followed", point)
                assert again.world.values(expected) == expected


def verify_alone(broken: Run) -> None:
    values, shape = broken.world.values(broken.shape.keys), broken.shape
    assert values in (shape.before, shape.after)
    if isinstance(broken.result, Committed):
        assert values == shape.after
    elif broken.result is not None and not isinstance(broken.result, CommitOutcomeUnknown):
        assert values == shape.before, "an error says that nothing happened"


Z2 = key("z", "w")
REQUESTS = [
    ([Mutation(X, b"1")], []),
    ([Mutation(Y, b"1")], [Exact(A, b"other")]),
    ([Mutation(Z, b"1"), Mutation(Z2, b"1")], []),
]


def send(protocol: ProtocolName, batch_faults: dict[int, Fault]) -> tuple[list[object], list[Call]]:
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
    return results, calls


@both_protocols
def test_each_transaction_of_a_batch_is_all_or_nothing_and_told_the_truth(
    protocol: ProtocolName,
) -> None:
    results, calls = send(protocol, {})
    assert [type(result) for result in results] == [Committed, AssertionFailedError, Committed]
    for call in calls:
        for fault in faults(call):
            send(protocol, {call.number: fault})
        if call.method in CHANGING:
            late = frozenset(range(len(call.items)))
            send(protocol, {call.number: Fault(late=late)})
            for reply in (Reply.MAYBE_APPLIED, Reply.CRASH):
                send(protocol, {call.number: Fault(applied=NONE, reply=reply, late=late)})


@both_protocols
def test_any_two_calls_of_a_batch_may_fail(protocol: ProtocolName) -> None:
    """The look that follows a refused item may fail as well, which costs a retry."""
    _, calls = send(protocol, {})
    for call in calls:
        for first in faults(call):
            if first.reply is not Reply.MAYBE_APPLIED:
                continue
            for number in (call.number + 1, call.number + 2):
                both = {call.number: first, number: Fault(NONE, Reply.NOT_APPLIED)}
                results, _ = send(protocol, both)
                assert not any(isinstance(result, StoreError) for result in results)
                assert isinstance(results[0], Committed)
