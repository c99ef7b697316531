"""Held locks and leases: the heartbeat that keeps them, and `Held`, which releases them.

The heartbeat measures a claim's duration on the holder's monotonic clock, from before the last
acknowledged renewal was sent. A holder that cannot reach the server regards its claim as lost when
that time is over. So it stops before others may regard the claim as ended.
"""

from __future__ import annotations

import os
import threading
from _thread import start_new_thread
from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

from txn.clock import Clock
from txn.errors import AbortedError, CommitOutcomeUnknown, StoreError, TxnError
from txn.events import Listener, WorkName, silent
from txn.host.holds import SafeEvent
from txn.locks.model import LockRequest, Path
from txn.repeating import repeat
from txn.text import name_failure

IN_DURATION = 3
"""Renewals per duration of a claim."""


class LockLost(TxnError):
    """The claim is no longer held: stop, and write nothing else."""


class Heartbeat:
    """A thread that renews a claim every third of its duration, until stopped or lost.

    renew: renews once; returns True if renewed, False if the claim has ended, None if it cannot be
    renewed any more. renewed: called after each renewal. sure_ms: how long the claim certainly
    lasts, counted from before the renewal was sent.
    """

    def __init__(
        self,
        work: WorkName,
        renew: Callable[[], bool | None],
        duration_s: float,
        *,
        sure_ms: int,
        began_ms: int,
        clock: Clock,
        renewed: Callable[[], None] = lambda: None,
        on_event: Listener = silent,
    ) -> None:
        self.ended = False
        """True if the claim is known to have ended."""
        self._renew = renew
        self._renewed = renewed
        self._sure_ms = sure_ms
        self._sure_until_ms = began_ms + sure_ms
        self._clock = clock
        self._stopped = SafeEvent()
        self._running = threading.Lock()  # held by the thread
        self._repeated = (work, self._heartbeat, self._stopped, duration_s / IN_DURATION, on_event)

    def start(self) -> None:
        """Start the thread unless it runs; by another one, since this one may be interrupted."""
        if not self._running.locked():
            name = f"txn {self._repeated[0]}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            start_new_thread(thread.start, ())

    def _run(self) -> None:
        with self._running:
            repeat(*self._repeated)

    @property
    def lost(self) -> bool:
        """True if the claim has ended, or may have because the server could not be reached."""
        return self.ended or self._clock.monotonic_ms() >= self._sure_until_ms

    def stop(self) -> None:
        self._stopped.set()
        with self._running:  # until the thread has ended
            pass

    def _heartbeat(self) -> bool:
        began_ms = self._clock.monotonic_ms()
        is_renewed = None if self.ended else self._renew()
        if not is_renewed:
            self.ended = self.ended or is_renewed is False
            return False
        self._sure_until_ms = began_ms + self._sure_ms
        self._renewed()
        return True


class Grant(NamedTuple):
    """A granted request. is_lost: makes no call. are_there: asks the server."""

    tokens: Mapping[Path, int]
    is_lost: Callable[[], bool]
    are_there: Callable[[], bool]
    give_back: Callable[[], object]


class Held:
    """All objects of one request, held under locks or a lease. Leaving the block releases them.
    Implicit locks and leases are also released, soon after, if nothing refers to this object: an
    interrupt may come before the block begins, and where it ends.

    requests: in path order, with all parents. tokens: the fencing token of each object. kind: used
    in error messages. A forked process may check them, but only its parent can release them.
    """

    def __init__(
        self, requests: tuple[LockRequest, ...], grant: Grant, kind: str = "locks"
    ) -> None:
        self.requests = requests
        self.tokens = grant.tokens
        self._grant = grant
        self._kind = kind
        self._pid = os.getpid()
        self._lost = False
        self._ending = False
        self._released = False

    @property
    def lost(self) -> bool:
        """True if they are lost, or may be because the server could not be reached. Costs no call,
        and never becomes False again. Explicit locks survive a loss of contact."""
        self._lost = self._lost or self._grant.is_lost()
        return self._lost

    def check(self) -> None:
        """Ask the server; raise LockLost unless they are certainly held now."""
        if self._ending or self.lost:
            raise self._make_error("no longer held")
        try:
            there = self._grant.are_there()
        except (StoreError, AbortedError, CommitOutcomeUnknown) as error:
            raise self._make_error("cannot tell whether still held", name_failure(error)) from error
        self._lost = self._lost or not there
        if self.lost:
            raise self._make_error("no longer held")

    def release(self) -> None:
        """Release them; a second call has no effect. After an error, it may be called again."""
        if self._released or self._pid != os.getpid():
            return
        self._ending = True
        self._grant.give_back()
        self._released = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _make_error(self, reason: str, cause: str | None = None) -> LockLost:
        named = [str(each) for each in self.requests]
        return LockLost(reason, held=self._kind, objects=named, cause=cause)
