"""Opening a lock manager by its URI."""

from __future__ import annotations

from typing import Any
from urllib.parse import SplitResult, urlsplit

from txn.client.connect import connect
from txn.errors import InvalidRequestError
from txn.host.extras import require_extra
from txn.locks.manager import LockManager
from txn.locks.stored.queue import StoredManager

ZOOKEEPER = "zookeeper"
OF_ALL = ("name", "waiting", "clock", "chance")
OF_STORE, OF_ZOOKEEPER = ("lease_ms", "table"), ("session_ms", "base")


def open_manager(uri: str, **details: Any) -> LockManager:
    """Open a lock manager: `zookeeper://host:port,host:port/base`, or any store that `connect`
    takes, in whose table `locks` they are then kept.

    details: name (of the owner), waiting, clock, chance; session_ms for ZooKeeper; lease_ms and
    table for a store. A store opened here is closed with its manager.
    """
    parts = _split(uri)
    known = (*OF_ALL, *(OF_ZOOKEEPER if parts.scheme == ZOOKEEPER else OF_STORE))
    if wrong := sorted(details.keys() - set(known)):
        raise InvalidRequestError("no such details here", given=wrong, known=known)
    return (_open_zookeeper if parts.scheme == ZOOKEEPER else _open_stored)(uri, parts, details)


def _split(uri: str) -> SplitResult:
    if not isinstance(uri, str):
        raise InvalidRequestError(f"name a lock manager by its URI: uri={uri!r}")
    try:
        return urlsplit(uri)
    except ValueError as error:
        raise InvalidRequestError("not a URI", uri=uri, cause=str(error)) from error


def _open_stored(uri: str, _: SplitResult, details: dict[str, Any]) -> LockManager:
    engine = connect(uri)
    try:
        return StoredManager(engine, owns_engine=True, **details)
    except BaseException:
        engine.close()
        raise


def _open_zookeeper(uri: str, parts: SplitResult, details: dict[str, Any]) -> LockManager:
    if not parts.netloc:
        raise InvalidRequestError("write zookeeper://host:port/base", uri=uri)
    with require_extra("zookeeper", uri=uri):
        from txn.locks.zookeeper.queue import ZooKeeperManager  # noqa: PLC0415
    if parts.path.strip("/"):
        details.setdefault("base", parts.path)
    return ZooKeeperManager(parts.netloc, **details)
