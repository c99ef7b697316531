"""One schedule: clients, readers and fsck on one store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from unittest.mock import patch

from recovery import check, repair_all
from tests.simulation.bank import Bank, judge
from tests.simulation.breaking import CHANGING, deliver_all
from tests.simulation.parted import Forgetful, Part, mislead, purge_one, split_request, write_task
from tests.simulation.regions import Region, RegionStore, divide_by_hash
from tests.simulation.scheduler import ActorClock, Network, Scheduler
from tests.simulation.telling import told
from tests.simulation.world import LOGS, TABLE, TRANSACTIONS, D, OneCell, accept, key, mend
from txn import Committed, Engine, Policy, Request
from txn.client.finisher import Finisher
from txn.client.local import LocalBackend
from txn.client.parts import PartsClient
from txn.errors import (
    AbortedError,
    AssertionFailedError,
    CorruptRowError,
    StoreError,
    TableUnavailable,
    TxnError,
)
from txn.model import Edit, Family
from txn.policy import Checking
from txn.protocol import context as context_module
from txn.protocol.context import Context
from txn.protocol.protocols import protocol_key
from txn.protocol.recovery import finish_or_leave, mark_complete, roll_forward
from txn.protocol.row import FAMILY
from txn.protocol.statuses import PROTOCOLS, ProtocolName
from txn.protocol.transaction import Transaction
from txn.request import Ack
from txn.stores.base import Store
from txn.stores.local import LocalStore
from txn.tables.admin import Admin
from txn.tables.kv.memory import MemoryStore
from txn.testing.faulty import NO_FAULT, Call, Crash, Fault, FaultyStore, Reply

MOST_STEPS = 20_000
MOST_CRASHES = 3
PART_WAITS_MS = 1_000
IN_PARTS = (0.0, 0.0, 0.5)
"""Which shares of transfers are in parts, of all schedules."""
MISSED, PURGED = 0.5, 0.3
"""Of the schedules with parts: those whose scans and resolvers miss some, and those with purges."""
PURGE_MS = (1, 20, 300)
LATEST_MS = 500
SLOW_RATES = (0.0, 0.0, 0.1, 0.3)
SLOW_MS = (5, 50, 300)
LOSS_RATES = (0.0, 0.5)
REGIONAL = (0.0, 0.5, 1.0, 1.0)
"""Which shares of clients of the fenced protocol change several rows of a region at once."""
MOVE_RATES = (0.0, 0.1, 0.5)
NEAR = 0.5
"""Of the schedules with such clients: those in which all keys are in one region."""
RETENTION_MS = 2_000
GONE_MS = (5, 100, 2_000, 30_000)
LOGS_LOST = 0.7
"""Of the schedules in which nobody commits in local transactions, which are half of all."""
REGIONS = (1, 2, 3, 100)
FLUSH_RATE = 0.2
POWER_RATE = 0.2
VALIDATE = (0.0, 0.5, 1.0)
FINDINGS = (AssertionError, CorruptRowError)
"""What a check may say. Any other error is one of the simulation or of the product, and passes."""
Task = Callable[[Engine], object]
Trace = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Weather:
    """What a schedule is like. fault_rate: of all calls. crash_rate: of all faults. atomic: the
    share of clients that commit in one local transaction. slow_rate: of the changing calls, those
    whose last piece comes much later. loss_rate: of the faults with late items, those whose items
    never come. The last five make no other draw a different one."""

    clients: int
    readers: int
    fscks: int
    fault_rate: float
    crash_rate: float
    tick_ms: int
    lock_ttl_ms: int
    one_cell: bool
    instant_reads: bool
    clocks_jump: bool
    collects: bool
    tables_go: bool = False
    atomic: float = 0.0
    loses_logs: bool = False
    slow_rate: float = 0.0
    loss_rate: float = 0.0

    @property
    def is_calm(self) -> bool:
        """Whether nothing fails and nobody is hurried, so that every client gets its way."""
        hurries = self.fault_rate or self.fscks or self.slow_rate or self.lock_ttl_ms < 10_000
        return not hurries and not self.tables_go and not self.loses_logs


def weather(random: Random) -> Weather:
    return Weather(
        clients=random.choice((2, 2, 3)),
        readers=random.choice((0, 1, 1)),
        fscks=random.choice((0, 0, 1, 1, 2)),
        fault_rate=random.choice((0.0, 0.01, 0.03, 0.1, 0.2)),
        crash_rate=random.choice((0.0, 0.1, 0.4)),
        tick_ms=random.choice((0, 1, 5, 30)),
        lock_ttl_ms=random.choice((30, 300, 10_000)),
        one_cell=random.random() < 0.2,
        instant_reads=random.random() < 0.2,
        clocks_jump=random.random() < 0.3,
        collects=random.random() < 0.3,
    )


class Schedule:
    """Runs one seed; `run` raises AssertionError if anything does not hold."""

    def __init__(
        self, seed: int, trace: Trace | None = None, protocol: ProtocolName = "six-phase"
    ) -> None:
        self.protocol = protocol
        self.random = Random(seed)
        self._operator = Random(-seed)
        goes = self._operator.random() < 0.2
        self._kinds = Random(f"kinds of clients {seed}")
        self._parted = Random(f"requests in parts {seed}")
        self._in_parts = self._parted.choice(IN_PARTS)
        self._lost = Random(f"parts that are missed, and purges {seed}")
        self._misses = bool(self._in_parts) and self._lost.random() < MISSED
        self._purges = bool(self._in_parts) and self._lost.random() < PURGED
        self._validating = Random(f"clients that validate {seed}")
        self._validate = self._validating.choice(VALIDATE)
        self._is_far = Random(f"clients that are far from their store {seed}").random() < 0.2
        self._regional = Random(f"rows of a region together {seed}")
        self._is_regional = self._regional.choice(REGIONAL) if protocol == "fenced" else 0.0
        self._move_rate = self._regional.choice(MOVE_RATES)
        is_near = self._is_regional > 0 and self._regional.random() < NEAR
        atomic = self._kinds.choice((0.0, 0.0, 0.5, 1.0))
        self._unsynced: dict[Region, int] = {}
        self._power = Random(f"power failures {seed}")
        self._slow = Random(f"slow and lost requests {seed}")
        loses_logs = not atomic and self._power.random() < LOGS_LOST  # else there is one log
        self.weather = replace(
            weather(self.random),
            tables_go=goes,
            atomic=atomic,
            loses_logs=loses_logs,
            slow_rate=self._slow.choice(SLOW_RATES),
            loss_rate=self._slow.choice(LOSS_RATES),
        )
        if protocol == "fenced":  # needs what Thrift 1 has not
            self.weather = replace(self.weather, one_cell=False)
        self.scheduler = Scheduler(self.random, self.weather.tick_ms, MOST_STEPS)
        self.server = ActorClock(self.scheduler)
        counts = {table: self._power.choice(REGIONS) for table in (TABLE, LOGS, TRANSACTIONS)}
        counts[TABLE] = 1 if is_near else counts[TABLE]
        self.regions = RegionStore(LocalStore(MemoryStore(), self.server), divide_by_hash(counts))
        self.memory: Store = self.regions if loses_logs else self.regions.inner
        self.memory.ensure_table(TABLE, {D: Family(database=b"txn")})
        self.memory.ensure_table(LOGS, {D: Family(database=b"txn")})
        self.memory.ensure_table(TRANSACTIONS, {FAMILY: Family(versions=1)})
        self.memory.write([Edit(protocol_key(TRANSACTIONS), PROTOCOLS[protocol].stored_name, 1)])
        self.bank = Bank(
            self.random.randint(2, 4), self.random.randint(1, 3), self.random, self._step
        )
        if self._is_regional:
            self.bank.watching, self.bank.is_near = self._regional, is_near
        self.policy = Policy(
            lock_ttl_ms=self.weather.lock_ttl_ms,
            deadline_ms=20_000,
            courtesy_ms=5,
            store_patience_ms=self.random.choice((1, 10)),
            read_tries=self.random.choice((1, 10)),
        )
        self.salt_buckets = self.random.choice((1, 1, 3))
        self.stores: list[FaultyStore] = []
        self._trace = trace
        self._busy = 0
        self._crashes = MOST_CRASHES
        self._sent: dict[tuple[int, int], int] = {}

    def run(self) -> None:
        calm = self._engine("calm", faults=False)
        self.bank.open(calm)
        for number, tasks in enumerate(self._tasks()):
            self._spawn(f"client-{number}", partial(self._client, f"client-{number}", tasks))
        for number in range(self.weather.readers):
            self._spawn(f"reader-{number}", partial(self._reader, f"reader-{number}"))
        for number in range(self.weather.fscks):
            self._spawn(f"fsck-{number}", partial(self._fsck, f"fsck-{number}"))
        self.scheduler.spawn("weather", self._nature)
        if self.weather.tables_go:
            self.scheduler.spawn("operator", self._disable)
        if self._purges:
            self.scheduler.spawn("purger", self._purge)
        with patch.object(context_module, "READS_WITHIN_MS", RETENTION_MS // 4):
            self.scheduler.run()
        for region in sorted(self.regions.pending):  # everything stops at once
            self._lose_tail(region)
        self._end(calm)

    def _tasks(self) -> list[deque[Task]]:
        random, bank = self.random, self.bank
        queues: list[deque[Task]] = [deque() for _ in range(self.weather.clients)]
        for number, queue in enumerate(queues):
            for turn in range(random.choice((1, 1, 2, 3))):
                ack: Ack = random.choice(("complete", "complete", "decided"))
                kind = random.random()
                if kind < 0.25:
                    several = [None, None, f"token-{number}-{turn}"][-random.randint(2, 3) :]
                    queue.append(partial(bank.transfer_many, ack=ack, tokens=several))
                elif kind < 0.5:
                    once = f"token-{number}-{turn}"
                    copies = random.sample(queues, random.randint(1, 2))
                    for copy in copies:  # the second one is what Spark calls a speculative task
                        copy.append(Once(self._transfer(ack, once)))
                else:
                    queue.append(self._transfer(ack, None))
        return queues

    def _transfer(self, ack: Ack, once: str | None) -> Task:
        if self.weather.one_cell or self._parted.random() >= self._in_parts:
            return partial(self.bank.transfer, ack=ack, once=once)

        def transfer(engine: Engine) -> None:
            self.bank.transfer_by(partial(self._commit_in_parts, engine), engine, once)

        return transfer

    def _commit_in_parts(self, engine: Engine, request: Request) -> Committed:
        """Commit in parts that are written by actors, as by Spark's tasks: some have copies."""
        client = PartsClient(engine)
        transaction = client.begin(once=request.once)
        tasks = split_request(engine, request.mutations, request.assertions)
        times: dict[int, int | TxnError] = {}
        for task, parts in enumerate(tasks):
            for copy in range(self._parted.choice((1, 1, 2))):
                name = f"{transaction[-4:].decode()}-{task}-{copy}"
                self._spawn(name, partial(self._write_task, name, transaction, task, parts, times))
        try:
            while len(times) < len(tasks):
                self.scheduler.sleep_ms(max(self.policy.lock_ttl_ms // 3, 1))
                client.heartbeat(transaction)
            for failure in times.values():
                if isinstance(failure, TxnError):
                    raise failure
            newest = max(time for time in times.values() if isinstance(time, int))
            return client.commit(transaction, [len(parts) for parts in tasks], newest)
        except (AbortedError, StoreError) as error:
            with suppress(StoreError):
                client.abort(transaction, str(error))
            raise

    def _write_task(
        self,
        name: str,
        transaction: bytes,
        task: int,
        parts: list[Part],
        times: dict[int, int | TxnError],
    ) -> None:
        client = PartsClient(self._engine(name), PART_WAITS_MS)
        if self._misses:
            mislead(client._resolver, self._lost)
        try:
            times[task] = write_task(client, transaction, task, parts)
        except TxnError as error:
            times.setdefault(task, error)
        except Crash:
            again = partial(self._write_task, name + "'", transaction, task, parts, times)
            self._spawn(name + "'", again)
            raise

    def _spawn(self, name: str, body: Callable[[], object]) -> None:
        self._busy += 1

        def counted() -> None:
            try:
                body()
            finally:
                self._busy -= 1

        self.scheduler.spawn(name, counted)

    def _client(self, name: str, tasks: deque[Task]) -> None:
        """Another client takes over from one that crashed; it repeats only tasks with a token."""
        engine = self._engine(name)
        try:
            while tasks:
                task = tasks[0]
                task(engine)
                tasks.popleft()
                self._rest()
            engine.flush()
        except Crash:
            if tasks and not isinstance(tasks[0], Once):
                tasks.popleft()
            if tasks:
                self._spawn(name, partial(self._client, name + "'", tasks))
            raise

    def _rest(self) -> None:
        if self.weather.collects:
            self.scheduler.sleep_ms(self.random.choice((0, RETENTION_MS // 2, 2 * RETENTION_MS)))

    def _reader(self, name: str) -> None:
        engine = self._engine(name)
        for _ in range(self.random.randint(1, 4)):
            self.bank.look(engine)
            self.scheduler.sleep_ms(self.random.choice((0, 0, 5, 100)))

    def _fsck(self, name: str) -> None:
        engine = self._engine(name)
        for _ in range(self.random.randint(1, 3)):
            grace_ms = self.random.choice((0, 0, 20, 200))
            try:
                self._sweep(engine.context, grace_ms)
            except StoreError:
                continue
            self.scheduler.sleep_ms(self.random.choice((0, 10, 300)))
            self._rest()

    def _sweep(self, context: Context, grace_ms: int) -> None:
        retention_ms = RETENTION_MS if self.weather.collects else 24 * 3_600_000
        tables = [TABLE] if self.random.random() < 0.7 else []
        found = check(context, grace_ms=grace_ms, retention_ms=retention_ms, scan=tables)
        for finding, _ in repair_all(context, found):
            accept(finding)

    def _nature(self) -> None:
        random = self.random
        while self._busy:
            self.scheduler.sleep_ms(random.choice((0, 1, 5, 20, 100)))
            self._deliver()
            self._touch_logs()
            if self.weather.clocks_jump and random.random() < 0.1:
                self.server.offset_ms = random.randint(-300, 300)
            if self.weather.collects and random.random() < 0.2:
                self.memory.compact(TABLE, self.server.wall_ms() - RETENTION_MS - LATEST_MS)

    def _touch_logs(self) -> None:
        """Write a region's log to its disk, or cut the power of its server."""
        now_ms = self.scheduler.now_ms
        self._unsynced = {
            region: self._unsynced.get(region, now_ms) for region in self.regions.pending
        }
        for region, since_ms in self._unsynced.items():
            if now_ms - since_ms > LATEST_MS:
                self.regions.flush(region)
        regions = sorted(self.regions.pending)
        if regions and (chance := self._power.random()) < FLUSH_RATE + POWER_RATE:
            region = self._power.choice(regions)
            if chance < FLUSH_RATE:
                self.regions.flush(region)
            else:
                self._lose_tail(region)

    def _lose_tail(self, region: Region) -> None:
        pending = len(self.regions.pending[region])
        lost = self.regions.crash(region, self._power.randrange(pending))
        if self._trace is not None:
            name = f"{region.table.decode()}/{region.part!r}"
            self._trace(f"{self._step():5} {self.scheduler.now_ms:6} {name} loses {lost} writes")

    def _disable(self) -> None:
        admin, operator = Admin(self.regions.ordered, self.server), self._operator
        while self._busy:
            self.scheduler.sleep_ms(operator.choice(GONE_MS[:-1]))
            admin.disable(LOGS)
            self.scheduler.sleep_ms(operator.choice(GONE_MS))
            admin.enable(LOGS)

    def _purge(self) -> None:
        context = self._engine("purger").context
        while self._busy:
            self.scheduler.sleep_ms(self._lost.choice(PURGE_MS))
            with suppress(StoreError):
                purge_one(context, self._lost)

    def _deliver(self) -> None:
        now_ms = self.scheduler.now_ms
        waiting = [(store, late) for store in self.stores for late in store.in_flight]
        due = [
            self._sent.setdefault((id(store), late.call.number), now_ms) + LATEST_MS < now_ms
            for store, late in waiting
        ]
        if waiting and self.random.random() < 0.2:
            due[self.random.randrange(len(due))] = True
        for (store, late), is_due in zip(waiting, due, strict=True):
            if is_due and late in store.in_flight:
                with suppress(TableUnavailable):
                    store.deliver(store.in_flight.index(late))

    def _engine(self, name: str, *, faults: bool = True) -> Engine:
        offset_ms = self.random.randint(-300, 300) if self.weather.clocks_jump else 0
        clock = ActorClock(self.scheduler, offset_ms)
        instant = self.weather.instant_reads
        atomic = self._kinds.random() < self.weather.atomic
        validates = self._validating.random() < self._validate
        assertions: Checking = "validated" if validates else "locked"
        misses = self._misses and faults
        network = Network(
            Forgetful(self.memory, self._lost) if misses else self.memory,
            self.scheduler,
            instant_reads=instant,
            atomic=atomic,
            delay_ms=self._delay_ms if faults else lambda: 0,
            moves=lambda: self._regional.random() < self._move_rate,
        )
        store = FaultyStore(network, reads_early=lambda: self.random.random() < 0.5)
        if self._regional.random() < self._is_regional:
            store.features |= {"many_row_checks"}
        if instant:
            store.features |= {"instant_reads"}
        if atomic:
            store.features |= {"atomic"}
        elif self._is_far:
            store.features |= {"remote_calls"}
        self.stores.append(store)
        engine = Engine(
            OneCell(store) if self.weather.one_cell else store,
            table=TABLE,
            transactions=TRANSACTIONS,
            salt_buckets=self.salt_buckets,
            policy=replace(self.policy, assertions=assertions),
            clock=clock,
            rng=self.random,
        )
        backend = engine.backend
        assert isinstance(backend, LocalBackend)
        backend._finisher = Background(self, name, engine.context)
        if misses:
            mislead(backend._resolver, self._lost)
        for known in (self.bank.accounts[0], key("log", table=LOGS)):
            backend._families.of(known)
        store.plan = partial(self._plan, name) if faults else partial(self._told, name)
        return engine

    def _plan(self, name: str, call: Call) -> Fault:
        fault = NO_FAULT
        if self.random.random() < self.weather.fault_rate:
            fault = draw_fault(self.random, call, self.weather.crash_rate if self._crashes else 0)
            self._crashes -= fault.reply is Reply.CRASH
            if fault.late and self._slow.random() < self.weather.loss_rate:
                fault = replace(fault, late=frozenset())
        return self._told(name, call, fault)

    def _delay_ms(self) -> int:
        return self._slow.choice(SLOW_MS) if self._slow.random() < self.weather.slow_rate else 0

    def _told(self, name: str, call: Call, fault: Fault = NO_FAULT) -> Fault:
        if self._trace is not None:
            self._trace(f"{self._step():5} {self.scheduler.now_ms:6} {name} {told(call, fault)}")
        return fault

    def _step(self) -> int:
        return self.scheduler.steps

    def _end(self, calm: Engine) -> None:
        mend(self.memory, calm.context)
        self._judge(calm)
        late = [store for store in self.stores if store.in_flight]
        for store in late:
            deliver_all(store)
        if late:
            mend(self.memory, calm.context)
            self._judge(calm)

    def _judge(self, calm: Engine) -> None:
        logs = [attempt.log for attempt in self.bank.attempts]
        stored = self.memory.read([*self.bank.accounts, *logs])
        judge(self.bank, stored, lambda transaction: calm.outcome(transaction).value)
        if self.weather.is_calm and not self._in_parts:  # parts wait in no order, for a time
            for attempt in self.bank.attempts[1:]:
                fine = isinstance(attempt.result, Committed | AssertionFailedError)
                assert fine, f"nothing was in the way: {attempt}"


class Once(partial[object]):
    """A task that may be done again."""


class Background(Finisher):
    """One that finishes transactions in an actor, where a program has a thread."""

    def __init__(self, schedule: Schedule, name: str, context: Context) -> None:
        super().__init__(context)
        self._schedule = schedule
        self._name = name
        self._running = 0

    def _enqueue(self, name: str, transactions: Sequence[Transaction]) -> None:
        self._running += 1

        def finish() -> None:
            work = roll_forward if name == "decided" else mark_complete
            try:
                finish_or_leave(self._context, "roll forward", work, transactions)
            finally:
                self._running -= 1

        self._schedule._spawn(f"{self._name}-finisher", finish)

    def flush(self) -> None:
        while self._running:
            self._schedule.scheduler.sleep_ms(1)


def draw_fault(random: Random, call: Call, crash_rate: float) -> Fault:
    reply = Reply.CRASH if random.random() < crash_rate else Reply.MAYBE_APPLIED
    if call.method == "atomically":
        done = random.choice((None, frozenset[int]()))
        refused = done is not None and reply is not Reply.CRASH and random.random() < 0.5
        return Fault(applied=done, reply=Reply.NOT_APPLIED if refused else reply)
    if call.method not in CHANGING:
        return Fault(reply=reply)
    some = frozenset(i for i in range(len(call.items)) if random.random() < 0.5)
    rest = frozenset(range(len(call.items))) - some
    match random.randrange(6):
        case 0 if reply is not Reply.CRASH:
            return Fault(applied=frozenset(), reply=Reply.NOT_APPLIED)
        case 1 if reply is not Reply.CRASH:
            return Fault(twice=True)
        case 2 if reply is not Reply.CRASH:
            return Fault(late=some)
        case 3:
            return Fault(applied=frozenset(), reply=reply)
        case 4:
            return Fault(applied=some, reply=reply, late=rest)
        case _:
            return Fault(applied=None, reply=reply, late=some)


def run_many(seeds: Iterable[int], protocol: ProtocolName = "six-phase") -> None:
    for seed in seeds:
        try:
            Schedule(seed, protocol=protocol).run()
        except FINDINGS as error:
            raise AssertionError(f"{error}\n{replay_line(seed, protocol)}") from error


def replay_line(seed: int, protocol: ProtocolName = "six-phase") -> str:
    command = f"python -m tests.simulation --schedules 1 --seed {seed} --trace"
    return command if protocol == "six-phase" else f"{command} --protocol {protocol}"
