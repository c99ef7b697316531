"""The table of statuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.worlds import TABLE, World, X
from txn.model import Mutation
from txn.protocol.statuses import (
    BEGINNINGS,
    COMMITTED,
    FINISHED,
    FIRST,
    PROTOCOLS,
    SIX_PHASE,
    STEPS,
    UNDECIDED,
    IllegalStepError,
    Rules,
    Status,
    check_step,
)
from txn.protocol.transaction import Transaction
from txn.request import Request
from txn.spans import Span


def test_every_status_leads_to_an_end() -> None:
    for status in Status:
        reached = {status}
        for _ in Status:
            reached |= {new for old in reached for new in STEPS[old]}
        assert reached & FINISHED


def test_a_committed_row_never_aborts_and_an_aborted_one_never_commits() -> None:
    for status in Status:
        for new in STEPS[status]:
            if status not in UNDECIDED:
                assert (status in COMMITTED) is (new in COMMITTED)


def test_only_a_locked_row_can_be_decided() -> None:
    """Deciding without all locks is deciding without isolation. A part only follows."""
    deciding = {old for old in Status if Status.ASSERTED in STEPS[old]}
    assert deciding == {Status.LOCKED, Status.PART}


def test_properties_divide_the_statuses() -> None:
    aborted = {Status.ABORTING, Status.ABORTED}
    for status in Status:
        assert status.is_undecided + status.is_decided + (status in aborted) == 1
        assert status.is_finished is (not STEPS[status])
    assert str(Status.WRITTEN) == "0-WRITTEN"


def test_a_step_that_the_table_does_not_have_is_refused() -> None:
    """Not by an assert, which a switch of the interpreter takes out."""
    for old in (None, *Status):
        allowed = BEGINNINGS if old is None else STEPS[old]
        for new in Status:
            if new in allowed:
                check_step(STEPS, old, new)
            else:
                with pytest.raises(IllegalStepError, match=str(new)):
                    check_step(STEPS, old, new)


def test_an_absent_row_begins_with_its_owner_s_status_or_with_poison() -> None:
    assert {Status.ABORTED} == BEGINNINGS - FIRST
    assert {Status.WRITTEN, Status.PART} == FIRST


@pytest.mark.parametrize("rules", PROTOCOLS.values(), ids=PROTOCOLS)
def test_what_a_crash_must_not_undo_is_never_deferred(rules: Rules) -> None:
    durable = {Status.ASSERTED, Status.PUT, Status.ABORTING, Status.ABORTED, Status.PART}
    assert not rules.deferred & durable
    assert rules.deferred >= {Status.WRITTEN, Status.COMPLETE}


def test_only_an_owner_defers_what_comes_before_the_decision() -> None:
    assert not Transaction(b"transaction.1." + b"0" * 32, Request(())).may_defer(Status.WRITTEN)
    world = World()
    plain = world.begun(Mutation(X, b"1"))
    assert plain.may_defer(Status.WRITTEN)
    plain.parts = ()
    assert not plain.may_defer(Status.WRITTEN)
    scanned = world.begun(Mutation(X, b"1"))
    scanned.spans = (Span(TABLE),)
    assert not scanned.may_defer(Status.WRITTEN)


def test_the_end_of_a_row_without_times_is_not_deferred() -> None:
    t = Transaction(b"transaction.1." + b"0" * 32, Request(()))
    assert not t.may_defer(Status.COMPLETE)
    assert replace(t, is_dated=True).may_defer(Status.COMPLETE)


@pytest.mark.parametrize("rules", PROTOCOLS.values(), ids=PROTOCOLS)
def test_poison_always_compares(rules: Rules) -> None:
    """Put without a comparison it would abort a row that has arrived, and perhaps decided."""
    fenced = rules is not SIX_PHASE
    assert (None, Status.ABORTED) not in rules.unconditional
    assert ((Status.ABORTING, Status.ABORTED) in rules.unconditional) is fenced
    assert ((None, Status.WRITTEN) in rules.unconditional) is fenced
    assert (Status.WRITTEN, Status.ASSERTED) not in rules.unconditional
    for old, new in rules.unconditional:
        check_step(rules.steps, old, new)


def test_a_transaction_without_a_plan_has_not_decided() -> None:
    with pytest.raises(IllegalStepError, match="not decided"):
        _ = Transaction(b"row", Request(())).decided
