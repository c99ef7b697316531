"""A small world to break: one store in memory, and clients that fail as planned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any, ClassVar, Protocol

from recovery import Finding, Kind, check, repair
from recovery.fsck import GRACE_MS, RETENTION_MS
from txn import Engine, Key, MaybeApplied, NotApplied, Policy
from txn.client.local import LocalBackend
from txn.clock import Clock, ManualClock
from txn.model import LOCK_SUFFIX, TAG_SUFFIX, Cell, Check, Edit, Family
from txn.protocol.context import Context
from txn.protocol.locks import holder_of
from txn.protocol.protocols import protocol_key
from txn.protocol.row import FAMILY, TransactionRow, decode_row, is_row_key
from txn.protocol.statuses import FINISHED, PROTOCOLS, ProtocolName
from txn.stores.base import Store, check_then_read
from txn.stores.local import LocalStore
from txn.tables.kv.memory import MemoryStore
from txn.testing.faulty import FaultyStore, Plan, faultless

TABLE = b"data"
LOGS = b"logs"
TRANSACTIONS = b"txn"
D = b"d"
STATUS = (FAMILY, b"status")
POLICY = Policy(lock_ttl_ms=1000, deadline_ms=20_000, courtesy_ms=5, store_patience_ms=10)
MOST_ROUNDS = 4


def key(row: str, column: str = "v", table: bytes = TABLE) -> Key:
    return Key(row, D, column, table)


def in_memory() -> tuple[Memory, ManualClock]:
    clock = ManualClock()
    return LocalStore(MemoryStore(), clock), clock


class Memory(Store, Protocol):
    """A store that drops all markers if it is not told which."""

    def compact(self, table: bytes, purge_before_ms: int | None = None) -> None: ...


class World:
    """One store, and clients. opened: gives the store and the clock; the suite on HBase has its
    own."""

    opened: ClassVar[Callable[[], tuple[Memory, ManualClock]]] = staticmethod(in_memory)

    def __init__(self, *, one_cell: bool = False, protocol: ProtocolName = "six-phase") -> None:
        self.memory, self.clock = World.opened()
        self.memory.ensure_table(TABLE, {D: Family(database=b"txn")})
        self.memory.ensure_table(TRANSACTIONS, {FAMILY: Family(versions=1)})
        self.memory.write([Edit(protocol_key(TRANSACTIONS), PROTOCOLS[protocol].stored_name, 1)])
        self._one_cell = one_cell
        self._clients = 0

    def client(
        self,
        plan: Plan = faultless,
        *,
        policy: Policy = POLICY,
        clock: Clock | None = None,
        store: Store | None = None,
        seed: int | None = None,
    ) -> tuple[Engine, FaultyStore]:
        """Return a new client and its view of the store; its plan sees calls from here on."""
        self._clients += 1
        faulty = FaultyStore(store or self.memory)
        engine = Engine(
            OneCell(faulty) if self._one_cell else faulty,
            table=TABLE,
            transactions=TRANSACTIONS,
            policy=policy,
            clock=clock or self.clock,
            rng=Random(seed or self._clients),
        )
        assert isinstance(engine.backend, LocalBackend)
        engine.backend._families.of(key("any"))  # else it would ask for it within the first commit
        faulty.calls, faulty.plan = 0, plan
        return engine, faulty

    def engine(self) -> Engine:
        return self.client()[0]

    def values(self, keys: Collection[Key]) -> dict[Key, bytes | None]:
        cells = self.memory.read(keys)
        return {key: None if (cell := cells[key]) is None else cell.value for key in keys}

    def rows(self) -> list[TransactionRow]:
        return [decode_row(row) for row in self.memory.scan(TRANSACTIONS) if is_row_key(row.row)]

    def leftovers(self) -> dict[Key, Cell]:
        return leftovers(self.memory)

    def mend(self, context: Context | None = None) -> None:
        mend(self.memory, context or self.engine().context)

    def collect(self) -> None:
        """Delete the rows of finished transactions, as fsck does after the retention."""
        self.fsck(grace_ms=0, retention_ms=0)
        assert not self.rows()

    def fsck(self, grace_ms: int = GRACE_MS, retention_ms: int = RETENTION_MS) -> None:
        context = self.engine().context
        for finding in check(context, grace_ms=grace_ms, retention_ms=retention_ms):
            repair(context, finding)


def tables(store: Store) -> list[bytes]:
    return [table for table in (TABLE, LOGS) if store.describe(table) is not None]


def leftovers(store: Store) -> dict[Key, Cell]:
    return {
        key: cell
        for table in (*tables(store), TRANSACTIONS)
        for row in store.scan(table)
        for key, cell in row.cells.items()
        if key.column.endswith((LOCK_SUFFIX, TAG_SUFFIX)) and holder_of(key, cell)
    }


def mend(store: Store, context: Context) -> None:
    for _ in range(MOST_ROUNDS):
        findings = list(check(context, grace_ms=0, scan=tables(store)))
        if not findings:
            break
        for finding in findings:
            accept(finding)
            repair(context, finding)
    else:
        raise AssertionError(f"fsck does not end: {findings}")
    assert not leftovers(store)
    statuses = {
        c.value for row in store.scan(TRANSACTIONS, columns=[STATUS]) for c in row.cells.values()
    }
    assert statuses <= {b"", *(status.value for status in FINISHED)}


def accept(finding: Finding) -> None:
    assert finding.kind not in (Kind.UNREADABLE, Kind.FOREIGN_CELL, Kind.FOREIGN_VERSION), finding


class Wrapper:
    """A store that passes on what it does not do itself."""

    def __init__(self, inner: Store) -> None:
        self.features = inner.features
        self._inner: Any = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class OneCell(Wrapper):
    """A transport as Thrift 1: the cells of a check go one after the other, the checked one
    last."""

    check_and_read = check_then_read

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.features -= {"multi_cell_check", "row_mutations"}

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        """Only the first request can fail without effect on the call."""
        answers: list[bool] = []
        sent: list[Check] = []
        try:
            for check in checks:
                answers.append(self._check_and_put(check, durable, sent))
        except NotApplied as error:
            if not sent:
                raise
            raise MaybeApplied(str(error)) from error
        return answers

    def _check_and_put(self, check: Check, durable: bool, sent: list[Check]) -> bool:
        requests = [check]
        if check.expected is not None:
            requests = [Check(check.key, check.expected, (put,)) for put in check.puts]
        for request in requests:
            (is_met,) = self._inner.check_and_put([request], durable=durable)
            sent.append(request)
            if not is_met:
                return False
        return True
