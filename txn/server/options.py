"""The limits and options of a server, and its listening sockets.

Each bound holds for one server process. A bound on bytes is checked before the memory is taken.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from txn.errors import InvalidRequestError
from txn.model import KEEP_DELETES_MS

MEGABYTE = 1024 * 1024
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a server process. Durations are in milliseconds.

    connections: open at once; further ones are closed.
    message_bytes: of one request, including its frame.
    items: fields, elements and entries of one request together.
    depth: nesting of structs and containers in a request.
    memory_bytes: of all requests that are being read or carried out, and of replies being sent.
    idle_ms: the longest time without a request.
    request_ms: from the first byte of a request to its last, and again for reading the reply.
    grace_ms: how long a stop waits for requests that have begun.
    """

    connections: int = 512
    message_bytes: int = 64 * MEGABYTE
    items: int = 1_000_000
    depth: int = 32
    memory_bytes: int = 512 * MEGABYTE
    idle_ms: int = 600_000
    request_ms: int = 30_000
    grace_ms: int = 10_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise InvalidRequestError("limit must be at least 1", **{name: getattr(self, name)})


@dataclass(frozen=True, slots=True)
class Options:
    """How a server listens. workers: processes that share the ports and the store.

    tls_cert, tls_key: PEM files; the key may be in the certificate's file.
    keep_deletes_ms: the lifetime of delete markers; it must exceed the time for which `fsck` keeps
    transaction rows.
    """

    bind: str = "127.0.0.1"
    workers: int = 1
    tls_cert: Path | None = None
    tls_key: Path | None = None
    limits: Limits = Limits()
    keep_deletes_ms: int = KEEP_DELETES_MS + HOUR_MS


def listen(bind: str, port: int) -> socket.socket:
    """Return a listening socket for the port; 0 picks a free one."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    try:
        return socket.create_server((bind, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        message = "cannot listen"
        raise InvalidRequestError(message, bind=bind, port=port, cause=str(error)) from error
