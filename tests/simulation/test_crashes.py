"""Every way in which one client can stop, be misinformed, or be repeated late.

Each test goes through all the calls of the store that a transaction makes, and through the items of
each batch. What must hold afterwards is in `breaking`.
"""

from __future__ import annotations

import pytest

from tests.simulation.breaking import (
    CHANGING,
    NONE,
    STAGES,
    deliver_all,
    faults,
    faults_together,
    follow,
    late_parts,
    live_on,
    run,
    stop_fsck,
    verify,
)
from tests.simulation.shapes import BY_NAME, FENCED, PARTED, SHAPES, Shape
from txn import Committed
from txn.errors import AssertionFailedError
from txn.testing.faulty import Call, Fault, Reply

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("rows_for_all")]

every_shape = pytest.mark.parametrize("shape", [*SHAPES, *FENCED], ids=str)
also_in_parts = pytest.mark.parametrize("shape", [*SHAPES, *FENCED, *PARTED], ids=str)
six_phases = pytest.mark.parametrize("shape", SHAPES, ids=str)


@also_in_parts
def test_an_undisturbed_transaction_does_what_it_says(shape: Shape) -> None:
    done = run(shape)
    if shape.holds:
        assert isinstance(done.result, Committed)
    else:
        assert isinstance(done.result, AssertionFailedError)
    assert not done.world.leftovers()
    live_on(done)


@also_in_parts
def test_any_call_may_fail_or_be_the_last(shape: Shape) -> None:
    """A client dies, or is told too little, at every call and within every batch: after fsck the
    transaction is there as a whole or not at all, and its client was not lied to."""
    for call in run(shape).calls:
        for fault in faults(call):
            live_on(run(shape, {call.number: fault}))


@six_phases
def test_the_same_where_a_checked_write_carries_one_cell(shape: Shape) -> None:
    """Such a transport sends a buffer and its status one after the other: whatever comes between,
    the status is never there without the buffer or the plan."""
    calls = run(shape, one_cell=True).calls
    for call in calls:
        for fault in faults(call):
            live_on(run(shape, {call.number: fault}, one_cell=True))
        for late in late_parts(call):
            for point in (*range(call.number + 1, len(calls) + 1), *STAGES):
                again = {call.number: Fault(late=late)}
                live_on(run(shape, again, point, one_cell=True), point)


@six_phases
def test_the_same_where_the_look_under_the_locks_comes_first(shape: Shape) -> None:
    calls = run(shape, reads_early=True).calls
    assert [call.method for call in calls[1:3]] == ["read", "check_and_put"]
    for call in calls:
        for fault in faults(call):
            live_on(run(shape, {call.number: fault}, reads_early=True))


@every_shape
def test_the_same_where_it_is_one_local_transaction(shape: Shape) -> None:
    calls = run(shape, atomic=True).calls
    assert [call.method for call in calls] == ["atomically"]
    for first in faults_together(calls[0]):
        broken = run(shape, {1: first}, atomic=True)
        assert not broken.world.leftovers()  # fsck has nothing to do
        assert all(row.status and row.status.is_finished for row in broken.world.rows())
        for call in broken.calls[1:]:
            for second in faults_together(call):
                both = {1: first, call.number: second}
                assert not run(shape, both, atomic=True).world.leftovers()
                live_on(run(shape, both, atomic=True))
        live_on(broken)


@every_shape
def test_one_that_commits_in_one_local_transaction_finishes_what_another_left(shape: Shape) -> None:
    for call in run(shape).calls:
        for fault in faults(call):
            broken = run(shape, {call.number: fault})
            expected = follow(broken, atomic=True)
            broken.world.mend()
            assert broken.world.values(expected) == expected


