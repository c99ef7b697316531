"""`python -m tests.bench.thrift_cpu`: what the calls of a Thrift 2 store cost in Python alone.

The gateway answers from memory, in the same thread: no kernel, no waiting. Each call is timed
beside thriftpy2's writing of its requests and reading of their replies, which is left when all else
is taken away; each figure is the least of some rounds, since noise only adds. `transfer` are the 12
requests of one.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.transport import TCyBufferedTransport
from thriftpy2.utils import deserialize, serialize

from txn.model import Check, Edit, Key
from txn.stores import gateway, open_store
from txn.stores.gateway import Connection, Request
from txn.stores.hbase.idl import IDL

ROUNDS = 15
REPEATED = 2_000
ROW = b"transaction.1700000000000.0123456789abcdef0123456789abcdef"
KEYS = [Key(f"account{number:04}", "d", "balance", "bench") for number in range(2)]
STATUS = Key(ROW, "t", "status", "txn")
SINCE = Key(ROW, "t", "at.2-ASSERTED", "txn")
STEP = [Check(STATUS, b"1-LOCKED", ((SINCE, b""), (STATUS, b"2-ASSERTED")))]
LOCKS = [Check(key.lock, b"", ((key.lock, ROW),)) for key in KEYS]
CELLS = [cell for key in KEYS for cell in (key, key.lock, key.tag)]
EDITS = [Edit(key, b"1000", 5) for key in KEYS]
IN_A_TRANSFER = {"step": 4, "locks": 2, "step and cells": 1, "edits": 2}

Call = Callable[[], object]


class Memory:
    """What stands for a socket: it has a reply to each request."""

    def __init__(self, *_: object) -> None:
        self._replies: deque[bytes] = deque()
        self.due_ns = 0

    def write(self, data: bytes) -> None:
        length = int.from_bytes(data[4:8])
        name, head = data[8 : 8 + length].decode(), data[4 : 12 + length]
        self._replies.append(b"\x80\x01\x00\x02" + head + REPLIES[name])

    def read(self, size: int) -> bytes:
        return self._replies.popleft()

    def is_readable(self) -> bool:
        return False

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _replies() -> dict[str, bytes]:
    cells = [
        IDL.TColumnValue(b"d", name, value, 1_700_000_000_000)
        for name, value in ((b"balance", b"1000"), (b"balance_lock", ROW))
    ]
    rows = [IDL.TResult(key.row, cells) for key in KEYS]
    service = IDL.THBaseService
    return {
        "checkAndPut": serialize(service.checkAndPut_result(success=True)),
        "putMultiple": serialize(service.putMultiple_result()),
        "getMultiple": serialize(service.getMultiple_result(success=rows)),
    }


REPLIES = _replies()


def bare(name: str, given: tuple[Any, ...]) -> Call:
    """Return what writes a request, and reads its reply, with thriftpy2 and nothing else."""
    service = IDL.THBaseService
    kind = getattr(service, name + "_args")
    arguments = deserialize(kind(), serialize(kind(*given)))
    result = getattr(service, name + "_result")
    transport = TCyBufferedTransport(Memory(), gateway.BUFFER)
    protocol = TCyBinaryProtocol(transport)

    def call() -> None:
        protocol.write_message_begin(name, 1, 1)
        protocol.write_struct(arguments)
        transport.flush()
        protocol.read_message_begin()
        protocol.read_struct(result())

    return call


def least_us(call: Call) -> float:
    """Return the least processor time of a call."""
    times = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(REPEATED):
            call()
        times.append((time.thread_time() - began) * 1e6 / REPEATED)
    return min(times)


def measure() -> dict[str, tuple[float, float]]:
    """Return, for each call, its time and that of its requests with thriftpy2 alone."""
    with (
        patch.object(gateway, "Wire", Memory),
        patch.object(gateway, "connect_socket", lambda *_: None),
    ):
        store = open_store("hbase+thrift2://127.0.0.1:1")
        step = partial(store.check_and_put, STEP)
        calls: dict[str, Call] = {
            "step": step,
            "locks": partial(store.check_and_put, LOCKS),
            "cells": partial(store.read, CELLS),
            "step and cells": partial(store.check_and_read, STEP, CELLS),
            "edits": partial(store.write, EDITS),
        }
        for call in calls.values():
            call()
            call()  # where all connections are open
        found = {}
        for name, call in calls.items():
            requests: list[tuple[str, tuple[Any, ...]]] = []
            send = Connection.send

            def record(connection: Connection, request: Request[Any], **named: Any) -> None:
                requests.append(request[:2])  # noqa: B023
                send(connection, request, **named)  # noqa: B023

            with patch.object(Connection, "send", record):
                call()
            alone = [bare(*request) for request in requests]
            found[name] = least_us(call), sum(least_us(each) for each in alone)
        return found


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m tests.bench.thrift_cpu", description=__doc__
    ).parse_args()
    found = measure()
    total = [sum(found[name][i] * count for name, count in IN_A_TRANSFER.items()) for i in (0, 1)]
    for name, (ours, alone) in {**found, "transfer": tuple(total)}.items():
        print(f"{name:20} {ours:7.1f} µs, thriftpy2 {alone:6.1f}, beyond it {ours - alone:6.1f}")


if __name__ == "__main__":
    main()
