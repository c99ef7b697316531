"""A ZooKeeper that lies: it bounds neither the memory nor the threads of its clients."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from tests.unit.fake_server import FakeServer
from txn.clock import SystemClock, poll
from txn.errors import CorruptRowError, NotApplied, StoreError
from txn.locks.zookeeper.client import Ensemble, ReplyLost, ZooKeeperClient
from txn.locks.zookeeper.queues import _decode_note
from txn.stores.hbase.native.registry import Registry
from txn.stores.hbase.native.servers import Servers
from txn.stores.hbase.native.target import parse_target
from txn.stores.options import split_uri
from txn.stores.zookeeper import MOST_BYTES

Answer = Callable[[int, int], bytes | None]
"""What is sent for a request's number and type (of its session 0); None: an endless frame."""

CONNECT, GET_CHILDREN, CLOSE = 0, 8, -11
ENDLESS = struct.pack(">i", (1 << 31) - 1)
SESSION = struct.pack(">iiqi16s?", 0, 10_000, 1, 16, bytes(16), False)


class LyingZookeeper(FakeServer):
    """sent: the bytes of endless frames that its clients took."""

    def __init__(self, answer: Answer) -> None:
        self.sent = 0
        self._answer = answer
        self._ended = threading.Event()
        super().__init__()

    def close(self) -> None:
        self._ended.set()
        super().close()

    def _serve(self, connection: socket.socket) -> None:
        number, kind = 0, CONNECT
        with connection, connection.makefile("rb") as stream, suppress(OSError, struct.error):
            while not self._ended.is_set():
                (size,) = struct.unpack(">i", stream.read(4))
                request = stream.read(size)
                if number:
                    number, kind = struct.unpack_from(">ii", request)
                data = self._answer(number, kind)
                if data is None:
                    self._send_for_ever(connection)
                connection.sendall(struct.pack(">i", len(data or b"")) + (data or b""))
                number = number or 1

    def _send_for_ever(self, connection: socket.socket) -> None:
        connection.sendall(ENDLESS)
        while not self._ended.is_set():
            self.sent += connection.send(bytes(65_536))


def reply(number: int, body: bytes = b"", error: int = 0) -> bytes:
    return struct.pack(">iqi", number, 1, error) + body


def answer_with(body: Callable[[int], bytes | None]) -> Answer:
    """Begin and end sessions as ZooKeeper does; answer the rest with this."""

    def answer(number: int, kind: int) -> bytes | None:
        if number == 0:
            return SESSION
        return reply(number) if kind == CLOSE else body(number)

    return answer


def ask(host: str) -> None:
    clock = SystemClock()
    target = parse_target(split_uri(f"hbase://{host}/hbase?connect_ms=100"))
    Registry(target, Servers(target, clock), clock).find_meta(clock.monotonic_ms() + 5_000)


@pytest.mark.parametrize("answer", [lambda number, kind: None, answer_with(lambda number: None)])
def test_an_endless_answer_ends_with_its_call(answer: Answer) -> None:
    """The client grew without end, also after the call, and each retry left one more thread."""
    before = set(threading.enumerate())
    with closing(LyingZookeeper(answer)) as server:
        for _ in range(2):
            with pytest.raises(NotApplied, match="no answer from ZooKeeper"):
                ask(server.address)
        ours = {*server._threads, *before}
        assert poll(lambda: set(threading.enumerate()) <= ours | {*server._threads}, 10_000)
        assert server.sent < 16 * MOST_BYTES, "what the sockets hold"


@contextmanager
def client_of(answer: Answer) -> Iterator[ZooKeeperClient]:
    with closing(LyingZookeeper(answer)) as server:
        client = ZooKeeperClient(Ensemble(server.address), 2_000, SystemClock())
        with closing(client):
            yield client


@pytest.mark.parametrize(
    "body",
    [
        lambda number: reply(number + 1),
        lambda number: b"",
        lambda number: reply(-1, b"\xff" * 9),
        lambda number: reply(number, b"", -12345),
        lambda number: reply(number, struct.pack(">i", 1 << 30)),
        lambda number: reply(number, b"\0\0\0\1\0\0\0\1\xff"),
        lambda number: reply(-4),
    ],
)
def test_nonsense_is_a_failure_of_the_call_and_not_the_end_of_the_client(
    body: Callable[[int], bytes],
) -> None:
    """The driver's thread died of it, so a lock manager could never be used again."""
    bad = [True]
    children = struct.pack(">ii1s", 1, 1, b"a")

    def answer(number: int) -> bytes:
        return body(number) if bad and bad.pop() else reply(number, children)

    with client_of(answer_with(answer)) as client:
        with suppress(StoreError):  # calls that change nothing are repeated
            assert client.list_children(["/x"]) == [["a"]]
        assert client.list_children(["/x"]) == [["a"]]


@pytest.mark.parametrize(
    "body", [b"", b"\0" * 3, struct.pack(">i?i", -1, True, -1), struct.pack(">i?i", 5, False, 0)]
)
def test_a_transaction_without_its_results_may_have_been_done(body: bytes) -> None:
    is_told = pytest.raises(ReplyLost)
    with client_of(answer_with(lambda number: reply(number, body))) as client, is_told:
        client.apply([], [("/x", b"")])


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[]", b"{}", b"[" * 100_000, b'{"owner": 1, "host": 2, "query": 3}']
)
def test_a_node_that_is_no_lock_is_named(data: bytes) -> None:
    """Others may write there, unless there is a password."""
    with pytest.raises(CorruptRowError, match="not the node of a lock row=b'lock-1'"):
        _decode_note("lock-1", data)
