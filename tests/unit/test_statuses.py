"""The table of statuses."""

from __future__ import annotations

import pytest

from txn.protocol.six_phase import FORWARD
from txn.protocol.statuses import (
    COMMITTED,
    FINISHED,
    FIRST,
    STEPS,
    UNDECIDED,
    IllegalStepError,
    Status,
    check_step,
)
from txn.protocol.transaction import Transaction
from txn.request import Request


def test_every_status_leads_to_an_end() -> None:
    """A row from which nothing leads on would hold its locks for ever."""
    for status in Status:
        reached = {status}
        for _ in Status:
            reached |= {new for old in reached for new in STEPS[old]}
        assert reached & FINISHED


def test_a_committed_row_never_aborts_and_an_aborted_one_never_commits() -> None:
    """The decision is final, whichever way it went."""
    for status in Status:
        for new in STEPS[status]:
            if status not in UNDECIDED:
                assert (status in COMMITTED) is (new in COMMITTED)


def test_only_a_locked_row_can_be_decided() -> None:
    """Deciding without all locks is deciding without isolation. A part only follows."""
    deciding = {old for old in Status if Status.ASSERTED in STEPS[old]}
    assert deciding == {Status.LOCKED, Status.PART}


def test_properties_divide_the_statuses() -> None:
    """Recovery asks these questions; each status has exactly one answer to the first two."""
    aborted = {Status.ABORTING, Status.ABORTED}
    for status in Status:
        assert status.is_undecided + status.is_decided + (status in aborted) == 1
        assert status.is_finished is (not STEPS[status])
    assert str(Status.WRITTEN) == "0-WRITTEN"


def test_a_step_that_the_table_does_not_have_is_refused() -> None:
    """Not by an assert, which a switch of the interpreter takes out: it would write over a
    decision."""
    for old in (None, *Status):
        allowed = FIRST if old is None else STEPS[old]
        for new in Status:
            if new in allowed:
                check_step(STEPS, old, new)
            else:
                with pytest.raises(IllegalStepError, match=str(new)):
                    check_step(STEPS, old, new)


def test_rolling_forward_goes_by_the_table() -> None:
    """Each part of it begins at a status that the part before has reached, by one step."""
    statuses = [Status.ASSERTED, *(reached for _, _, reached in FORWARD)]
    for (begun, _, reached), before in zip(FORWARD, statuses, strict=False):
        assert begun is before
        assert reached in STEPS[begun] or begun is Status.ASSERTED
    assert statuses[-1] is Status.COMPLETE


def test_a_transaction_without_a_plan_has_not_decided() -> None:
    """What is put after the decision is what the plan says, and nothing else."""
    with pytest.raises(IllegalStepError, match="not decided"):
        _ = Transaction(b"row", Request(())).decided
