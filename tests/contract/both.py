"""A real HBase and the emulator, asked the same through the same Thrift service.

An answer is compared as data: timestamps of the present are all one, and an error is its class,
whether it may be retried, and the Java exception that its message begins with. No two calls fall
into one millisecond, where two versions would be one and a delete would hide what is put after it.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from thriftpy2.rpc import make_client
from thriftpy2.thrift import TApplicationException, TException, TPayload

from tests.integration.hbase import HBase
from txn.clock import SystemClock

TIMEOUT_MS = 90_000
DAY_MS = 86_400_000
CLOCK = SystemClock()
NOW_MS = CLOCK.wall_ms()

TTLS = [struct.pack(">q", ms) for ms in (-1, 0, 30_000, 3_600_000, 1 << 60, (1 << 63) - 2)]
TTLS += [struct.pack(">q", (1 << 63) - 1), struct.pack(">q", 30_000) + b"more"]
"""Of a cell that is a minute old, some of which are over."""

CHANCE = {"partial"}  # of a batch that is exactly full, HBase says this or that

_JAVA = re.compile(r"(?:[a-z]\w*\.)+([A-Z]\w*)")
_BARE = {
    re.compile(r"[\w:.-]+"): "TableNotFoundException",
    re.compile(r"[\w:.-]+ is disabled\."): "TableNotEnabledException",
    re.compile(r"tableName=.*, state=ENABLED"): "TableNotDisabledException",
}


@dataclass(frozen=True)
class Both:
    """Two clients of one service, with tables of the same names behind them."""

    hbase: Any
    emulator: Any

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call both, require the same answer, and return it; one that raised is None."""
        return self.each(lambda client: getattr(client, method)(*arguments), (method, arguments))

    def each(self, call: Callable[[Any], Any], of: object = None) -> Any:
        """Do something with each client, require the same answer, and return it."""
        found = [answer(call, client) for client in self]
        CLOCK.sleep_ms(1)
        hbase, emulator = map(shown, found)
        if emulator != hbase:
            raise AssertionError(f"asked {of}\n  hbase    {hbase}\n  emulator {emulator}")
        return found[0].value

    def __iter__(self) -> Iterator[Any]:
        return iter((self.hbase, self.emulator))


@dataclass(frozen=True)
class Answer:
    """What a call came to."""

    value: Any = None
    error: tuple[Any, ...] | None = None


def answer(call: Callable[..., Any], *arguments: Any) -> Answer:
    """Call, and return the answer, errors of the service among them."""
    try:
        return Answer(call(*arguments))
    except TException as error:
        return Answer(error=described(error))


def described(error: TException) -> tuple[Any, ...]:
    """Return what of an error clients can depend on."""
    message = str(error.message or "").partition("\n")[0]
    if isinstance(error, TApplicationException):
        return "TApplicationException", error.type, message.partition(":")[0][:60]
    kind = type(error).__name__
    if message.startswith("Failed "):
        return kind, error.canRetry, "several"
    java = _JAVA.match(message)
    for pattern, name in _BARE.items():
        if java is None and pattern.fullmatch(message):
            return kind, getattr(error, "canRetry", None), name
    return kind, getattr(error, "canRetry", None), java and java[1]


def shown(value: Any) -> Any:
    """Return a value as data that can be compared, without what differs from second to second."""
    if isinstance(value, Answer):
        return ("error", value.error) if value.error else shown(value.value)
    if isinstance(value, TPayload):
        parts = {name: shown(part) for name, part in vars(value).items() if name not in CHANCE}
        return type(value).__name__, parts
    if isinstance(value, dict):
        return {name: shown(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [shown(part) for part in value]
    if isinstance(value, int) and abs(value - NOW_MS) < DAY_MS:
        return "now"
    return value


@contextmanager
def both(service: Any, real: HBase, emulated: HBase, kind: str) -> Iterator[Both]:
    """Open a client of the service to each of the two."""
    with ExitStack() as stack:
        clients = []
        for found in (real, emulated):
            parts = urlsplit(getattr(found, kind))
            client = make_client(service, parts.hostname, parts.port, timeout=TIMEOUT_MS)
            clients.append(stack.enter_context(closing(client)))
        yield Both(*clients)


def fresh(prefix: str) -> bytes:
    """Return a name that nobody else has."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}".encode()
