"""The parsers of others that we give untrusted bytes to, in whatever version is installed.

`make lowest` runs this with the oldest that pyproject.toml allows. thriftpy2 and kazoo have their
tests in test_hostile_replies.py and test_hostile_zookeeper.py.
"""

from __future__ import annotations

import os
import subprocess
import sys

import h11
import msgpack
import pytest

from txn.errors import InvalidRequestError, TxnError
from txn.locks.hive.queries import list_query_accesses
from txn.tables.filters.patterns import searcher

DEEP = 200_000
GROUPS = """
from google.protobuf.message import DecodeError
from txn.stores.hbase.native.messages import PB
try:
    PB.ScanResponse.FromString(b"\\x9b\\x06" * 200_000)
except DecodeError:
    print("refused")
"""


@pytest.mark.parametrize("implementation", ["upb", "python"])
def test_protobuf_refuses_deep_groups(implementation: str) -> None:
    """In pure Python, 5.29.4 raised RecursionError (CVE-2025-4565)."""
    env = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation}
    command = [sys.executable, "-W", "ignore", "-c", GROUPS]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "refused\n", done.stderr


@pytest.mark.parametrize(
    "packed", [b"\x91" * DEEP, b"\x81\x01" * DEEP, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"]
)
def test_msgpack_refuses_depth_and_lengths(packed: bytes) -> None:
    with pytest.raises(ValueError):
        msgpack.unpackb(packed, use_list=False)


def test_h11_refuses_a_chunk_that_does_not_end() -> None:
    """0.14 skipped two bytes, whatever they were: a proxy may see another request in them
    (CVE-2025-43859)."""
    connection = h11.Connection(h11.SERVER)
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection.receive_data(head + b"5\r\nAAAAAXX2\r\nAA\r\n0\r\n\r\n")
    with pytest.raises(h11.RemoteProtocolError):
        while connection.next_event() is not h11.NEED_DATA:
            pass


@pytest.mark.parametrize("pattern", ["(" * DEEP + ")" * DEEP, "((a{100}){100}){100}"])
def test_re2_refuses_patterns_that_take_too_much(pattern: str) -> None:
    with pytest.raises(TxnError):
        searcher(pattern.encode())


@pytest.mark.parametrize("deep", ["(", "NOT ", "CASE WHEN "])
def test_sqlglot_ends_with_an_error_at_deep_statements(deep: str) -> None:
    with pytest.raises(InvalidRequestError):
        list_query_accesses("SELECT * FROM t WHERE " + deep * 3_000 + "x", "db")
