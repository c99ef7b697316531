"""The common part of HBase's two gateways: names, arguments, row changes and errors.

HBase's gateways report errors of its server with exceptions of the Thrift interface. Errors of its
client mostly become Thrift's own "Internal error". Our messages add the reason to HBase's words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

from thriftpy2.thrift import TApplicationException, TType

from txn.errors import InvalidRequestError, TxnError
from txn.model import MAX_CELL, MAX_ROW
from txn.tables import operations as ops
from txn.tables.catalog import is_table_name
from txn.tables.changes import key_value_bytes
from txn.tables.rows import Rows

CLUSTER = "00000000-0000-4000-8000-74786e2d7365"
HOST = "localhost"
PORT = 16020
DEFAULT_NAMESPACE = b"default"
FOREVER_S = 2_147_483_647
WAIT_LIMIT_MS = 20  # cells that lie further in the future are not waited for
HBASE = "org.apache.hadoop.hbase"
_CLASSES: dict[ops.Reason, str] = {
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
"""The arguments that HBase's gateways do not require."""
_ZEROS: dict[int, int] = {TType.BOOL: 0, TType.I32: 0, TType.I64: 0}  # as in Java
_VARIANT = re.compile("(Ver|WithColumns|WithStop|WithSplit)?(Ts)?$")
"""The endings of methods that differ only in their arguments."""


def check_table(name: bytes | None) -> bytes:
    if not name or not is_table_name(name):
        raise ops.Refused("illegal argument", "not a legal table name", table=name)
    return name


def check_time(timestamp: int) -> int | None:
    """Return a timestamp that is not negative, or None for HBase's "now"."""
    refuse_negative(timestamp)
    return time_of(timestamp)


def time_of(timestamp: int) -> int | None:
    return None if timestamp == ops.MAX_TIMESTAMP else timestamp


def refuse_negative(timestamp: int) -> None:
    if timestamp < 0:
        raise ops.Refused("illegal argument", "timestamps are not negative", timestamp=timestamp)


def range_of(start: bytes | None, stop: bytes | None, *, reverse: bool = False) -> ops.Range:
    """Return a range of rows. As in HBase, equal bounds mean that one row."""
    first, last = start or b"", stop or b""
    if (longest := max(len(first), len(last))) > MAX_ROW:
        raise ops.Refused("illegal argument", "a row is at most 32767 bytes", bytes=longest)
    return ops.Range(first, last, include_stop=bool(first) and first == last, reverse=reverse)


def ttl_of(attributes: Mapping[bytes, bytes] | None) -> int | None:
    """Return the cell TTL (ms) in a mutation's attributes, or None."""
    given = (attributes or {}).get(b"_ttl")
    if given is None:
        return None
    if len(given) < 8:
        raise ops.Refused("retries exhausted", "a _ttl is 8 bytes", bytes=len(given))
    return time_of(int.from_bytes(given[:8], signed=True))


def ttl_ms(seconds: int) -> int | None:
    """Return HBase's TTL of a family in milliseconds, or None for "for ever"."""
    return None if seconds == FOREVER_S else seconds * 1000


def ttl_s(settings: ops.FamilySettings) -> int:
    return FOREVER_S if settings.ttl_ms is None else settings.ttl_ms // 1000


def batch_of(size: int | None) -> int | None:
    """Return the limit of versions per result; for HBase, zero and negative mean no limit."""
    return size if size is not None and size > 0 else None


def check_sizes(row: bytes, puts: Iterable[ops.Put]) -> None:
    """Refuse puts that HBase's client does not send; the server's limit is about the same."""
    for family, column, value, *_ in puts:
        if (size := key_value_bytes(row, family, column, value)) > MAX_CELL:
            facts = {"cell_bytes": size, "limit": MAX_CELL}
            raise ops.Refused("illegal argument", "the cell is too large", **facts)


def require(struct: Any, *names: str) -> None:
    """Raise InternalError if a struct lacks one of these fields, as HBase's gateways do."""
    for name in names:
        if getattr(struct, name) is None:
            raise InternalError("a field is missing", field=name)


