"""A store that is opened to be looked at, or mended: one that exists, whatever is in it.

Nothing here makes a store or a table: a mistyped path is an error.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from txn.clock import SystemClock
from txn.errors import InvalidRequestError
from txn.events import silent
from txn.host.extras import require_extra
from txn.locks.model import LockReader
from txn.locks.opening import ZOOKEEPER
from txn.locks.stored import StoredLockReader
from txn.locks.zookeeper.ensemble import parse_ensemble
from txn.policy import Policy
from txn.protocol.context import Context
from txn.protocol.protocols import find_rules, require_features, require_transactions
from txn.protocol.row import FAMILY
from txn.protocol.statuses import SIX_PHASE, Rules
from txn.request import TRANSACTIONS
from txn.stores import open_store
from txn.stores.base import Store
from txn.stores.options import split_uri

if TYPE_CHECKING:
    from txn.leases.service import LeaseService

SQLITE = "sqlite:///"


def must_exist(uri: str) -> None:
    """Raise InvalidRequestError for a store that opening it would make."""
    parts = split_uri(uri)
    if parts.scheme == "embedded" and not parts.netloc:  # else opening it says what is wrong
        path = Path(unquote(parts.path))
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            raise InvalidRequestError("no such store: make it with `txn init`", path=str(path))


@contextmanager
def open_any_store(uri: str, transactions: str) -> Iterator[Context]:
    """Open a store that exists, whatever is in it."""
    clock = SystemClock()
    with closing(open_store(uri, clock, create=False)) as store:
        table = transactions.encode()
        rules = find_usual_rules(store, table)
        yield Context(store, table, clock, random.SystemRandom(), Policy(), silent, rules)


def find_usual_rules(store: Store, table: bytes) -> Rules:
    """Return the rules of the database with this transaction table; the usual ones where there is
    none, or its protocol is not written down."""
    rules = find_rules(store, table) if FAMILY in (store.describe(table) or {}) else None
    return rules or SIX_PHASE


@contextmanager
def open_store_of(
    uri: str, transactions: str, *, mends: bool = False, is_own: bool = True
) -> Iterator[Context]:
    """Open a store that has a transaction table, to look at it or, if it can do the database's
    protocol, to mend it. is_own: see `require_transactions`."""
    with open_any_store(uri, transactions) as context:
        require_transactions(context.store, context.table, is_own=is_own)
        if mends:
            require_features(context, context.rules)
        yield context


def require_leases(url: str) -> None:
    """Raise InvalidRequestError for a file of leases that opening it would make."""
    if url.startswith(SQLITE):
        file = Path(url.removeprefix(SQLITE).partition("?")[0])
        if not file.exists():
            raise InvalidRequestError("no such file of leases", path=str(file))


@contextmanager
def open_lease_look(url: str) -> Iterator[LeaseService]:
    """Open leases to be looked at: what is missing of their tables is not made."""
    with require_extra("leases"):
        from txn.leases.opening import parse_url  # noqa: PLC0415
        from txn.leases.service import LeaseService  # noqa: PLC0415
    require_leases(url)
    with LeaseService(parse_url(url)) as service:
        yield service


@contextmanager
def open_lock_look(uri: str) -> Iterator[LockReader]:
    """Open the locks of a manager to be looked at: none is made, and nothing in it is changed."""
    parts = split_uri(uri)
    if parts.scheme != ZOOKEEPER:
        with open_any_store(uri, TRANSACTIONS) as context:
            yield StoredLockReader(context)
        return
    ensemble = parse_ensemble(parts)
    with require_extra("zookeeper", hosts=ensemble.hosts):
        from txn.locks.zookeeper.queues import ZooKeeperLockReader  # noqa: PLC0415
    with closing(ZooKeeperLockReader(ensemble)) as look:
        yield look
