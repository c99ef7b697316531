"""The simulation's schedules with histories instead of a bank."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, count, pairwise
from random import Random
from typing import Any
from unittest.mock import patch

from tests.history.anomalies import Anomaly
from tests.history.recording import Line, Recorder, history
from tests.history.workload import LISTS, MODELS, Model, Observation, Work, atomic
from tests.simulation import schedule as schedule_module
from tests.simulation.calls import asks_for
from tests.simulation.feeding import SlowNetwork
from tests.simulation.schedule import FINDINGS, Schedule, Task, Trace, replay_line
from tests.simulation.scheduler import ActorClock
from tests.simulation.world import TABLE, TRANSACTIONS, Wrapper, key
from txn import Cell, Engine, Key, TxnError
from txn.model import Check, Edit, Row
from txn.protocol import fenced
from txn.protocol.statuses import ProtocolName, Status
from txn.reading.feed import Bounds
from txn.reading.instants import find_instant, restore_rows
from txn.request import Ack
from txn.spans import Span
from txn.testing.faulty import Call, Fault

PAUSE_RATE = 0.02
MOST_LOOKS = 12
PAUSES_MS = (3, 30, 300)
MORE = 2
"""Keys beside the bank's: few of them have a value at first, so that there is something to come."""


class HistorySchedule(Schedule):
    """Runs one seed; `anomalies` says what is wrong with its history."""

    def __init__(
        self,
        seed: int,
        model: Model = LISTS,
        look: Observation = atomic,
        trace: Trace | None = None,
        protocol: ProtocolName = "six-phase",
    ) -> None:
        super().__init__(seed, trace, protocol)
        self._lines: list[Line] = []
        self._model = model
        recorder = Recorder(self._lines.append, count().__next__)
        keys = [*self.bank.accounts, *(key(f"bank-{2 * i}", "later") for i in range(MORE))]
        self._work = Work(model, keys, self.random, recorder, "t")
        readers = Work(model, keys, self.random, recorder, "r", look)
        self.bank = Clerk(self._work, readers)  # type: ignore[assignment]

    def anomalies(self) -> list[Anomaly]:
        self.run()
        return self._model.check(history(self._lines))

    def _judge(self, calm: Engine) -> None:
        assert self._work.look(calm) is not None


class Blocks(HistorySchedule):
    """Four clients with two blocks each, and readers; nothing fails."""

    def __init__(self, seed: int, model: Model, **options: Any) -> None:
        super().__init__(seed, model, **options)
        self.weather = replace(self.weather, readers=2, fscks=0, fault_rate=0.0, collects=False)

    def _tasks(self) -> list[deque[Task]]:
        block = partial(self._work.block, ack="complete")
        return [deque([block, block]) for _ in range(4)]

    def _plan(self, name: str, call: Call) -> Fault:
        """Let somebody stop for a while, most of all before a decision."""
        if self.random.random() < (0.5 if asks_for(Status.ASSERTED)(call) else PAUSE_RATE):
            self.scheduler.sleep_ms(self.random.choice(PAUSES_MS))
        return super()._plan(name, call)

    def _reader(self, name: str) -> None:
        engine = self._engine(name)
        for _ in range(self.random.randint(1, MOST_LOOKS)):
            self.bank.look(engine)
            self.scheduler.sleep_ms(self.random.choice((0, 0, 5, 20)))


class Clerk:
    """Stands where schedules have their bank."""

    def __init__(self, work: Work, readers: Work) -> None:
        self._work = work
        self._readers = readers
        self.accounts = work.keys
        self.transfer_by, self.transfer_many = work.write_by, work.write_many

    def open(self, engine: Engine) -> None:
        """Lists and registers need no founding."""

    def look(self, engine: Engine) -> None:
        readers = self._readers
        if readers.look_with is atomic and readers.rng.random() < 0.4:
            readers.scan(engine)
        else:
            readers.look(engine)

    def transfer(self, engine: Engine, ack: Ack, once: str | None) -> None:
        work = self._work
        (work.block if work.rng.random() < 0.4 else work.write)(engine, ack, once)


def found(
    seeds: Iterable[int],
    model: Model = LISTS,
    kind: Callable[..., HistorySchedule] = HistorySchedule,
    **options: Any,
) -> Iterator[tuple[int, Anomaly]]:
    """Run schedules; yield what is wrong with any of them, and the seed that shows it again."""
    for seed in seeds:
        for anomaly in kind(seed, model, **options).anomalies():
            yield seed, anomaly


def run_history(
    seed: int,
    trace: Trace | None = None,
    protocol: ProtocolName = "six-phase",
    kind: Callable[..., HistorySchedule] | None = None,
) -> None:
    """Run one history, of the model that the seed has; AssertionError where it is wrong."""
    model = Random(seed).choice(list(MODELS.values()))
    kind = kind or (Blocks if seed % 2 else HistorySchedule)
    for _, anomaly in found([seed], model, kind, trace=trace, protocol=protocol):
        raise AssertionError(str(anomaly))


SKEW_MS = 200
TURNS = 4
LATENESS_MS = 25_000  # as long as a client tries


