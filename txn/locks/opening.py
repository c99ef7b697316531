"""Open a lock manager: by its URI, in an open store, or on ZooKeeper."""

from __future__ import annotations

from typing import Any

from txn.client.connect import connect
from txn.client.engine import Engine
from txn.errors import InvalidRequestError
from txn.host.extras import require_extra
from txn.locks.manager import LockManager, check_owner_name
from txn.locks.model import Waiting, waiting_or_default
from txn.locks.stored import StoredQueues
from txn.locks.zookeeper.ensemble import parse_ensemble
from txn.stores.options import split_uri

ZOOKEEPER = "zookeeper"
OF_ALL = ("name", "waiting", "clock", "rng")
OF_STORE, OF_ZOOKEEPER = ("lease_ms", "table"), ("session_ms", "base")


def open_manager(uri: str, **details: Any) -> LockManager:
    """Open a lock manager at `zookeeper://host:port,host:port/base`, or in the table `locks` of any
    store that `connect` takes. ZooKeeper's options are in txn/locks/zookeeper/ensemble.py.

    details: name (of the owner), waiting, clock, rng; session_ms for ZooKeeper; lease_ms and
    table for a store. The manager closes a store that was opened here.
    """
    parts = split_uri(uri)
    known = (*OF_ALL, *(OF_ZOOKEEPER if parts.scheme == ZOOKEEPER else OF_STORE))
    if wrong := sorted(details.keys() - set(known)):
        raise InvalidRequestError("no such details here", given=wrong, known=known)
    if parts.scheme == ZOOKEEPER:
        ensemble = parse_ensemble(parts)
        if ensemble.base and details.setdefault("base", ensemble.base) != ensemble.base:
            raise InvalidRequestError("two base paths", uri=ensemble.base, base=details["base"])
        return open_zookeeper(ensemble.hosts, credentials=ensemble.credentials, **details)
    engine = connect(uri)
    try:
        return open_stored(engine, owns_engine=True, **details)
    except BaseException:
        engine.close()
        raise


def open_stored(
    engine: Engine, *, name: str | None = None, waiting: Waiting | None = None, **details: Any
) -> LockManager:
    return LockManager(StoredQueues(engine, **details), name=name, waiting=waiting)


def open_zookeeper(
    hosts: str, *, name: str | None = None, waiting: Waiting | None = None, **details: Any
) -> LockManager:
    with require_extra("zookeeper", hosts=hosts):
        from txn.locks.zookeeper.queues import ZooKeeperQueues  # noqa: PLC0415
    check_owner_name(name)  # before a session is opened
    waiting_or_default(waiting)
    return LockManager(ZooKeeperQueues(hosts, **details), name=name, waiting=waiting)
