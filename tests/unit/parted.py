"""A store, an engine and a client for transactions in parts, and looks at what they left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.unit.worlds import POLICY
from txn import Engine, Key
from txn.client.parts import PartsClient
from txn.clock import ManualClock
from txn.protocol.row import TransactionRow, read_rows
from txn.protocol.statuses import ProtocolName
from txn.stores.local import LocalStore
from txn.tables.kv.memory import MemoryStore

X, Y, Z = (Key(name, "d", "v", "rows") for name in "xyz")
WAIT_MS = 50


@contextmanager
def open_rows(protocol: ProtocolName, salt_buckets: int = 1) -> Iterator[Engine]:
    """Open an engine on a new store that has a table of rows."""
    clock = ManualClock()
    store = LocalStore(MemoryStore(), clock)
    with Engine(
        store,
        table="rows",
        policy=POLICY,
        clock=clock,
        protocol=protocol,
        salt_buckets=salt_buckets,
    ) as engine:
        engine.ensure_table("rows", ["d"])
        yield engine


def make_client(engine: Engine) -> PartsClient:
    """Return a client that waits for others' keys for a moment only."""
    return PartsClient(engine, wait_ms=WAIT_MS)


def values(engine: Engine, *keys: Key) -> list[bytes | None]:
    """Return what an atomic read finds."""
    found = engine.read(keys)
    return [cell.value if (cell := found[key]) else None for key in keys]


def row_of(engine: Engine, row_key: bytes) -> TransactionRow:
    """Return a transaction row, a part as its transaction has it."""
    return read_rows(engine.context, [row_key])[row_key]
