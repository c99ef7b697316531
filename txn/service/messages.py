"""The Transactional service's messages, and what they mean on both sides of the wire.

The interface is transactional.thrift beside this file. What does not make sense raises
InvalidRequestError; an error of the library and its exception on the wire stand for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import thriftpy2

from txn.assertions import COMPOUNDS, LEAVES, Assertion, Operand, fold, make_leaf
from txn.errors import (
    AbortedError,
    AssertionFailedError,
    CommitOutcomeUnknown,
    ConflictError,
    CorruptRowError,
    DeadlineError,
    InvalidRequestError,
    MaybeApplied,
    StoreError,
    TableUnavailable,
    TxnError,
)
from txn.model import Cell, Delete, Key, Mutation
from txn.request import Committed, Outcome, Request
from txn.text import reason_text

IDL: ModuleType = thriftpy2.load(
    str(Path(__file__).with_name("transactional.thrift")), module_name="txn_transactional_thrift"
)
KINDS = {
    "exact": IDL.AssertionKind.EXACT,
    "some": IDL.AssertionKind.SOME,
    "greater": IDL.AssertionKind.GREATER_THAN,
    "version": IDL.AssertionKind.VERSION,
    "not": IDL.AssertionKind.NOT,
    "and": IDL.AssertionKind.AND,
    "or": IDL.AssertionKind.OR,
}
NAMES = {kind: name for name, kind in KINDS.items()}
OPERANDS = {"exact": "value", "greater": "value", "version": "timestamp"}
OUTCOMES = {
    Outcome.COMMITTED: IDL.Outcome.COMMITTED,
    Outcome.ABORTED: IDL.Outcome.ABORTED,
    Outcome.UNDECIDED: IDL.Outcome.UNDECIDED,
    Outcome.UNKNOWN: IDL.Outcome.UNKNOWN,
}
# The name that a client gives to a request is kept among the transaction's labels.
REQUEST_LABEL = "txn.request"
UNKNOWN_KIND = "the server's answer is of an unknown kind"
FIELDS = {
    IDL.Aborted: "aborted",
    IDL.Conflict: "conflict",
    IDL.AssertionFailed: "failed",
    IDL.Deadline: "deadline",
    IDL.OutcomeUnknown: "unknown",
    IDL.StoreFailed: "store",
    IDL.Corrupt: "corrupt",
}


def name_part(name: bytes, number: int) -> bytes:
    """Return the name of one request of many, whose name together is given."""
    return b"%b/%d" % (name, number)


def pack_key(key: Key) -> Any:
    """Return a key's message; the key names its table."""
    return IDL.Key(key.row, key.family, key.column, key.table)


def unpack_key(packed: Any) -> Key:
    """Return the key of a message."""
    if packed is None:
        raise InvalidRequestError("an assertion lacks its key")
    return Key(packed.row, packed.family, packed.column, packed.table)


def pack_mutation(mutation: Mutation | Delete) -> Any:
    """Return a mutation's message."""
    value = mutation.value if isinstance(mutation, Mutation) else None
    return IDL.Mutation(pack_key(mutation.key), value)


def unpack_mutation(packed: Any) -> Mutation | Delete:
    """Return the mutation of a message."""
    key = unpack_key(packed.key)
    return Delete(key) if packed.value is None else Mutation(key, packed.value)


def pack_request(
    request: Request, deadline_ms: int | None, trace: Mapping[str, str] | None = None
) -> Any:
    """Return a request's message, with the time that it has until its decision, and the headers
    of its span."""
    return IDL.Request(
        [pack_mutation(mutation) for mutation in request.mutations],
        pack_assertions(request.assertions),
        request.once,
        dict(request.labels),
        request.once_retention_ms,
        deadline_ms,
        None if trace is None else dict(trace),
    )


def pack_assertions(assertions: Iterable[Assertion]) -> list[Any]:
    """Return assertions in the order of the wire: each part before what it is part of."""
    packed: list[Any] = []

    def leaf(name: str, key: Key, operand: Operand) -> None:
        operands = {OPERANDS[name]: operand} if name in OPERANDS else {}
        packed.append(IDL.Assertion(KINDS[name], pack_key(key), **operands))

    def compound(name: str, parts: list[None]) -> None:
        packed.append(IDL.Assertion(KINDS[name], count=None if name == "not" else len(parts)))

    for assertion in assertions:
        fold(assertion, leaf, compound)
    return packed


def unpack_assertions(packed: Sequence[Any] | None) -> list[Assertion]:
    """Return the assertions of a list in the order of the wire."""
    stack: list[Assertion] = []
    for node in packed or ():
        name = NAMES.get(node.kind, "")
        if name in LEAVES:
            operand = _value(node) if OPERANDS.get(name) == "value" else node.timestamp
            stack.append(make_leaf(name, unpack_key(node.key), operand))
        elif name in COMPOUNDS:
            stack.append(COMPOUNDS[name](*_take_parts(node, name, stack)))
        else:
            raise InvalidRequestError("unknown kind of assertion", kind=node.kind)
    return stack


