"""Transactions for Apache HBase: changes of cells in many rows and tables, all or none."""

from importlib import import_module
from logging import NullHandler, getLogger
from typing import TYPE_CHECKING, Any

from txn.assertions import And, Assertion, Exact, GreaterThan, Not, Or, Some, Version
from txn.client.block import OptimisticTransaction
from txn.client.connect import connect
from txn.client.engine import Engine
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
    Repeated,
    StoreError,
    TokenReusedError,
    TxnError,
)
from txn.model import Cell, Delete, Key, Mutation, Row, Stamp, Value
from txn.policy import Policy
from txn.request import Committed, Outcome, Request

if TYPE_CHECKING:
    from txn.client.tasks import AsyncEngine, AsyncTransaction, connect_async

    __version__: str
else:

    def __getattr__(name: str) -> Any:
        """Load at its first use what a commit does not need."""
        if name in ("AsyncEngine", "AsyncTransaction", "connect_async"):
            return getattr(import_module("txn.client.tasks"), name)
        if name == "__version__":
            found = import_module("importlib.metadata").distributions(name="hbase-txn")
            return next((each.version for each in found), "unknown")  # of a bare zip
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
    "Repeated",
    "Request",
    "Row",
    "Some",
    "Stamp",
    "StoreError",
    "TokenReusedError",
    "TxnError",
    "Value",
    "Version",
    "connect",
    "connect_async",
]

getLogger("txn").addHandler(NullHandler())  # prints nothing unless a program configures it
