"""A client that sends what no client would, beside ones that do nothing wrong.

Its frames are recorded from real calls of every service and then spoilt, or made of chance alone.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from thriftpy2.protocol import TCompactProtocol, TCyBinaryProtocol
from thriftpy2.thrift import TClient
from thriftpy2.transport import TCyMemoryBuffer

from tests.integration.serving import Served, client, raw, rest, served
from txn import Exact, Key, Mutation, Not, Some, connect
from txn.emulator import thrift1
from txn.emulator.thrift2 import service as thrift2
from txn.service.messages import IDL, encode_assertions, encode_key, encode_mutation

A_CONNECTION = 10
ATTACKERS = 4
MEGABYTES = 300  # that the server may have taken at its peak
TWO = thrift2.IDL
ONE = thrift1.IDL
X = Key("x", "d", "v", "attacked")


class Recorder(TClient):
    """A client whose requests go nowhere: it keeps their bytes."""

    def __init__(self, service: Any, protocol: Any, framed: bool) -> None:
        self.buffer = TCyMemoryBuffer()
        self.framed = framed
        self.recorded: list[bytes] = []
        super().__init__(service, protocol(self.buffer))

    def _recv(self, _api: str) -> None:
        data = self.buffer.getvalue()
        self.buffer.clean()
        self.recorded.append(struct.pack(">i", len(data)) + data if self.framed else data)


def calls_of_thrift1(c: Any) -> None:
    mutations = [ONE.Mutation(column=b"d:q", value=b"v" * 40)]
    c.createTable(b"attacked", [ONE.ColumnDescriptor(name=b"d:", maxVersions=3)])
    c.getRow(b"attacked", b"row", {})
    c.mutateRows(
        b"attacked", [ONE.BatchMutation(row=b"row", mutations=mutations)] * 3, {b"a": b"b"}
    )
    scan = ONE.TScan(startRow=b"a", stopRow=b"z", columns=[b"d"], filterString=b"PrefixFilter('r')")
    c.scannerOpenWithScan(b"attacked", scan, {})
    c.scannerGetList(0, 10)


def calls_of_thrift2(c: Any) -> None:
    put = TWO.TPut(row=b"row", columnValues=[TWO.TColumnValue(b"d", b"q", b"v" * 40)])
    c.putMultiple(b"attacked", [put] * 3)
    c.getMultiple(b"attacked", [TWO.TGet(row=b"row", columns=[TWO.TColumn(family=b"d")])] * 3)
    c.checkAndPut(b"attacked", b"row", b"d", b"q", b"v", put)
    c.increment(b"attacked", TWO.TIncrement(b"row", [TWO.TColumnIncrement(b"d", b"n", 2)]))
    scan = TWO.TScan(startRow=b"a", filterString=b"PageFilter(2) AND KeyOnlyFilter()")
    c.getScannerResults(b"attacked", scan, 5)


def calls_of_transactional(c: Any) -> None:
    assertions = encode_assertions([Not(Some(X)) | (Exact(X, "1") & Some(X))])
    c.commit([encode_mutation(Mutation(X, "1"))], assertions, IDL.Options(once=b"o", ack=2))
    c.commitMany([IDL.Request([encode_mutation(Mutation(X, "1"))], assertions)] * 3, None)
    c.read([encode_key(X)] * 3, IDL.Options(token="t"))


RECORDED: dict[str, tuple[Any, Callable[[Any], None]]] = {
    "thrift1": (thrift1.SERVICE, calls_of_thrift1),
    "thrift2": (thrift2.SERVICE, calls_of_thrift2),
    "transactional": (IDL.Transactional, calls_of_transactional),
}


def recorded(name: str) -> list[list[bytes]]:
    """The calls of a service, for each way to speak."""
    service, calls = RECORDED[name]
    found = []
    for protocol in (TCyBinaryProtocol, TCompactProtocol):
        for framed in (False, True):
            recorder = Recorder(service, protocol, framed)
            calls(recorder)
            found.append(recorder.recorded)
    return found


NUMBERS = [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\x10\0\0", b"\0\0\0\0"]

SPOIL: list[Callable[[bytes, int, Random], bytes]] = [
    lambda data, at, rng: data[:at] + rng.randbytes(1) + data[at + 1 :],
    lambda data, at, rng: data[:at] + rng.choice(NUMBERS) + data[at + 4 :],
    lambda data, at, rng: data[:at] + data[at + rng.randint(1, 8) :],
    lambda data, at, rng: data[:at] + data[at : at + rng.randint(1, 60)] + data[at:],
    lambda data, at, rng: data[:at],
    lambda data, at, rng: data[:at] + rng.randbytes(rng.randint(1, 30)) + data[at:],
]


def spoilt(frame: bytes, rng: Random) -> bytes:
    """The frame with something wrong: bits, numbers, a piece lost or doubled; or chance alone."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.randint(1, 200))
    for _ in range(rng.randint(1, 4)):
        frame = rng.choice(SPOIL)(frame, rng.randrange(len(frame) + 1), rng)
    return frame


