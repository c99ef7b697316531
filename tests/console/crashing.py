"""Stores in which clients have crashed, with names that a page must not take for its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from txn import Delete, Engine, Key, Mutation
from txn.model import Edit
from txn.protocol.phases import Status
from txn.stores import open_store
from txn.stores.base import Store
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Reply

SCRIPT = b"<script>alert(1)</script>"
QUOTES = b"\"'&quot;><img src=x onerror=alert(1)>"
BYTES = b"\xff\x00{{ 7*7 }}"
HOSTILE = (SCRIPT, QUOTES, BYTES)


def written_values(item: object) -> list[bytes | None]:
    """What an item of a call writes."""
    edits = [item] if isinstance(item, Edit) else getattr(item, "edits", ())
    return [*(value for _, value in getattr(item, "puts", ())), *(edit.value for edit in edits)]


def crash_client(uri: str, status: Status, rows: Sequence[bytes]) -> None:
    """Leave in a store what a client leaves that dies once its row has this status."""
    store = open_store(uri)
    try:
        crash_engine(store, status, rows)
    finally:
        store.close()


def crash_engine(store: Store, status: Status, rows: Sequence[bytes]) -> None:
    """The same in a store that is open."""

    def plan(call: Call) -> Fault:
        written = any(status.value in written_values(item) for item in call.items)
        return Fault(reply=Reply.CRASH) if written else Fault()

    engine = Engine(FaultyStore(store, plan))
    engine.ensure_table("stock", ["d"])
    first, *rest = (Key(row, "d", "count", "stock") for row in rows)
    with pytest.raises(Crash):
        engine.commit([Mutation(first, SCRIPT), *(Delete(key) for key in rest)])
