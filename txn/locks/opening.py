"""Open a lock manager: by its URI, or in an open store."""

from __future__ import annotations

from typing import Any

from txn.arguments import check_calls
from txn.client.connect import connect
from txn.client.engine import Engine
from txn.errors import InvalidRequestError
from txn.host.extras import require_extra
from txn.locks.manager import LockManager
from txn.locks.model import Waiting
from txn.locks.stored import StoredQueues
from txn.stores.options import hide_login, split_uri

ZOOKEEPER = "zookeeper"


@check_calls
def open_manager(
    uri: str, *, name: str | None = None, waiting: Waiting | None = None, **details: Any
) -> LockManager:
    """Open a lock manager at `zookeeper://host:port,host:port/base`, or in the table `locks` of any
    store that `connect` takes. ZooKeeper's options are in txn/locks/zookeeper/client.py.

    name: of the owner. details: clock, rng; session_ms for ZooKeeper; lease_ms and table for a
    store. The manager closes a store that was opened here.
    """
    parts = split_uri(uri)
    own = ("session_ms",) if parts.scheme == ZOOKEEPER else ("lease_ms", "table")
    known = ("clock", "rng", *own)
    if wrong := sorted(details.keys() - set(known)):
        raise InvalidRequestError("no such details here", given=wrong, known=known)
    if parts.scheme == ZOOKEEPER:
        with require_extra("zookeeper", uri=hide_login(uri)):
            from txn.locks.zookeeper.client import parse_ensemble  # noqa: PLC0415
            from txn.locks.zookeeper.queues import ZooKeeperQueues  # noqa: PLC0415
        queues = ZooKeeperQueues(parse_ensemble(parts), **details)
        return LockManager(queues, name=name, waiting=waiting)
    engine = connect(uri)
    try:
        return open_stored(engine, name=name, waiting=waiting, owns_engine=True, **details)
    except BaseException:
        engine.close()
        raise


def open_stored(
    engine: Engine, *, name: str | None = None, waiting: Waiting | None = None, **details: Any
) -> LockManager:
    return LockManager(StoredQueues(engine, **details), name=name, waiting=waiting)
