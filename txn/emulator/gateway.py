"""The common part of HBase's two gateways: names, arguments, changes of rows, and errors.

A gateway answers what HBase's server refuses with the exceptions of its interface, and what already
its own client finds wrong mostly with Thrift's own "Internal error". Both begin here with the
words that HBase's have, and go on to say what is wrong.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

from thriftpy2.thrift import TApplicationException, TType

from txn.errors import InvalidRequestError, TxnError
from txn.model import MAX_CELL, MAX_ROW
from txn.tables.catalog import Region, is_table_name
from txn.tables.changes import key_value_bytes
from txn.tables.operations import (
    MAX_TIMESTAMP,
    Condition,
    FamilySettings,
    Operation,
    Put,
    Range,
    Remove,
    Result,
)
from txn.tables.refusal import Reason, Refused
from txn.tables.rows import Rows

CLUSTER = "00000000-0000-4000-8000-74786e2d7365"
HOST = "localhost"
PORT = 16020
DEFAULT_NAMESPACE = b"default"
FOREVER_S = 2_147_483_647
WAIT_LIMIT_MS = 20
"""A cell from further in the future than this is not waited for."""

HBASE = "org.apache.hadoop.hbase"
_CLASSES: dict[Reason, str] = {
    "table not found": f"{HBASE}.TableNotFoundException",
    "table exists": f"{HBASE}.TableExistsException",
    "table not enabled": f"{HBASE}.TableNotEnabledException",
    "table not disabled": f"{HBASE}.TableNotDisabledException",
    "no such column family": f"{HBASE}.regionserver.NoSuchColumnFamilyException",
    "namespace not found": f"{HBASE}.NamespaceNotFoundException",
    "namespace exists": f"{HBASE}.NamespaceExistException",
    "constraint": f"{HBASE}.constraint.ConstraintException",
    "illegal argument": "java.lang.IllegalArgumentException",
    "do not retry": f"{HBASE}.DoNotRetryIOException",
    "retries exhausted": f"{HBASE}.client.RetriesExhaustedException",
}
OPTIONAL = frozenset({"attributes", "columns", "value", "splitKeys", "regex", "logQueryFilter"})
"""The arguments without which HBase's gateways can do what is asked."""
_ZEROS: dict[int, int] = {TType.BOOL: 0, TType.I32: 0, TType.I64: 0}  # as in Java
_VARIANT = re.compile("(Ver|WithColumns|WithStop)?(Ts)?$")
"""Ends the names of methods that differ only in which arguments they have."""

# ---------------------------------------------------------------------------------- names


def check_table(name: bytes | None) -> bytes:
    """Return the name; refuse one that no table of HBase can have."""
    if not name or not is_table_name(name):
        raise Refused("illegal argument", "not a legal table name", table=name)
    return name


def region_name(table: bytes, region: Region) -> bytes:
    """Return the whole name of a region, in the form that HBase gives it."""
    name = b"%s,%s,%d" % (table, region.start, region.number)
    digest = hashlib.md5(name, usedforsecurity=False).hexdigest()
    return b"%s.%s." % (name, digest.encode())


# ------------------------------------------------------------------------------ arguments


def check_time(timestamp: int) -> int | None:
    """Return the timestamp, None for HBase's "now"."""
    refuse_negative(timestamp)
    return time_of(timestamp)


def time_of(timestamp: int) -> int | None:
    """Return the timestamp as it is, None for HBase's "now"."""
    return None if timestamp == MAX_TIMESTAMP else timestamp


def refuse_negative(timestamp: int) -> None:
    """Raise Refused for a time before all others."""
    if timestamp < 0:
        raise Refused("illegal argument", "timestamps are not negative", timestamp=timestamp)


def range_of(start: bytes | None, stop: bytes | None, *, reverse: bool = False) -> Range:
    """Return a range of rows; as in HBase, from a row to itself means that row."""
    first, last = start or b"", stop or b""
    if max(len(first), len(last)) > MAX_ROW:
        raise Refused("illegal argument", "a row is at most 32767 bytes", bytes=len(first))
    return Range(first, last, include_stop=bool(first) and first == last, reverse=reverse)


