"""A real HBase and the emulator, asked the same through the same Thrift service.

An answer is compared as data: timestamps of the present are all one, and an error is its class,
whether it may be retried, and the Java exception that its message begins with. No two calls fall
into one millisecond, where two versions would be one and a delete would hide what is put after it.

A table of calls has behaviours, and each has lists of calls: methods by name, or functions of a
client, and their arguments. There `T` is the shared table; `R` is a row with three versions of d:x
and other columns, `EMPTY` one without any, and `NEW` a name that nobody else has, other ones in
each list. After each call that may change something the two rows are compared.
"""

import re
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from thriftpy2.rpc import make_client
from thriftpy2.thrift import TApplicationException, TException, TPayload

from tests.integration.hbase import HBase
from txn.clock import SystemClock
from txn.emulator.thrift1 import IDL as ONE
from txn.stores.hbase.idl import IDL as TWO

T, R, EMPTY, NEW = b"<table>", b"<row>", b"<empty>", b"<new>"
ABSENT = b"emulator-no-such-table"
PRESENT = (1 << 63) - 1
READS = ("get", "is", "exists", "scan", "open", "told")
Calls = dict[str, list[list[tuple[Any, ...]]]]

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

    def ask(self, method: str | Callable[..., Any], *arguments: Any) -> None:
        """Call a method of both, or a function with both, and require the same answer."""

        def answer(client: Any) -> Any:
            try:
                if callable(method):
                    return shown(method(client, *arguments))
                return shown(getattr(client, method)(*arguments))
            except TException as error:
                return "error", described(error)

        hbase, emulator = answer(self.hbase), answer(self.emulator)
        CLOCK.sleep_ms(1)
        asked = f"asked {method} {arguments}\n  hbase    {hbase}\n  emulator {emulator}"
        assert emulator == hbase, asked


def described(error: Any) -> tuple[Any, ...]:
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


@dataclass(frozen=True)
class Ends:
    """Both services of both, and a table of three regions that they share."""

    one: Both
    two: Both
    table: bytes

    def run(self, service: Both, calls: Iterable[tuple[Any, ...]]) -> None:
        """Do the calls of a list, in rows of its own."""
        names = {
            T: self.table,
            R: fresh("row"),
            EMPTY: fresh("row"),
            NEW: fresh("emulator").replace(b"-", b"_"),
        }
        cells = [
            *(TWO.TColumnValue(b"d", b"x", b"%d" % time, time) for time in (10, 20, 30)),
            TWO.TColumnValue(b"d", b"y", b"1"),
            TWO.TColumnValue(b"d", b"", b"2"),
            TWO.TColumnValue(b"e", b"z", b""),
            TWO.TColumnValue(b"e", b"x", b"3", 40),
        ]
        self.two.ask("put", self.table, TWO.TPut(names[R], cells, timestamp=15))
        for call in calls:
            method, *arguments = named(call, names)
            service.ask(method, *arguments)
            if not getattr(method, "__name__", method).startswith(READS):
                self.compare(names[R], names[EMPTY])

    def compare(self, *rows: bytes) -> None:
        """Compare all versions of rows."""
        gets = [TWO.TGet(row, maxVersions=1000) for row in rows]
        self.two.ask("getMultiple", self.table, gets)


def named(value: Any, names: Mapping[bytes, bytes]) -> Any:
    """Return a call with names where it has placeholders."""
    if isinstance(value, bytes):
        for placeholder, name in names.items():
            value = value.replace(placeholder, name)
    elif isinstance(value, str):
        value = named(value.encode(), names).decode()
    elif isinstance(value, TPayload):
        value = copy(value)
        for name, part in vars(value).items():
            setattr(value, name, named(part, names))
    elif isinstance(value, dict):
        value = {named(name, names): named(part, names) for name, part in value.items()}
    elif isinstance(value, list | tuple):
        value = type(value)(named(part, names) for part in value)
    return value


@contextmanager
def open_ends(real: HBase, emulated: HBase) -> Iterator[Ends]:
    """Connect to both services of both, and make the table."""
    with (
        both(ONE.Hbase, real, emulated, "thrift1") as one,
        both(TWO.THBaseService, real, emulated, "thrift2") as two,
    ):
        table = fresh("emulator")
        name = TWO.TTableName(None, table)
        families = [TWO.TColumnFamilyDescriptor(name=each, maxVersions=3) for each in (b"d", b"e")]
        two.ask("createTable", TWO.TTableDescriptor(name, families), [b"m", b"c"])
        yield Ends(one, two, table)
        two.ask("disableTable", name)
        two.ask("deleteTable", name)


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
