"""Decide whether a region server still owned its regions when it answered.

A server that stood still for longer than its session, in a stopped process or machine, has lost its
regions, and others write to them. Its own writes are refused. But until it notices, it answers
reads, and says no to checks, with data from when it stopped.

One answer does not prove that the server kept running, but two do. Between sending the first call
and receiving the second answer it paused for at most that time, which is too short to lose a
session. So each answer vouches for the next. At the beginning, and after a rest, the client asks
the cluster, after the answer has come, whether the server is still a member.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from txn.clock import Clock, poll
from txn.errors import StoreError
from txn.host.holds import Hold, Holds
from txn.stores.hbase.native.target import Address

REST_MS = 3_000
"""Less than two thirds of any session in use: a server sends a sign of life after one third."""

ListServers = Callable[[int, int], Container[Address]]
"""Takes the time after which, and until which, to ask; returns the live servers."""


class Tenure:
    def __init__(self, address: Address, list_servers: ListServers, clock: Clock) -> None:
        self._address = address
        self._list_servers = list_servers
        self._clock = clock
        self._asking: Holds[None] = Holds()  # the first one asks
        self._known_ms: int | None = None  # when the server ran and was a member of its cluster

    def vouches_for(self, sent_ms: int, came_ms: int) -> bool:
        """Record an answer to a call sent at `sent_ms`; return True if it is valid."""
        if self._known_ms is None or came_ms - self._known_ms > REST_MS:
            return False
        self._known_ms = max(self._known_ms, sent_ms)
        return True

    def confirm(self, sent_ms: int, came_ms: int, due_ms: int) -> None:
        """Ask the cluster about an answer. ConnectionError means that the answer is invalid, or
        cannot be confirmed in time. The server is only known to have run when the call was sent,
        not now: its answer may have waited here for long."""
        left_ms = max(0, due_ms - self._clock.monotonic_ms())
        with (hold := Hold()):
            self._asking.add(hold, None)
            if not poll(lambda: self._asking.is_first(hold), left_ms):
                raise TimeoutError("timed out")
            try:
                if self._address not in self._list_servers(came_ms, due_ms):
                    raise ConnectionError("the server has lost its regions, and may not know it")
            except StoreError as error:
                message = f"cannot confirm that the server is at work: {error}"
                raise ConnectionError(message) from error
            self._known_ms = max(self._known_ms or 0, sent_ms)
            self._asking.remove(hold)
