"""Group commit: what many threads and futures ask for meanwhile is committed as one batch.

A request that finds no batch under way is one at once; what comes while `lanes` of them are under
way gathers, and is the next. The thread of one caller commits a batch for all whose requests are in
it; threads of the gatherer's own do so only where nobody but futures waits. No request goes beside
another that needs the same lock, in a batch or in two that are under way: it would be a conflict.
Those that come first go first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event, Lock, get_ident
from typing import Generic, TypeVar

from txn.clock import Clock
from txn.errors import StoreClosedError
from txn.host.crew import Crew
from txn.host.forks import Forked
from txn.model import Key
from txn.protocol.beats import PORTION
from txn.request import Ack, Committed, Request
from txn.watch import Gathered, Queued, Watch, silent

MOST = 256
"""Requests of a batch."""

MOST_BYTES = 8_000_000
"""Of the requests of a batch of more than one: a server refuses what is too large."""

OVERDUE_MS = 250
"""How long a batch may be under way before others do not wait for its end any more."""

SPARE = 16
"""How many batches of futures may be stuck, besides those of the lanes, until others wait."""


@dataclass(slots=True, eq=False)
class InLine:
    """A request in line.

    due_ms: when it is too late to decide, by the monotonic clock. units: the lock cells that it
    needs, or its keys. weight: its bytes. future: what tells its result, where no thread waits.
    """

    request: Request
    ack: Ack
    due_ms: int | None
    units: Collection[Key] = ()
    weight: int = 0
    future: Future[Committed] | None = None

    def goes_with(self, other: InLine) -> bool:
        """Whether both may be in one batch."""
        return self.ack == other.ack


W = TypeVar("W", bound=InLine)


class _Place(Generic[W]):
    """The requests of one caller, which need no lock in common.

    waiting: those that are still in line. open: how many are in line or under way. event: wakes
    the caller's thread, if it waits. led: the batch that this thread leads.
    """

    __slots__ = ("event", "led", "open", "waiting")

    def __init__(self, items: Sequence[W], event: Event | None) -> None:
        self.waiting = list(items)
        self.open = len(items)
        self.event = event
        self.led: _Batch[W] | None = None

    @property
    def may_lead(self) -> bool:
        """Whether a thread waits here, and does not lead."""
        return self.event is not None and (self.led is None or self.led.is_over)


class _Batch(Generic[W]):
    """What goes together. places: of each item. thread: that of its leader."""

    __slots__ = ("is_over", "items", "places", "since_ms", "size", "thread", "weight")

    def __init__(self, since_ms: int) -> None:
        self.items: list[W] = []
        self.places: list[_Place[W]] = []
        self.size = self.weight = 0
        self.since_ms = since_ms
        self.thread = get_ident()
        self.is_over = False

    @property
    def is_full(self) -> bool:
        return len(self.items) >= MOST or self.size >= PORTION or self.weight >= MOST_BYTES

    def has_room(self, w: W) -> bool:
        """Whether the request may go with those that are in it."""
        if not self.items:
            return True
        is_small = self.size + len(w.units) <= PORTION and self.weight + w.weight <= MOST_BYTES
        return is_small and w.goes_with(self.items[0])

    def add(self, w: W, place: _Place[W]) -> None:
        self.items.append(w)
        self.places.append(place)
        self.size += len(w.units)
        self.weight += w.weight


class Gatherer(Forked, Generic[W]):
    """A line of requests, and the batches of them that are under way.

    run: commits a batch, whose requests have the same `ack`; the result of each it keeps in it,
    also where it raises. tell: settles the future of a request that was in a batch. lanes: how many
    batches may be under way at a time. linger_ms: how long, at most, a request that could go waits
    for company. watch: is told of batches, and of who comes into the line and leaves it.
    """

    def __init__(
        self,
        run: Callable[[Sequence[W]], None],
        tell: Callable[[W], None],
        clock: Clock,
        lanes: int,
        linger_ms: int,
        *,
        watch: Watch = silent,
    ) -> None:
        self._run = run
        self._listener = watch
        self._tell = tell
        self._clock = clock
        self._lanes = lanes
        self._linger_ms = linger_ms
        self._is_closed = False
        self._crew = Crew(lanes + SPARE + 1, "txn-gatherer")  # one of them watches the line
        self._forget()
        self.expect_forks()

    def _forget(self) -> None:
        self._lock = Lock()
        self._line: list[_Place[W]] = []
        self._under_way: list[_Batch[W]] = []
        self._futures: set[Future[Committed]] = set()  # that are not done
        self._is_called = False  # one of the crew, who has not come yet
        self._is_stranded = False  # futures wait, and nobody of the crew can be had
        self._is_watched = False  # by one of the crew, while futures are in line
        self._is_over = Event()  # every future is done, and none comes

    def after_fork(self, in_child: bool) -> None:
        """Forget in a child who waits, and what is under way: that is its parent's."""
        if in_child:
            self._forget()

    def commit(self, items: Sequence[W]) -> None:
        """Have each item, which need no lock in common, committed in some batch, and return once
        all have been. What a batch raises that this thread leads is raised here."""
        try:
            if not self._commit_at_once(items):
                self._commit_in_line(items)
        finally:
            if self._is_stranded:
                self._lead_all()

    def submit(self, item: W) -> None:
        """Have an item committed in some batch, soon; its future tells the result.
        StoreClosedError after `close`."""
        place = _Place([item], None)
        assert item.future is not None
        with self._lock:
            if self._is_closed:
                raise StoreClosedError("the engine is closed")
            self._futures.add(item.future)
            self._line.append(place)
            self._call_next()
        self._tell_line(1)
        item.future.add_done_callback(self._futures.discard)
        if self._is_stranded:
            self._lead_all()

    def flush(self) -> None:
        """Wait until every future is done."""
        with self._lock:
            futures = list(self._futures)
        wait(futures)

    def close(self) -> None:
        """Take nothing with a future any more, and wait until every future is done."""
        with self._lock:
            self._is_closed = True
        self.flush()
        self._is_over.set()
        self._crew.close()

    # ------------------------------------------------------------------------------ leading

    def _commit_at_once(self, items: Sequence[W]) -> bool:
        """Commit the items as a batch, and return True, where nobody else is there at all."""
        if self._linger_ms or len(items) > MOST or sum(len(w.units) for w in items) > PORTION:
            return False
        if sum(w.weight for w in items) > MOST_BYTES:
            return False
        batch: _Batch[W] = _Batch(self._clock.monotonic_ms())
        batch.items = list(items)
        try:
            with self._lock:
                if self._line or self._under_way:
                    return False
                self._under_way.append(batch)
            self._tell_batch(batch)
            self._run(batch.items)
        finally:
            if batch in self._under_way:
                self._end(batch)
        return True

    def _commit_in_line(self, items: Sequence[W]) -> None:
        event = Event()
        place = _Place(items, event)
        try:
            with self._lock:
                self._line.append(place)
            self._tell_line(len(items))
            if self._linger_ms:
                event.wait(self._linger_ms / 1000)
            while True:
                event.clear()  # what it told of is seen below
                if not place.open:
                    break
                # Who has nothing in line any more does not begin with what is others' alone.
                if place.waiting and (batch := self._take(place)) is not None:
                    self._lead(batch)
                else:
                    event.wait(OVERDUE_MS / 1000)
        except BaseException:
            self._withdraw(place)
            raise

    def _lead(self, batch: _Batch[W]) -> None:
        with ExitStack() as after:  # all of it, whatever is raised on the way
            for w in batch.items:
                if w.future is not None:
                    after.callback(self._tell, w)
            after.callback(self._end, batch)
            self._tell_batch(batch)
            self._run(batch.items)

    def _lead_all(self) -> None:
        if self._linger_ms:
            self._clock.sleep_ms(self._linger_ms)
        with self._lock:
            self._is_called = self._is_stranded = False
        while (batch := self._take()) is not None:
            self._crew.do(self._lead, batch)

    def _watch(self) -> None:
        """Look again and again, as a thread in line does for itself, while futures are in line: a
        batch may have become overdue, and a future late, which every other thread may be too stuck
        to say."""
        while not self._is_over.wait(OVERDUE_MS / 1000):
            with self._lock:
                self._is_watched = self._has_futures
                if not self._is_watched:
                    return
                self._call_next()
                late, left = self._take_late()
            self._tell_line(-left)
            if late.items:
                self._crew.do(self._lead, late)

    def _end(self, batch: _Batch[W]) -> None:
        with self._lock:
            batch.is_over = True
            if batch in self._under_way:  # else this is a child, which has forgotten it
                self._under_way.remove(batch)
            for place in batch.places:
                place.open -= 1
                if not place.open and place.event is not None:
                    place.event.set()
            self._call_next()

    def _withdraw(self, place: _Place[W]) -> None:
        """Leave the line, for a thread that does not wait any more. It may have been called to
        lead, and may not have begun to."""
        with self._lock:
            left = len(place.waiting)
            place.waiting.clear()
            if place in self._line:
                self._line.remove(place)
            self._call_next()
        self._tell_line(-left)
        if place.led is not None and not place.led.is_over:
            self._end(place.led)
            for w in place.led.items:
                if w.future is not None:
                    self._tell(w)

    def _call_next(self) -> None:
        """Let somebody lead, if a batch may begin: a thread that waits; else, for futures alone,
        one of our own."""
        if not self._line:
            return
        if self._is_full(self._clock.monotonic_ms()):
            self._have_watched()
            return
        waiting = next((place.event for place in self._line if place.may_lead), None)
        if waiting is not None:
            waiting.set()
        elif not self._is_called:
            self._is_called = self._crew.hand_over(self._lead_all)
            self._is_stranded = not self._is_called

    def _have_watched(self) -> None:
        if not self._is_watched and self._has_futures:
            self._is_watched = self._crew.hand_over(self._watch)

    @property
    def _has_futures(self) -> bool:
        return any(place.event is None for place in self._line)

    # ------------------------------------------------------------------------------ batches

    def _is_full(self, now_ms: int, besides: int | None = None) -> bool:
        """Whether no batch may begin. One that takes long, at a server that does not answer, keeps
        nobody waiting. besides: a thread whose own do not count."""
        latest_ms = now_ms - OVERDUE_MS
        counted = [b for b in self._under_way if b.since_ms > latest_ms and b.thread != besides]
        return len(counted) >= self._lanes

    def _take(self, leader: _Place[W] | None = None) -> _Batch[W] | None:
        """Take a batch out of the line; None where none may begin, or nothing can be taken."""
        with self._lock:
            batch, left = self._begin_next(leader)
        self._tell_line(-left)
        return batch

    def _begin_next(self, leader: _Place[W] | None) -> tuple[_Batch[W] | None, int]:
        """Return the next batch, and how many have left the line: those that are cancelled, too."""
        now_ms = self._clock.monotonic_ms()
        # Where the watch of a batch commits, its thread does not wait for itself.
        if not self._line or self._is_full(now_ms, besides=get_ident()):
            return None, 0
        batch: _Batch[W] = _Batch(now_ms)
        left = self._fill(batch, now_ms)
        self._line = [place for place in self._line if place.waiting]
        if not batch.items:  # what is left waits for keys of batches that are under way
            self._have_watched()
            return None, left
        self._under_way.append(batch)
        if leader is not None:
            leader.led = batch
        self._call_next()
        return batch, left

    def _take_late(self) -> tuple[_Batch[W], int]:
        """Return the futures that are late, but for those that are cancelled, as a batch; and how
        many have left the line."""
        now_ms, left = self._clock.monotonic_ms(), 0
        batch: _Batch[W] = _Batch(now_ms)
        for place in self._line:
            w = place.waiting[0]  # a future has a place of its own
            if place.event is None and w.due_ms is not None and now_ms >= w.due_ms:
                place.waiting.clear()
                left += 1
                if _start(w):
                    batch.add(w, place)
        self._line = [place for place in self._line if place.waiting]
        if batch.items:
            self._under_way.append(batch)
        return batch, left

    def _tell_batch(self, batch: _Batch[W]) -> None:
        """Tell of a batch that begins, under no lock: who watches may commit as well."""
        if self._listener is not silent:
            self._listener(Gathered(len(batch.items)))

    def _tell_line(self, change: int) -> None:
        if change and self._listener is not silent:
            self._listener(Queued("line", change))

    def _fill(self, batch: _Batch[W], now_ms: int) -> int:
        """Take requests from the line; return how many have left it, for the batch or for good."""
        gone = 0
        blocked = {unit for other in self._under_way for w in other.items for unit in w.units}
        for place in self._line:
            left, place.waiting = place.waiting, []
            for number, w in enumerate(left):
                if batch.is_full:
                    place.waiting += left[number:]
                    return gone + len(batch.items)
                is_free = blocked.isdisjoint(w.units) or _needs_no_lock(w, now_ms)
                if not is_free or not batch.has_room(w):
                    place.waiting.append(w)
                elif _start(w):
                    batch.add(w, place)
                else:  # it is in no batch whose end would call those behind it
                    place.open -= 1
                    gone += 1
                    continue
                blocked.update(w.units)  # those behind one that stays do not overtake it
        return gone + len(batch.items)


def _needs_no_lock(w: InLine, now_ms: int) -> bool:
    """Whether it is cancelled, or late: it will be told so at once."""
    is_cancelled = w.future is not None and w.future.cancelled()
    return is_cancelled or (w.due_ms is not None and now_ms >= w.due_ms)


def _start(w: InLine) -> bool:
    """Whether the request is still wanted; from now on its future is not cancelled any more."""
    return w.future is None or w.future.set_running_or_notify_cancel()
