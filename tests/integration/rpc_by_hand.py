"""One question in HBase's own protocol, written out by hand: what a server asks of whoever comes.

No client of ours takes part: these tests are about servers that clients are then tried against.
"""

from __future__ import annotations

import socket
import struct

SIMPLE, KERBEROS = 0x50, 0x51
# A service, a method, and what its answer has, in Protobuf's encoding: true, and a host's name.
MASTER = ("MasterService", "IsMasterRunning", b"\x02\x08\x01")
REGION_SERVER = ("AdminService", "GetServerInfo", b"\x09localhost")


def greet(connection: socket.socket, how: int) -> None:
    """Say that HBase's protocol follows, and how the client will say who it is."""
    connection.sendall(b"HBas\0" + bytes([how]))


def ask(connection: socket.socket, service: str, method: str) -> bytes:
    """Return what a server answers somebody who says a name. Raises OSError where it hangs up."""
    greet(connection, SIMPLE)
    return ask_known(connection, service, method, b"tester")


def ask_known(connection: socket.socket, service: str, method: str, user: bytes) -> bytes:
    """Return the answer to an empty request, after greetings. Raises OSError."""
    header = _text(1, _text(1, user)) + _text(2, service.encode())
    request = b"\x08\x01" + _text(3, method.encode()) + b"\x20\x01"
    connection.sendall(_sized(header) + _sized(_delimited(request) + _delimited(b"")))
    (size,) = struct.unpack(">I", receive(connection, 4))
    return receive(connection, size)


def receive(connection: socket.socket, size: int) -> bytes:
    """Return that many bytes. Raises ConnectionError where the other side hangs up first."""
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionError(f"the server hung up received={received!r}")
        received += part
    return received


def _text(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _delimited(value)


def _delimited(value: bytes) -> bytes:
    assert len(value) < 0x80
    return bytes([len(value)]) + value


def _sized(message: bytes) -> bytes:
    return struct.pack(">I", len(message)) + message
