"""From what the tables refuse to what HBase's gateways say, and a service's methods in one object.

A gateway answers what HBase's server refuses with the exceptions of its interface, and what already
its own client finds wrong mostly with Thrift's own "Internal error". Both begin here with the
words that HBase's have, and go on to say what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

from thriftpy2.thrift import TApplicationException, TType

from txn.emulator.pacing import PacedRows
from txn.emulator.places import check_table
from txn.errors import InvalidRequestError, TxnError
from txn.tables.operations import Operation
from txn.tables.refusal import Reason, Refused

_HBASE = "org.apache.hadoop.hbase"
_CLASSES: dict[Reason, str] = {
    "table not found": f"{_HBASE}.TableNotFoundException",
    "table exists": f"{_HBASE}.TableExistsException",
    "table not enabled": f"{_HBASE}.TableNotEnabledException",
    "table not disabled": f"{_HBASE}.TableNotDisabledException",
    "no such column family": f"{_HBASE}.regionserver.NoSuchColumnFamilyException",
    "namespace not found": f"{_HBASE}.NamespaceNotFoundException",
    "namespace exists": f"{_HBASE}.NamespaceExistException",
    "constraint": f"{_HBASE}.constraint.ConstraintException",
    "illegal argument": "java.lang.IllegalArgumentException",
    "do not retry": f"{_HBASE}.DoNotRetryIOException",
    "retries exhausted": f"{_HBASE}.client.RetriesExhaustedException",
}
OPTIONAL = frozenset({"attributes", "columns", "value", "splitKeys", "regex", "logQueryFilter"})
"""The arguments without which HBase's gateways can do what is asked."""
_ZEROS: dict[int, int] = {TType.BOOL: 0, TType.I32: 0, TType.I64: 0}  # as in Java
OF_ONE_ROW = "no such column family"
_OF_FAMILIES = f"{_HBASE}.InvalidFamilyOperationException"


class Internal(InvalidRequestError):
    """A gateway of HBase fails at this request, with no error of its interface."""


class Several(InvalidRequestError):
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
        raise Several(refused) from refused


@contextmanager
def refuse_once() -> Iterator[None]:
    """Refuse a checked change for good: HBase's clients do not try those again."""
    try:
        yield
    except Refused as refused:
        if refused.reason != "retries exhausted":
            raise
        raise Refused("do not retry", str(refused)) from refused


@contextmanager
def fail_internally() -> Iterator[None]:
    """Make of what is refused what a gateway of HBase makes of it before it looks at the table."""
    try:
        yield
    except Refused as refused:
        raise Internal(str(refused)) from refused


def reason_of(error: TxnError) -> Reason:
    """Return which kind of refusal it is."""
    return error.reason if isinstance(error, Refused) else "illegal argument"


def format_error(error: TxnError) -> str:
    """Return the error's message as HBase would begin it, with the name of the Java class."""
    if not isinstance(error, InvalidRequestError):
        return f"java.io.IOException: {error}"
    return f"{_CLASSES[reason_of(error)]}: {error}"


def format_family_error(error: InvalidRequestError) -> str:
    """Return the message of a refused change to a table's families."""
    if reason_of(error) in ("do not retry", "no such column family"):
        return f"{_OF_FAMILIES}: {error}"
    return format_error(error)


def make_internal(method: str, error: Exception) -> TApplicationException:
    """Return what HBase's gateways answer where they fail themselves, and why they do."""
    return TApplicationException(
        TApplicationException.INTERNAL_ERROR, f"Internal error processing {method}: {error}"
    )


def change_all(
    rows: PacedRows,
    table: bytes,
    changes: Sequence[tuple[bytes, Sequence[Operation]]],
    *,
    durable: bool,
) -> None:
    """Carry out the changes of many rows; where the server refuses some, HBase does the others."""
    with refuse_as_many():
        try:
            rows.mutate(table, changes, durable=durable)
        except Refused as refused:
            if refused.reason == OF_ONE_ROW and len(changes) > 1:
                for change in changes:
                    with suppress(Refused):
                        rows.mutate(table, [change], durable=durable)
            raise


def join_services(
    service: Any, explain: Callable[[str, TxnError], Exception], *parts: object
) -> object:
    """Return an object with all methods of the service, each carried out by the part that has it.

    explain: makes the service's own exception of an error in the method of that name.
    """
    return SimpleNamespace(
        **{
            name: _explain_call(
                name,
                _complete_call(getattr(service, f"{name}_args"), _find(name, parts)),
                explain,
            )
            for name in service.thrift_services
        }
    )


def _find(name: str, parts: tuple[object, ...]) -> Callable[..., Any]:
    found: Callable[..., Any] = next(getattr(part, name) for part in parts if hasattr(part, name))
    return found


def _complete_call(interface: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method with what Java makes of arguments that a request does not have: numbers are
    0, and what needs anything else fails."""
    fields = [(field[1], _ZEROS.get(field[0])) for field in interface.thrift_spec.values()]

    def call(*arguments: Any) -> Any:
        if None not in arguments:
            return method(*arguments)
        given = list(arguments)
        for number, (name, zero) in enumerate(fields):
            if given[number] is None:
                given[number] = zero
                if zero is None and name not in OPTIONAL:
                    raise Internal("an argument is missing", argument=name)
        return method(*given)

    return call


def require(struct: Any, *names: str) -> None:
    """Refuse a struct of the interface without these fields, which a gateway of HBase needs."""
    for name in names:
        if getattr(struct, name) is None:
            raise Internal("a field is missing", field=name)


def _explain_call(
    name: str, method: Callable[..., Any], explain: Callable[[str, TxnError], Exception]
) -> Callable[..., Any]:
    def call(*arguments: object) -> Any:
        try:
            return method(*arguments)
        except Internal as error:
            raise make_internal(name, error) from error
        except TxnError as error:
            raise explain(name, _name_table(error, arguments)) from error

    return call


def _name_table(error: TxnError, arguments: tuple[object, ...]) -> TxnError:
    """Return the error, or a worse one: HBase knows by its name that some table cannot be."""
    table = getattr(arguments[0], "table", arguments[0]) if arguments else None
    refused = error.refused if isinstance(error, Several) else error
    if reason_of(refused) == "table not found" and isinstance(table, bytes):
        try:
            check_table(table)
        except Refused as worse:
            return worse
    return error
