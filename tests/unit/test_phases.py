"""The table of statuses."""

from __future__ import annotations

from txn.phases import COMMITTED, FINISHED, STEPS, UNDECIDED, Status


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
    """Deciding without all locks is deciding without isolation."""
    assert [old for old in Status if Status.ASSERTED in STEPS[old]] == [Status.LOCKED]


def test_properties_divide_the_statuses() -> None:
    """Recovery asks these questions; each status has exactly one answer to the first two."""
    aborted = {Status.ABORTING, Status.ABORTED}
    for status in Status:
        assert status.is_undecided + status.is_decided + (status in aborted) == 1
        assert status.is_finished is (not STEPS[status])
    assert str(Status.WRITTEN) == "0-WRITTEN"