def ttl_of(attributes: Mapping[bytes, bytes] | None) -> int | None:
    """Return the TTL (ms) that a mutation's attributes give to its cells; None: they give none."""
    given = (attributes or {}).get(b"_ttl")
    if given is None:
        return None
    if len(given) < 8:
        raise Refused("retries exhausted", "a _ttl is 8 bytes", bytes=len(given))
    return time_of(int.from_bytes(given[:8], signed=True))


def ttl_ms(seconds: int) -> int | None:
    """Return a family's TTL of HBase in milliseconds, None for its "for ever"."""
    return None if seconds == FOREVER_S else seconds * 1000


def ttl_s(settings: FamilySettings) -> int:
    """Return a family's TTL as HBase shows it."""
    return FOREVER_S if settings.ttl_ms is None else settings.ttl_ms // 1000


def batch_of(size: int | None) -> int | None:
    """Return how many versions a result may hold; HBase takes what is not positive for any."""
    return size if size is not None and size > 0 else None


def check_sizes(row: bytes, puts: Iterable[Put]) -> None:
    """Refuse the puts that HBase's own client does not send; those of servers are not many more."""
    for family, column, value, *_ in puts:
        size = key_value_bytes(row, family, column, value)
        if size > MAX_CELL:
            raise Refused(
                "illegal argument", "the cell is too large", cell_bytes=size, limit=MAX_CELL
            )


def require(struct: Any, *names: str) -> None:
    """Refuse a struct of the interface without these fields, which a gateway of HBase needs."""
    for name in names:
        if getattr(struct, name) is None:
            raise InternalError("a field is missing", field=name)


# -------------------------------------------------------------------------------- changes


class PacedRows(Rows):
    """Rows whose changes return only when the server's clock has come past what they wrote.

    A delete of "now" hides what is put in the same millisecond, and a count in the millisecond of
    the last one gets the next one's timestamp. HBase needs milliseconds for a request, so its
    clients never find that out; here, one that puts after its own delete, or sets a counter that it
    has just counted, would. So those changes, and no others, take up to a millisecond more.
    """

    __slots__ = ()

    def mutate(
        self,
        table: bytes,
        mutations: Sequence[tuple[bytes, Sequence[Operation]]],
        *,
        durable: bool = True,
    ) -> list[Result]:
        results = super().mutate(table, mutations, durable=durable)
        if any(_deletes_now(operations) for _, operations in mutations):
            self._wait_for(self._clock.wall_ms() + 1)
        written = [version.timestamp for result in results for version in result.versions]
        if written:
            self._wait_for(max(written))
        return results

    def mutate_all(
        self,
        table: bytes,
        mutations: Sequence[tuple[bytes, Sequence[Operation]]],
        *,
        durable: bool,
    ) -> None:
        """Change many rows; where the server refuses some of them, HBase does the others."""
        with refuse_as_many():
            try:
                self.mutate(table, mutations, durable=durable)
            except Refused as refused:
                if refused.reason == "no such column family" and len(mutations) > 1:
                    for each in mutations:
                        with suppress(Refused):
                            self.mutate(table, [each], durable=durable)
                raise

    def check_and_mutate(
        self,
        table: bytes,
        row: bytes,
        condition: Condition,
        operations: Sequence[Operation],
        *,
        durable: bool = True,
    ) -> bool:
        done = super().check_and_mutate(table, row, condition, operations, durable=durable)
        if done and _deletes_now(operations):
            self._wait_for(self._clock.wall_ms() + 1)
        return done

    def _wait_for(self, timestamp: int) -> None:
        missing_ms = timestamp - self._clock.wall_ms()
        if 0 < missing_ms <= WAIT_LIMIT_MS:
            for _ in range(missing_ms):
                self._clock.sleep_ms(1)
                if self._clock.wall_ms() >= timestamp:
                    return


