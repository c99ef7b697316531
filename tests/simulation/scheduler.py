"""Actors that take turns at each call of the store, as a seeded generator has it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from tests.simulation.world import Wrapper
from txn.model import Cell, Check, Edit, Key, Row
from txn.stores.base import Store, check_then_read
from txn.testing.faulty import Crash

T = TypeVar("T")
LONGEST_PAUSE_MS = 500


class Actor:
    """Somebody who runs until the next pause."""

    __slots__ = ("greenlet", "last_ms", "name", "wake_ms")

    def __init__(self, name: str, now_ms: int) -> None:
        self.name = name
        self.wake_ms = self.last_ms = now_ms
        self.greenlet: Any = None


class Scheduler:
    """Runs actors, one at a time. tick_ms: how much time passes at most between two of them."""

    def __init__(self, random: Random, tick_ms: int, most_steps: int) -> None:
        self.random = random
        self.now_ms = 0
        self.steps = 0
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self._tick_ms = tick_ms
        self._most_steps = most_steps
        self.turns = 0
        self._hub: Any = getcurrent()

    def spawn(self, name: str, body: Callable[[], object]) -> Actor:
        actor = Actor(name, self.now_ms)

        def run() -> None:
            with suppress(Crash):
                body()

        actor.greenlet = greenlet(run, self._hub)
        self.actors.append(actor)
        return actor

    def run(self) -> None:
        while self.actors:
            actor = self._next()
            actor.last_ms = self.now_ms
            self.current = actor
            self.turns += 1
            actor.greenlet.switch()
            self.current = None
            if actor.greenlet.dead:
                self.actors.remove(actor)
            self.steps += 1
            if self.steps > self._most_steps:
                raise AssertionError(f"somebody waits for ever: {[a.name for a in self.actors]}")

    def pause(self) -> None:
        if self.current is not None:
            self._hub.switch()

    def sleep_ms(self, duration_ms: int) -> None:
        if self.current is None:
            self.now_ms += duration_ms
            return
        self.current.wake_ms = self.now_ms + duration_ms
        self._hub.switch()

    def _next(self) -> Actor:
        random, now_ms = self.random, self.now_ms
        if random.random() < 0.3:
            self.now_ms = now_ms = now_ms + random.randint(0, self._tick_ms)
        ready = [actor for actor in self.actors if actor.wake_ms <= now_ms]
        if not ready:
            self.now_ms = now_ms = min(actor.wake_ms for actor in self.actors)
            ready = [actor for actor in self.actors if actor.wake_ms <= now_ms]
        starved = [a for a in ready if max(a.last_ms, a.wake_ms) < now_ms - LONGEST_PAUSE_MS]
        ready = starved or ready
        return ready[int(random.random() * len(ready))]


class ActorClock:
    """The clock of one machine: its time of day is wrong by an offset, which may change."""

    def __init__(self, scheduler: Scheduler, offset_ms: int = 0) -> None:
        self.offset_ms = offset_ms
        self._scheduler = scheduler

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self._scheduler.now_ms + self.offset_ms

    def monotonic_ms(self) -> int:
        return self._scheduler.now_ms

    def sleep_ms(self, duration_ms: int) -> None:
        self._scheduler.sleep_ms(duration_ms)


class Network(Wrapper):
    """The way from a client to the store: it takes turns, and batches arrive in pieces, in any
    order. Cells are read in one instant row by row, or all with instant_reads. delay_ms: draws by
    how much the last piece of a changing call is late. moves: draws whether a region moves or is
    split just as several checks are to be carried out together in it."""

    check_and_read = check_then_read

    def __init__(
        self,
        inner: Store,
        scheduler: Scheduler,
        *,
        instant_reads: bool = False,
        atomic: bool = False,
        delay_ms: Callable[[], int] = lambda: 0,
        moves: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(inner)
        self._delay_ms = delay_ms
        self._moves = moves
        self._instant_reads = instant_reads
        self._atomic = atomic
        self._is_alone = False
        self._scheduler = scheduler
        self._random = scheduler.random

    def close(self) -> None:
        pass

    def _pause(self) -> None:
        if not self._is_alone:
            self._scheduler.pause()

    def read(self, *groups: Collection[Key]) -> dict[Key, Cell | None]:
        return {key: cell for keys in groups for key, cell in self._read_group(keys).items()}

    def _read_group(self, keys: Collection[Key]) -> dict[Key, Cell | None]:
        if self._instant_reads:
            self._pause()
            return self._inner.read(keys)
        rows: dict[tuple[bytes | None, bytes], list[Key]] = {}
        for key in keys:
            rows.setdefault((key.table, key.row), []).append(key)
        found: dict[Key, Cell | None] = {}
        for piece in self._pieces(sorted(rows)):
            found.update(self._inner.read([key for name in piece for key in rows[name]]))
        return found

    def write(self, edits: Sequence[Edit], *, durable: bool = True, by_row: bool = False) -> None:
        if not by_row:
            for piece in self._delayed(edits):
                self._inner.write(piece)
            return
        rows: dict[tuple[bytes | None, bytes], list[Edit]] = {}
        for edit in edits:
            rows.setdefault((edit.key.table, edit.key.row), []).append(edit)
        for names in self._delayed(sorted(rows)):
            whole = [edit for name in names for edit in rows[name]]
            self._inner.write(whole, by_row=True)

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        answers: dict[int, bool] = {}
        for piece in self._delayed(range(len(checks))):
            moved = self._inner.check_and_put([checks[i] for i in piece])
            answers.update(zip(piece, moved, strict=True))
        return [answers[i] for i in range(len(checks))]

    def put_if_all(self, groups: Sequence[Sequence[Check]]) -> list[bool | None]:
        answers: dict[int, bool | None] = {}
        for piece in self._delayed(range(len(groups))):
            there = [i for i in piece if len(groups[i]) == 1 or not self._moves()]
            done = self._inner.put_if_all([groups[i] for i in there])
            answers.update(zip(there, done, strict=True))
        return [answers.get(i) for i in range(len(groups))]

    def scan(
        self, table: bytes, start: bytes = b"", stop: bytes | None = None, *more: Any, **named: Any
    ) -> Iterator[Row]:
        self._pause()
        rows = self._inner.scan(table, start, stop, *more, **named)
        if self._random.random() < 0.5:
            return rows
        return self._scan_slowly(table, [row.row for row in rows], *more, **named)

    def atomically(self, work: Callable[[], None]) -> None:
        if not self._atomic or self._is_alone:
            work()
            return
        self._pause()
        began = self._scheduler.turns
        self._is_alone = True
        try:
            self._inner.atomically(work)
        finally:
            self._is_alone = False
            assert self._scheduler.turns == began, "somebody waited in a local transaction"

    def _scan_slowly(
        self, table: bytes, rows: Iterable[bytes], *more: Any, **named: Any
    ) -> Iterator[Row]:
        for row in rows:
            if self._random.random() < 0.5:
                self._pause()
            yield from self._inner.scan(table, row, row + b"\0", *more, **named)

    def _delayed(self, items: Sequence[T]) -> Iterator[list[T]]:
        delay_ms = 0 if self._is_alone else self._delay_ms()
        left = len(items)
        for piece in self._pieces(items):
            left -= len(piece)
            if delay_ms and not left:
                self._scheduler.sleep_ms(delay_ms)
            yield piece

    def _pieces(self, items: Sequence[T]) -> Iterator[list[T]]:
        self._pause()
        rest = list(items)
        if len(rest) == 1 or self._random.random() < 0.5:
            yield rest
            return
        self._random.shuffle(rest)
        while rest:
            size = self._random.randint(1, len(rest))
            yield rest[:size]
            rest = rest[size:]
            if rest:
                self._pause()
