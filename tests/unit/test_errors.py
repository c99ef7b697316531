"""Errors: they say what to do next, wherever they are caught."""

from __future__ import annotations

import pickle

import pytest

from txn import errors
from txn.assertions import Some
from txn.model import Cell, Key
from txn.request import Committed

KEY = Key("a", "d", "x", "t")


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequestError("bad"),
        errors.TokenReusedError("reused", b"o", b"t"),
        errors.Repeated(Committed(b"t", 5, repeated=True, digest=b"d", has_answer=True)),
        errors.AbortedError("reason", transaction=b"t"),
        errors.ConflictError("locked", key=KEY, holder=b"h", transaction=b"t"),
        errors.AssertionFailedError(Some(KEY), {KEY: Cell(b"1", 2)}, transaction=b"t"),
        errors.DeadlineError("late", transaction=b"t"),
        errors.CommitOutcomeUnknown(b"t"),
        errors.CorruptRowError("junk"),
        errors.NotApplied("down"),
        errors.MaybeApplied("lost"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_travel_between_processes(error: errors.TxnError) -> None:
    """A task of Spark or a pool of processes raises them somewhere else than they are handled."""
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_facts_come_last_and_unknown_ones_not_at_all() -> None:
    """Messages are read by people and by grep."""
    error = errors.ConflictError("key is locked", key=KEY, holder=b"h")
    assert str(error) == f"key is locked key={KEY!r} holder=b'h'"
