"""Shared and exclusive locks on databases, tables and partitions, as in Hive."""

from txn.locks.held import Held, LockLost
from txn.locks.hive.settings import from_hive
from txn.locks.manager import LockManager
from txn.locks.model import (
    Lock,
    LockDenied,
    LockRequest,
    Mode,
    Owner,
    Path,
    Waiting,
    exclusive,
    path,
    shared,
)
from txn.locks.opening import open_manager

__all__ = [
    "Held",
    "Lock",
    "LockDenied",
    "LockLost",
    "LockManager",
    "LockRequest",
    "Mode",
    "Owner",
    "Path",
    "Waiting",
    "exclusive",
    "from_hive",
    "open_manager",
    "path",
    "shared",
]
