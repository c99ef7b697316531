"""Transactions for Apache HBase: changes of cells in many rows and tables, all or none."""

from logging import NullHandler, getLogger
from typing import TYPE_CHECKING

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
from txn.model import Cell, Delete, Key, Mutation, Row, Stamp, Value
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
    "Stamp",
    "StoreError",
    "TxnError",
    "Value",
    "Version",
    "connect",
    "connect_async",
]

getLogger("txn").addHandler(NullHandler())  # prints nothing unless a program configures it

__version__: str
if not TYPE_CHECKING:

    def __getattr__(name: str) -> str:
        """Return `__version__`, by the installed distribution; reading that takes a while."""
        if name != "__version__":
            raise AttributeError(f"module 'txn' has no attribute {name!r}")
        from importlib.metadata import version  # noqa: PLC0415

        return version("hbase-txn")
