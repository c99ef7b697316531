"""Errors: they say what to do next, wherever they are caught."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import re
from pathlib import Path

import pytest

import recovery
import txn
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
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_facts_come_last_and_unknown_ones_not_at_all() -> None:
    error = errors.ConflictError("key is locked", key=KEY, holder=b"h")
    assert str(error) == f"key is locked key={KEY!r} holder=b'h'"


RETRYABLE = {"ConflictError", "DeadlineError", "NotApplied", "LockDenied", "SessionEnded"}
RETRYABLE |= {"LeaseAlreadyExistsError", "JobUnderWayError"}
UNKNOWN = {"CommitOutcomeUnknown", "StoreError", "MaybeApplied", "PartialFailure", "PartitionError"}
UNKNOWN |= {"ReplyLost", "TableUnavailable"}


def list_kinds(kind: type[errors.TxnError]) -> list[type[errors.TxnError]]:
    return [kind, *(each for sub in kind.__subclasses__() for each in list_kinds(sub))]


def test_every_error_says_whether_to_repeat_the_call_and_whether_it_wrote() -> None:
    """A program decides by it; one that is not named here is final, and wrote nothing."""
    for package in (txn, recovery):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    own = [each for each in list_kinds(errors.TxnError) if each.__module__.split(".")[0] != "tests"]
    assert {each.__name__ for each in own if each.retryable} == RETRYABLE
    assert {each.__name__ for each in own if each.written != "no"} == UNKNOWN
    assert {each.written for each in own} == {"no", "unknown"}


def test_the_table_of_the_docs_is_that_of_the_errors() -> None:
    page = Path(__file__).parents[2] / "docs" / "howto" / "service.md"
    rows = re.findall(r"^\| `(\w+)` \| (yes|no) \| (\w+) \|", page.read_text(), re.MULTILINE)
    assert {name for name, _, _ in rows} >= {"ConflictError", "NotApplied", "MaybeApplied"}
    for name, retryable, written in rows:
        kind = getattr(errors, name)
        assert (kind.retryable, kind.written) == (retryable == "yes", written), name
