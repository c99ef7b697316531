"""A transaction in parts, stopped, misinformed and repeated late in every way, as any other one.

What must hold afterwards is in `breaking`. What is tried of every shape alike is in `test_crashes`.
"""

from __future__ import annotations

import pytest

from tests.simulation.breaking import (
    CHANGING,
    NONE,
    STAGES,
    faults,
    late_parts,
    live_on,
    run,
    stop_fsck,
    verify,
)
from tests.simulation.shapes import PARTED, Shape
from txn.testing.faulty import Fault, Reply

every_shape = pytest.mark.parametrize("shape", PARTED, ids=str)


@every_shape
def test_a_reader_sees_all_or_nothing_of_what_a_client_left(shape: Shape) -> None:
    for call in run(shape).calls:
        for fault in faults(call):
            broken = run(shape, {call.number: fault})
            reader = broken.world.engine()
            seen = reader.read(shape.keys)
            scanned = {k: c for row in reader.scan() for k, c in row.cells.items()}
            assert {k: c for k, c in seen.items() if c} == {k: scanned[k] for k in seen if seen[k]}
            broken.world.mend()
            verify(broken)
            assert reader.read(shape.keys) == seen


@every_shape
def test_any_write_may_happen_again_or_only_later(shape: Shape) -> None:
    calls = run(shape).calls
    for call in calls:
        for late in late_parts(call):
            rest = frozenset(range(len(call.items))) - late
            for point in (*range(call.number + 1, len(calls) + 1, 3), *STAGES):
                live_on(run(shape, {call.number: Fault(late=late)}, point), point)
                lost = Fault(applied=rest, reply=Reply.CRASH, late=late)
                live_on(run(shape, {call.number: lost}, point), point)


@every_shape
def test_what_a_dead_client_wrote_may_happen_again(shape: Shape) -> None:
    calls = run(shape).calls
    for call in calls:
        if call.method not in CHANGING:
            continue
        again = {call.number: Fault(late=frozenset(range(len(call.items))))}
        for last in range(call.number + 1, len(calls) + 1, 2):
            for stage in STAGES:
                crash = {last: Fault(applied=None, reply=Reply.CRASH)}
                live_on(run(shape, again | crash, stage), stage)


@every_shape
def test_fsck_may_be_stopped_at_any_call(shape: Shape) -> None:
    calls = run(shape).calls
    for call in calls:
        if call.method not in CHANGING and call is not calls[-1]:
            continue
        fault = {call.number: Fault(applied=NONE, reply=Reply.CRASH)}
        number, stopped = 0, True
        while stopped:
            number += 1
            broken = run(shape, fault)
            stopped = stop_fsck(broken.world, number)
            live_on(broken)