@every_shape
def test_a_reader_sees_all_or_nothing_of_what_a_client_left(shape: Shape) -> None:
    """Readers do not wait for fsck: what they see of a half-done transaction is what it will be."""
    for call in run(shape).calls:
        for fault in faults(call):
            broken = run(shape, {call.number: fault})
            reader = broken.world.engine()
            began_ms = broken.world.clock.monotonic_ms()
            seen = reader.read(shape.keys)
            if not shape.validate:
                assert broken.world.clock.monotonic_ms() == began_ms
            broken.world.mend()
            if not shape.validate:  # the reader may have poisoned it: then nobody knows
                verify(broken)
            assert reader.read(shape.keys) == seen
            assert broken.world.values(shape.keys) in (shape.before, shape.after)


@also_in_parts
def test_the_next_client_finishes_what_one_left(shape: Shape) -> None:
    for call in run(shape).calls:
        for fault in faults(call):
            broken = run(shape, {call.number: fault})
            expected = follow(broken)
            broken.world.mend()
            assert broken.world.values(expected) == expected


@every_shape
def test_any_write_may_happen_again_at_any_later_point(shape: Shape) -> None:
    """A gateway repeats requests for minutes: every item, at every later point, also after fsck
    and after a second transaction."""
    calls = run(shape).calls
    for call in calls:
        for late in late_parts(call):
            for point in (*range(call.number + 1, len(calls) + 1), *STAGES):
                again = {call.number: Fault(late=late)}
                live_on(run(shape, again, point), point)


@every_shape
def test_any_write_may_happen_only_later(shape: Shape) -> None:
    calls = run(shape).calls
    for call in calls:
        for late in late_parts(call):
            rest = frozenset(range(len(call.items))) - late
            for reply in (Reply.MAYBE_APPLIED, Reply.CRASH):
                delayed = {call.number: Fault(applied=rest, reply=reply, late=late)}
                for point in (*range(call.number + 1, len(calls) + 3), *STAGES):
                    live_on(run(shape, delayed, point), point)


@every_shape
def test_what_a_dead_client_wrote_may_happen_again(shape: Shape) -> None:
    calls = run(shape).calls
    for call in calls:
        if call.method not in CHANGING:
            continue
        again = {call.number: Fault(late=frozenset(range(len(call.items))))}
        for last in range(call.number + 1, len(calls) + 1):
            for applied in (None, NONE):
                crash = {last: Fault(applied=applied, reply=Reply.CRASH)}
                for stage in STAGES:
                    live_on(run(shape, again | crash, stage), stage)


@every_shape
def test_fsck_may_be_stopped_at_any_call(shape: Shape) -> None:
    """Operators stop fsck, and machines stop operators: another fsck finishes the work."""
    calls = run(shape).calls
    for call in calls:
        if call.method not in CHANGING and call is not calls[-1]:
            continue
        for applied in (None, NONE):
            fault = {call.number: Fault(applied=applied, reply=Reply.CRASH)}
            number, stopped = 0, True
            while stopped:
                number += 1
                broken = run(shape, fault)
                stopped = stop_fsck(broken.world, number, applied)
                live_on(broken)


@every_shape
@pytest.mark.parametrize("applied", [None, NONE], ids=["applied", "lost"])
def test_the_store_may_go_away_at_any_call(shape: Shape, applied: frozenset[int] | None) -> None:
    """From some call on nothing is answered any more: the client gives up after a bounded number
    of tries, and what it says is true."""
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


@pytest.mark.parametrize(
    "name",
    [
        "two rows, asserted",
        "false assertion",
        "once",
        "fenced, two rows, asserted",
        "fenced, false assertion",
        "fenced, once",
    ],
)
def test_any_two_calls_may_fail(name: str) -> None:
    """The second fault hits what the first one has set going: reads after a lost reply, releases
    after an abort."""
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
    return [fault for fault in faults(call) if fault.applied in (None, NONE, _all(call))]


def _all(call: Call) -> frozenset[int]:
    return frozenset(range(len(call.items)))


def test_a_repeat_in_flight_is_delivered_once() -> None:
    done = run(SHAPES[0], {1: Fault(late=frozenset({0}))})
    assert len(done.store.in_flight) == 1
    deliver_all(done.store)
    assert not done.store.in_flight