def _take_parts(node: Any, name: str, stack: list[Assertion]) -> list[Assertion]:
    """Take the parts of a compound assertion from the stack."""
    count = 1 if name == "not" else node.count or 0
    if not 0 < count <= len(stack):
        raise InvalidRequestError("an assertion lacks its parts", wanted=count, there=len(stack))
    parts = stack[-count:]
    del stack[-count:]
    return parts


def _value(node: Any) -> bytes:
    if node.value is None:
        raise InvalidRequestError("an assertion lacks its value")
    value: bytes = node.value
    return value


def pack_cells(cells: Mapping[Key, Cell | None]) -> list[Any]:
    """Return the messages of what was found."""
    return [
        IDL.Found(pack_key(key), None if cell is None else IDL.Cell(*cell))
        for key, cell in cells.items()
    ]


def unpack_cells(packed: Sequence[Any]) -> dict[Key, Cell | None]:
    """Return what was found."""
    return {
        unpack_key(found.key): found.cell and Cell(found.cell.value, found.cell.timestamp)
        for found in packed
    }


def pack_committed(done: Committed) -> Any:
    """Return the message of a committed transaction."""
    return IDL.Committed(done.transaction, done.timestamp, done.repeated, done.complete)


def unpack_committed(packed: Any) -> Committed:
    """Return the committed transaction of a message."""
    return Committed(packed.transaction, packed.timestamp, packed.repeated, packed.complete)


def pack_result(result: Committed | TxnError) -> Any:
    """Return the message of one result of many."""
    if isinstance(result, Committed):
        return IDL.Result(pack_committed(result))
    packed = pack_error(result)
    if type(packed) not in FIELDS:
        packed = IDL.StoreFailed(str(result))
    return IDL.Result(**{FIELDS[type(packed)]: packed})


def unpack_result(packed: Any) -> Committed | TxnError:
    """Return one result of many."""
    if packed.committed is not None:
        return unpack_committed(packed.committed)
    for field in FIELDS.values():
        if getattr(packed, field) is not None:
            return unpack_error(getattr(packed, field))
    raise MaybeApplied(UNKNOWN_KIND)


def pack_error(error: TxnError) -> Any:
    """Return the exception of the wire that stands for an error."""
    match error:
        case InvalidRequestError():
            return IDL.Invalid(str(error))
        case CommitOutcomeUnknown():
            return IDL.OutcomeUnknown(error.transaction)
        case AbortedError():
            return _pack_aborted(error)
        case CorruptRowError():
            return IDL.Corrupt(str(error))
        case _:
            return IDL.StoreFailed(str(error), getattr(error, "table", None))


def _pack_aborted(error: AbortedError) -> Any:
    match error:
        case ConflictError(key=Key() as key):
            return IDL.Conflict(error.words, error.transaction, pack_key(key), error.holder)
        case ConflictError():
            return IDL.Conflict(error.words, error.transaction, None, error.holder)
        case AssertionFailedError(assertion=assertion, seen=seen):
            parts = pack_assertions([assertion])  # type: ignore[list-item]
            return IDL.AssertionFailed(
                reason_text(error), error.transaction, parts, pack_cells(seen)
            )
        case DeadlineError():
            return IDL.Deadline(reason_text(error), error.transaction)
        case _:
            return IDL.Aborted(reason_text(error), error.transaction)


def unpack_error(packed: Any) -> TxnError:
    """Return the error that an exception of the wire stands for."""
    match packed:
        case IDL.Invalid() | IDL.Unauthorized():
            return InvalidRequestError(packed.message)
        case IDL.OutcomeUnknown():
            return CommitOutcomeUnknown(packed.transaction)
        case IDL.Conflict():
            key = packed.key and unpack_key(packed.key)
            return ConflictError(
                packed.message, key=key, holder=packed.holder, transaction=packed.transaction
            )
        case IDL.AssertionFailed():
            (assertion,) = unpack_assertions(packed.assertion)
            seen = unpack_cells(packed.seen)
            return AssertionFailedError(assertion, seen, transaction=packed.transaction)
        case _:
            return _unpack_other(packed)


def _unpack_other(packed: Any) -> TxnError:
    match packed:
        case IDL.Deadline():
            return DeadlineError(packed.message, transaction=packed.transaction)
        case IDL.Aborted():
            return AbortedError(packed.message, transaction=packed.transaction)
        case IDL.Corrupt():
            return CorruptRowError(packed.message)
        case IDL.StoreFailed(table=bytes() as table):
            return TableUnavailable(packed.message, table)
        case _:
            return StoreError(getattr(packed, "message", None) or "the server failed")
