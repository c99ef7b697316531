"""Open stores, locks and leases that exist, to inspect or repair them.

Nothing here creates a store or a table: a mistyped path is an error.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from txn.clock import Clock, SystemClock
from txn.errors import InvalidRequestError
from txn.events import silent
from txn.host.extras import require_extra
from txn.locks.model import LockReader
from txn.locks.opening import ZOOKEEPER
from txn.locks.stored import StoredLockReader
from txn.policy import Policy
from txn.protocol.context import Context
from txn.protocol.protocols import find_rules, require_features, require_transactions
from txn.protocol.row import FAMILY
from txn.protocol.statuses import SIX_PHASE, Rules
from txn.request import TRANSACTIONS
from txn.stores import open_store
from txn.stores.base import Store
from txn.stores.options import hide_login, split_uri

if TYPE_CHECKING:
    from txn.leases.service import LeaseService

SQLITE = "sqlite:///"


@contextmanager
def open_any_store(uri: str, transactions: str) -> Iterator[Context]:
    """Open a store that exists, with or without a transaction table."""
    clock = SystemClock()
    with closing(open_store(uri, clock, create=False)) as store:
        yield make_context(store, transactions, clock)


def make_context(store: Store, transactions: str, clock: Clock) -> Context:
    table = transactions.encode()
    rules = find_usual_rules(store, table)
    return Context(store, table, clock, random.SystemRandom(), Policy(), silent, rules)


def find_usual_rules(store: Store, table: bytes) -> Rules:
    """Return the rules of the database with this transaction table, or those of six-phase if the
    table is absent or its protocol is not recorded."""
    rules = find_rules(store, table) if FAMILY in (store.describe(table) or {}) else None
    return rules or SIX_PHASE


@contextmanager
def open_store_of(
    uri: str, transactions: str, *, mends: bool = False, is_own: bool = True
) -> Iterator[Context]:
    """Open a store with a transaction table. mends: also require that the store supports the
    database's protocol. is_own: see `require_transactions`."""
    with open_any_store(uri, transactions) as context:
        require_transactions(context.store, context.table, is_own=is_own)
        if mends:
            require_features(context, context.rules)
        yield context


def require_leases(url: str) -> None:
    """Raise InvalidRequestError for a file of leases that does not exist."""
    if url.startswith(SQLITE):
        file = Path(url.removeprefix(SQLITE).partition("?")[0])
        if not file.exists():
            raise InvalidRequestError("no such file of leases", path=str(file))


@contextmanager
def open_lease_view(url: str) -> Iterator[LeaseService]:
    """Open leases to list them, without creating missing tables."""
    with require_extra("leases"):
        from txn.leases.opening import parse_url  # noqa: PLC0415
        from txn.leases.service import LeaseService  # noqa: PLC0415
    require_leases(url)
    with LeaseService(parse_url(url)) as service:
        yield service


@contextmanager
def open_lock_view(uri: str) -> Iterator[LockReader]:
    """Open the locks of a manager to list them, without creating or changing anything."""
    parts = split_uri(uri)
    if parts.scheme != ZOOKEEPER:
        with open_any_store(uri, TRANSACTIONS) as context:
            yield StoredLockReader(context)
        return
    with require_extra("zookeeper", uri=hide_login(uri)):
        from txn.locks.zookeeper.client import parse_ensemble  # noqa: PLC0415
        from txn.locks.zookeeper.queues import open_lock_reader  # noqa: PLC0415
    with closing(open_lock_reader(parse_ensemble(parts))) as reader:
        yield reader
