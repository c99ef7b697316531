"""Locks and leases that are held: a heartbeat shows that the holder lives, and `Held` gives back.

A holder that cannot reach the server takes its claim for lost in time: the heartbeat counts the
claim's duration, on the holder's monotonic clock, from before the last acknowledged renewal was
sent. So the holder stops before anybody else may take the claim for ended.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Self

from txn.clock import Clock
from txn.errors import AbortedError, CommitOutcomeUnknown, StoreError, TxnError
from txn.events import Listener, WorkName, silent
from txn.locks.requests import LockRequest, Path
from txn.repeating import repeat
from txn.text import name_failure

IN_DURATION = 3
"""How often a claim is renewed in its duration."""


class LockLost(TxnError):
    """What was held is not any more: stop, and write nothing else."""


class Heartbeat:
    """A thread that renews a claim at each third of its duration, until it is stopped or ended.

    renew: renews once, and returns True; False: the claim has ended; None: it cannot be renewed any
    more. renewed: called after each renewal. sure_ms: how long after a renewal began the claim
    certainly lasts.
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
        """The claim is known to have ended."""
        self._renew = renew
        self._renewed = renewed
        self._sure_ms = sure_ms
        self._sure_until_ms = began_ms + sure_ms
        self._clock = clock
        self._stopped = threading.Event()
        repeated = (work, self._heartbeat, self._stopped, duration_s / IN_DURATION, on_event)
        self._thread = threading.Thread(
            target=repeat, args=repeated, name=f"txn {work}", daemon=True
        )

    def start(self) -> None:
        """Begin to renew the claim."""
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether the claim has ended, or may have, for want of contact."""
        return self.ended or self._clock.monotonic_ms() >= self._sure_until_ms

    def end(self) -> None:
        """Note that the claim has ended."""
        self.ended = True

    def stop(self) -> None:
        """Renew it no more."""
        self._stopped.set()
        self._thread.join()

    def _heartbeat(self) -> bool:
        began_ms = self._clock.monotonic_ms()
        is_renewed = None if self.ended else self._renew()
        if not is_renewed:
            self.ended = self.ended or is_renewed is False
            return False
        self._sure_until_ms = began_ms + self._sure_ms
        self._renewed()
        return True


class Held:
    """All objects of one request, under locks or a lease. Leaving the block releases them.

    requests: in order, the parents among them. tokens: the fencing token of each object. kind: what
    errors call it. A forked process may ask about them, and cannot release them: they are its
    parent's.
    """

    def __init__(
        self,
        requests: tuple[LockRequest, ...],
        tokens: Mapping[Path, int],
        *,
        is_lost: Callable[[], bool],
        are_there: Callable[[], bool],
        release: Callable[[], None],
        kind: str = "locks",
    ) -> None:
        self.requests = requests
        self.tokens = tokens
        self._is_lost = is_lost
        self._are_there = are_there
        self._release = release
        self._kind = kind
        self._pid = os.getpid()
        self._lost = False
        self._ending = False
        self._released = False

    @property
    def lost(self) -> bool:
        """Whether they are lost, or may be, for want of contact; a call that costs nothing. Once it
        was True it stays so: the holder has stopped. Explicit locks survive the want of contact."""
        self._lost = self._lost or self._is_lost()
        return self._lost

    def check(self) -> None:
        """Ask the server; raise LockLost unless they are certainly held at this moment."""
        if self._ending or self.lost:
            raise self._make_error("no longer held")
        try:
            there = self._are_there()
        except (StoreError, AbortedError, CommitOutcomeUnknown) as error:
            raise self._make_error("cannot tell whether still held", name_failure(error)) from error
        self._lost = self._lost or not there
        if self.lost:
            raise self._make_error("no longer held")

    def release(self) -> None:
        """Give them back; a second call changes nothing. After an error that may be tried again."""
        if self._released or self._pid != os.getpid():
            return
        self._ending = True
        self._release()
        self._released = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _make_error(self, reason: str, cause: str | None = None) -> LockLost:
        named = [str(each) for each in self.requests]
        return LockLost(reason, held=self._kind, objects=named, cause=cause)
