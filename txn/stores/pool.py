"""Connections to one gateway, and the requests of a call over them in parallel.

No threads: a call sends its requests on as many connections as are free, then reads the replies in
the order of sending. A connection that failed, or whose reply was not read, is thrown away. What
happened before a request was sent is NotApplied; whatever else goes wrong is MaybeApplied.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition
from typing import Any, TypeVar

from txn.clock import Clock
from txn.errors import MaybeApplied, NotApplied, StoreError, TxnError, describe
from txn.stores.gateway import Connection, Gateway, Refused, Request, Service

T = TypeVar("T")

Job = Generator[Request, Any, T]
"""Requests that are sent one after the other: it yields each, gets its reply, returns a result."""


class Pool:
    """At most `gateway.pool` connections. Safe for many threads, and across fork."""

    def __init__(self, gateway: Gateway, service: Service, clock: Clock) -> None:
        self.gateway = gateway
        self._service = service
        self._clock = clock
        self._closed = False
        self._idle: list[Connection] = []
        self._start()

    def run(self, jobs: Callable[[], Sequence[Job[T]]], *, repeat: bool) -> list[T]:
        """Run the jobs and return their results, in order.

        repeat: whether they may be run once more where a connection broke. Raises Refused where
        the gateway answered with an error, after which the other jobs may have taken effect.
        """
        try:
            return self._run(jobs())
        except MaybeApplied as error:
            if not repeat or not isinstance(error.__cause__, ConnectionError):
                raise
            return self._run(jobs())

    @contextmanager
    def begun(self, jobs: Sequence[Job[T]]) -> Iterator[Callable[[], list[T]] | None]:
        """Send the first requests of the jobs, and give the function that goes on with them.

        None where that would take the last free connection: whoever waits for one while holding
        another would wait for ever.
        """
        lanes = self._spare(len(jobs)) if jobs else []
        if not lanes:
            yield None
            return
        with self._lent(lanes):
            call = _Call(lanes, jobs, self._deadline_ms())
            try:
                self._told(call.start)
            except MaybeApplied:
                yield None
            else:
                yield lambda: self._told(call.finish)

    def close(self) -> None:
        """Close the connections at rest now, and those in use when they come back."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            self._open -= len(idle)
            self._changed.notify_all()
        for connection in idle:
            connection.close()

    def _run(self, jobs: Sequence[Job[T]]) -> list[T]:
        if not jobs:
            return []
        deadline_ms = self._deadline_ms()
        lanes, fresh = self._lanes(len(jobs), deadline_ms)
        with self._lent(lanes):
            self._open_more(lanes, fresh)
            call = _Call(lanes, jobs, deadline_ms)

            def both() -> list[T]:
                call.start()
                return call.finish()

            return self._told(both)

    def _told(self, work: Callable[[], T]) -> T:
        """Do what sends requests, and name the gateway in what goes wrong."""
        try:
            return work()
        except (Refused, TxnError):
            raise
        except Exception as error:
            raise MaybeApplied(
                describe(
                    "no answer from the gateway", gateway=str(self.gateway), cause=_text(error)
                )
            ) from error

    def _deadline_ms(self) -> int:
        return self._clock.monotonic_ms() + self.gateway.timeout_ms

    # ---------------------------------------------------------------- lending connections

    def _start(self) -> None:
        self._process = os.getpid()
        self._changed = Condition()
        self._idle = []
        self._open = 0

    @contextmanager
    def _lent(self, lanes: list[Connection]) -> Iterator[None]:
        try:
            yield
        finally:
            now_ms = self._clock.monotonic_ms()
            with self._changed:
                for lane in lanes:
                    lane.used_ms = now_ms
                    if lane.busy or self._closed:
                        lane.close()
                        self._open -= 1
                    else:
                        self._idle.append(lane)
                self._changed.notify(len(lanes))

    def _lanes(self, wanted: int, deadline_ms: int) -> tuple[list[Connection], int]:
        """Take at least one connection, waiting for it, and more if they are free."""
        self._forget_parent()
        with self._changed:
            while not self._closed and not self._free():
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if left_ms <= 0 or not self._changed.wait(left_ms / 1000):
                    raise NotApplied(
                        describe(
                            "no connection came free in time",
                            gateway=str(self.gateway),
                            pool=self.gateway.pool,
                        )
                    )
            return self._take(wanted)

    def _spare(self, wanted: int) -> list[Connection]:
        """Take connections that are at rest, if at least one stays free."""
        self._forget_parent()
        with self._changed:
            wanted = min(wanted, len(self._idle), self._free() - 1)
            return self._take(wanted)[0] if wanted > 0 else []

    def _free(self) -> int:
        return len(self._idle) + self.gateway.pool - self._open

    def _take(self, wanted: int) -> tuple[list[Connection], int]:
        """Take up to so many: those at rest, and the right to open some more."""
        if self._closed:
            raise StoreError(describe("the store is closed", gateway=str(self.gateway)))
        now_ms = self._clock.monotonic_ms()
        lanes: list[Connection] = []
        while self._idle and len(lanes) < wanted:
            lane = self._idle.pop()
            if lane.rests_well(now_ms):
                lanes.append(lane)
            else:
                lane.close()
                self._open -= 1
        fresh = min(wanted - len(lanes), self.gateway.pool - self._open)
        self._open += fresh
        return lanes, fresh

    def _open_more(self, lanes: list[Connection], fresh: int) -> None:
        """Open the connections that are missing; do with fewer where there is one."""
        opened = 0
        try:
            while opened < fresh:
                lanes.append(Connection(self.gateway, self._service, self._clock))
                opened += 1
        except OSError as error:
            if not lanes:
                raise NotApplied(
                    describe(
                        "cannot connect to the gateway",
                        gateway=str(self.gateway),
                        cause=_text(error),
                    )
                ) from error
        finally:
            if opened < fresh:
                with self._changed:
                    self._open -= fresh - opened
                    self._changed.notify(fresh - opened)

    def _forget_parent(self) -> None:
        """Leave the connections to the process that opened them: two would mix their replies."""
        if self._process != os.getpid():
            inherited = self._idle
            self._start()
            for connection in inherited:
                connection.close()


class _Call:
    """Jobs on their way, over at least one connection."""

    __slots__ = ("_deadline_ms", "_flying", "_lanes", "_results", "_waiting")

    def __init__(
        self, lanes: Sequence[Connection], jobs: Sequence[Job[Any]], deadline_ms: int
    ) -> None:
        self._lanes = lanes
        self._deadline_ms = deadline_ms
        self._waiting = enumerate(jobs)
        self._flying: deque[tuple[Connection, int, Job[Any]]] = deque()
        self._results: list[Any] = [None] * len(jobs)

    def start(self) -> None:
        """Send the first requests."""
        for lane in self._lanes:
            self._begin_next(lane)

    def finish(self) -> list[Any]:
        """Read the replies, the oldest request's first, and send what follows them."""
        flying = self._flying
        while flying:
            lane, index, job = flying.popleft()
            if not self._step(lane, index, job, lane.receive()):
                self._begin_next(lane)
        return self._results

    def _begin_next(self, lane: Connection) -> None:
        for index, job in self._waiting:
            if self._step(lane, index, job, None):
                return

    def _step(self, lane: Connection, index: int, job: Job[Any], reply: Any) -> bool:
        """Whether the job has sent another request; otherwise it is done."""
        try:
            request = job.send(reply)
        except StopIteration as done:
            self._results[index] = done.value
            return False
        lane.send(request, self._deadline_ms)
        self._flying.append((lane, index, job))
        return True


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
