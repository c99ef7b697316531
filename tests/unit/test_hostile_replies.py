"""Gateways and servers whose replies are odd: a call ends in time with an error of ours."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import happybase  # noqa: F401  (loads the next module from its own interface file)
import pytest
from Hbase_thrift import Hbase
from thriftpy2.protocol import TCompactProtocol, TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException, TMessageType, TPayload, TType
from thriftpy2.transport import TCyBufferedTransport, TCyFramedTransport, TCyMemoryBuffer, TSocket

from tests.unit.fake_region_server import FakeRegionServer
from tests.unit.fake_server import FakeServer
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
from txn.stores.options import split_uri

KEYS = [Key(f"r{number}", "d", "x", "t") for number in range(3)]
SERVICES = {
    "hbase+thrift1": Hbase,
    "hbase+thrift2": IDL.THBaseService,
    "txn": SERVED.Transactional,
}

Reply = Callable[[str, int], bytes]
"""Returns the bytes of a reply to a method and its sequence number."""


class LyingGateway(FakeServer):
    """Sends replies of its own making, each of which ends its connection unless it is whole."""

    def __init__(self, service: Any, reply: Reply, compact: bool, framed: bool) -> None:
        self._service, self._reply = service, reply
        self._transport = TCyFramedTransport if framed else TCyBufferedTransport
        self._protocol = TCompactProtocol if compact else TCyBinaryProtocol
        super().__init__()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(Exception):
            protocol: Any = self._protocol(self._transport(TSocket(sock=connection)))
            name, _, number = protocol.read_message_begin()
            protocol.read_struct(getattr(self._service, f"{name}_args")())
            protocol.read_message_end()
            connection.sendall(self._reply(name, number))


@contextmanager
def lying(
    scheme: str, reply: Reply, *, compact: bool = False, framed: bool = False, reply_mb: int = 256
) -> Iterator[Store]:
    """A store whose gateway, or server, answers this."""
    gateway = LyingGateway(SERVICES[scheme], reply, compact, framed)
    options = f"timeout_ms=20000&reply_mb={reply_mb}&protocol={'compact' if compact else 'binary'}"
    options = "timeout_ms=20000" if scheme == "txn" else options
    framing = "&transport=framed" if framed else ""
    store = open_store(f"{scheme}://{gateway.address}?{options}{framing}")
    try:
        yield store
    finally:
        store.close()
        gateway.close()


@contextmanager
def lying_to_engine(reply: Reply) -> Iterator[Engine]:
    """An engine of a server that answers this."""
    gateway = LyingGateway(SERVED.Transactional, reply, False, False)
    target = parse_gateway(split_uri(f"txn://{gateway.address}?timeout_ms=20000"))
    engine = Engine.over(RemoteBackend(target, clock=ManualClock(), rng=random.Random(1)))
    try:
        yield engine
    finally:
        engine.close()
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


def empty(name: str) -> Any:
    return getattr(IDL.THBaseService, f"{name}_result")()


def answer(result: Any, name: str = "", after: int = 0, kind: int = TMessageType.REPLY) -> Reply:
    """Return what replies this, for a method of this name and a request that comes later."""
    return lambda asked, number: write_reply(name or asked, number + after, result, kind=kind)


GET = IDL.THBaseService.getMultiple_result
FOUND = GET([IDL.TResult(None, []) for _ in KEYS])
PAGE = IDL.THBaseService.getScannerResults_result([IDL.TResult(b"a", [])] * 1_000)
CHECKS = [Check(key, b"", ((key, b"1"),)) for key in KEYS]


@pytest.mark.parametrize(
    ("call", "reply", "words"),
    [
        ("read", answer(GET()), "the reply has no result"),
        ("read", answer(IDL.THBaseService.exists_result(True), "exists"), "another.*got='exists'"),
        ("read", answer(FOUND, after=1), "the reply is another request's"),
        ("read", answer(FOUND, kind=TMessageType.CALL), "the reply is another request's.*kind=1"),
        ("read", answer(GET([IDL.TResult(None, None) for _ in KEYS])), "the reply is not as decl"),
        ("check", answer(empty("checkAndPut")), "the reply has no result"),
        ("scan", answer(PAGE), "no progress with a scan"),
    ],
)
def test_an_odd_reply_is_an_error_of_the_store(call: str, reply: Reply, words: str) -> None:
    """A call ended with AttributeError or KeyError, which nobody expects of a store."""
    calls: dict[str, Callable[[Store], object]] = {
        "read": lambda store: store.read(KEYS),
        "check": lambda store: store.check_and_put(CHECKS[:1]),
        "scan": lambda store: list(store.scan(b"t", b"b")),
    }
    kind = {"read": StoreError, "check": MaybeApplied, "scan": NotApplied}[call]
    with lying("hbase+thrift2", reply) as store, pytest.raises(kind, match=words):
        calls[call](store)


@pytest.mark.parametrize("framed", [False, True])
def test_a_reply_without_an_end_is_cut(framed: bool) -> None:
    """A client may not grow by what a server sends: it took 1 GB in 8 s."""
    sent = []

    def reply(name: str, number: int) -> bytes:
        sent.append(name)
        frame = struct.pack(">i", 1 << 30) if framed else b""
        head = write_reply(name, number, empty(name))[:-1]
        return frame + head + b"\x0b\x00\x63" + struct.pack(">i", 1 << 30) + bytes(1 << 22)

    is_told = pytest.raises(MaybeApplied, match="reply is too long: see reply_mb limit_mb=1")
    with lying("hbase+thrift2", reply, framed=framed, reply_mb=1) as store, is_told:
        store.read(KEYS)
    assert len(sent) == 1, "sent again, it is as long"


def test_a_server_that_leaves_out_a_key_is_refused() -> None:
    """Also a key that is absent is in its answer."""
    found = [SERVED.Found(SERVED.Key(b"r0", b"d", b"x", b"t"))]

    def reply(name: str, number: int) -> bytes:
        return write_reply(name, number, getattr(SERVED.Transactional, f"{name}_result")(found))

    with lying_to_engine(reply) as engine, lying("txn", reply) as store:
        for one in (engine, store):
            with pytest.raises(NotApplied, match="keys are missing in the server's answer"):
                one.read(KEYS)


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
        lambda: store.check_and_put(CHECKS),
        lambda: store.check_and_read(CHECKS[:1], KEYS),
        store.list_tables,
        lambda: store.describe(b"t"),
        lambda: store.find_splits(b"t", 3),
    ]


def try_each(calls: list[Callable[[], object]]) -> None:
    for call in calls:
        with suppress(TxnError):
            call()


def try_gateway(scheme: str, seed: int) -> None:
    with lying(scheme, LyingReplies(SERVICES[scheme], seed)) as store:
        try_each(list_calls(store))


def try_engine(seed: int) -> None:
    with lying_to_engine(LyingReplies(SERVED.Transactional, seed)) as engine:
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


class NoisyRegionServer(FakeRegionServer):
    """Flips bits in its answers, each of which then ends its connection."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        super().__init__()

    def _send(self, connection: socket.socket, data: bytes, *, ends: bool) -> None:
        noisy, flips = bytearray(data), self._rng.choice((0, 0, 1, 2, 8))
        for _ in range(flips):
            noisy[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
        super()._send(connection, bytes(noisy), ends=ends or flips > 0)


def try_native(seed: int) -> None:
    with closing(NoisyRegionServer(seed)) as server:
        server.cells = {(key.row, b"d", b"x"): b"1" for key in KEYS}
        with closing(open_store(f"{server.uri}&timeout_ms=2000", ManualClock())) as store:
            assert isinstance(store, NativeStore)
            for call in [*list_calls(store), lambda: store.measure_tables([b"t"])]:
                server.pages = [([b"a", b"b"], False, b"c", True), ([b"d"], True, b"", False)] * 3
                try_each([call])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scheme", SERVICES)
def test_random_replies_end_in_our_errors_only(scheme: str, seed: int) -> None:
    """No caller is ready for others; and no value is handed out that is not whole."""
    try_gateway(scheme, seed)
    if scheme == "txn":
        try_engine(seed)


@pytest.mark.parametrize("seed", range(4))
def test_random_answers_of_region_servers_end_in_our_errors_only(seed: int) -> None:
    try_native(seed)


@pytest.mark.long
def test_many_random_replies_end_in_our_errors_only() -> None:
    for seed in range(1_000):
        for scheme in SERVICES:
            try_gateway(scheme, seed)
        try_engine(seed)
        try_native(seed)
