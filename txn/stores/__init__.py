"""Open a store by its URI: one dict maps each scheme to its factory.

memory://                       a fresh store in this process
memory://name                   a named store that lives as long as the process
embedded:///path                a directory; its options and their defaults:
                                sync=on: `off` survives the death of processes only
                                mode=rw: `ro` never writes, for files that must not be written
                                max_readers=1024: concurrent reader threads of all processes
hbase://zk1,zk2:2181            HBase by its own RPC; options in `txn.stores.hbase.native.target`
hbase+thrift2://host:port       HBase through its Thrift 2 gateway; options in `txn.stores.gateway`
hbase+thrift1://host:port       HBase through its Thrift 1 gateway
txn://host:port                 the store of a `txn serve`, for recovery; options in
                                `txn.service.store`
"""

from __future__ import annotations

import os
from collections.abc import Callable
from re import fullmatch
from typing import Any
from urllib.parse import SplitResult, quote, unquote

from txn.clock import Clock, SystemClock
from txn.errors import InvalidRequestError
from txn.host.extras import require_extra
from txn.stores.base import Store
from txn.stores.options import Option, hide_login, one_of, read_options, show_uri, split_uri, up_to
from txn.tables.kv.ordered import OrderedStore

_NAMED: dict[str, Any] = {}
_LOCAL = ("embedded", "memory")
_REMOTE = {"hbase": "hbase", "hbase+thrift1": "hbase", "hbase+thrift2": "hbase", "txn": "emulator"}
"""The extra that each scheme needs."""
_EMBEDDED: dict[str, Option] = {
    "max_readers": up_to(100_000),
    "mode": one_of("rw", "ro"),
    "sync": one_of("on", "off"),
}


def open_store(uri: str, clock: Clock | None = None, *, create: bool = True) -> Store:
    """Open the store that the URI names; InvalidRequestError says what is wrong with a bad one.
    Without create, an absent embedded store is an InvalidRequestError and nothing is written."""
    parts, clock = split_uri(uri), clock or SystemClock()
    if parts.scheme in _LOCAL:
        from txn.stores.local import LocalStore  # noqa: PLC0415

        return LocalStore(open_ordered(uri, create=create), clock)
    if parts.scheme in _REMOTE:
        with require_extra(_REMOTE[parts.scheme], uri=_show_place(parts)):
            return _open_remote(parts, clock)
    place = hide_login(uri).partition("?")[0]
    meant = _guess_uri(parts, place)
    message = f"unknown kind of store: did you mean {meant}" if meant else "unknown kind of store"
    raise InvalidRequestError(message, uri=place, known=sorted((*_LOCAL, *_REMOTE)))


def open_ordered(uri: str, *, create: bool = True) -> OrderedStore:
    """Open the ordered key-value store beneath a store on this machine; see `open_store`."""
    parts = split_uri(uri)
    match parts.scheme:
        case "memory":
            from txn.tables.kv.memory import MemoryStore  # noqa: PLC0415

            read_options(parts, {})
            name = parts.netloc + parts.path
            return _NAMED.setdefault(name, MemoryStore()).share() if name else MemoryStore()
        case "embedded":
            return _open_lmdb(parts, create)
    raise InvalidRequestError(
        "not a store on this machine", uri=_show_place(parts), known=[*_LOCAL]
    )


def _open_lmdb(parts: SplitResult, create: bool) -> OrderedStore:
    options = read_options(parts, _EMBEDDED)
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/") or path == "/" or "\0" in path:
        message = "write embedded:///path, with three slashes"
        path = f"{parts.netloc}{path}".strip("/")
        if path and "@" not in path:
            message += f": did you mean {_make_embedded_uri('/' + path)}"
        raise InvalidRequestError(message, uri=show_uri(parts))
    from txn.tables.kv import lmdb  # noqa: PLC0415

    return lmdb.LmdbStore(
        path,
        create=create,
        read_only=options.get("mode") == "ro",
        sync=options.get("sync") != "off",
        max_readers=options.get("max_readers", lmdb.MAX_READERS),
    )


def _open_remote(parts: SplitResult, clock: Clock) -> Store:
    opens: Callable[[SplitResult, Clock], Store]
    match parts.scheme:
        case "hbase":
            from txn.stores.hbase.native.store import native_store as opens  # noqa: PLC0415
        case "hbase+thrift1":
            from txn.stores.hbase.thrift1 import thrift1_store as opens  # noqa: PLC0415
        case "hbase+thrift2":
            from txn.stores.hbase.thrift2 import thrift2_store as opens  # noqa: PLC0415
        case _:
            from txn.service.store import served_store as opens  # noqa: PLC0415
    return opens(parts, clock)


def _guess_uri(parts: SplitResult, place: str) -> str | None:
    if not place or fullmatch(r"[\w.-]+:\d+", place):  # a server of an unknown kind
        return None
    if parts.scheme in {"", "file"}:
        return _make_embedded_uri(parts.path if parts.scheme else place)
    from difflib import get_close_matches  # noqa: PLC0415

    near = get_close_matches(parts.scheme, [*_LOCAL, *_REMOTE], 1)
    return near[0] + place[len(parts.scheme) :] if near else None


def _make_embedded_uri(path: str) -> str:
    return f"embedded://{quote(os.path.abspath(os.path.expanduser(path)))}"


def _show_place(parts: SplitResult) -> str:
    """Return the URI without its options, because one of them may be a token."""
    return show_uri(parts._replace(query=""))
