"""Stores in which clients have crashed, with names that a page must not take for its own."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from txn import Delete, Engine, Key, Mutation, Request, connect
from txn.clock import Clock, SystemClock
from txn.model import Edit
from txn.policy import Policy
from txn.protocol.statuses import Status
from txn.stores import open_store
from txn.stores.base import Store
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Reply

SCRIPT = b"<script>alert(1)</script>"
QUOTES = b"\"'&quot;><img src=x onerror=alert(1)>"
BYTES = b"\xff\x00{{ 7*7 }}"
HOSTILE = (SCRIPT, QUOTES, BYTES)


def stock_up(folder: Path) -> str:
    """Make a store with a table in which there is an apple; return its name."""
    uri = f"embedded://{folder}/store"
    with connect(uri, table="stock") as engine:
        engine.ensure_table("stock", ["d"])
        engine.commit([Mutation(Key("apple", "d", "count"), "7")])
    return uri


def written_values(item: object) -> list[bytes | None]:
    """What an item of a call writes."""
    edits = [item] if isinstance(item, Edit) else getattr(item, "edits", ())
    return [*(value for _, value in getattr(item, "puts", ())), *(edit.value for edit in edits)]


def crash_client(
    uri: str,
    status: Status,
    wanted: Sequence[bytes] | Request,
    lock_ttl_ms: int = Policy().lock_ttl_ms,
) -> bytes:
    """Leave in a store what a client leaves that dies once its row has this status. It commits the
    request, or changes the rows. Return the key of its row."""
    with closing(open_store(uri)) as store:
        return crash_engine(store, status, wanted, lock_ttl_ms=lock_ttl_ms)


def crash_engine(
    store: Store,
    status: Status,
    wanted: Sequence[bytes] | Request,
    clock: Clock | None = None,
    lock_ttl_ms: int = Policy().lock_ttl_ms,
) -> bytes:
    """The same in a store that is open, at the time of a clock."""

    def plan(call: Call) -> Fault:
        written = any(status.value in written_values(item) for item in call.items)
        return Fault(reply=Reply.CRASH) if written else Fault()

    policy = Policy(lock_ttl_ms=lock_ttl_ms)
    engine = Engine(FaultyStore(store, plan), clock=clock or SystemClock(), policy=policy)
    request = wanted if isinstance(wanted, Request) else _change_rows(wanted)
    for table in {mutation.key.table or b"" for mutation in request.mutations}:
        engine.ensure_table(table, ["d"])
    before = {row.row for row in store.scan(b"txn")}
    with pytest.raises(Crash):
        engine.commit(request.mutations, request.assertions, labels=request.labels)
    (left,) = {row.row for row in store.scan(b"txn")} - before
    return left


def _change_rows(rows: Sequence[bytes]) -> Request:
    first, *rest = (Key(row, "d", "count", "stock") for row in rows)
    return Request((Mutation(first, SCRIPT), *(Delete(key) for key in rest)))
