"""Schedules with readers of the change feed, which stop anywhere, and begin again from their notes.
As on HBase a change of status has the time of its beginning, and is seen at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from unittest.mock import patch

from tests.simulation import schedule as schedule_module
from tests.simulation.schedule import FINDINGS, Schedule
from tests.simulation.scheduler import ActorClock, Network
from tests.simulation.world import TRANSACTIONS
from txn import Engine, Key, StoreError
from txn.model import Check
from txn.protocol.context import Context
from txn.protocol.row import is_row_key
from txn.protocol.statuses import ProtocolName
from txn.reading.feed import (
    Bounds,
    ChangeFeed,
    Decided,
    KeyChange,
    Offset,
    decode_offset,
    find_decision,
    read_changes,
)

JUMPS_MS = 601  # by how much two clocks of a schedule may differ
LATENESS_MS = 25_000  # as long as a client tries
QUIET_MS = 100_000


@dataclass(slots=True)
class Journal:
    """What a reader has noted down: its offsets, and what it was told between them."""

    offsets: list[Offset]
    parts: dict[int, list[Decided]] = field(default_factory=dict)


class FeedSchedule(Schedule):
    """A schedule whose readers read the feed. Nothing is deleted, so all can be compared."""

    def __init__(self, seed: int, protocol: ProtocolName = "six-phase") -> None:
        super().__init__(seed, protocol=protocol)
        self.weather = replace(self.weather, readers=2, collects=False)
        self._is_regional = 0.0  # the feed tells only what has a row
        self.journals: dict[str, Journal] = {}
        self.bounds = Bounds(JUMPS_MS if self.weather.clocks_jump else 1, LATENESS_MS)

    def run(self) -> None:
        with patch.object(schedule_module, "Network", SlowNetwork):
            super().run()

    def _reader(self, name: str) -> None:
        now_ms = self.server.wall_ms()
        journal = self.journals[name] = Journal([Offset(now_ms - QUIET_MS)])
        context = self._engine(name).context
        feed = self._feed(context)
        for _ in range(self.random.randint(2, 10)):
            with suppress(StoreError):
                self._go_on(journal, feed)
            if self.random.random() < 0.3:
                feed = self._feed(context)
            self.scheduler.sleep_ms(self.random.choice((0, 1, 20, 300, 1_500)))

    def _feed(self, context: Context) -> ChangeFeed:
        return ChangeFeed(context, self.bounds)

    def _go_on(self, journal: Journal, feed: ChangeFeed) -> bool:
        start = journal.offsets[-1]
        end = feed.find_end(start, most=self.random.choice((None, None, 1, 2)))
        if end is start:
            return False
        number = len(journal.offsets)
        journal.offsets.append(decode_offset(end.encode()))
        journal.parts[number] = feed.list_part(start, end)
        return True

    def _end(self, calm: Engine) -> None:
        super()._end(calm)
        self.server.offset_ms = 0
        self.scheduler.sleep_ms(QUIET_MS)
        feed = self._feed(calm.context)
        for name, journal in self.journals.items():
            while self._go_on(journal, feed):
                pass
            told = list(self._tell_again(journal, self._feed(calm.context)))
            counts = Counter(each.row_key for each in told)
            assert not [key for key, count in counts.items() if count > 1], f"told twice: {name}"
            missed = self._list_committed() - counts.keys()
            assert not missed, f"not told: {name} {sorted(missed)}"
            self._compare(list(read_changes(calm.context, told)), counts.keys())

    def _tell_again(self, journal: Journal, feed: ChangeFeed) -> Iterable[Decided]:
        for number in range(1, len(journal.offsets)):
            start, end = journal.offsets[number - 1 : number + 1]
            part = feed.list_part(start, end)
            assert part == journal.parts.get(number, part), "a part has changed"
            yield from part

    def _compare(self, changes: Sequence[KeyChange], told: Collection[bytes]) -> None:
        assert {change.transaction for change in changes} <= set(told)
        by_key: dict[Key, list[KeyChange]] = {}
        for change in sorted(changes, key=lambda each: each.timestamp):
            by_key.setdefault(change.key, []).append(change)
        stored = self.memory.read(by_key)
        for key, some in by_key.items():
            cell, last = stored[key], some[-1]
            assert (cell and cell.value) == last.value, f"not what is stored: {key}"
            assert cell is None or cell.timestamp == last.timestamp
            for one, two in pairwise(some):
                replaced = 0 if one.value is None else one.timestamp
                assert two.replaced == replaced, f"not the version before: {key}"

    def _list_committed(self) -> set[bytes]:
        rows = self.memory.scan(TRANSACTIONS)
        return {row.row for row in rows if is_row_key(row.row) and find_decision(row)}


class SlowNetwork(Network):
    """One on which others see a change of status later than at the time that it has."""

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        if self._is_alone or any(check.key.column != b"status" for check in checks):
            return super().check_and_put(checks, durable=durable)
        server: ActorClock = self._inner._clock
        began_ms = server.wall_ms()
        moved: dict[int, bool] = {}
        for piece in self._pieces(range(len(checks))):
            self._scheduler.sleep_ms(self._random.choice((0, 0, 5, 50, 300)))
            late_ms = max(server.wall_ms() - began_ms, 0)
            server.offset_ms -= late_ms
            answers = self._inner.check_and_put([checks[i] for i in piece])
            server.offset_ms += late_ms
            moved.update(zip(piece, answers, strict=True))
        return [moved[i] for i in range(len(checks))]


def run_feeds(seeds: Iterable[int], protocol: ProtocolName = "six-phase") -> None:
    for seed in seeds:
        try:
            FeedSchedule(seed, protocol).run()
        except FINDINGS as error:
            raise AssertionError(f"{error} in FeedSchedule({seed}, {protocol!r})") from error