class PacedRows(Rows):
    """Rows whose changes return only after the server's clock has passed the written timestamps.

    A delete of "now" hides puts of the same millisecond. A second increment in one millisecond gets
    the next millisecond's timestamp. HBase needs milliseconds per request, so its clients never see
    this. Here, a put after the client's own delete or increment could be lost. So these changes,
    and no others, take up to a millisecond longer.
    """

    __slots__ = ()

    def _finish(self, operations: ops.Operations, results: Sequence[ops.Result] = ()) -> None:
        if any(isinstance(one, ops.Remove) and one.timestamp is None for one in operations):
            self._wait_for(self._clock.wall_ms() + 1)
        if written := [version.timestamp for result in results for version in result.versions]:
            self._wait_for(max(written))

    def mutate_all(
        self, table: bytes, mutations: Sequence[tuple[bytes, ops.Operations]], *, durable: bool
    ) -> None:
        """Change many rows. If the server refuses some, the others are changed, as in HBase."""
        with refuse_as_many():
            try:
                self.mutate(table, mutations, durable=durable)
            except ops.Refused as refused:
                if refused.reason == "no such column family" and len(mutations) > 1:
                    for each in mutations:
                        with suppress(ops.Refused):
                            self.mutate(table, [each], durable=durable)
                raise

    def _wait_for(self, timestamp: int) -> None:
        missing_ms = timestamp - self._clock.wall_ms()
        if 0 < missing_ms <= WAIT_LIMIT_MS:
            for _ in range(missing_ms):
                self._clock.sleep_ms(1)
                if self._clock.wall_ms() >= timestamp:
                    return


class InternalError(InvalidRequestError):
    """A request at which HBase's gateways fail without an exception of their interface."""


class PartialFailure(InvalidRequestError):
    """Some rows of a request about many were refused; HBase reports this as retriable."""

    written = "unknown"

    def __init__(self, refused: ops.Refused) -> None:
        super().__init__(f"Failed 1 action: {format_error(refused)}: 1 time")
        self.refused = refused


@contextmanager
def refuse_as_many(rows: int = 2) -> Iterator[None]:
    """Turn a refusal into HBase's PartialFailure, if the request is about several rows."""
    try:
        yield
    except ops.Refused as refused:
        if rows < 2 or refused.reason == "illegal argument":
            raise
        raise PartialFailure(refused) from refused


@contextmanager
def fail_internally() -> Iterator[None]:
    """Turn a refusal into the internal error of a gateway that fails before it reads the table."""
    try:
        yield
    except ops.Refused as refused:
        raise InternalError(str(refused)) from refused


def reason_of(error: TxnError) -> ops.Reason:
    return error.reason if isinstance(error, ops.Refused) else "illegal argument"


def format_error(error: TxnError) -> str:
    if not isinstance(error, InvalidRequestError):
        return f"java.io.IOException: {error}"
    return f"{_CLASSES[reason_of(error)]}: {error}"


def make_internal(method: str, error: Exception) -> TApplicationException:
    text = f"Internal error processing {method}: {error}"
    return TApplicationException(TApplicationException.INTERNAL_ERROR, text)


def join_services(
    service: Any, explain: Callable[[str, TxnError], Exception], *parts: object
) -> object:
    """Return an object with all methods of the service, each delegated to the part that has it.

    Parts take the interface's argument names. A method with a variant ending, such as getRowTs, may
    be implemented under its base name for all arguments. explain: maps a method name and an error
    to the service's own exception.
    """
    parts = (*parts, SimpleNamespace(getClusterId=lambda: CLUSTER))
    names = service.thrift_services
    return SimpleNamespace(**{name: _make_call(service, name, explain, parts) for name in names})


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
            for argument in [each for each in given if given[each] is None]:  # filled in as in Java
                given[argument] = zeros[argument]
                if zeros[argument] is None and argument not in OPTIONAL:
                    raise InternalError("an argument is missing", argument=argument)
            return method(**given)
        except InternalError as error:
            raise make_internal(name, error) from error
        except TxnError as error:
            raise explain(name, _name_table(error, arguments)) from error

    return call


def _name_table(error: TxnError, arguments: tuple[object, ...]) -> TxnError:
    """Return the error, or HBase's error for a table name that is not legal."""
    table = getattr(arguments[0], "table", arguments[0]) if arguments else None
    refused = error.refused if isinstance(error, PartialFailure) else error
    if reason_of(refused) == "table not found" and isinstance(table, bytes):
        try:
            check_table(table)
        except ops.Refused as worse:
            return worse
    return error
