"""Worker processes that serve the same ports over one store, and their supervisor.

The supervisor listens and forks, but serves no clients. All workers accept from the same sockets,
so if one dies, another serves the next client. A worker that ends by itself is replaced. No worker
outlives the supervisor: it exits when the pipe between them closes. Signals that ask for the end
are blocked and taken between two pieces of work; long work polls for them. A thread that existed
before, such as a trace exporter, does not block them and passes them on.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import NoReturn

from txn.clock import Clock
from txn.errors import annotate

ASKS_TO_END = (signal.SIGINT, signal.SIGTERM)
QUICK_MS = 1_000  # a worker that lived for less is replaced after a pause
KILL_AFTER_MS = 5_000  # after the grace
POLL_MS = 20
RECHECK_MS = 1_000  # a signal that another thread took does not wake this one

Work = Callable[[], Callable[[], object]]  # starts to serve here; returns a function that stops

Chore = Callable[[], int]  # does a little work; returns how long to rest (ms)


def wait(awaited: Collection[int], chore: Chore) -> int:
    """Do the chore until one of these blocked signals arrives; return the signal."""
    rest_ms = 0
    while True:
        if rest_ms <= 0:
            rest_ms = chore()
        came = signal.sigtimedwait(awaited, min(rest_ms, RECHECK_MS) / 1000)
        # If the process was stopped meanwhile, Python may return what is not a signal.
        if came is not None and came.si_signo in awaited:
            return came.si_signo
        rest_ms -= RECHECK_MS


def serve_here(start: Work, ready: Callable[[], None], chore: Chore) -> None:
    _await(ASKS_TO_END)
    stop = start()
    ready()
    wait(ASKS_TO_END, chore)
    stop()


class Supervisor:
    """Keeps `count` workers alive until SIGINT or SIGTERM. Only threads that a fork can lose may be
    running. forget: called with the process id of each worker that has ended."""

    def __init__(
        self,
        start: Work,
        count: int,
        grace_ms: int,
        clock: Clock,
        log: logging.Logger,
        *,
        forget: Callable[[int], None] = lambda pid: None,
    ) -> None:
        self._start = start
        self._count = count
        self._grace_ms = grace_ms
        self._clock = clock
        self._log = log
        self._forget = forget
        self._born_ms: dict[int, int] = {}
        self._lifeline, self._held = os.pipe()

    def run(self, ready: Callable[[], None], chore: Chore) -> None:
        awaited = {*ASKS_TO_END, signal.SIGCHLD}
        _await(awaited)
        starting = [self._fork() for _ in range(self._count)]
        if self._all_serve(starting):
            ready()
            while wait(awaited, chore) not in ASKS_TO_END:
                self._replace()
        for pid in self._born_ms:
            os.kill(pid, signal.SIGTERM)
        due_ms = self._clock.monotonic_ms() + self._grace_ms + KILL_AFTER_MS
        while self._born_ms and self._clock.monotonic_ms() < due_ms:
            for pid in self._collect_ended():
                del self._born_ms[pid]
            self._clock.sleep_ms(POLL_MS)
        for pid in self._born_ms:
            self._log.warning(annotate("a worker did not end: killed", pid=pid))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _fork(self) -> int:
        """Start a worker; return a pipe that closes when it serves or has ended."""
        heard, said = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(heard)
            os.close(said)
            raise
        if not pid:
            os.close(heard)
            os.close(self._held)
            self._work(said)
        os.close(said)
        self._born_ms[pid] = self._clock.monotonic_ms()
        return heard

    def _all_serve(self, starting: list[int]) -> bool:
        """Wait until all serve; return False if a signal asks for the end."""
        for pipe in starting:
            while not select.select([pipe], [], [], POLL_MS / 1000)[0]:
                if _has_signal():
                    return False
            os.close(pipe)
        return True

    def _work(self, said: int) -> NoReturn:
        code = 1
        try:
            threading.Thread(target=self._watch_supervisor, daemon=True).start()
            with _end_by_signals():
                stop = self._start()
            os.close(said)
            signal.sigwait(ASKS_TO_END)
            stop()
            code = 0
        except BaseException:
            self._log.exception("a worker failed")
            raise
        finally:
            os._exit(code)

    def _watch_supervisor(self) -> None:
        os.read(self._lifeline, 1)  # returns when the last holder of the other end closes it
        os._exit(1)

    def _replace(self) -> None:
        for pid in self._collect_ended():
            lived_ms = self._clock.monotonic_ms() - self._born_ms.pop(pid)
            self._log.warning(annotate("a worker has ended: replaced", pid=pid, lived_ms=lived_ms))
            if lived_ms < QUICK_MS:
                self._rest()
            self._fork_again()

    def _fork_again(self) -> None:
        while not _has_signal():
            try:
                os.close(self._fork())
                return
            except OSError as error:  # no memory, or too many processes
                self._log.warning(annotate("cannot start a worker", cause=str(error)))
                self._rest()

    def _rest(self) -> None:
        due_ms = self._clock.monotonic_ms() + QUICK_MS
        while self._clock.monotonic_ms() < due_ms and not _has_signal():
            self._clock.sleep_ms(POLL_MS)

    def _collect_ended(self) -> list[int]:
        ended = [pid for pid in self._born_ms if os.waitpid(pid, os.WNOHANG)[0]]
        for pid in ended:
            try:
                self._forget(pid)
            except Exception:  # noqa: BLE001  (workers must be supervised)
                self._log.exception("what a worker has counted cannot be closed")
        return ended


def _await(signals: Collection[int]) -> None:
    """Block signals in this thread, which must be the main one, until it waits for them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    for number in signals:
        signal.signal(number, _pass_on)


def _pass_on(number: int, frame: object) -> None:
    """Redirect a signal from a thread that does not block it to this one, where it stays pending.
    Without a handler it would end the process or, for SIGCHLD, be lost."""
    signal.pthread_kill(threading.get_ident(), number)


def _has_signal() -> bool:
    """Return True if a blocked end signal is pending; it stays pending."""
    return not signal.sigpending().isdisjoint(ASKS_TO_END)


@contextmanager
def _end_by_signals() -> Iterator[None]:
    """End this process on SIGINT or SIGTERM within the block: it serves no client yet."""
    over = threading.Event()

    def check() -> None:
        while not over.wait(POLL_MS / 1000):
            if _has_signal():
                os._exit(0)

    checking = threading.Thread(target=check, daemon=True)
    checking.start()
    try:
        yield
    finally:
        over.set()
        checking.join()
