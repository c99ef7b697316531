"""Small worlds for unit tests: engines over one memory store, with faults and a clock by hand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from random import Random
from typing import Any, ClassVar

import pytest

from txn.client.engine import Engine
from txn.clock import ManualClock
from txn.errors import NotApplied
from txn.events import Event, silent
from txn.model import Cell, Check, Edit, Family, Key, Mutation, Row
from txn.policy import Policy
from txn.protocol.locks import holder_of
from txn.protocol.row import TransactionRow, decode_row, is_row_key
from txn.protocol.statuses import ProtocolName, Status
from txn.protocol.transaction import PendingCommit, begin_commit
from txn.request import bind_request
from txn.stores import open_store
from txn.stores.base import Store
from txn.testing.faulty import NO_FAULT, Call, Crash, Fault, FaultyStore, Reply

TABLE = b"data"
X, Y, Z = (Key(row, "d", "x", TABLE) for row in ("x", "y", "z"))
TAKEN = [s for s in Status if (s.is_undecided or s.is_decided) and s is not Status.PART]
POLICY = Policy(
    attempts=4, deadline_ms=5_000, lock_ttl_ms=1_000, courtesy_ms=20, store_patience_ms=10
)


def in_memory() -> tuple[Store, ManualClock]:
    """A fresh memory store, and the clock that it takes for the server's."""
    clock = ManualClock()
    return open_store("memory://", clock), clock


class World:
    """One store, one clock, and any number of clients with stores that can fail.

    opened: gives the store and the clock; the suite on HBase has its own. listens: whether its
    clients report their events. database: the one that the table belongs to.
    """

    listens: ClassVar[bool] = True
    opened: ClassVar[Callable[[], tuple[Store, ManualClock]]] = staticmethod(in_memory)

    def __init__(
        self,
        policy: Policy = POLICY,
        protocol: ProtocolName | None = None,
        salt_buckets: int = 1,
        database: bytes | None = b"txn",
    ) -> None:
        self.store, self.clock = World.opened()
        self.store.ensure_table(TABLE, {b"d": Family(database=database)})
        self.policy = policy
        self.protocol = protocol
        self.salt_buckets = salt_buckets
        self.events: list[Event] = []
        self.faults = FaultyStore(self.store)
        self.engine = self.client(self.faults)

    def client(self, store: FaultyStore | None = None, seed: int = 1) -> Engine:
        return Engine(
            store or FaultyStore(self.store),
            table=TABLE,
            salt_buckets=self.salt_buckets,
            policy=self.policy,
            clock=self.clock,
            rng=Random(seed),
            on_event=self.on_event if self.listens else silent,
            protocol=self.protocol,
        )

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def put(self, key: Key, value: bytes) -> None:
        self.store.write([Edit(key, value, self.clock.wall_ms())])

    def cell(self, key: Key) -> Cell | None:
        return self.store.read([key])[key]

    def value(self, key: Key) -> bytes | None:
        cell = self.cell(key)
        return cell.value if cell else None

    def holder(self, key: Key) -> bytes:
        lock = self.engine.context.rules.lock_of(key)
        return holder_of(lock, self.cell(lock))

    def keys_kept(self) -> int:
        return len(list_stored(self.store))

    def rows(self) -> list[TransactionRow]:
        return [decode_row(row) for row in self.store.scan(b"txn") if is_row_key(row.row)]

    def statuses(self) -> list[Status | None]:
        return [row.status for row in self.rows()]

    def begun(self, *mutations: object) -> PendingCommit:
        context = self.engine.context
        return begin_commit(context, bind_request(mutations, table=TABLE), self.policy.deadline_ms)


def list_stored(store: Store) -> dict[bytes, bytes]:
    """Return all that a memory store keeps, byte for byte."""
    inner: Any = getattr(store, "_inner", store)
    found: dict[bytes, bytes] = inner._ordered.read(
        lambda reader: {key: reader.get(key) for key in reader.keys(b"", b"\xff" * 8)}
    )
    return found


class BreakingOff:
    """A store whose scans break off after so many rows, as at the restart of a gateway."""

    def __init__(self, inner: Store, rows: int = 40) -> None:
        self._inner = inner
        self._rows = rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def scan(self, *args: Any, **options: Any) -> Iterator[Row]:
        for number, row in enumerate(self._inner.scan(*args, **options)):
            if number == self._rows:
                raise NotApplied("the connection broke")
            yield row


def plan_before(
    match: Callable[[Call], object],
    act: Callable[[], object] = lambda: None,
    fault: Fault = NO_FAULT,
    times: int = 1,
) -> Callable[[Call], Fault]:
    """Return the plan that does something before the next calls that match; they have the fault."""
    left = [act] * times

    def plan(call: Call) -> Fault:
        if left and match(call):
            left.pop()()
            return fault
        return NO_FAULT

    return plan


def before(
    world: World,
    match: Callable[[Call], object],
    act: Callable[[], object] = lambda: None,
    fault: Fault = NO_FAULT,
    times: int = 1,
) -> None:
    """Let the world's client have this plan."""
    world.faults.plan = plan_before(match, act, fault, times)


def always(world: World, match: Callable[[Call], object], fault: Fault) -> None:
    """Let all calls of the world's client that match have the fault."""
    world.faults.plan = lambda call: fault if match(call) else NO_FAULT


def record_calls(world: World) -> list[Call]:
    seen: list[Call] = []
    before(world, seen.append)
    return seen


def steps_to(status: Status) -> Callable[[Call], bool]:
    return lambda call: any(is_step(item, status) for item in call.items)


def writes(call: Call) -> bool:
    return any(isinstance(item, Edit) for item in call.items)


def after_status(world: World, status: Status, fault: Fault) -> None:
    """Let the next call that writes this status have the fault, once."""
    before(world, steps_to(status), fault=fault)


def is_step(item: object, status: Status) -> bool:
    """Whether an item of a call steps a row to this status, whichever protocol it is of."""
    return status.value in list_values(item)


def list_values(item: object) -> list[bytes | None]:
    """What an item of a call writes."""
    if isinstance(item, Check):
        return [*(value for _, value in item.puts), *(edit.value for edit in item.edits)]
    return [item.value] if isinstance(item, Edit) else []


DOWN = Fault(frozenset(), Reply.NOT_APPLIED)
LOST = Fault(frozenset(), Reply.MAYBE_APPLIED)
STEP_ALONE = Fault(frozenset({0}), Reply.CRASH)
"""Of a call that steps a row, the step takes effect, and nothing that travels with it does."""


def stopped_at(
    world: World,
    status: Status,
    key: Key = X,
    value: bytes = b"2",
    fault: Fault = STEP_ALONE,
    *,
    also: Collection[Mutation] = (),
) -> bytes:
    """Let a client die right after its row reached this status; return the row key."""
    known = {row.row_key for row in world.rows()}
    client = world.client(world.faults, seed=len(known) + 100)
    after_status(world, status, fault)
    with pytest.raises(Crash):
        client.commit([Mutation(key, value), *also])
    world.faults.crashed = False
    world.faults.plan = lambda call: Fault()
    (row_key,) = {row.row_key for row in world.rows()} - known
    return row_key


def ghost(world: World, status: Status | None) -> bytes:
    """A lock that lands after its transaction has finished, or was never there."""
    row_key = b"transaction.1700000000000." + b"0" * 32
    if status is not None:
        row_key = world.engine.commit([Mutation(X, b"2")]).transaction
    world.store.check_and_put([Check(X.lock, b"", ((X.lock, row_key),))])
    return row_key