def attack(server: Served, seed: int, frames: int) -> int:
    """Send so many frames; return how many connections the server has answered or closed."""
    rng = Random(seed)
    names = sorted(RECORDED)
    calls = {name: recorded(name) for name in names}
    ended = 0
    for _ in range(frames // A_CONNECTION):
        name = rng.choice(names)
        way = rng.choice(calls[name])
        with raw(server.ports[name]) as connected, suppress(OSError):
            for _ in range(A_CONNECTION):
                frame = rng.choice(way)
                connected.sendall(frame if rng.random() < 0.3 else spoilt(frame, rng))
            connected.shutdown(socket.SHUT_WR)
            rest(connected)
        ended += 1
    return ended


@contextmanager
def honest(server: Served) -> Iterator[list[int]]:
    """Clients that write and read back what they wrote, until the end; how often each has."""
    stop, counts = threading.Event(), [0, 0]

    def put() -> None:
        with client(server.ports["thrift2"], service=thrift2.SERVICE) as c:
            while not stop.is_set():
                counts[0] += 1
                value = TWO.TColumnValue(b"d", b"v", b"%d" % counts[0])
                c.put(b"honest", TWO.TPut(row=b"two", columnValues=[value]))
                assert c.get(b"honest", TWO.TGet(row=b"two")).columnValues[0].value == value.value

    def commit() -> None:
        key = Key("three", "d", "v", "honest")
        with connect(server.uris["transactional"]) as engine:
            while not stop.is_set():
                counts[1] += 1
                engine.commit([Mutation(key, str(counts[1]))])
                assert (cell := engine.read([key])[key]) and cell.value == b"%d" % counts[1]

    with ThreadPoolExecutor(2) as pool, ExitStack() as ending:
        works = [pool.submit(work) for work in (put, commit)]
        ending.callback(lambda: [work.result() for work in works])
        ending.callback(stop.set)
        yield counts


@pytest.mark.parametrize("frames", [2_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_hostile_frames_harm_nobody(tmp_path: Path, frames: int) -> None:
    """The server lives, its memory is bounded, and honest clients beside it see no error."""
    ports = ["--thrift1", "0", "--thrift2", "0", "--transactional", "0"]
    with served(f"embedded://{tmp_path}/store?sync=off", tmp_path / "log", *ports) as server:
        with connect(server.uris["transactional"]) as engine:
            for table in ("attacked", "honest"):
                engine.ensure_table(table, ["d"])
        with honest(server) as counts, ThreadPoolExecutor(ATTACKERS) as pool:
            seeds = range(ATTACKERS)
            ended = list(pool.map(lambda seed: attack(server, seed, frames // ATTACKERS), seeds))
        assert sum(ended) == frames // A_CONNECTION
        assert min(counts) > 0
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
        assert int(line.split()[1]) // 1024 < MEGABYTES
        assert server.process.poll() is None
