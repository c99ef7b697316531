"""The anomalies of Hermitage at each level, by sessions that take turns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from itertools import count, product
from pathlib import Path
from typing import Any, ClassVar, get_args

import pytest

from tests.history.anomalies import Kind
from tests.history.check import check_registers
from tests.history.events import Ending, Missing, Read, Transaction, Write
from tests.history.workload import undated
from tests.simulation.calls import Match, asks_for, reads_row
from tests.simulation.puppets import Puppet
from tests.simulation.world import TABLE, World, key
from txn import AbortedError, Cell, CommitOutcomeUnknown, Engine, Key, Mutation, Policy
from txn.model import Edit
from txn.policy import Checking
from txn.protocol.statuses import ProtocolName, Status
from txn.testing.faulty import NO_FAULT, Call, Crash, Fault, Plan, Reply, faultless

pytestmark = [pytest.mark.fast, pytest.mark.usefixtures("rows_for_all")]

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
        self.world = World(protocol=self.protocol)
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


class Session:
    """One transaction of one client, at its level."""

    def __init__(self, story: Story, name: str, level: Level, faults: Plan) -> None:
        self.name = name
        self.events: list[Read | Write] = []
        self._story = story
        self._level = level
        self._start = story.now()
        self._puppet: Puppet[bool] = Puppet(
            story.world,
            self._work,
            faults=faults,
            policy=story.policy,
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
            return {key: undated(value) for key, value in self._block.get_many(keys).items()}
        return engine.context.store.read(keys) if self._level is Level.RAW else engine.read(keys)

    def _items(self, engine: Engine) -> Mapping[Key, Cell | None]:
        if self._block is not None:
            found = self._block.scan(prefix=ITEM)
            return {key: undated(cell.value) for row in found for key, cell in row.cells.items()}
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


X, Y = key("x"), key("y")
RAW, READ, BLOCK = Level.RAW, Level.READ, Level.BLOCK
A, B, _ = ITEMS


@pytest.fixture(params=product(get_args(ProtocolName), get_args(Checking)), ids=str)
def each_database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol, assertions = request.param
    monkeypatch.setattr(Story, "protocol", protocol)
    monkeypatch.setattr(Story, "policy", replace(Story.policy, assertions=assertions))


of_both = pytest.mark.usefixtures("each_database")


def write_cycle(level: Level) -> Story:
    story = Story(level)
    one, two = story.session("one"), story.session("two")
    for each, value in ((one, "1"), (two, "2")):
        each.put(value, X, Y)
    one.until(asks_for(Status.ASSERTED))
    assert not two.commit()
    assert one.commit()
    last = story.session("last")
    assert last.get(X, Y) == ["1", "1"]
    assert last.commit()
    return story


def aborted_read(level: Level) -> Story:
    story = Story(level, x="0")
    writer, reader = story.session("writer"), story.session("reader")
    writer.put("1", X)
    writer.until(asks_for(Status.ASSERTED))
    assert reader.get(X) == ["0"]
    story.world.mend()
    assert not writer.commit()
    assert reader.commit()
    return story


def intermediate_read(level: Level) -> Story:
    story = Story(level, x="0")
    writer = story.session("writer", BLOCK)
    writer.put("1", X)
    writer.put("2", X)
    steps = (Status.WRITTEN, Status.ASSERTED, Status.PUT, Status.CLEANING, Status.COMPLETE)
    rules = story.world.engine().context.rules
    for number, status in enumerate(step for step in steps if step in rules.steps):
        writer.until(asks_for(status))
        reader = story.session(f"reader-{number}")
        assert reader.get(X)[0] in ("0", "2")
        assert reader.commit()
    assert writer.commit()
    return story


def circular_flow(level: Level) -> Story:
    story = Story(level, x="0", y="0")
    one, two = story.session("one"), story.session("two")
    one.put("1", X)
    two.put("2", Y)
    two.get(X)
    two.until(asks_for(Status.COMPLETE))
    assert one.get(Y) == ["2"]
    one.commit()
    two.commit()
    return story


def torn(call: Call) -> Fault:
    edits = [(i, item.key.row) for i, item in enumerate(call.items) if isinstance(item, Edit)]
    of_x = frozenset(i for i, row in edits if row == X.row)
    return Fault(of_x, Reply.CRASH) if of_x else NO_FAULT


def vanishing(level: Level) -> Story:
    """Somebody has decided to replace both keys and has put one."""
    story = Story(level, x="0", y="0")
    writer = story.session("writer", faults=torn)
    writer.put("1", X, Y)
    assert not writer.commit()
    reader = story.session("reader")
    assert reader.get(X) == ["1"]
    reader.get(Y)
    assert reader.commit()
    return story


def phantom(level: Level) -> Story:
    story = Story(level)
    reader, writer = story.session("reader"), story.session("writer")
    assert reader.scan() == set()
    writer.put("1", A)
    assert writer.commit()
    reader.scan()
    reader.commit()
    return story


def lost_update(level: Level) -> Story:
    story = Story(level, x="0")
    one, two = story.session("one"), story.session("two")
    for each in (one, two):
        assert each.get(X) == ["0"]
        each.put(each.name, X)
    assert one.commit()
    two.commit()
    return story


def skewed_read(level: Level) -> Story:
    story = Story(level, x="0", y="0")
    reader, writer = story.session("reader"), story.session("writer")
    assert reader.get(X) == ["0"]
    writer.put("1", X, Y)
    assert writer.commit()
    assert reader.get(Y) == ["1"]
    reader.commit()
    return story


def skewed_writes(level: Level) -> Story:
    story = Story(level, x="0", y="0")
    one, two = story.session("one"), story.session("two")
    for each, target in ((one, X), (two, Y)):
        assert each.get(X, Y) == ["0", "0"]
        each.put(each.name, target)
    one.until(asks_for(Status.ASSERTED))
    two.commit()
    one.commit()
    return story


def skewed_by_phantoms(level: Level) -> Story:
    story = Story(level)
    one, two = story.session("one"), story.session("two")
    for each, target in ((one, A), (two, B)):
        assert each.scan() == set()
        each.put(each.name, target)
    one.until(asks_for(Status.ASSERTED))
    two.commit()
    one.commit()
    return story


MANY = {RAW: {Kind.G_SINGLE}, READ: {Kind.G_SINGLE}}
ANOMALIES: dict[str, tuple[Callable[[Level], Story], dict[Level, set[Kind]]]] = {
    "G0": (write_cycle, {}),
    "G1a": (aborted_read, {}),
    "G1b": (intermediate_read, {}),
    "G1c": (circular_flow, {}),
    "OTV": (vanishing, {RAW: {Kind.G_SINGLE}}),
    "PMP": (phantom, MANY),
    "P4": (lost_update, {RAW: {Kind.LOST_UPDATE}, READ: {Kind.LOST_UPDATE}}),
    "G-single": (skewed_read, MANY),
    "G2-item": (skewed_writes, {RAW: {Kind.G2_ITEM}, READ: {Kind.G2_ITEM}}),
    "G2": (skewed_by_phantoms, {RAW: {Kind.G2}, READ: {Kind.G2}}),
}
"""How each is staged, and what a level shows of it that permits it."""


@of_both
@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("name", ANOMALIES)
def test_each_level_prevents_an_anomaly_or_permits_it(name: str, level: Level) -> None:
    stage, permitted = ANOMALIES[name]
    assert stage(level).kinds() == permitted.get(level, set())


def test_the_page_tells_what_each_level_permits() -> None:
    page = (Path(__file__).parents[2] / "docs" / "isolation.md").read_text()
    rows = re.findall(r"^\| ([GOP][\w-]+) \|[^|]*\|(.*)\|(.*)\|(.*)\|$", page, re.MULTILINE)
    told = {name: ["permits" in cell for cell in cells] for name, *cells in rows}
    assert told == {
        name: [level in permitted for level in Level] for name, (_, permitted) in ANOMALIES.items()
    }


@of_both
def test_one_read_prevents_g_single() -> None:
    story = Story(READ, x="0", y="0")
    reader = Puppet(story.world, lambda engine: engine.read([X, Y]), by_row=True)
    reader.until(reads_row(Y))
    writer = story.session("writer")
    writer.put("1", X, Y)
    assert writer.commit()
    assert {cell.value for cell in reader.finish().values() if cell} == {b"1"}
