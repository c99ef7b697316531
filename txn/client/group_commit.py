"""Group commit: concurrent requests of many threads and futures are committed as one batch.

A request that finds no batch in progress becomes one at once. While `concurrent_batches` are in
progress, requests wait in a queue and form the next batch. One caller's thread commits a batch for
all its callers; background threads do so only if nothing but futures waits. Two requests that need
the same lock would conflict, so they are never in progress at once, unless neither changes it.
The queue is first in, first out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Lock, get_ident
from typing import Generic, Protocol, TypeVar

from txn.clock import Clock, poll
from txn.errors import StoreClosedError
from txn.events import BatchStarted, Listener, Queued, silent
from txn.host.forks import start_in_each_process
from txn.host.holds import Hold, OwnLock, SafeEvent, refuse_own_thread
from txn.host.worker_pool import WorkerPool
from txn.model import Key
from txn.policy import Policy
from txn.protocol.transaction import PORTION
from txn.repeating import repeat
from txn.request import Ack, Committed

OVERDUE_MS = 250
"""After this time in progress, a batch no longer blocks others."""

SPARE = 16
"""How many batches of futures may be stuck, besides the concurrent ones, before others wait."""


class Item(Protocol):
    """A request that can be committed in a group.

    due_ms: the deadline for its decision (monotonic).
    lock_cells: the lock cells that it needs, or its keys. shared: those that it does not change.
    weight: its bytes.
    future: receives its result if no thread waits.
    """

    ack: Ack
    future: Future[Committed] | None

    @property
    def due_ms(self) -> int | None: ...
    @property
    def lock_cells(self) -> Collection[Key]: ...
    @property
    def shared(self) -> Collection[Key]: ...
    @property
    def weight(self) -> int: ...


W = TypeVar("W", bound=Item)


@dataclass(slots=True, eq=False)
class _Caller(Generic[W]):
    """The requests of one caller, which need no lock in common.

    waiting: the queued ones, as the keys of a dictionary.
    open: those queued or in progress.
    signal: a lock that the caller's thread waits to acquire, if it waits; see `wake`.
    batch: the one that this thread leads, or led last.
    hold: held by the thread until it leaves; see `txn.host.holds`.
    """

    waiting: dict[W, None] = field(default_factory=dict)
    open: set[W] = field(default_factory=set)
    signal: Lock | None = None
    batch: _Batch[W] | None = None
    hold: Hold = field(default_factory=Hold)

    def queue(self, items: Sequence[W]) -> None:
        self.waiting = dict.fromkeys(items)
        self.open = set(items)

    @property
    def may_lead(self) -> bool:
        """Whether a thread waits here with queued requests, and leads no batch."""
        is_idle = self.batch is None or self.batch.is_over
        return self.signal is not None and is_idle and bool(self.waiting)

    def wake(self) -> None:
        """Wake the thread, now or when it waits next; the queue's lock is held."""
        if self.signal is not None and self.signal.locked():
            self.signal.release()


@dataclass(slots=True, eq=False)
class _Batch(Generic[W]):
    """A batch of requests, with the caller of each.

    thread: its leader.
    hold: held by the leader until it leaves.
    is_over: the leader may lead another batch.
    is_finished: all its callers have their results, too.
    """

    hold: Hold
    since_ms: int
    _policy: Policy
    _can_join: Callable[[W, W], bool]
    items: list[W] = field(default_factory=list)
    callers: list[_Caller[W]] = field(default_factory=list)
    size: int = 0
    weight: int = 0
    thread: int = field(default_factory=get_ident)
    is_over: bool = False
    is_finished: bool = False

    @property
    def is_full(self) -> bool:
        most = self._policy.batch_requests
        return len(self.items) >= most or not self._fits(self.size + 1, self.weight + 1)

    def has_room(self, w: W) -> bool:
        if not self.items:
            return True
        is_small = self._fits(self.size + len(w.lock_cells), self.weight + w.weight)
        return is_small and self._can_join(w, self.items[0])

    def _fits(self, size: int, weight: int) -> bool:
        return size <= PORTION and weight <= self._policy.batch_bytes

    def add(self, w: W, caller: _Caller[W]) -> None:
        self.callers.append(caller)
        self.items.append(w)
        self.size += len(w.lock_cells)
        self.weight += w.weight


