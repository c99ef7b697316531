"""Thrift requests out of bytes, which may arrive in any pieces."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException
from thriftpy2.transport import TCyMemoryBuffer

from txn.server.options import Limits
from txn.server.wire import Malformed, Source, WireCall, open_reader
from txn.stores.hbase.idl import IDL

ARGUMENTS = IDL.THBaseService.checkAndPut_args
METHODS = {"checkAndPut": ARGUMENTS}
CELLS = [IDL.TColumnValue(b"d", b"column%d" % number, b"value") for number in range(10)]
PUT = ARGUMENTS(b"table", b"row", b"d", b"q", None, IDL.TPut(b"row", CELLS))


def encode(arguments: Any) -> bytes:
    return encode_call("checkAndPut", arguments)


def encode_call(name: str, arguments: Any) -> bytes:
    buffer = TCyMemoryBuffer()
    protocol: Any = TCyBinaryProtocol(buffer)
    protocol.write_message_begin(name, 1, 7)
    protocol.write_struct(arguments)
    protocol.write_message_end()
    return bytes(buffer.getvalue())


def read(data: bytes, piece: int, limits: Limits | None = None) -> WireCall:
    """Read a request that arrives in pieces of this size."""
    pieces = iter([data[at : at + piece] for at in range(0, len(data), piece)])
    source = Source(lambda _: next(pieces, b""), lambda _: None, limits or Limits())
    assert source.arrives()
    reader, _ = open_reader(source)
    return reader.call(METHODS)


def test_a_request_may_arrive_in_any_pieces() -> None:
    data = encode(PUT)
    for piece in (1, 2, 3, 7, 50, len(data)):
        assert read(data, piece) == WireCall("checkAndPut", 1, 7, PUT)


def test_a_string_in_the_place_of_another_type_is_skipped() -> None:
    """As Thrift does with fields of types that it does not know, and not taken for that type."""
    data = encode(PUT)
    at = data.index(b"\x0c\x00\x06")  # the TPut
    spoilt = data[:at] + b"\x0b\x00\x06" + bytes([0, 0, 0, 2]) + b"no" + b"\0"
    refused = read(spoilt, len(spoilt)).refused
    assert isinstance(refused, TApplicationException)
    assert "field 'tput' was not present" in str(refused)


def test_the_limit_of_items_counts_fields() -> None:
    data = encode(PUT)
    read(data, len(data), Limits(items=60))
    for piece in (1, len(data)):
        with pytest.raises(Malformed, match="too many items limit=20"):
            read(data, piece, Limits(items=20))


def test_a_string_ends_within_the_message() -> None:
    data = encode(PUT)
    with pytest.raises(Malformed, match="longer than the message may be"):
        read(data + data, 2 * len(data), Limits(message_bytes=len(data) - 10))


def test_a_type_that_is_only_thriftpy2s_is_refused() -> None:
    """It tells strings of bytes from text by a type of its own, which no client sends."""
    data = encode(PUT).partition(b"\x0b\0\1")[0] + b"\x12\0\7\0\0\0\0\0"
    with pytest.raises(Malformed, match="unknown type type=18"):
        read(data, len(data))


@pytest.mark.parametrize("piece", [100, 1 << 20])
def test_containers_of_any_size_are_charged(piece: int) -> None:
    """Many small ones took 749 MB of a server that was given 200."""
    cells = [IDL.TColumnValue(b"", b"", b"") for _ in range(16)]
    puts = [IDL.TPut(b"", cells) for _ in range(100)]
    data = encode_call("putMultiple", IDL.THBaseService.putMultiple_args(b"t", puts))
    pieces = iter([data[at : at + piece] for at in range(0, len(data), piece)])
    charged: list[int] = []
    source = Source(lambda _: next(pieces, b""), charged.append, Limits())
    assert source.arrives()
    arguments = open_reader(source)[0].call({"putMultiple": IDL.THBaseService.putMultiple_args})
    assert arguments.arguments == IDL.THBaseService.putMultiple_args(b"t", puts)
    assert sum(charged) > 1_600 * (48 + sys.getsizeof(vars(cells[0]))) > 5 * len(data)
