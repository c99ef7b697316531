"""Opening a store by its URI: one dict from scheme to factory.

memory://                       a fresh store in this process
memory://name                   the one of this name, for as long as the process lives
embedded:///path                a directory; its options, and what they are if they are not given:
                                sync=on: off survives the death of processes only
                                mode=rw: ro writes nothing, as where files may not be written
                                max_readers=1024: how many threads of all processes read at once
hbase://zk1,zk2:2181            HBase by its own RPC; its options are in
                                `txn.stores.hbase.native.target`
hbase+thrift2://host:port       HBase through its Thrift 2 gateway; its options are in
                                `txn.stores.gateway`
hbase+thrift1://host:port       HBase through its Thrift 1 gateway
txn://host:port                 what a `txn serve` has, for recovery; its options are in
                                `txn.service.store`
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from re import fullmatch
from typing import Any
from urllib.parse import SplitResult, quote, unquote

from txn.clock import Clock, SystemClock
from txn.errors import InvalidRequestError
from txn.host.extras import require_extra
from txn.stores.base import Store
from txn.stores.local import LocalStore
from txn.stores.options import (
    Option,
    hide_login,
    one_of,
    read_options,
    show_uri,
    split_uri,
    up_to,
)
from txn.tables.kv.lmdb import MAX_READERS, LmdbStore
from txn.tables.kv.memory import MemoryStore
from txn.tables.kv.ordered import OrderedStore

_NAMED: dict[str, MemoryStore] = {}


def open_store(uri: str, clock: Clock | None = None, *, create: bool = True) -> Store:
    """Open the store that the URI names; InvalidRequestError says what is wrong with a bad one.

    create: whether an embedded store that does not exist is made. Otherwise it is an
    InvalidRequestError, and nothing is written.
    """
    parts = split_uri(uri)
    factory = _FACTORIES.get(parts.scheme)
    if factory is None:
        place = hide_login(uri.partition("?")[0])
        meant = _guess_uri(parts, place)
        message = (
            f"unknown kind of store: did you mean {meant}" if meant else "unknown kind of store"
        )
        raise InvalidRequestError(message, uri=place, known=sorted(_FACTORIES))
    return factory(parts, clock or SystemClock(), create)


def open_ordered(uri: str) -> OrderedStore:
    """Open the keys and values beneath a store on this machine; see `open_store`."""
    parts = split_uri(uri)
    match parts.scheme:
        case "memory":
            return _open_memory(parts)
        case "embedded":
            return _open_lmdb(parts, create=True)
    raise InvalidRequestError(
        "not a store on this machine", uri=_place(parts), known=["embedded", "memory"]
    )


def _open_memory(parts: SplitResult) -> MemoryStore:
    _options(parts, {})
    name = parts.netloc + parts.path
    return _NAMED.setdefault(name, MemoryStore()).share() if name else MemoryStore()


def _open_embedded(parts: SplitResult, clock: Clock, create: bool) -> Store:
    return LocalStore(_open_lmdb(parts, create), clock)


def _open_lmdb(parts: SplitResult, create: bool) -> LmdbStore:
    options = _options(parts, _EMBEDDED)
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/") or path == "/" or "\0" in path:
        message = "write embedded:///path, with three slashes"
        if path := f"{parts.netloc}{path}".strip("/"):
            message += f": did you mean {_make_embedded_uri('/' + path)}"
        raise InvalidRequestError(message, uri=parts.geturl())
    return LmdbStore(
        path,
        create=create,
        read_only=options.get("mode") == "ro",
        sync=options.get("sync") != "off",
        max_readers=options.get("max_readers", MAX_READERS),
    )


def _native(parts: SplitResult, clock: Clock, _: bool) -> Store:
    with require_extra("hbase", uri=_place(parts)):
        from txn.stores.hbase.native.store import NativeStore  # noqa: PLC0415
        from txn.stores.hbase.native.target import parse_target  # noqa: PLC0415
    return NativeStore(parse_target(parts), clock)


def _thrift1(parts: SplitResult, clock: Clock, _: bool) -> Store:
    with require_extra("hbase", uri=_place(parts)):
        from txn.stores.gateway import parse_gateway  # noqa: PLC0415
        from txn.stores.hbase.thrift1 import thrift1_store  # noqa: PLC0415
    return thrift1_store(parse_gateway(parts), clock)


def _thrift2(parts: SplitResult, clock: Clock, _: bool) -> Store:
    with require_extra("hbase", uri=_place(parts)):
        from txn.stores.gateway import parse_gateway  # noqa: PLC0415
        from txn.stores.hbase.thrift2 import thrift2_store  # noqa: PLC0415
    return thrift2_store(parse_gateway(parts), clock)


def _open_served(parts: SplitResult, clock: Clock, _: bool) -> Store:
    with require_extra("emulator", uri=_place(parts)):
        from txn.service.store import served_store  # noqa: PLC0415
    return served_store(parts, clock)


def _guess_uri(parts: SplitResult, place: str) -> str | None:
    """Return what is meant by a URI of no scheme that is known, if that can be guessed."""
    if not place or fullmatch(r"[\w.-]+:\d+", place):  # a server, but nobody knows which kind
        return None
    if parts.scheme in {"", "file"}:
        return _make_embedded_uri(parts.path if parts.scheme else place)
    near = get_close_matches(parts.scheme, _FACTORIES, 1)
    return near[0] + place[len(parts.scheme) :] if near else None


def _make_embedded_uri(path: str) -> str:
    """Return the URI of a store in a directory."""
    return f"embedded://{quote(os.path.abspath(os.path.expanduser(path)))}"


def _place(parts: SplitResult) -> str:
    """Return the URI without its options, one of which may be a token."""
    return show_uri(parts._replace(query=""))


def _options(parts: SplitResult, known: Mapping[str, Option]) -> dict[str, Any]:
    """Return the options of a URI, each of which must be known and have one of its values."""
    if parts.fragment:
        raise InvalidRequestError("a store has no fragment", uri=show_uri(parts))
    return read_options(parts, known)


_EMBEDDED: dict[str, Option] = {
    "max_readers": up_to(100_000),
    "mode": one_of("rw", "ro"),
    "sync": one_of("on", "off"),
}
_FACTORIES: dict[str, Callable[[SplitResult, Clock, bool], Store]] = {
    "embedded": _open_embedded,
    "hbase": _native,
    "hbase+thrift1": _thrift1,
    "hbase+thrift2": _thrift2,
    "memory": lambda parts, clock, _: LocalStore(_open_memory(parts), clock),
    "txn": _open_served,
}