class GroupCommit(Generic[W]):
    """A queue of requests, and the batches of them that are in progress.

    A thread may be interrupted between any two steps. So each change of the queue, and the end of a
    batch, can be repeated from any point. A thread that leaves `commit` with an error does so, and
    no other thread waits for it. If it is interrupted even there, a waiting thread does it.

    run: commits a batch of requests with the same `ack`, and stores the result in each, even if it
    raises.
    set_result: sets the result of a request's future; may be called again after an interruption.
    policy: how many batches there are at a time, how large they are, and how long they linger.
    on_event: gets the events of batches and of the queue.
    """

    def __init__(
        self,
        run: Callable[[Sequence[W]], None],
        set_result: Callable[[W], None],
        clock: Clock,
        policy: Policy,
        *,
        can_join: Callable[[W, W], bool] = lambda one, other: one.ack == other.ack,
        on_event: Listener = silent,
    ) -> None:
        self._can_join = can_join
        self._run = run
        self._listener = on_event
        self._set_result = set_result
        self._clock = clock
        self._policy = policy
        self._is_closed = False
        # One of these threads watches the queue.
        self._workers = WorkerPool(policy.concurrent_batches + SPARE + 1, "txn-group-commit")
        start_in_each_process(self._start)

    def _start(self) -> None:
        # A fork's child has none of its parent's queue and batches.
        self._lock = OwnLock()
        self._queue: list[_Caller[W]] = []
        self._in_progress: list[_Batch[W]] = []
        self._ending: list[_Batch[W]] = []  # their futures get their results
        self._futures: set[Future[Committed]] = set()  # not done yet
        self._is_called = False  # a background thread was called and has not started yet
        self._is_stranded = False  # futures wait, and no background thread is available
        self._is_watched = False  # by a background thread, while futures are queued
        self._is_over = SafeEvent()  # every future is done, and no more are accepted

    def commit(self, items: Sequence[W]) -> None:
        """Commit the items, which need no lock in common, in one or more batches; return when all
        are done. An exception from a batch that this thread leads is raised here."""
        caller: _Caller[W] = _Caller()
        with caller.hold: self._commit(items, caller)  # fmt: skip  # noqa: E701

    def _commit(self, items: Sequence[W], caller: _Caller[W]) -> None:
        self._refuse_own_thread()
        try:
            if not self._commit_at_once(items, caller):
                caller.queue(items)
                self._commit_in_line(caller)
        except BaseException:
            self._withdraw(caller)
            raise
        finally:
            if self._is_stranded:
                self._lead_all()

    def submit(self, item: W) -> None:
        """Commit an item in some batch soon; StoreClosedError after `close`."""
        caller: _Caller[W] = _Caller()
        caller.queue([item])
        assert item.future is not None
        self._refuse_own_thread()
        try:
            with self._lock:
                if self._is_closed:
                    raise StoreClosedError("the engine is closed")
                self._futures.add(item.future)
                self._queue.append(caller)
                self._call_next()
            self._report_queue(1)
            item.future.add_done_callback(self._futures.discard)
        except BaseException:
            self._withdraw(caller)
            self._futures.discard(item.future)
            raise
        if self._is_stranded:
            self._lead_all()

    def flush(self) -> None:
        """Wait until every future is done."""
        if self._is_stranded:
            self._lead_all()
        self._refuse_own_thread()
        with self._lock:
            futures = list(self._futures)
        while not poll(lambda: all(each.done() for each in futures), OVERDUE_MS):
            self._end_dead()

    def close(self) -> None:
        """Refuse further futures, and wait until every future is done."""
        self._refuse_own_thread()
        self._is_closed = True
        self.flush()
        self._is_over.set()
        self._workers.close()

    # ------------------------------------------------------------------------------ leading

    def _commit_at_once(self, items: Sequence[W], caller: _Caller[W]) -> bool:
        policy = self._policy
        is_small = len(items) == 1 or (
            len(items) <= policy.batch_requests
            and sum([len(w.lock_cells) for w in items]) <= PORTION
            and sum([w.weight for w in items]) <= policy.batch_bytes
        )
        if policy.linger_ms or not is_small:
            return False
        batch = _Batch(caller.hold, self._clock.monotonic_ms(), policy, self._can_join)
        batch.items = [*items]
        with self._lock:
            if self._queue or self._in_progress:
                return False
            caller.batch = batch
            self._in_progress.append(batch)
        self._lead(batch)
        return True

    def _commit_in_line(self, caller: _Caller[W]) -> None:
        signal = caller.signal = Lock()
        signal.acquire()
        with self._lock:
            if self._would_wait_for_itself(caller):
                raise refuse_own_thread()
            self._queue.append(caller)
        self._report_queue(len(caller.waiting))
        if self._policy.linger_ms:
            signal.acquire(timeout=self._policy.linger_ms / 1000)
        while caller.open:
            # A thread without queued requests starts no batch of other callers' requests.
            if caller.waiting and (batch := self._take(caller)) is not None:
                self._lead(batch)
            elif not signal.acquire(timeout=OVERDUE_MS / 1000):
                self._end_dead()

    def _refuse_own_thread(self) -> None:
        """Refuse a signal handler that came while its thread changed the queue."""
        if self._lock.locked():
            raise refuse_own_thread()

    def _would_wait_for_itself(self, caller: _Caller[W]) -> bool:
        """Return True if this thread is leading a batch that needs the same locks."""
        taken: set[Key] = set()
        needed: set[Key] = set()
        for batch in self._in_progress:
            if batch.thread == get_ident() and batch.hold.locked():
                for w in batch.items:
                    _note_locks(w, taken, needed)
        return bool(needed) and any(_would_conflict(w, taken, needed) for w in caller.waiting)

    def _end_dead(self) -> None:
        """End the batches, and withdraw the requests, of threads that were interrupted as they did
        so themselves."""
        with self._lock:
            batches = [*self._in_progress, *self._ending]
            threads = [caller for caller in self._queue if caller.signal is not None]
        for caller in threads:
            if not caller.hold.locked():
                self._withdraw(caller)
        for batch in batches:
            if not batch.hold.locked():
                self._finish(batch)

    def _lead(self, batch: _Batch[W]) -> None:
        try:
            # holds no lock, because the listener may commit as well
            if self._listener is not silent:
                self._listener(BatchStarted(len(batch.items)))
            self._run(batch.items)
        finally:
            self._finish(batch)

    def _lead_all(self) -> None:
        leader: _Caller[W] = _Caller()
        with leader.hold: self._lead_as(leader)  # fmt: skip  # noqa: E701

    def _lead_as(self, leader: _Caller[W]) -> None:
        try:
            self._linger()
            while (batch := self._take(leader)) is not None:
                self._workers.do(self._lead, batch)
        except BaseException:
            self._withdraw(leader)
            raise

    def _linger(self) -> None:
        """Linger for more requests; later requests call a thread again."""
        try:
            if self._policy.linger_ms:
                self._clock.sleep_ms(self._policy.linger_ms)
        finally:
            with self._lock:
                self._is_called = self._is_stranded = False

    def _watch_queue(self) -> None:
        """Check the queue repeatedly while it has futures, as a queued thread does for itself: a
        batch may become overdue, or a future late, while all other threads are stuck."""

        def check_queue() -> bool:
            with (hold := Hold()):
                with self._lock:
                    self._is_watched = self._has_futures
                    if not self._is_watched:
                        return False
                    self._call_next()
                    late, left = self._take_late(hold)
                self._report_queue(-left)
                if late.items:
                    self._workers.do(self._lead, late)
            self._end_dead()
            return True

        repeat("watch queue", check_queue, self._is_over, OVERDUE_MS / 1000, self._listener)

    def _finish(self, batch: _Batch[W]) -> None:
        futures = [w for w in batch.items if w.future is not None]
        self._end(batch, has_futures=bool(futures))
        if futures:
            with ExitStack() as after:  # calls each one, even if another raises
                for w in futures:
                    after.callback(self._set_result, w)
            with self._lock:
                self._ending = [each for each in self._ending if each is not batch]
        batch.is_finished = True

    def _end(self, batch: _Batch[W], *, has_futures: bool) -> None:
        with self._lock:
            batch.is_over = True
            if has_futures and batch not in self._ending:
                self._ending.append(batch)
            if batch in self._in_progress:  # otherwise this is a fork's child, which has dropped it
                self._in_progress.remove(batch)
            # a batch that never queued has no callers
            for w, caller in zip(batch.items, batch.callers, strict=False):
                caller.waiting.pop(w, None)
                caller.open.discard(w)
                if not caller.open:
                    caller.wake()
            if self._queue:
                self._call_next()

    def _withdraw(self, caller: _Caller[W]) -> None:
        """Remove a thread that stops waiting; it may have been called to lead, or be leading."""
        with self._lock:
            left = len(caller.waiting) if caller in self._queue else 0
            caller.waiting.clear()
            self._queue = [each for each in self._queue if each is not caller]
            self._call_next()
        self._report_queue(-left)
        if caller.batch is not None and not caller.batch.is_finished:
            self._finish(caller.batch)

    def _call_next(self) -> None:
        """If a batch may start, call a waiting thread to lead it or, for futures, another one."""
        if not self._queue:
            return
        if self._is_full(self._clock.monotonic_ms()):
            self._have_watched()
            return
        waiting = next((caller for caller in self._queue if caller.may_lead), None)
        if waiting is not None:
            waiting.wake()
        elif not self._is_called:
            self._is_called = self._workers.submit_work(self._lead_all)
            self._is_stranded = not self._is_called

    def _have_watched(self) -> None:
        if not self._is_watched and self._has_futures:
            self._is_watched = self._workers.submit_work(self._watch_queue)

    @property
    def _has_futures(self) -> bool:
        return any(caller.signal is None for caller in self._queue)

    # ------------------------------------------------------------------------------ batches

    def _is_full(self, now_ms: int, besides: int | None = None) -> bool:
        """Return whether no batch may start. An overdue batch, at a server that does not answer,
        blocks no other.

        besides: a thread whose batches do not count.
        """
        latest_ms = now_ms - OVERDUE_MS
        counted = [b for b in self._in_progress if b.since_ms > latest_ms and b.thread != besides]
        return len(counted) >= self._policy.concurrent_batches

    def _take(self, leader: _Caller[W]) -> _Batch[W] | None:
        with self._lock:
            batch, left = self._begin_next(leader)
        self._report_queue(-left)
        return batch

    def _begin_next(self, leader: _Caller[W]) -> tuple[_Batch[W] | None, int]:
        """Return the next batch, and how many requests left the queue, including cancelled ones."""
        now_ms = self._clock.monotonic_ms()
        # A listener that commits inside a batch must not wait for its own thread.
        if not self._queue or self._is_full(now_ms, besides=get_ident()):
            return None, 0
        leader.batch = batch = _Batch(leader.hold, now_ms, self._policy, self._can_join)
        self._in_progress.append(batch)  # first: if this is interrupted, others can end it
        try:
            left = self._fill(batch, now_ms)
        finally:  # requests in the batch leave the queue
            for w, caller in zip(batch.items, batch.callers, strict=False):
                caller.waiting.pop(w, None)
        self._queue = [caller for caller in self._queue if caller.waiting]
        if not batch.items:  # the rest waits for keys of batches in progress
            self._in_progress.remove(batch)
            leader.batch = None
            self._have_watched()
            return None, left
        self._call_next()
        return batch, left

    def _take_late(self, hold: Hold) -> tuple[_Batch[W], int]:
        """Return the late futures as a batch, and how many requests left the queue."""
        now_ms, left = self._clock.monotonic_ms(), 0
        batch = _Batch(hold, now_ms, self._policy, self._can_join)
        for caller in [each for each in self._queue if each.waiting]:
            w = next(iter(caller.waiting))  # a future has its own caller
            if caller.signal is None and w.due_ms is not None and now_ms >= w.due_ms:
                caller.waiting.clear()
                left += 1
                if _start(w):
                    batch.add(w, caller)
        self._queue = [caller for caller in self._queue if caller.waiting]
        if batch.items:
            self._in_progress.append(batch)
        return batch, left

    def _report_queue(self, change: int) -> None:
        if change and self._listener is not silent:
            self._listener(Queued("line", change))

    def _fill(self, batch: _Batch[W], now_ms: int) -> int:
        """Choose requests from the queue; return how many leave it, for the batch or for good."""
        gone = 0
        taken: set[Key] = set()
        needed: set[Key] = set()
        for other in self._in_progress:
            for w in other.items:
                _note_locks(w, taken, needed)
        for caller in self._queue:
            for w in list(caller.waiting):
                if batch.is_full:
                    return gone + len(batch.items)
                is_late = w.due_ms is not None and now_ms >= w.due_ms
                is_cancelled = w.future is not None and w.future.cancelled()
                is_free = is_late or is_cancelled or not _would_conflict(w, taken, needed)
                if is_free and batch.has_room(w):
                    # cancelled: no batch will end it, so it must not block those behind it
                    if not _start(w):
                        caller.open.discard(w)
                        caller.waiting.pop(w)
                        gone += 1
                        continue
                    batch.add(w, caller)
                _note_locks(w, taken, needed)  # later requests must not overtake one that stays
        return gone + len(batch.items)


def _note_locks(w: Item, taken: set[Key], needed: set[Key]) -> None:
    """Add the locks that a request takes, and those that it needs."""
    locks, shared = w.lock_cells, w.shared
    needed.update(locks)
    taken.update([lock for lock in locks if lock not in shared] if shared else locks)


def _would_conflict(w: Item, taken: set[Key], needed: set[Key]) -> bool:
    """Whether a lock that it takes is needed by others, or one that it shares is taken."""
    locks, shared = w.lock_cells, w.shared
    if not shared:
        return not needed.isdisjoint(locks)
    own = [lock for lock in locks if lock not in shared]
    return not (needed.isdisjoint(own) and taken.isdisjoint(shared))


def _start(w: Item) -> bool:
    """Mark the future as running, so that it can no longer be cancelled; return False if it was. An
    interrupted leader may have marked it before."""
    future = w.future
    return future is None or future.running() or future.set_running_or_notify_cancel()
