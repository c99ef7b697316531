"""Gateways and servers whose replies are not what was asked for: whatever they send, a call ends in
time, with an error of this library that says what was odd."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import happybase  # noqa: F401  (loads the next module from its own interface file)
import pytest
from Hbase_thrift import Hbase
from thriftpy2.protocol import TCompactProtocol, TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException, TMessageType, TPayload, TType
from thriftpy2.transport import TCyBufferedTransport, TCyFramedTransport, TCyMemoryBuffer, TSocket

from tests.unit.fake_region_server import FakeRegionServer
from txn.assertions import Exact
from txn.client.engine import Engine
from txn.clock import ManualClock
from txn.errors import MaybeApplied, NotApplied, StoreError, TxnError
from txn.model import Cell, Check, Edit, Key, Mutation, Row
from txn.service.client import RemoteBackend
from txn.service.messages import IDL as SERVED
from txn.stores import open_store
from txn.stores.base import Store
from txn.stores.gateway import parse_gateway
from txn.stores.hbase.idl import IDL
from txn.stores.hbase.native.store import NativeStore
from txn.stores.hbase.native.target import parse_target
from txn.stores.options import split_uri

KEYS = [Key(f"r{number}", "d", "x", "t") for number in range(3)]
ENDLESS = b"\x0c\x00\x63" * 200_000
SERVICES = {
    "hbase+thrift1": Hbase,
    "hbase+thrift2": IDL.THBaseService,
    "txn": SERVED.Transactional,
}

Reply = Callable[[str, int], bytes]
"""Returns the bytes of a reply to a method and its sequence number."""


class LyingGateway:
    """Sends replies of its own making, each of which ends its connection unless it is whole."""

    def __init__(
        self, service: Any, reply: Reply, *, compact: bool = False, framed: bool = False
    ) -> None:
        self._service, self._reply = service, reply
        self._transport = TCyFramedTransport if framed else TCyBufferedTransport
        self._protocol = TCompactProtocol if compact else TCyBinaryProtocol
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                connection.settimeout(20)
                with connection, suppress(Exception):
                    self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        protocol: Any = self._protocol(self._transport(TSocket(sock=connection)))
        name, _, number = protocol.read_message_begin()
        protocol.read_struct(getattr(self._service, f"{name}_args")())
        protocol.read_message_end()
        connection.sendall(self._reply(name, number))


@contextmanager
def lying(service: Any, reply: Reply, **options: bool) -> Iterator[LyingGateway]:
    gateway = LyingGateway(service, reply, **options)
    try:
        yield gateway
    finally:
        gateway.close()


def write_reply(
    name: str, number: int, result: Any, *, kind: int = TMessageType.REPLY, compact: bool = False
) -> bytes:
    buffer = TCyMemoryBuffer()
    protocol: Any = (TCompactProtocol if compact else TCyBinaryProtocol)(buffer)
    protocol.write_message_begin(name, kind, number)
    protocol.write_struct(result)
    protocol.write_message_end()
    data: bytes = buffer.getvalue()
    return data


# --- single lies ------------------------------------------------------------------------------


def answer_nothing(name: str, number: int) -> bytes:
    return write_reply(name, number, getattr(IDL.THBaseService, f"{name}_result")())


def answer_another_method(name: str, number: int) -> bytes:
    return write_reply("exists", number, IDL.THBaseService.exists_result(True))


def answer_another_request(name: str, number: int) -> bytes:
    result = IDL.THBaseService.getMultiple_result([IDL.TResult(None, []) for _ in KEYS])
    return write_reply(name, number + 1, result)


def answer_without_columns(name: str, number: int) -> bytes:
    result = IDL.THBaseService.getMultiple_result([IDL.TResult(None, None) for _ in KEYS])
    return write_reply(name, number, result)


def answer_a_call(name: str, number: int) -> bytes:
    result = IDL.THBaseService.getMultiple_result([IDL.TResult(None, []) for _ in KEYS])
    return write_reply(name, number, result, kind=TMessageType.CALL)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (answer_nothing, "the reply has no result"),
        (answer_another_method, "the reply is another request's.*got='exists'"),
        (answer_another_request, "the reply is another request's"),
        (answer_a_call, "the reply is another request's.*kind=1"),
        (answer_without_columns, "the reply is not as declared"),
    ],
)
def test_an_odd_reply_of_a_gateway_is_an_error_of_the_store(reply: Reply, words: str) -> None:
    """A call ended with AttributeError or KeyError, which no caller expects of a store."""
    with lying(IDL.THBaseService, reply) as gateway:
        store = open_store(f"hbase+thrift2://{gateway.address}")
        with pytest.raises(StoreError, match=words):
            store.read(KEYS)
        store.close()


def test_a_check_with_an_odd_reply_may_have_been_applied() -> None:
    """Only its answer is lost."""
    with lying(IDL.THBaseService, answer_nothing) as gateway:
        store = open_store(f"hbase+thrift2://{gateway.address}")
        with pytest.raises(MaybeApplied, match="the reply has no result"):
            store.check_and_put([Check(KEYS[0], b"", ((KEYS[0], b"1"),))])
        store.close()


@pytest.mark.parametrize("compact", [False, True])
def test_a_deeply_nested_reply_ends_the_call_only(compact: bool) -> None:
    """The driver below 0.7.1 died of it, and the process with it."""
    nested = b"\x0c\xc6\x01" * 200_000 if compact else ENDLESS

    def reply(name: str, number: int) -> bytes:
        empty = getattr(IDL.THBaseService, f"{name}_result")()
        return write_reply(name, number, empty, compact=compact)[:-1] + nested

    with lying(IDL.THBaseService, reply, compact=compact) as gateway:
        protocol = "compact" if compact else "binary"
        store = open_store(f"hbase+thrift2://{gateway.address}?protocol={protocol}")
        with pytest.raises(MaybeApplied, match="not a reply: RecursionError"):
            store.read(KEYS)
        store.close()


@pytest.mark.parametrize("transport", ["buffered", "framed"])
def test_a_reply_without_an_end_is_cut(transport: str) -> None:
    """A client may not grow by what a server sends: it took 1 GB in 8 s."""
    sent = []

    def reply(name: str, number: int) -> bytes:
        sent.append(name)
        frame = struct.pack(">i", 1 << 30) if transport == "framed" else b""
        head = write_reply(name, number, getattr(IDL.THBaseService, f"{name}_result")())[:-1]
        return frame + head + b"\x0b\x00\x63" + struct.pack(">i", 1 << 30) + bytes(1 << 22)

    with lying(IDL.THBaseService, reply, framed=transport == "framed") as gateway:
        uri = f"hbase+thrift2://{gateway.address}?reply_mb=1&transport={transport}"
        store = open_store(uri)
        with pytest.raises(MaybeApplied, match="the reply is too long: see reply_mb limit_mb=1"):
            store.read(KEYS)
        store.close()
    assert len(sent) == 1, "sent again, it is as long"


def test_a_server_that_leaves_out_a_key_is_refused() -> None:
    """Also a key that is absent is in its answer."""
    found = [SERVED.Found(SERVED.Key(b"r0", b"d", b"x", b"t"))]

    def reply(name: str, number: int) -> bytes:
        return write_reply(name, number, getattr(SERVED.Transactional, f"{name}_result")(found))

    with lying(SERVED.Transactional, reply) as gateway:
        engine = Engine.over(make_backend(gateway))
        with pytest.raises(NotApplied, match="keys are missing in the server's answer"):
            engine.read(KEYS)
        store = open_store(f"txn://{gateway.address}")
        with pytest.raises(NotApplied, match="keys are missing in the server's answer"):
            store.read(KEYS)
        store.close()
        engine.close()


def test_a_gateway_that_repeats_a_page_ends_the_scan() -> None:
    """Each page is a call of its own, so no deadline would end it."""
    page = [IDL.TResult(b"a", [])] * 1_000

    def reply(name: str, number: int) -> bytes:
        return write_reply(name, number, IDL.THBaseService.getScannerResults_result(page))

    with lying(IDL.THBaseService, reply) as gateway:
        store = open_store(f"hbase+thrift2://{gateway.address}")
        with pytest.raises(NotApplied, match="no progress with a scan"):
            list(store.scan(b"t", b"b"))
        store.close()


# --- random lies ------------------------------------------------------------------------------


class LyingReplies:
    """Replies as a service declares them, of which parts are missing, of other kinds or flipped."""

    def __init__(self, service: Any, seed: int) -> None:
        self._service, self._rng = service, random.Random(seed)

    def __call__(self, name: str, number: int) -> bytes:
        rng = self._rng
        if rng.random() < 0.1:
            kind, result = TMessageType.EXCEPTION, TApplicationException(rng.randrange(9), "odd")
        else:
            kind, result = TMessageType.REPLY, getattr(self._service, f"{name}_result")()
            self._fill(result)
        data = bytearray(write_reply(name, number, result, kind=kind))
        for _ in range(rng.choice((0, 0, 1, 3))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(data)

    def _fill(self, made: TPayload) -> None:
        fields = list(made.thrift_spec.values())
        if self._rng.random() < 0.8 and fields and fields[0][1] == "success":
            fields = fields[:1]
        for kind, name, *spec, _ in fields:
            if self._rng.random() < 0.9:
                setattr(made, name, self._make(kind, spec[0] if spec else None))

    def _make(self, kind: int, spec: Any) -> Any:
        rng = self._rng
        match kind:
            case TType.BOOL:
                return rng.random() < 0.5
            case TType.I32 | TType.I64 | TType.I16 | TType.BYTE:
                return rng.choice((0, 1, 2, 3, 127, -1))
            case TType.DOUBLE:
                return 1.0
            case TType.STRING:
                return rng.choice(("", "x", "six_phase", "t"))
            case TType.BINARY:
                return rng.choice((b"", b"x", b"r0", b"r1", b"t", b"d", b"d:x", b"\xff"))
            case TType.STRUCT:
                made: TPayload = spec()
                self._fill(made)
                return made
            case TType.MAP:
                return {self._item(spec[0]): self._item(spec[1]) for _ in range(rng.randrange(3))}
            case _:
                return [self._item(spec) for _ in range(rng.choice((0, 1, 1, 3, 3, 3)))]

    def _item(self, spec: Any) -> Any:
        return self._make(*(spec if isinstance(spec, tuple) else (spec, None)))


def check_cells(found: dict[Key, Any]) -> None:
    """Refuse cells that are not whole: what reads them later would fail with a TypeError."""
    for key, cell in found.items():
        for each in cell if isinstance(cell, list) else [cell]:
            assert all(isinstance(part, bytes) for part in key)
            assert each is None or isinstance(each, Cell)
            assert each is None or (type(each.value), type(each.timestamp)) == (bytes, int)


def check_rows(rows: list[Row]) -> None:
    for row in rows:
        assert isinstance(row.row, bytes)
        check_cells(dict(row.cells))


def list_calls(store: Store) -> list[Callable[[], object]]:
    return [
        lambda: check_cells(store.read(KEYS)),
        lambda: check_cells(store.read(KEYS[:1], KEYS[1:])),
        lambda: check_cells(store.read_versions(KEYS, 2)),
        lambda: check_rows(list(store.scan(b"t", columns=[(b"d", b"x")]))),
        lambda: check_rows(list(store.scan(b"t", reverse=True))),
        lambda: store.write([Edit(KEYS[0], b"1", 5), Edit(KEYS[1], None, 5)]),
        lambda: store.check_and_put([Check(key, b"", ((key, b"1"),)) for key in KEYS]),
        lambda: store.check_and_read([Check(KEYS[0], b"", ((KEYS[0], b"1"),))], KEYS),
        store.list_tables,
        lambda: store.describe(b"t"),
        lambda: store.find_splits(b"t", 3),
    ]


def try_each(calls: list[Callable[[], object]]) -> None:
    for call in calls:
        with suppress(TxnError):
            call()


def make_backend(gateway: LyingGateway) -> RemoteBackend:
    target = parse_gateway(split_uri(f"txn://{gateway.address}?timeout_ms=20000"))
    return RemoteBackend(target, clock=ManualClock(), rng=random.Random(1))


def try_gateway(scheme: str, seed: int) -> None:
    with lying(SERVICES[scheme], LyingReplies(SERVICES[scheme], seed)) as gateway:
        store = open_store(f"{scheme}://{gateway.address}?timeout_ms=20000")
        try:
            try_each(list_calls(store))
        finally:
            store.close()


def try_engine(seed: int) -> None:
    with lying(SERVED.Transactional, LyingReplies(SERVED.Transactional, seed)) as gateway:
        engine = Engine.over(make_backend(gateway))
        put = [Mutation(KEYS[0], b"1")]
        try_each(
            [
                lambda: check_cells(dict(engine.read(KEYS))),
                lambda: check_rows(list(engine.scan(b"t"))),
                lambda: engine.commit(put, [Exact(KEYS[1], b"1")], deadline_ms=50),
                lambda: engine.commit_many([(put, [])] * 2),
                lambda: engine.outcome(b"x"),
                lambda: engine.ensure_table(b"t", [b"d"]),
                lambda: engine.context,
            ]
        )
        engine.close()


class NoisyRegionServer(FakeRegionServer):
    """Flips bits in its answers, each of which then ends its connection."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        super().__init__()

    def _serve(self, connection: socket.socket) -> None:
        super()._serve(_NoisySocket(connection, self._rng))  # type: ignore[arg-type]


