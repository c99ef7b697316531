"""The simulation's schedules with histories instead of a bank: same clients, faults and clocks.

Readers may be raw: they then read as a plain client of HBase does, which the protocol makes no
promises to. What transactions read is always by the protocol.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random

from tests.history.anomalies import Anomaly
from tests.history.recording import Line, Recorder, history
from tests.history.workload import LISTS, MODELS, Commit, Model, Observation, Work, atomic
from tests.simulation.puppets import asks_for
from tests.simulation.schedule import Schedule, Task, Trace
from tests.simulation.world import key
from txn import Engine, Key
from txn.protocol.statuses import ProtocolName, Status
from txn.request import Ack
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
        """Run it, and judge its history."""
        self.run()
        return self._model.check(history(self._lines))

    def _judge(self, calm: Engine) -> None:
        assert self._work.look(calm) is not None


class Blocks(HistorySchedule):
    """Four clients with two blocks each, and readers; nothing fails. What takes several clients to
    meet in one moment happens here more often."""

    def __init__(
        self,
        seed: int,
        model: Model,
        trace: Trace | None = None,
        protocol: ProtocolName = "six-phase",
    ) -> None:
        super().__init__(seed, model, trace=trace, protocol=protocol)
        self.weather = replace(self.weather, readers=2, fscks=0, fault_rate=0.0, collects=False)

    def _tasks(self) -> list[deque[Task]]:
        block = partial(self._work.block, ack="complete")
        return [deque([block, block]) for _ in range(4)]

    def _plan(self, name: str, call: Call) -> Fault:
        """Let somebody stop for a while, most of all before a decision, and others do a lot
        meanwhile."""
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

    @property
    def accounts(self) -> Sequence[Key]:
        return self._work.keys

    def open(self, engine: Engine) -> None:
        """Lists and registers need no founding."""

    def look(self, engine: Engine) -> object:
        readers = self._readers
        if readers.look_with is atomic and readers.rng.random() < 0.4:
            return readers.scan(engine)
        return readers.look(engine)

    def transfer(self, engine: Engine, ack: Ack, once: str | None) -> None:
        work = self._work
        (work.block if work.rng.random() < 0.4 else work.write)(engine, ack, once)

    def transfer_by(self, commit: Commit, engine: Engine, once: str | None) -> None:
        self._work.write_by(commit, engine, once)

    def transfer_many(self, engine: Engine, ack: Ack, tokens: Sequence[str | None]) -> None:
        self._work.write_many(engine, ack, tokens)


def found(
    seeds: Iterable[int],
    model: Model = LISTS,
    look: Observation = atomic,
    protocol: ProtocolName = "six-phase",
) -> Iterator[tuple[int, Anomaly]]:
    """Run schedules; yield what is wrong with any of them, and the seed that shows it again."""
    for seed in seeds:
        for anomaly in HistorySchedule(seed, model, look, protocol=protocol).anomalies():
            yield seed, anomaly


def found_among_blocks(
    seeds: Iterable[int], model: Model, protocol: ProtocolName = "six-phase"
) -> Iterator[tuple[int, Anomaly]]:
    """The same where there are only blocks, and those who read."""
    for seed in seeds:
        for anomaly in Blocks(seed, model, protocol=protocol).anomalies():
            yield seed, anomaly


def run_history(
    seed: int, trace: Trace | None = None, protocol: ProtocolName = "six-phase"
) -> None:
    """Run one history, of the model that the seed has; AssertionError where it is wrong."""
    model = Random(seed).choice(list(MODELS.values()))
    kind = Blocks if seed % 2 else HistorySchedule
    for anomaly in kind(seed, model, trace=trace, protocol=protocol).anomalies():
        raise AssertionError(str(anomaly))
