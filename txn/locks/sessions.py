"""A lock session: a row that its owner changes each third of a lease, to show that it lives.

Whoever finds it unchanged for a whole lease, by a clock of its own, deletes it. The owner counts
its lease from before its last beat was sent, so it stops before anybody ends it.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress

from txn.assertions import Some, Version
from txn.clock import Clock
from txn.engine import Engine
from txn.errors import AbortedError, AssertionFailedError, CommitOutcomeUnknown, StoreError
from txn.model import Delete, Key, Mutation


class Session:
    """A row that says that its owner lives, and the thread that keeps saying so."""

    def __init__(self, engine: Engine, key: Key, name: str, lease_ms: int, clock: Clock) -> None:
        self.name = name
        self._engine = engine
        self._key = key
        self._lease_ms = lease_ms
        self._clock = clock
        self._beats = 0
        self._ended = threading.Event()
        self._lost = False
        self._beaten_ms = clock.monotonic_ms()
        engine.commit([Mutation(key, self._value())], [Version(key, None)])
        threading.Thread(target=self._beat, name="txn-lock-session", daemon=True).start()

    @property
    def lost(self) -> bool:
        """Whether it has ended, or may have been ended by others: too long since the last beat."""
        silent_ms = self._clock.monotonic_ms() - self._beaten_ms
        return self._lost or silent_ms >= self._lease_ms

    def end(self) -> None:
        """Delete the row: all that the session holds is free."""
        self._lost = True
        self._ended.set()
        with suppress(AbortedError):
            self._engine.commit([Delete(self._key)])

    def _value(self) -> bytes:
        return json.dumps({"beat": self._beats, "lease_ms": self._lease_ms}).encode()

    def _beat(self) -> None:
        while not self._ended.wait(self._lease_ms / 3000) and not self._lost:
            began_ms = self._clock.monotonic_ms()
            self._beats += 1
            try:
                self._engine.commit([Mutation(self._key, self._value())], [Some(self._key)])
            except AssertionFailedError:
                self._lost = True
            except (AbortedError, StoreError, CommitOutcomeUnknown):
                continue  # the next beat is soon; meanwhile the lease runs on
            else:
                self._beaten_ms = began_ms
