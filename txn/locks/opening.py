"""Opening a lock manager by its URI."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from txn.connecting import connect
from txn.errors import InvalidRequestError, describe
from txn.locks.manager import LockManager
from txn.locks.stored import StoredManager


def open_manager(uri: str, **details: Any) -> LockManager:
    """Open a lock manager: `zookeeper://host:port,host:port/base`, or any store that `connect`
    takes, in whose table `locks` they are then kept.

    details: name (of the owner), waiting, clock, chance; session_ms for ZooKeeper; lease_ms and
    table for a store. A store opened here is closed with its manager.
    """
    parts = urlsplit(uri)
    if parts.scheme != "zookeeper":
        engine = connect(uri)
        try:
            return StoredManager(engine, owns_engine=True, **details)
        except BaseException:
            engine.close()
            raise
    if not parts.netloc:
        raise InvalidRequestError(describe("write zookeeper://host:port/base", uri=uri))
    try:
        from txn.locks.zookeeper import ZooKeeperManager  # noqa: PLC0415  (its driver is an extra)
    except ModuleNotFoundError as error:
        raise InvalidRequestError(
            describe("install hbase-txn[zookeeper]", uri=uri, missing=error.name)
        ) from error
    if parts.path.strip("/"):
        details.setdefault("base", parts.path)
    return ZooKeeperManager(parts.netloc, **details)
