"""A wait for a socket ends in time, whatever the other side does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from txn.stores import wire as module
from txn.stores.wire import Wire, share_wire

DUE = 5
LARGE = bytes(50_000_000)  # more than any socket buffers

Pair = tuple[socket.socket, socket.socket]


class Looks:
    """A clock that moves on whenever somebody looks at it, by one."""

    now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    looks = Looks()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic_ns=looks))
    return looks


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def make_wire(pair: Pair) -> Wire:
    wire = Wire(pair[0], 1 << 30)
    wire.due_ns = DUE
    return wire


def require_time_out(looks: Looks, work: Callable[[], object]) -> None:
    with pytest.raises(TimeoutError):
        work()
    assert looks.now == DUE


def test_a_read_of_a_silent_peer_ends_in_time(pair: Pair, looks: Looks) -> None:
    require_time_out(looks, lambda: share_wire(pair[0], looks).read(10, DUE))


@pytest.mark.parametrize("size", [0, 1_000])
def test_a_write_to_a_slow_or_silent_peer_ends_in_time(pair: Pair, looks: Looks, size: int) -> None:
    """It makes progress all the time, and would for hours."""
    is_over = threading.Event()

    def read() -> None:
        while size and not is_over.wait(0.01):
            pair[1].recv(size)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(read)
        require_time_out(looks, lambda: share_wire(pair[0], looks).write(LARGE, DUE))
        is_over.set()


def test_data_that_has_come_is_not_late(pair: Pair, looks: Looks) -> None:
    """Its reader may have been kept from reading it, by a busy machine or another thread."""
    pair[1].sendall(b"data")
    assert share_wire(pair[0], looks).read(10, -1) == b"data"


def test_the_end_of_a_connection_is_no_data(pair: Pair, looks: Looks) -> None:
    pair[1].shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError, match="the server closed the connection"):
        share_wire(pair[0], looks).read(10, DUE)


def test_no_request_is_sent_to_a_gateway_after_the_deadline(pair: Pair, looks: Looks) -> None:
    """However many a call makes, and however fast their replies come."""
    wire = make_wire(pair)

    def ask() -> None:
        while True:
            wire.write(b"request")
            pair[1].sendall(b"reply")
            assert wire.read(10) == b"reply"
            pair[1].recv(10)

    require_time_out(looks, ask)
