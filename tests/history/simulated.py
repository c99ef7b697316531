"""The simulation's schedules with histories instead of a bank: same clients, faults and clocks.

Readers may be raw: they then read as a plain client of HBase does, which the protocol makes no
promises to. What transactions read is always by the protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from tests.history.anomalies import Anomaly
from tests.history.recording import Line, Recorder, history
from tests.history.workload import LISTS, Look, Model, Work, atomic
from tests.simulation.schedule import Schedule
from txn import Engine, Key
from txn.engine import Ack


class HistorySchedule(Schedule):
    """Runs one seed; `anomalies` says what is wrong with its history."""

    def __init__(self, seed: int, model: Model = LISTS, look: Look = atomic) -> None:
        super().__init__(seed)
        self._lines: list[Line] = []
        self._model = model
        recorder = Recorder(self._lines.append, count().__next__)
        keys = self.bank.accounts
        self._work = Work(model, keys, self.random, recorder, "t")
        readers = Work(model, keys, self.random, recorder, "r", look)
        self.bank = Clerk(self._work, readers)  # type: ignore[assignment]

    def anomalies(self) -> list[Anomaly]:
        """Run it, and judge its history."""
        self.run()
        return self._model.check(history(self._lines))

    def _judge(self, calm: Engine) -> None:
        assert self._work.look(calm) is not None


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
        return self._readers.look(engine)

    def transfer(self, engine: Engine, ack: Ack, once: str | None) -> None:
        work = self._work
        (work.block if work.chance.random() < 0.4 else work.write)(engine, ack, once)

    def transfer_many(self, engine: Engine, ack: Ack, tokens: Sequence[str | None]) -> None:
        self._work.write_many(engine, ack, tokens)


def found(
    seeds: Iterable[int], model: Model = LISTS, look: Look = atomic
) -> Iterator[tuple[int, Anomaly]]:
    """Run schedules; yield what is wrong with any of them, and the seed that shows it again."""
    for seed in seeds:
        for anomaly in HistorySchedule(seed, model, look).anomalies():
            yield seed, anomaly