class _NoisySocket:
    def __init__(self, connection: socket.socket, rng: random.Random) -> None:
        self._connection, self._rng = connection, rng

    def __enter__(self) -> _NoisySocket:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def sendall(self, frame: bytes) -> None:
        data = bytearray(frame)
        flips = self._rng.choice((0, 0, 1, 2, 8))
        for _ in range(flips):
            data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
        self._connection.sendall(data)
        if flips:
            self._connection.shutdown(socket.SHUT_RDWR)


def try_native(seed: int) -> None:
    server = NoisyRegionServer(seed)
    try:
        server.cells = {(key.row, b"d", b"x"): b"1" for key in KEYS}
        parts = split_uri(f"{server.uri}&timeout_ms=2000")
        store = NativeStore(parse_target(parts), ManualClock())
        try:
            for call in list_calls(store):
                server.pages = [([b"a", b"b"], False, b"c", True), ([b"d"], True, b"", False)] * 3
                try_each([call, lambda: store.measure_tables([b"t"])])
        finally:
            store.close()
    finally:
        server.close()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scheme", SERVICES)
def test_random_replies_end_in_our_errors_only(scheme: str, seed: int) -> None:
    """No caller is ready for others; and no value is handed out that is not whole."""
    try_gateway(scheme, seed)
    if scheme == "txn":
        try_engine(seed)


@pytest.mark.parametrize("seed", range(4))
def test_random_answers_of_region_servers_end_in_our_errors_only(seed: int) -> None:
    """As above; there, lengths are ours to check."""
    try_native(seed)


@pytest.mark.long
def test_many_random_replies_end_in_our_errors_only() -> None:
    """What a few seeds miss."""
    for seed in range(1_000):
        for scheme in SERVICES:
            try_gateway(scheme, seed)
        try_engine(seed)
        try_native(seed)
