"""A wait for a socket ends in time, whatever the other side does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from txn.stores.wire import NS_PER_MS, SharedWire, Wire, share_wire

LIMIT_MS = 200
LATEST_S = 2.0
LARGE = bytes(50_000_000)  # more than any socket buffers

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def due_ns() -> int:
    return time.monotonic_ns() + LIMIT_MS * NS_PER_MS


def share(connected: socket.socket) -> SharedWire:
    return share_wire(connected, time.monotonic_ns)


def require_time_out(work: Callable[[], object]) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        work()
    assert LIMIT_MS / 1010 <= time.monotonic() - began < LATEST_S  # clocks round


def test_a_read_of_a_silent_peer_ends_in_time(pair: Pair) -> None:
    require_time_out(lambda: share(pair[0]).read(10, due_ns()))


def test_data_that_has_come_is_not_late(pair: Pair) -> None:
    """Its reader may have been kept from reading it, by a busy machine or another thread."""
    pair[1].sendall(b"data")
    assert share(pair[0]).read(10, time.monotonic_ns() - 1) == b"data"


def test_the_end_of_a_connection_is_no_data(pair: Pair) -> None:
    pair[1].shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError, match="the server closed the connection"):
        share(pair[0]).read(10, due_ns())


def test_a_write_to_a_peer_that_does_not_read_ends_in_time(pair: Pair) -> None:
    require_time_out(lambda: share(pair[0]).write(LARGE, due_ns()))


def test_a_write_to_a_peer_that_reads_slowly_ends_in_time(pair: Pair) -> None:
    """It makes progress all the time, and would for hours."""
    ours, theirs = pair
    is_over = threading.Event()

    def read() -> None:
        with suppress(OSError):
            while not is_over.wait(0.01):
                theirs.recv(1_000)

    reader = threading.Thread(target=read)
    reader.start()
    require_time_out(lambda: share(ours).write(LARGE, due_ns()))
    is_over.set()
    reader.join()


def test_all_is_written_to_a_peer_that_reads_late(pair: Pair) -> None:
    """The socket is full for longer than a tick."""
    ours, theirs = pair
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 10_000)
    data = bytes(range(256)) * 10_000
    found = bytearray()

    def read() -> None:
        time.sleep(0.3)
        while len(found) < len(data):
            found.extend(theirs.recv(100_000))

    reader = threading.Thread(target=read)
    reader.start()
    share(ours).write(data, time.monotonic_ns() + 60_000 * NS_PER_MS)
    reader.join()
    assert found == data


def test_a_gateway_that_answers_for_ever_is_read_until_the_deadline(pair: Pair) -> None:
    """Each piece comes at once, so no wait is long."""
    wire = Wire(pair[0], 1 << 30)
    wire.due_ns = due_ns()
    wire.write(b"request")

    def read() -> None:
        while True:
            pair[1].sendall(b"reply")
            assert wire.read(10) == b"reply"

    require_time_out(read)


def test_no_request_is_sent_to_a_gateway_after_the_deadline(pair: Pair) -> None:
    """However many a call makes, and however fast their replies come."""
    wire = Wire(pair[0], 1 << 30)
    wire.due_ns = due_ns()

    def ask() -> None:
        while True:
            wire.write(b"request")
            pair[1].sendall(b"reply")
            assert wire.read(10) == b"reply"
            pair[1].recv(10)

    require_time_out(ask)
