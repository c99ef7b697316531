"""Every way in which a client can stop, be misinformed or be repeated late that commits without a
transaction row: there is nobody to finish or to undo what it did, so it must be whole by itself."""

from __future__ import annotations

import pytest

from tests.simulation.breaking import STAGES, Run, Stage, faults, follow, late_parts, reach, run
from tests.simulation.shapes import FENCED, Shape
from txn import CommitOutcomeUnknown, Committed
from txn.testing.faulty import Fault

ALONE = [s for s in FENCED if s.is_alone]
one_row = pytest.mark.parametrize("shape", ALONE, ids=str)


@one_row
def test_it_makes_two_calls(shape: Shape) -> None:
    done = run(shape)
    assert isinstance(done.result, Committed)
    assert [call.method for call in done.calls] == ["read", "check_and_put"]
    assert len(done.world.rows()) == 1  # of what was there before


@one_row
def test_any_call_may_fail_or_be_the_last(shape: Shape) -> None:
    for call in run(shape).calls:
        for fault in faults(call):
            broken = run(shape, {call.number: fault})
            assert not broken.world.leftovers()
            verify(broken)
            follow(broken)


@one_row
def test_any_call_may_come_late_once_more(shape: Shape) -> None:
    calls = run(shape).calls
    for call in calls:
        for late in late_parts(call):
            for point in (*range(call.number + 1, len(calls) + 1), *STAGES):
                again = run(shape, {call.number: Fault(late=late)}, point)
                live_on(again, point)


def live_on(again: Run, deliver: int | Stage) -> None:
    reach(again, "ended", deliver)
    reach(again, "mended", deliver)
    verify(again)
    expected = follow(again)
    reach(again, "followed", deliver)
    assert again.world.values(expected) == expected


def verify(broken: Run) -> None:
    values, shape = broken.world.values(broken.shape.keys), broken.shape
    assert values in (shape.before, shape.after)
    if isinstance(broken.result, Committed):
        assert values == shape.after
    elif broken.result is not None and not isinstance(broken.result, CommitOutcomeUnknown):
        assert values == shape.before, "an error says that nothing happened"
