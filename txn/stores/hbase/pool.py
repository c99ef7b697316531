"""Connections to one gateway, and the requests of a call over them in parallel.

No threads: a call sends its requests on as many connections as are free, several ahead on each
where their replies are short, then reads the replies in the order of sending. A connection that
failed, or whose reply was not read, is thrown away. What happened before a request was sent is
NotApplied; what goes wrong in sending it, or until its reply has been read, is MaybeApplied.

A connection at rest is taken and given back without a lock: a list does that in one step. Who has
to wait takes the lock, and says so before looking for one: who gives one back later sees that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from threading import Condition
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
    Service,
)
from txn.stores.wire import trust

T = TypeVar("T")

Job = Generator[Request, Any, T]
"""Requests that are sent one after the other: it yields each, gets its reply, returns a result."""


class Pool:
    """At most `gateway.pool` connections. Safe for many threads, and across fork."""

    def __init__(self, gateway: Gateway, service: Service, clock: Clock) -> None:
        self.gateway = gateway
        self._service = service
        self._clock = clock
        self._tls = trust(gateway.tls, gateway.ca)
        self._closed = False
        self._idle: list[Connection] = []
        start_in_each_process(self._start)

    def run(self, jobs: Callable[[], Sequence[Job[T]]], *, repeat: bool, ahead: int = 1) -> list[T]:
        """Run the jobs and return their results, in order.

        repeat: whether they may be run once more where a connection broke. ahead: how many
        requests a connection may have unanswered; more than one only where all replies are short.
        Raises Refused where the gateway answered with an error, after which the other jobs may
        have taken effect.
        """
        now_ms = self._clock.monotonic_ms()
        due_ms = self._due_ms(now_ms)
        try:
            return self._run(jobs(), ahead, now_ms, due_ms)
        except MaybeApplied as error:
            if not repeat or not isinstance(error.__cause__, ConnectionError):
                raise
            return self._run(jobs(), ahead, self._clock.monotonic_ms(), due_ms)

    def run_one(
        self, job: Callable[[], Job[T]], *, repeat: bool, within_ms: int | None = None
    ) -> T:
        """Run a single job as `run` does. within_ms: how long to wait for it, where that is less
        than the gateway's."""
        now_ms = self._clock.monotonic_ms()
        due_ms = self._due_ms(now_ms, within_ms)
        try:
            return self._run_alone(job(), now_ms, due_ms)
        except MaybeApplied as error:
            if not repeat or not isinstance(error.__cause__, ConnectionError):
                raise
            return self._run_alone(job(), self._clock.monotonic_ms(), due_ms)

    def run_in_turn(self, jobs: Callable[[], Sequence[Job[T]]]) -> list[T]:
        """Run jobs of one request each on one connection, each sent before the reply to the one
        before is read. They may be run once more where a connection broke."""
        try:
            return self._run_in_turn(jobs())
        except MaybeApplied as error:
            if not isinstance(error.__cause__, ConnectionError):
                raise
            return self._run_in_turn(jobs())

    def run_beside(self, jobs: Sequence[Job[T]], work: Callable[[], None]) -> list[T] | None:
        """Run a function after the first requests are sent and before their replies are read.

        None where the jobs failed, or would have taken the last free connection: a caller that
        waits for one while holding another might wait for ever.
        """
        due_ms = self._due_ms(self._clock.monotonic_ms())
        flight = Flight(self._spare(len(jobs)), jobs, due_ms)
        begun = False
        try:
            if flight.lanes:
                with suppress(MaybeApplied):
                    begun = self._name_gateway(flight.start)
            work()
            if begun:
                with suppress(MaybeApplied, GatewayError):
                    return self._name_gateway(flight.finish)
            return None
        finally:
            self._give_back(flight.lanes)

    def close(self) -> None:
        """Close the connections at rest now, and those in use when they come back."""
        self._closed = True
        self._close_idle()
        with self._changed:
            self._changed.notify_all()

    def _run(self, jobs: Sequence[Job[T]], ahead: int, now_ms: int, due_ms: int) -> list[T]:
        if len(jobs) == 1:
            return [self._run_alone(jobs[0], now_ms, due_ms)]
        if not jobs:
            return []
        lanes = self._lanes(len(jobs), now_ms, due_ms)
        try:
            flight = Flight(lanes, jobs, due_ms)
            flight.start(ahead)
            return flight.finish()
        except (OSError, Garbled) as error:
            raise self._silence(error) from error
        finally:
            self._give_back(lanes)

    def _run_alone(self, job: Job[T], now_ms: int, due_ms: int) -> T:
        """Run a single job, which is what most calls are."""
        lane = self._lane(now_ms, due_ms)
        try:
            request = next(job)
            while True:
                lane.send(request, due_ms)
                request = job.send(lane.receive(due_ms))
        except StopIteration as done:
            result: T = done.value
            return result
        except (OSError, Garbled) as error:
            raise self._silence(error) from error
        finally:
            self._give_back((lane,))

    def _run_in_turn(self, jobs: Sequence[Job[T]]) -> list[T]:
        now_ms = self._clock.monotonic_ms()
        due_ms = self._due_ms(now_ms)
        lane = self._lane(now_ms, due_ms)
        try:
            return self._name_gateway(_run_each, lane, jobs, due_ms)
        finally:
            self._give_back((lane,))

    def _name_gateway(self, work: Callable[..., T], *args: object) -> T:
        """Call what sends requests, and name the gateway in what goes wrong on the way to it and
        back. A mistake of ours is none of that: it is raised as it is."""
        try:
            return work(*args)
        except (OSError, Garbled) as error:
            raise self._silence(error) from error

    def _silence(self, error: Exception) -> MaybeApplied:
        return MaybeApplied(self._fact("no answer from the gateway", error))

    def _fact(self, message: str, error: Exception) -> str:
        cause = str(error) or type(error).__name__
        return annotate(message, gateway=str(self.gateway), cause=cause)

    def _due_ms(self, now_ms: int, within_ms: int | None = None) -> int:
        wait_ms = self.gateway.timeout_ms if within_ms is None else within_ms
        return limit_due(now_ms, now_ms + min(wait_ms, self.gateway.timeout_ms))

    # ---------------------------------------------------------------- lending connections

    def _start(self) -> None:
        for connection in self._idle:  # of the parent: two processes would mix their replies
            connection.close()
        self._changed = Condition()  # for what follows; but nobody needs it to change _idle
        self._idle = []
        self._open = 0
        self._waiting = 0

    def _lanes(self, wanted: int, now_ms: int, due_ms: int) -> list[Connection]:
        """Take at least one connection, waiting for it, and up to half of what is free beside it:
        where many threads are at work, each does best with its requests one after the other."""
        lanes = [self._lane(now_ms, due_ms)]
        wanted = min(wanted, 1 + (self._free() + 1) // 2)
        while len(lanes) < wanted and (lane := self._take(now_ms)):
            lanes.append(lane)
        if len(lanes) < wanted:
            self._open_more(lanes, wanted - len(lanes), due_ms)
        return lanes

    def _lane(self, now_ms: int, due_ms: int) -> Connection:
        """Take a connection, waiting for it. Who comes while others wait does not go before."""
        lane = None if self._waiting else self._take(now_ms)
        return lane or self._wait_for_one(due_ms)

    def _take(self, now_ms: int) -> Connection | None:
        """Take a connection that is at rest, the one that was used last."""
        while self._idle and not self._closed:
            try:
                lane = self._idle.pop()
            except IndexError:  # somebody else was faster
                break
            if lane.rests_well(now_ms):
                return lane
            self._drop(lane)
        return None

    def _wait_for_one(self, due_ms: int) -> Connection:
        """Take a connection at rest, or a new one, or wait for either."""
        with self._changed:
            self._waiting += 1
            try:
                while not (lane := self._take(self._clock.monotonic_ms())):
                    if self._closed:
                        raise StoreClosedError("the store is closed", gateway=str(self.gateway))
                    if self._open < self.gateway.pool:
                        self._open += 1
                        break
                    self._wait(due_ms)
            finally:
                self._waiting -= 1
        return lane or self._connect(due_ms)

    def _wait(self, due_ms: int) -> None:
        left_ms = due_ms - self._clock.monotonic_ms()
        if left_ms <= 0 or not self._changed.wait(left_ms / 1000):
            pool = self.gateway.pool
            raise NotApplied(
                "no connection came free in time", gateway=str(self.gateway), pool=pool
            )

    def _spare(self, wanted: int) -> list[Connection]:
        """Take connections that are at rest, unless all others belong to callers of this, who may
        wait for one more."""
        lanes: list[Connection] = []
        now_ms = self._clock.monotonic_ms()
        with self._changed:
            wanted = min(wanted, len(self._idle), self._free() - 1)
            while len(lanes) < wanted and (lane := self._take(now_ms)):
                lanes.append(lane)
        return lanes

    def _give_back(self, lanes: Sequence[Connection]) -> None:
        for lane in lanes:
            if lane.busy:
                self._drop(lane)
            else:
                self._idle.append(lane)
        if self._waiting:
            with self._changed:
                self._changed.notify(len(lanes))
        if self._closed:
            self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._drop(self._idle.pop())

    def _drop(self, lane: Connection) -> None:
        lane.close()
        self._make_room()

    def _make_room(self) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify()

    def _free(self) -> int:
        return len(self._idle) + self.gateway.pool - self._open

    def _open_more(self, lanes: list[Connection], wanted: int, due_ms: int) -> None:
        """Open so many connections more, as far as the pool allows; do with fewer on an error."""
        for _ in range(wanted):
            with self._changed:
                if self._open >= self.gateway.pool:
                    return
                self._open += 1
            try:
                lanes.append(self._connect(due_ms))
            except NotApplied:
                return
            except BaseException:
                self._give_back(lanes)
                raise

    def _connect(self, due_ms: int) -> Connection:
        """Open a connection that has been counted already."""
        try:
            return Connection(self.gateway, self._service, self._clock, self._tls, due_ms)
        except OSError as error:
            self._make_room()
            raise NotApplied(self._fact("cannot connect to the gateway", error)) from error
        except BaseException:
            self._make_room()
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
            with lane.gather():
                for _ in range(min(ahead, share)):
                    self._begin_next(lane)
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

    def _begin_next(self, lane: Connection) -> None:
        """Send the first request of the next job that has one; one that has none is done."""
        while self._waiting:
            index, job = self._waiting.popleft()
            try:
                request = next(job)
            except StopIteration as done:
                self._results[index] = done.value
            else:
                lane.send(request, self._due_ms)
                self._flying.append((lane, index, job))
                return


def _run_each(lane: Connection, jobs: Sequence[Job[T]], due_ms: int) -> list[T]:
    """Run jobs of one request each."""
    for job in jobs:
        lane.send(next(job), due_ms)
    return [_finish_job(job, lane.receive(due_ms)) for job in jobs]


def _finish_job(job: Job[T], reply: object) -> T:
    try:
        job.send(reply)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a job of one request has sent another")
