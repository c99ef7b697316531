"""Whether a region server still was its cluster's when it answered.

One that stood still for longer than its session, as a stopped process or machine does, has lost its
regions: others write to them. It does not know yet. What it writes is refused, but until it notices
it answers reads, and says no to checks, as of the time when it stopped.

No answer proves that it did not stand still, but two do: between the sending of the one and the
coming of the other it did so for no longer than that takes, which is not enough to lose a session.
So while answers come, each vouches for the next. After a rest, and at the beginning, the cluster is
asked, after the answer has come, whether it still counts on the server.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from threading import Lock

from txn.clock import Clock
from txn.errors import StoreError
from txn.stores.hbase.native.target import Address

REST_MS = 3_000
"""Less than two thirds of any session that is in use: a server says after one that it is there."""

ListServers = Callable[[int, int], Container[Address]]
"""Told after when, and until when, to ask: the servers that there were."""


class Tenure:
    """What is known of the server of one connection. Safe for many threads."""

    def __init__(self, address: Address, list_servers: ListServers, clock: Clock) -> None:
        self._address = address
        self._list_servers = list_servers
        self._clock = clock
        self._asking = Lock()
        self._known_ms: int | None = None  # when the server ran, and was its cluster's

    def vouches_for(self, sent_ms: int, came_ms: int) -> bool:
        """Take note of an answer to what was sent then; return whether it may be believed."""
        if self._known_ms is None or came_ms - self._known_ms > REST_MS:
            return False
        self._known_ms = max(self._known_ms, sent_ms)
        return True

    def confirm(self, sent_ms: int, came_ms: int, due_ms: int) -> None:
        """Ask the cluster about an answer. ConnectionError: it must not be believed, or it cannot
        be told in time. That the server ran is known of when it was asked, not of now: its answer
        may have lain here for long."""
        left_ms = max(0, due_ms - self._clock.monotonic_ms())
        if not self._asking.acquire(timeout=left_ms / 1000):
            raise TimeoutError("timed out")
        try:
            if self._address not in self._list_servers(came_ms, due_ms):
                raise ConnectionError("the server has lost its regions, and may not know it")
            self._known_ms = max(self._known_ms or 0, sent_ms)
        except StoreError as error:
            raise ConnectionError(f"nobody tells whether the server is at work: {error}") from error
        finally:
            self._asking.release()
