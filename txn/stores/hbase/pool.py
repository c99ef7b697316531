"""Connections to one gateway, and the requests of a call over them in parallel.

No threads: a call sends its requests on as many connections as are free, several ahead on each
where their replies are short, then reads the replies in the order of sending. A connection that
failed, or whose reply was not read, is thrown away. What happened before a request was sent is
NotApplied; what goes wrong in sending it, or until its reply has been read, is MaybeApplied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from threading import Condition
from types import ModuleType
from typing import Any, Generic, TypeVar

from txn.clock import Clock, limit_due
from txn.errors import MaybeApplied, NotApplied, StoreClosedError, annotate
from txn.host.forks import start_in_each_process
from txn.stores.gateway import (
    Connection,
    Garbled,
    Gateway,
    GatewayError,
    Request,
    list_results,
)
from txn.stores.wire import trust

T = TypeVar("T")

Job = Generator[Request, Any, T]
"""Requests that are sent one after the other: it yields each, gets its reply, returns a result."""


class Pool:
    """At most `gateway.pool` connections to a Thrift service. Safe for many threads, and across
    fork."""

    def __init__(self, gateway: Gateway, service: ModuleType, clock: Clock) -> None:
        self.gateway = gateway
        self._results = list_results(service)
        self._clock = clock
        self._tls = trust(gateway.tls, gateway.ca)
        self._closed = False
        self._idle: list[Connection] = []
        start_in_each_process(self._start)

    def _start(self) -> None:
        for connection in self._idle:  # of the parent: two processes would mix their replies
            connection.close()
        self._changed = Condition()  # for all that follows
        self._idle = []
        self._open = 0

    def run(
        self,
        jobs: Callable[[], Sequence[Job[T]]],
        *,
        repeat: bool,
        ahead: int = 1,
        lanes: int | None = None,
    ) -> list[T]:
        """Run the jobs and return their results, in order.

        repeat: whether they may be run once more where a connection broke. ahead: how many
        requests a connection may have unanswered; more than one only where all replies are short.
        lanes: on how many connections at most.
        Raises GatewayError where the gateway answered with an error, after which the other jobs may
        have taken effect.
        """
        return self._try(lambda *times: self._run(jobs(), ahead, lanes, *times), repeat)

    def run_one(
        self, job: Callable[[], Job[T]], *, repeat: bool, within_ms: int | None = None
    ) -> T:
        """Run a single job as `run` does. within_ms: how long to wait for it, where that is less
        than the gateway's."""
        return self._try(lambda *times: self._run_alone(job(), *times), repeat, within_ms)

    def run_beside(self, jobs: Sequence[Job[T]], work: Callable[[], None]) -> list[T] | None:
        """Run a function after the first requests are sent and before their replies are read.

        None where the jobs failed, or would have taken the last free connection: a caller that
        waits for one while holding another might wait for ever.
        """
        flight = Flight(self._take_spare(len(jobs)), jobs, self._due_ms(self._clock.monotonic_ms()))
        has_begun = False
        try:
            with suppress(OSError, Garbled):
                has_begun = flight.start()
            work()
            if has_begun:
                with suppress(OSError, Garbled, GatewayError):
                    return flight.finish()
            return None
        finally:
            self._give_back(flight.lanes)

    def close(self) -> None:
        """Close the connections at rest now, and those in use when they come back."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            self._give_back(idle)
            self._changed.notify_all()

    def _try(
        self, attempt: Callable[[int, int], T], repeat: bool, within_ms: int | None = None
    ) -> T:
        """Make an attempt, which is told the time and its deadline, and perhaps another one."""
        now_ms = self._clock.monotonic_ms()
        due_ms = self._due_ms(now_ms, within_ms)
        try:
            return attempt(now_ms, due_ms)
        except (OSError, Garbled) as error:
            if not repeat or not isinstance(error, ConnectionError):
                raise self._make_silence(error) from error
        try:
            return attempt(self._clock.monotonic_ms(), due_ms)
        except (OSError, Garbled) as error:
            raise self._make_silence(error) from error

    def _run(
        self, jobs: Sequence[Job[T]], ahead: int, most: int | None, now_ms: int, due_ms: int
    ) -> list[T]:
        if len(jobs) == 1:
            return [self._run_alone(jobs[0], now_ms, due_ms)]
        if not jobs:
            return []
        lanes = self._take_lanes(most or len(jobs), now_ms, due_ms)
        try:
            flight = Flight(lanes, jobs, due_ms)
            flight.start(ahead)
            return flight.finish()
        finally:
            self._give_back(lanes)

    def _run_alone(self, job: Job[T], now_ms: int, due_ms: int) -> T:
        """Run a single job, which is what most calls are."""
        lane = self._take_lane(now_ms, due_ms)
        try:
            request = next(job)
            while True:
                lane.send(request, due_ms)
                request = job.send(lane.receive(due_ms))
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            self._give_back((lane,))

    def _make_silence(self, error: Exception) -> MaybeApplied:
        return MaybeApplied(self._describe("no answer from the gateway", error))

    def _describe(self, message: str, error: Exception) -> str:
        cause = str(error) or type(error).__name__
        return annotate(message, gateway=str(self.gateway), cause=cause)

    def _due_ms(self, now_ms: int, within_ms: int | None = None) -> int:
        wait_ms = self.gateway.timeout_ms if within_ms is None else within_ms
        return limit_due(now_ms, now_ms + min(wait_ms, self.gateway.timeout_ms))

    # ---------------------------------------------------------------- lending connections

    def _take_lane(self, now_ms: int, due_ms: int) -> Connection:
        """Take a connection at rest, or a new one, or wait for either."""
        with self._changed:
            while not (lane := self._find_idle(now_ms)):
                if self._closed:
                    raise StoreClosedError("the store is closed", gateway=str(self.gateway))
                if self._open < self.gateway.pool:
                    self._open += 1
                    break
                now_ms = self._wait(due_ms)
        return lane or self._connect(due_ms)

    def _take_lanes(self, wanted: int, now_ms: int, due_ms: int) -> list[Connection]:
        """Take at least one connection, waiting for it, and up to half of what is free beside it:
        where many threads are at work, each does best with its requests one after the other. On an
        error do with fewer."""
        lanes = [self._take_lane(now_ms, due_ms)]
        try:
            with self._changed:
                wanted = min(wanted, 1 + (self._count_free() + 1) // 2)
            while len(lanes) < wanted and (lane := self._take_another(now_ms, due_ms)):
                lanes.append(lane)
        except NotApplied:
            pass
        except BaseException:
            self._give_back(lanes)
            raise
        return lanes

    def _take_another(self, now_ms: int, due_ms: int) -> Connection | None:
        """Take a connection at rest, or a new one, if there is one without waiting."""
        with self._changed:
            lane = self._find_idle(now_ms)
            if lane or self._open >= self.gateway.pool:
                return lane
            self._open += 1
        return self._connect(due_ms)

    def _take_spare(self, wanted: int) -> list[Connection]:
        """Take connections that are at rest, unless all others belong to callers of this, who may
        wait for one more."""
        lanes: list[Connection] = []
        now_ms = self._clock.monotonic_ms()
        with self._changed:
            wanted = min(wanted, len(self._idle), self._count_free() - 1)
            while len(lanes) < wanted and (lane := self._find_idle(now_ms)):
                lanes.append(lane)
        return lanes

    def _find_idle(self, now_ms: int) -> Connection | None:
        """Take a connection that is at rest, the one that was used last."""
        while self._idle:
            lane = self._idle.pop()
            if lane.rests_well(now_ms):
                return lane
            lane.close()
            self._open -= 1
        return None

    def _wait(self, due_ms: int) -> int:
        """Wait until one comes free, or may be opened; return the time."""
        left_ms = due_ms - self._clock.monotonic_ms()
        if left_ms <= 0 or not self._changed.wait(left_ms / 1000):
            pool = self.gateway.pool
            raise NotApplied(
                "no connection came free in time", gateway=str(self.gateway), pool=pool
            )
        return self._clock.monotonic_ms()

    def _give_back(self, lanes: Sequence[Connection]) -> None:
        with self._changed:
            for lane in lanes:
                if lane.busy or self._closed:
                    lane.close()
                    self._open -= 1
                else:
                    self._idle.append(lane)
            self._changed.notify(len(lanes))

    def _count_free(self) -> int:
        return len(self._idle) + self.gateway.pool - self._open

    def _connect(self, due_ms: int) -> Connection:
        """Open a connection that has been counted already."""
        try:
            return Connection(self.gateway, self._results, self._clock, self._tls, due_ms)
        except BaseException as error:
            with self._changed:
                self._open -= 1
                self._changed.notify()
            if isinstance(error, OSError):
                message = self._describe("cannot connect to the gateway", error)
                raise NotApplied(message) from error
            raise


class Flight(Generic[T]):
    """Jobs on their way over some connections."""

    __slots__ = ("_due_ms", "_flying", "_results", "_waiting", "lanes")

    def __init__(self, lanes: Sequence[Connection], jobs: Sequence[Job[T]], due_ms: int) -> None:
        self.lanes = lanes
        self._due_ms = due_ms
        self._waiting = deque(enumerate(jobs))
        self._flying: deque[tuple[Connection, int, Job[T]]] = deque()
        self._results: list[Any] = [None] * len(jobs)

    def start(self, ahead: int = 1) -> bool:
        """Send the first requests, up to so many on a connection, which go out together; return
        whether there are any."""
        share = -(-len(self._waiting) // max(1, len(self.lanes)))
        for lane in self.lanes:
            for _ in range(min(ahead, share)):
                self._begin_next(lane, is_last=False)
            lane.flush()
        return bool(self._flying)

    def finish(self) -> list[T]:
        """Read the replies, the oldest request's first, and send what follows them."""
        flying, due_ms = self._flying, self._due_ms
        while flying:
            lane, index, job = flying.popleft()
            try:
                request = job.send(lane.receive(due_ms))
            except StopIteration as done:
                self._results[index] = done.value
                self._begin_next(lane)
            else:
                lane.send(request, due_ms)
                flying.append((lane, index, job))
        return self._results

    def _begin_next(self, lane: Connection, *, is_last: bool = True) -> None:
        """Send the first request of the next job that has one; one that has none is done."""
        while self._waiting:
            index, job = self._waiting.popleft()
            try:
                request = next(job)
            except StopIteration as done:
                self._results[index] = done.value
            else:
                lane.send(request, self._due_ms, is_last=is_last)
                self._flying.append((lane, index, job))
                return
