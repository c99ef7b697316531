"""Sessions that take turns as a test has it, and the history that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import count
from typing import Any, ClassVar

from tests.history.anomalies import Kind
from tests.history.check import check_registers
from tests.history.events import Ending, Missing, Read, Transaction, Write
from tests.simulation.calls import Match
from tests.simulation.puppets import Puppet
from tests.simulation.world import TABLE, TRANSACTIONS, World, key
from txn import AbortedError, Cell, CommitOutcomeUnknown, Engine, Key, Mutation, Policy
from txn.clock import Clock
from txn.model import Edit
from txn.protocol.protocols import protocol_key
from txn.protocol.statuses import PROTOCOLS, ProtocolName
from txn.testing.faulty import Crash, Plan, faultless

POLICY = Policy(attempts=1, lock_ttl_ms=1000, courtesy_ms=5)
ITEM = "item"
ITEMS = [key(f"{ITEM}-{name}") for name in "abc"]
"""All the keys that a story may put into its range."""


class Level(Enum):
    """How a session reads."""

    RAW = "raw"
    READ = "read"
    BLOCK = "block"


class Story:
    """One world, what its sessions do, and what is to be said of it."""

    protocol: ClassVar[ProtocolName] = "six-phase"
    policy: ClassVar[Policy] = POLICY
    """That of the database: each story is told of both."""

    def __init__(self, level: Level, **values: str) -> None:
        self.level = level
        self.world = World()
        self.world.memory.write(
            [Edit(protocol_key(TRANSACTIONS), PROTOCOLS[self.protocol].stored_name, 1)]
        )
        self.history: list[Transaction] = []
        self.now = count().__next__
        if values:
            founder = self.session("founder")
            for row, value in values.items():
                founder.put(value, key(row))
            assert founder.commit()

    def session(
        self, name: str, level: Level | None = None, *, faults: Plan = faultless
    ) -> Session:
        return Session(self, name, level or self.level, faults)

    def kinds(self) -> set[Kind]:
        return {anomaly.kind for anomaly in check_registers(self.history)}


class Alarm:
    """A clock on which something happens when somebody sleeps."""

    def __init__(self, clock: Clock) -> None:
        self.alarm: Callable[[], object] | None = None
        self.wall_ms, self.monotonic_ms = clock.wall_ms, clock.monotonic_ms
        self._clock = clock

    def sleep_ms(self, duration_ms: int) -> None:
        alarm, self.alarm = self.alarm, None
        if alarm is not None:
            alarm()
        self._clock.sleep_ms(duration_ms)


class Session:
    """One transaction of one client, at its level."""

    def __init__(self, story: Story, name: str, level: Level, faults: Plan) -> None:
        self.name = name
        self.events: list[Read | Write] = []
        self._story = story
        self._level = level
        self._start = story.now()
        self._clock = Alarm(story.world.clock)
        self._puppet: Puppet[bool] = Puppet(
            story.world,
            self._work,
            faults=faults,
            policy=story.policy,
            clock=self._clock,
            by_row=True,
        )
        self._written: dict[Key, str] = {}
        engine = self._puppet.engine
        self._block = engine.transaction().__enter__() if level is Level.BLOCK else None

    def get(self, *keys: Key) -> list[str | None]:
        found = self._cells(self._puppet.engine, keys)
        return [self._saw(key, found[key]) for key in keys]

    def scan(self) -> set[str]:
        found = self._items(self._puppet.engine)
        seen = [self._saw(k, found.get(k), Read if k in found else Missing) for k in ITEMS]
        return {value for value in seen if value}

    def put(self, value: str, *keys: Key) -> None:
        for each in keys:
            self._written[each] = value
            if self._block is not None:
                self._block.put(each, value)

    def sleeping(self, work: Callable[[], object]) -> None:
        self._clock.alarm = work

    def until(self, match: Match) -> None:
        assert self._puppet.until(match) is not None, "it has ended"

    def commit(self) -> bool:
        try:
            return self._puppet.finish()
        except Crash:
            self._end(Ending.UNKNOWN, None)
            return False

    def _cells(self, engine: Engine, keys: Sequence[Key]) -> Mapping[Key, Cell | None]:
        if self._block is not None:
            return {key: _undated(value) for key, value in self._block.get_many(keys).items()}
        return engine.context.store.read(keys) if self._level is Level.RAW else engine.read(keys)

    def _items(self, engine: Engine) -> Mapping[Key, Cell | None]:
        if self._block is not None:
            found = self._block.scan(prefix=ITEM)
            return {key: _undated(cell.value) for row in found for key, cell in row.cells.items()}
        if self._level is Level.READ:
            rows = engine.scan(prefix=ITEM)
        else:
            rows = engine.context.store.scan(TABLE, ITEM.encode(), b"iten")
        return {key: cell for row in rows for key, cell in row.cells.items()}

    def _saw(self, key: Key, cell: Cell | None, kind: type[Read] = Read) -> str | None:
        text = cell.value.decode() if cell else None
        at = cell.timestamp if cell else None
        self.events.append(kind(key.row.decode(), text, at or None))
        return text

    def _work(self, engine: Engine) -> bool:
        try:
            at = self._ends(engine)
        except AbortedError:
            self._end(Ending.ABORTED, None)
            return False
        except CommitOutcomeUnknown:
            self._end(Ending.UNKNOWN, None)
            return False
        self._end(Ending.COMMITTED, at)
        return True

    def _ends(self, engine: Engine) -> int | None:
        result: Any = None
        if self._block is not None:
            self._block.__exit__(None, None, None)
            result = self._block.result
        elif self._written:
            result = engine.commit([Mutation(key, value) for key, value in self._written.items()])
        return result.timestamp if result else None

    def _end(self, ending: Ending, at: int | None) -> None:
        writes = [Write(key.row.decode(), value, at) for key, value in self._written.items()]
        events = (*self.events, *writes)
        done = Transaction(self.name, events, self._start, self._story.now(), ending)
        self._story.history.append(done)


def _undated(value: bytes | None) -> Cell | None:
    return None if value is None else Cell(value, 0)
