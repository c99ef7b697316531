"""Transactions for Apache HBase: cells in many rows and tables change all or not at all."""

from importlib import import_module
from logging import NullHandler, getLogger
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txn.assertions import And, Assertion, Exact, GreaterThan, Not, Or, Some, Version
    from txn.client.block import OptimisticTransaction
    from txn.client.connect import connect
    from txn.client.engine import Engine
    from txn.client.tasks import AsyncEngine, AsyncTransaction, connect_async
    from txn.errors import (
        AbortedError,
        AssertionFailedError,
        CommitOutcomeUnknown,
        ConflictError,
        CorruptRowError,
        DeadlineError,
        InvalidRequestError,
        MaybeApplied,
        NotApplied,
        StoreError,
        TxnError,
    )
    from txn.model import Cell, Delete, Key, Mutation, Row, Value
    from txn.policy import Policy
    from txn.request import Committed, Outcome, Request

__all__ = [
    "AbortedError",
    "And",
    "Assertion",
    "AssertionFailedError",
    "AsyncEngine",
    "AsyncTransaction",
    "Cell",
    "CommitOutcomeUnknown",
    "Committed",
    "ConflictError",
    "CorruptRowError",
    "DeadlineError",
    "Delete",
    "Engine",
    "Exact",
    "GreaterThan",
    "InvalidRequestError",
    "Key",
    "MaybeApplied",
    "Mutation",
    "Not",
    "NotApplied",
    "OptimisticTransaction",
    "Or",
    "Outcome",
    "Policy",
    "Request",
    "Row",
    "Some",
    "StoreError",
    "TxnError",
    "Value",
    "Version",
    "connect",
    "connect_async",
]

_NAMES: dict[str, tuple[str, ...]] = {
    "txn.assertions": (
        "And",
        "Assertion",
        "Exact",
        "GreaterThan",
        "Not",
        "Or",
        "Some",
        "Version",
    ),
    "txn.client.block": ("OptimisticTransaction",),
    "txn.client.connect": ("connect",),
    "txn.client.engine": ("Engine",),
    "txn.client.tasks": (
        "AsyncEngine",
        "AsyncTransaction",
        "connect_async",
    ),
    "txn.errors": (
        "AbortedError",
        "AssertionFailedError",
        "CommitOutcomeUnknown",
        "ConflictError",
        "CorruptRowError",
        "DeadlineError",
        "InvalidRequestError",
        "MaybeApplied",
        "NotApplied",
        "StoreError",
        "TxnError",
    ),
    "txn.model": (
        "Cell",
        "Delete",
        "Key",
        "Mutation",
        "Row",
        "Value",
    ),
    "txn.policy": ("Policy",),
    "txn.request": (
        "Committed",
        "Outcome",
        "Request",
    ),
}
"""Where the names are, by module. A module is imported when one of its names is first used, so that
whatever imports a part of `txn`, such as a plugin of pytest, does not pay for all of it."""

_PLACES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what has the name, and keep it."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


getLogger("txn").addHandler(NullHandler())  # nothing is printed unless a program asks for it