class Snapshots(HistorySchedule):
    """Readers of the whole table in tasks, as of an instant, with a clock for each region."""

    def __init__(self, seed: int, model: Model, **options: Any) -> None:
        super().__init__(seed, model, **options)
        self._misses = self._purges = False  # a snapshot fails if a row was deleted
        self.weather = replace(self.weather, readers=3, clocks_jump=False, collects=False)
        self.salt_buckets = 3
        skews = [self.random.randint(-SKEW_MS, SKEW_MS) for _ in range(3)]
        self._skews = [0, 0, 0] if self.weather.atomic else skews
        self.found = 0
        """How many reads came to their end."""

    def run(self) -> None:
        servers = partial(Servers, skews=self._skews)
        with (
            patch.object(schedule_module, "Network", servers),
            patch.object(fenced, "needs_no_row", lambda t: False),
        ):
            super().run()

    def _tasks(self) -> list[deque[Task]]:
        queues = [HistorySchedule._tasks(self) for _ in range(TURNS)]
        return [deque(chain.from_iterable(some)) for some in zip(*queues, strict=True)]

    def _rest(self) -> None:
        self.scheduler.sleep_ms(self.random.choice((0, 0, 20)))

    def _engine(self, name: str, *, faults: bool = True) -> Engine:
        engine = super()._engine(name, faults=faults)
        clock = engine.context.clock
        assert isinstance(clock, ActorClock)
        clock.offset_ms = self.random.randint(-300, 300) if faults else 0
        return engine

    def _reader(self, name: str) -> None:
        readers = replace(self._work, name=name, done=0)
        for _ in range(self.random.randint(1, 4)):
            if self.random.random() < 0.3:
                self.bank.look(self._engine(name))
            else:
                with suppress(TxnError):
                    self._read_snapshot(readers, self._engine(name))
            self.scheduler.sleep_ms(self.random.choice((0, 0, 5, 100)))

    def _read_snapshot(self, readers: Work, planner: Engine) -> None:
        """Read the table in tasks, each of which opens the store for itself and lists slowly."""
        recorder, keys = readers.recorder, readers.keys
        began = recorder.now()
        instant = find_instant(planner.context, Bounds(0, LATENESS_MS))
        end = recorder.now()
        cuts = sorted(self.random.sample([key.row for key in keys], self.random.randint(0, 2)))
        ends = pairwise([b"", *cuts, None])
        spans = [Span(TABLE, start or b"", stop) for start, stop in ends]
        self.random.shuffle(spans)
        cells: dict[Key, Cell | None] = dict.fromkeys(keys)
        for number, span in enumerate(spans):
            self.scheduler.sleep_ms(self.random.choice((0, 0, 20, 300)))
            task = self._engine(f"task-{number}")
            self.stores[-1]._inner.row_ms = (0, 0, 50, 200)  # type: ignore[attr-defined]
            rows = task.backend.scan(span)
            for row in restore_rows(task.context, [span], instant, rows):
                cells.update(row.cells)
        recorder.did(readers._next(), [readers._read(key, cells) for key in keys], began, end)
        self.found += 1


class Servers(SlowNetwork):
    """A way to servers each of which has a region of the transaction table, and its own clock."""

    def __init__(self, inner: Any, *given: Any, skews: Sequence[int], **more: Any) -> None:
        super().__init__(SkewedStore(inner, skews), *given, **more)
        self.row_ms: Sequence[int] = (0,)

    def find_splits(self, *_: object) -> list[bytes]:
        return [b"01.", b"02."]

    def scan(self, table: bytes, start: bytes = b"", *more: Any, **named: Any) -> Iterator[Row]:
        """Yield each row as it is when a listing comes to it, which may be long after its start."""
        if table != TRANSACTIONS or named.get("reverse"):
            yield from super().scan(table, start, *more, **named)
            return
        while True:
            if self._random.random() < 0.7:
                self._scheduler.sleep_ms(self._random.choice(self.row_ms))
            row = next(self._inner.scan(table, start, *more, **named), None)
            if row is None:
                return
            yield row
            start = row.row + b"\0"

    def read_versions(self, keys: Collection[Key], count: int) -> dict[Key, list[Cell]]:
        self._pause()
        return self._inner.read_versions(keys, count)


class SkewedStore(Wrapper):
    """A store that writes each cell of the transaction table by the clock of its region."""

    def __init__(self, inner: Any, skews: Sequence[int]) -> None:
        super().__init__(inner)
        self._skews = skews

    def write(self, edits: Sequence[Edit], **options: Any) -> None:
        if options.get("by_row"):
            self._inner.write(edits, **options)
            return
        for edit in edits:
            with self._on_server_of(edit.key):
                self._inner.write([edit], **options)

    def check_and_put(self, checks: Sequence[Check], **options: Any) -> list[bool]:
        answers: list[bool] = []
        for check in checks:
            with self._on_server_of(check.key):
                answers += self._inner.check_and_put([check], **options)
        return answers

    @contextmanager
    def _on_server_of(self, key: Key) -> Iterator[None]:
        is_salted = key.table == TRANSACTIONS and key.row[2:3] == b"."
        skew_ms = self._skews[int(key.row[:2])] if is_salted else self._skews[0]
        self._inner._clock.offset_ms += skew_ms
        try:
            yield
        finally:
            self._inner._clock.offset_ms -= skew_ms


HISTORY_EACH = 10
SNAPSHOTS_EACH = 25


def run_seed(seed: int, trace: Trace | None = None, protocol: ProtocolName = "six-phase") -> None:
    if seed % HISTORY_EACH == 0:
        run_history(seed // HISTORY_EACH, trace, protocol)
    elif seed % SNAPSHOTS_EACH == 1:
        run_history(seed // SNAPSHOTS_EACH, trace, protocol, Snapshots)
    else:
        Schedule(seed, trace, protocol).run()


def run_chunk(seeds: range, protocol: ProtocolName = "six-phase") -> str | None:
    for seed in seeds:
        try:
            run_seed(seed, protocol=protocol)
        except FINDINGS as error:
            return f"{error}\n{replay_line(seed, protocol)}"
    return None
