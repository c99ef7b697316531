"""Opening a lock manager by its URI."""

from __future__ import annotations

from typing import Any
from urllib.parse import SplitResult

from txn.client.connect import connect
from txn.errors import InvalidRequestError
from txn.host.extras import require_extra
from txn.locks.manager import LockManager
from txn.locks.stored.queue import StoredManager
from txn.locks.zookeeper.ensemble import parse_ensemble
from txn.stores.options import split_uri

ZOOKEEPER = "zookeeper"
OF_ALL = ("name", "waiting", "clock", "chance")
OF_STORE, OF_ZOOKEEPER = ("lease_ms", "table"), ("session_ms", "base")


def open_manager(uri: str, **details: Any) -> LockManager:
    """Open a lock manager: `zookeeper://host:port,host:port/base` (options in
    txn/locks/zookeeper/ensemble.py), or any store that `connect` takes, in whose table `locks` they
    are then kept.

    details: name (of the owner), waiting, clock, chance; session_ms for ZooKeeper; lease_ms and
    table for a store. A store opened here is closed with its manager.
    """
    parts = split_uri(uri)
    known = (*OF_ALL, *(OF_ZOOKEEPER if parts.scheme == ZOOKEEPER else OF_STORE))
    if wrong := sorted(details.keys() - set(known)):
        raise InvalidRequestError("no such details here", given=wrong, known=known)
    if parts.scheme == ZOOKEEPER:
        return _open_zookeeper(parts, details)
    return _open_stored(uri, details)


def _open_stored(uri: str, details: dict[str, Any]) -> LockManager:
    engine = connect(uri)
    try:
        return StoredManager(engine, owns_engine=True, **details)
    except BaseException:
        engine.close()
        raise


def _open_zookeeper(parts: SplitResult, details: dict[str, Any]) -> LockManager:
    ensemble = parse_ensemble(parts)
    with require_extra("zookeeper", hosts=ensemble.hosts):
        from txn.locks.zookeeper.queue import ZooKeeperManager  # noqa: PLC0415
    if ensemble.base and details.setdefault("base", ensemble.base) != ensemble.base:
        raise InvalidRequestError("two base paths", uri=ensemble.base, base=details["base"])
    return ZooKeeperManager(ensemble.hosts, credentials=ensemble.credentials, **details)