def _deletes_now(operations: Iterable[Operation]) -> bool:
    return any(isinstance(one, Remove) and one.timestamp is None for one in operations)


# --------------------------------------------------------------------------------- errors


class InternalError(InvalidRequestError):
    """A gateway of HBase fails at this request, with no error of its interface."""


class PartialFailure(InvalidRequestError):
    """Of a request about many rows some were refused, which HBase calls worth a retry."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(f"Failed 1 action: {format_error(refused)}: 1 time")
        self.refused = refused


@contextmanager
def refuse_as_many(rows: int = 2) -> Iterator[None]:
    """Make of what the server refuses in a request about so many rows what HBase makes of it."""
    try:
        yield
    except Refused as refused:
        if rows < 2 or refused.reason == "illegal argument":
            raise
        raise PartialFailure(refused) from refused


@contextmanager
def fail_internally() -> Iterator[None]:
    """Make of what is refused what a gateway of HBase makes of it before it looks at the table."""
    try:
        yield
    except Refused as refused:
        raise InternalError(str(refused)) from refused


def reason_of(error: TxnError) -> Reason:
    """Return which kind of refusal it is."""
    return error.reason if isinstance(error, Refused) else "illegal argument"


def format_error(error: TxnError) -> str:
    """Return the error's message as HBase would begin it, with the name of the Java class."""
    if not isinstance(error, InvalidRequestError):
        return f"java.io.IOException: {error}"
    return f"{_CLASSES[reason_of(error)]}: {error}"


def make_internal(method: str, error: Exception) -> TApplicationException:
    """Return the answer of HBase's gateways where they fail themselves, with the reason."""
    return TApplicationException(
        TApplicationException.INTERNAL_ERROR, f"Internal error processing {method}: {error}"
    )


# ------------------------------------------------------------------------------- services


def join_services(
    service: Any, explain: Callable[[str, TxnError], Exception], *parts: object
) -> object:
    """Return an object with all methods of the service, each carried out by the part that has it.

    Parts take the interface's arguments by their names there. One that has no method of a name,
    such as getRowTs, has it without that ending, for all arguments. explain: makes the service's
    own exception of an error in the method of that name.
    """
    return SimpleNamespace(
        **{name: _make_call(service, name, explain, parts) for name in service.thrift_services}
    )


def _make_call(
    service: Any, name: str, explain: Callable[[str, TxnError], Exception], parts: Sequence[object]
) -> Callable[..., Any]:
    fields = getattr(service, f"{name}_args").thrift_spec.values()
    zeros = {field[1]: _ZEROS.get(field[0]) for field in fields}
    method: Callable[..., Any] = next(
        getattr(part, each)
        for each in (name, _VARIANT.sub("", name))
        for part in parts
        if hasattr(part, each)
    )

    def call(*arguments: Any) -> Any:
        try:
            given = dict(zip(zeros, arguments, strict=True))
            if None in arguments:
                _complete(given, zeros)
            return method(**given)
        except InternalError as error:
            raise make_internal(name, error) from error
        except TxnError as error:
            raise explain(name, _name_table(error, arguments)) from error

    return call


def _complete(given: dict[str, Any], zeros: Mapping[str, int | None]) -> None:
    """Make of arguments that a request does not have what Java makes of them: numbers are 0, and
    what needs anything else fails."""
    for name, zero in zeros.items():
        if given[name] is None:
            given[name] = zero
            if zero is None and name not in OPTIONAL:
                raise InternalError("an argument is missing", argument=name)


def _name_table(error: TxnError, arguments: tuple[object, ...]) -> TxnError:
    """Return the error, or a worse one: HBase knows by its name that some table cannot be."""
    table = getattr(arguments[0], "table", arguments[0]) if arguments else None
    refused = error.refused if isinstance(error, PartialFailure) else error
    if reason_of(refused) == "table not found" and isinstance(table, bytes):
        try:
            check_table(table)
        except Refused as worse:
            return worse
    return error
