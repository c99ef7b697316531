"""Leases in a database: shared and exclusive claims, for a time, on tables and partitions."""

from typing import TYPE_CHECKING

from txn.leases.model import (
    ExceedsMaxLeaseTimeError,
    HeldLease,
    InvalidArgumentsError,
    Lease,
    LeaseAlreadyExistsError,
    LeaseNotFoundError,
)
from txn.leases.opening import default_url, open_leases
from txn.locks.model import LockRequest, Mode, Path, exclusive, path, shared

if TYPE_CHECKING:  # its drivers are extras
    from txn.leases.service import LeaseService as LeaseService

__all__ = [
    "ExceedsMaxLeaseTimeError",
    "HeldLease",
    "InvalidArgumentsError",
    "Lease",
    "LeaseAlreadyExistsError",
    "LeaseNotFoundError",
    "LockRequest",
    "Mode",
    "Path",
    "default_url",
    "exclusive",
    "open_leases",
    "path",
    "shared",
]
