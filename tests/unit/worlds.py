"""Small worlds for unit tests: engines over one memory store, with faults and a clock by hand."""

from __future__ import annotations

from random import Random

from txn.clock import ManualClock
from txn.codec import TransactionRow, decode_row, is_row_key
from txn.engine import Engine
from txn.model import Cell, Edit, Family, Key
from txn.phases import Status
from txn.policy import Policy
from txn.request import checked
from txn.steps import Transaction, begin
from txn.stores import open_store
from txn.stores.faulty import FaultyStore
from txn.watch import Event

TABLE = b"data"
X, Y, Z = (Key(row, "d", "x", TABLE) for row in ("x", "y", "z"))
POLICY = Policy(attempts=4, deadline_ms=5_000, lease_ms=1_000, courtesy_ms=20, store_tries=3)


class World:
    """One memory store, one clock, and any number of clients with stores that can fail."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.clock = ManualClock()
        self.store = open_store("memory://", self.clock)
        self.store.ensure_table(TABLE, {b"d": Family()})
        self.policy = policy
        self.events: list[Event] = []
        self.faults = FaultyStore(self.store)
        self.engine = self.client(self.faults)

    def client(self, store: FaultyStore | None = None, seed: int = 1) -> Engine:
        """Another client of the same store."""
        return Engine(
            store or FaultyStore(self.store),
            table=TABLE,
            policy=self.policy,
            clock=self.clock,
            chance=Random(seed),
            watch=self.events.append,
        )

    def put(self, key: Key, value: bytes) -> None:
        """Write past the protocol, as data that was there before."""
        self.store.write([Edit(key, value, self.clock.wall_ms())])

    def cell(self, key: Key) -> Cell | None:
        return self.store.read([key])[key]

    def value(self, key: Key) -> bytes | None:
        cell = self.cell(key)
        return cell.value if cell else None

    def holder(self, key: Key) -> bytes:
        return self.value(key.lock) or b""

    def rows(self) -> list[TransactionRow]:
        return [decode_row(row) for row in self.store.scan(b"txn") if is_row_key(row.row)]

    def statuses(self) -> list[Status | None]:
        return [row.status for row in self.rows()]

    def begun(self, *mutations: object) -> Transaction:
        """A transaction that nothing was written of yet."""
        context = self.engine.context
        return begin(context, checked(mutations, table=TABLE), self.policy.deadline_ms)
