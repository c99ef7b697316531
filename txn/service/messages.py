"""The messages of the Transactional service, whose interface is transactional.thrift beside this
file. One table of types gives the codecs of each method's arguments and result.

`encode` turns a value into a message, and `decode` a message into a value; None stays None. An
invalid message raises InvalidRequestError. The library's errors map to exceptions of the interface
and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from io import StringIO
from types import ModuleType
from typing import Any, NamedTuple

import thriftpy2
from thriftpy2.thrift import TType

from txn import errors
from txn.assertions import COMPOUNDS, LEAVES, MAX_DEPTH, Assertion, Operand, fold, make_leaf
from txn.model import Cell, Check, Delete, Edit, Family, Key, Mutation, Row, RowExclusion, Stamp
from txn.protocol.codec import decode_answer, encode_answer
from txn.request import Ack, Committed, Outcome, Request
from txn.spans import make_span
from txn.text import reason_text

IDL: ModuleType = thriftpy2.load_fp(
    StringIO(files(__package__).joinpath("transactional.thrift").read_text()),
    "txn_transactional_thrift",
)
NAMES = {
    number: word.lower().removesuffix("_than")
    for number, word in IDL.AssertionKind._VALUES_TO_NAMES.items()
}
KINDS = {name: number for number, name in NAMES.items()}
OPERANDS = {"exact": "value", "greater": "value", "version": "timestamp"}
ACKS: Mapping[Ack, int] = {"complete": IDL.Ack.COMPLETE, "decided": IDL.Ack.DECIDED}
OUTCOMES = {outcome: getattr(IDL.Outcome, outcome.name) for outcome in Outcome}
KNOWN_OUTCOMES = {number: outcome for outcome, number in OUTCOMES.items()}
REQUEST_LABEL = "txn.request"
"""The label of a transaction with the name of its client's request."""

UNKNOWN_KIND = "the server's answer is of an unknown kind"


class TimedRequest(NamedTuple):
    """A request of a commitMany, with its time until the decision and its span's headers."""

    request: Request
    deadline_ms: int | None
    trace: Mapping[str, str] | None


def name_part(name: bytes, number: int) -> bytes:
    """Return the name of request `number` of a group with this name."""
    return b"%b/%d" % (name, number)


def encode_key(key: Key) -> Any:
    if not key.table:
        raise errors.InvalidRequestError("the key names no table", key=key)
    return IDL.Key(key.row, key.family, key.column, key.table)


def decode_key(message: Any) -> Key:
    return Key(*_require(message.row, message.family, message.column, message.table))


def _require(*fields: Any) -> tuple[Any, ...]:
    """Return the fields, each of which the interface requires."""
    if None in fields:
        raise errors.InvalidRequestError("a field is missing")
    return fields


def _decode_cell(message: Any) -> Cell:
    return Cell(*_require(message.value, message.timestamp))


def encode_mutation(mutation: Mutation | Delete) -> Any:
    value = mutation.value if isinstance(mutation, Mutation) else None
    return IDL.Mutation(encode_key(mutation.key), value)


def _encode_cells(cells: Mapping[Key, Cell | Stamp | None]) -> list[Any]:
    return [
        IDL.Found(encode_key(key), None if cell is None else IDL.Cell(*(None, *cell)[-2:]))
        for key, cell in cells.items()
    ]


def _decode_cells(messages: Sequence[Any]) -> dict[Key, Cell | None]:
    return {decode_key(found.key): found.cell and _decode_cell(found.cell) for found in messages}


def _decode_values(messages: Sequence[Any]) -> dict[Key, Cell]:
    return {key: cell for key, cell in _decode_cells(messages).items() if cell is not None}


def encode_assertions(assertions: Iterable[Assertion]) -> list[Any]:
    """Return assertions in the order of the wire: each part before the whole."""
    messages: list[Any] = []

    def leaf(name: str, key: Key, operand: Operand) -> None:
        operands = {OPERANDS[name]: operand} if name in OPERANDS else {}
        messages.append(IDL.Assertion(KINDS[name], encode_key(key), **operands))

    def compound(name: str, parts: list[None]) -> None:
        messages.append(IDL.Assertion(KINDS[name], count=None if name == "not" else len(parts)))

    for assertion in assertions:
        fold(assertion, leaf, compound)
    return messages


def decode_assertions(messages: Sequence[Any]) -> list[Assertion]:
    stack: list[Assertion] = []
    depths: list[int] = []
    for node in messages:
        name = NAMES.get(node.kind, "")
        if name in LEAVES:
            if node.key is None:
                raise errors.InvalidRequestError("an assertion lacks its key")
            if OPERANDS.get(name) == "value" and node.value is None:
                raise errors.InvalidRequestError("an assertion lacks its value")
            operand = getattr(node, OPERANDS.get(name, "timestamp"))
            stack.append(make_leaf(name, decode_key(node.key), operand))
            depths.append(1)
        elif name in COMPOUNDS:
            count = 1 if name == "not" else node.count or 0
            if not 0 < count <= len(stack):
                message = "an assertion lacks its parts"
                raise errors.InvalidRequestError(message, wanted=count, there=len(stack))
            stack[-count:] = [COMPOUNDS[name](*stack[-count:])]
            depths[-count:] = [1 + max(depths[-count:])]
            if depths[-1] > MAX_DEPTH:
                raise errors.InvalidRequestError("assertion is nested too deeply", limit=MAX_DEPTH)
        else:
            raise errors.InvalidRequestError("unknown kind of assertion", kind=node.kind)
    return stack


def _encode_failed(error: errors.AssertionFailedError) -> Any:
    assertion = encode_assertions([error.assertion])  # type: ignore[list-item]
    seen = _encode_cells(error.seen)
    return IDL.AssertionFailed(reason_text(error), error.transaction, assertion, seen)


def _decode_failed(message: Any) -> errors.TxnError:
    (assertion,) = decode_assertions(message.assertion)
    seen: dict[Key, Cell | Stamp | None] = {}
    for found in message.seen:
        is_stamp = found.cell is not None and found.cell.value is None
        stamp = Stamp(*_require(found.cell.timestamp)) if is_stamp else None
        seen[decode_key(found.key)] = stamp or (found.cell and _decode_cell(found.cell))
    return errors.AssertionFailedError(assertion, seen, transaction=message.transaction)


Conversion = Callable[[Any], Any]


def decode_message(
    decode: Conversion, message: Any, kind: type[errors.TxnError], words: str
) -> Any:
    """Return the decoded message, or raise an error of this kind for a bad part."""
    try:
        return decode(message)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        if isinstance(error, kind):
            raise
        raise kind(words, cause=f"{type(error).__name__}: {error}") from error


class MessageCodec(NamedTuple):
    encode: Conversion
    decode: Conversion


ENCODERS: Mapping[type[errors.TxnError], Callable[[Any], Any]] = {  # the first match counts
    errors.TokenReusedError: lambda error: IDL.Invalid(str(error), error.token, error.transaction),
    errors.InvalidRequestError: lambda error: IDL.Invalid(str(error)),
    errors.CommitOutcomeUnknown: lambda error: IDL.OutcomeUnknown(error.transaction),
    errors.ConflictError: lambda error: IDL.Conflict(
        *(error.words, error.transaction),
        encode_key(error.key) if isinstance(error.key, Key) else None,
        error.holder,
    ),
    errors.AssertionFailedError: _encode_failed,
    errors.DeadlineError: lambda error: IDL.Deadline(reason_text(error), error.transaction),
    errors.AbortedError: lambda error: IDL.Aborted(reason_text(error), error.transaction),
    errors.CorruptRowError: lambda error: IDL.Corrupt(str(error)),
    errors.TxnError: lambda error: IDL.StoreFailed(str(error), getattr(error, "table", None)),
}
DECODERS: Mapping[type[Exception], Callable[[Any], errors.TxnError]] = {
    IDL.Invalid: lambda e: (
        errors.TokenReusedError(*_require(e.message, e.token, e.transaction))
        if e.token
        else errors.InvalidRequestError(*_require(e.message))
    ),
    IDL.Unauthorized: lambda e: errors.InvalidRequestError(*_require(e.message)),
    IDL.OutcomeUnknown: lambda e: errors.CommitOutcomeUnknown(*_require(e.transaction)),
    IDL.Conflict: lambda e: errors.ConflictError(
        e.message, key=e.key and decode_key(e.key), holder=e.holder, transaction=e.transaction
    ),
    IDL.AssertionFailed: _decode_failed,
    IDL.Deadline: lambda e: errors.DeadlineError(e.message, transaction=e.transaction),
    IDL.Aborted: lambda e: errors.AbortedError(e.message, transaction=e.transaction),
    IDL.Corrupt: lambda e: errors.CorruptRowError(e.message),
    IDL.StoreFailed: lambda e: (
        errors.StoreError(e.message or "the server failed")
        if e.table is None
        else errors.TableUnavailable(e.message, e.table)
    ),
}
RESULTS = {field[2]: field[1] for field in IDL.Result.thrift_spec.values()}
"""The fields of a result of commitMany, by their classes."""


def encode_error(error: errors.TxnError) -> Any:
    return next(encode(error) for kind, encode in ENCODERS.items() if isinstance(error, kind))


def decode_error(exception: Any) -> errors.TxnError:
    return DECODERS[type(exception)](exception)


def encode_result(result: Committed | errors.TxnError) -> Any:
    if isinstance(result, Committed):
        return IDL.Result(TYPES[IDL.Committed].encode(result))
    exception = encode_error(result)
    if type(exception) not in RESULTS:
        exception = IDL.StoreFailed(str(result))
    return IDL.Result(**{RESULTS[type(exception)]: exception})


def decode_result(message: Any) -> Committed | errors.TxnError:
    """Return one of several results; a MaybeApplied if its kind is unknown."""
    for kind, name in RESULTS.items():
        found = getattr(message, name)
        if found is not None:
            done: Committed | errors.TxnError
            done = TYPES[kind].decode(found) if kind in TYPES else decode_error(found)
            return done
    return errors.MaybeApplied(UNKNOWN_KIND)


PLAIN = MessageCodec(lambda value: value, lambda message: message)


def _make_codec(struct: Any, make: Callable[..., Any]) -> MessageCodec:
    """Return the codec of a type with a struct's fields in order; `make` builds its values."""
    names = [name for _, name, *_ in struct.thrift_spec.values()]
    required = [name for _, name, *_, is_required in struct.thrift_spec.values() if is_required]
    encoders, decoders = _list_codecs(struct)

    def encode(value: Any) -> Any:
        return struct(*_convert(encoders, _list_fields(value)))

    def decode(message: Any) -> Any:
        values = [getattr(message, name) for name in names]
        if None in values:
            _require(*(getattr(message, name) for name in required))
        return make(*_convert(decoders, values))

    return MessageCodec(encode, decode)


def _list_codecs(struct: Any) -> tuple[list[Conversion | None], list[Conversion | None]]:
    codecs = [_find_codec(kind, *detail[:-1]) for kind, _, *detail in struct.thrift_spec.values()]
    return (
        [None if codec is PLAIN else codec.encode for codec in codecs],
        [None if codec is PLAIN else codec.decode for codec in codecs],
    )


def _convert(conversions: list[Conversion | None], values: Sequence[Any]) -> list[Any]:
    return [
        value if convert is None or value is None else convert(value)
        for convert, value in zip(conversions, values, strict=True)
    ]


def _find_codec(kind: int, detail: Any = None) -> MessageCodec:
    """Return the codec of a thriftpy2 type. detail: a list's item type, or a class."""
    if kind != TType.LIST:
        return TYPES[detail] if isinstance(detail, type) else PLAIN
    item_kind, item_detail = detail if isinstance(detail, tuple) else (detail, None)
    if item_detail in LISTS:
        return LISTS[item_detail]
    encode, decode = item = _find_codec(item_kind, item_detail)
    if item is PLAIN:
        return PLAIN
    return MessageCodec(
        lambda values: [*map(encode, values)], lambda messages: [*map(decode, messages)]
    )


def _list_fields(value: Any) -> Sequence[Any]:
    if isinstance(value, TimedRequest):
        *fields, validate, content, _ = _list_fields(value.request)
        return *fields, value.deadline_ms, value.trace, validate, content
    if isinstance(value, tuple):
        return value
    return [getattr(value, name) for name in value.__match_args__]


def _make_request(*fields: Any) -> TimedRequest:
    mutations, assertions, once, labels, retention_ms, deadline_ms, trace, *rest = fields
    items = tuple(mutations), tuple(assertions or ()), once, labels or {}, retention_ms
    return TimedRequest(Request(*items, *rest), deadline_ms, trace)


LISTS = {
    IDL.Assertion: MessageCodec(encode_assertions, decode_assertions),
    IDL.Found: MessageCodec(_encode_cells, _decode_cells),
}
TYPES = {
    IDL.Options: PLAIN,
    IDL.Database: PLAIN,
    IDL.Answer: MessageCodec(
        lambda answer: IDL.Answer(encode_answer(answer)),
        lambda m: decode_answer(*_require(m.packed)),
    ),
    IDL.Outcome: MessageCodec(OUTCOMES.__getitem__, KNOWN_OUTCOMES.__getitem__),
    IDL.Key: MessageCodec(encode_key, decode_key),
    IDL.Mutation: MessageCodec(
        encode_mutation,
        lambda m: (
            Delete(decode_key(m.key)) if m.value is None else Mutation(decode_key(m.key), m.value)
        ),
    ),
    IDL.Result: MessageCodec(encode_result, decode_result),
    IDL.StoredRow: MessageCodec(
        lambda row: IDL.StoredRow(row.row, _encode_cells(row.cells)),
        lambda m: Row(_require(m.row)[0], _decode_values(m.cells)),
    ),
    IDL.View: MessageCodec(
        lambda view: IDL.View(_encode_cells(view[0]), [*map(_encode_cells, view[1])]),
        lambda m: (_decode_cells(m.keys), [*map(_decode_values, m.spans)]),
    ),
    IDL.Exclude: MessageCodec(
        lambda exclude: IDL.Exclude(exclude.family, exclude.column, sorted(exclude.values)),
        lambda m: RowExclusion(m.family, m.column, frozenset(m.values)),
    ),
}
MAKERS: Mapping[Any, Callable[..., Any]] = {
    IDL.Cell: Cell,
    IDL.Edit: Edit,
    IDL.Committed: Committed,
    **dict.fromkeys(
        (IDL.Put, IDL.Versions, IDL.Column, IDL.Page, IDL.FoundOutcome), lambda *fields: fields
    ),
    IDL.Check: lambda key, old, puts, edits, is_deferred: Check(
        key, old, tuple(puts), tuple(edits), is_deferred is True
    ),
    IDL.Span: lambda table, start, stop, columns: make_span(table, start, stop, None, columns),
    IDL.Request: _make_request,
    IDL.Family: lambda name, *settings: (name, Family(*settings)),
}
for struct, make in MAKERS.items():
    TYPES[struct] = _make_codec(struct, make)
_families, _versions = TYPES[IDL.Family], TYPES[IDL.Versions]
LISTS[IDL.Family] = MessageCodec(
    lambda families: [_families.encode((name, *_list_fields(families[name]))) for name in families],
    lambda messages: dict(map(_families.decode, messages)),
)
LISTS[IDL.Versions] = MessageCodec(
    lambda versions: [*map(_versions.encode, versions.items())],
    lambda messages: dict(map(_versions.decode, messages)),
)
_described = _make_codec(IDL.Described, lambda families: families)
TYPES[IDL.Described] = MessageCodec(lambda found: _described.encode((found,)), _described.decode)


class RemoteMethod(NamedTuple):
    """A method of the interface. encode: makes messages of its arguments, options last. decode:
    makes values of the arguments' messages. result: its codec, if any."""

    encode: Callable[[Sequence[Any]], list[Any]]
    decode: Callable[[Sequence[Any]], list[Any]]
    result: MessageCodec | None


def _make_method(name: str) -> RemoteMethod:
    encoders, decoders = _list_codecs(getattr(IDL.Transactional, f"{name}_args"))
    result = getattr(IDL.Transactional, f"{name}_result").thrift_spec.get(0)
    return RemoteMethod(
        partial(_convert, encoders),
        partial(_convert, decoders),
        None if result is None else _find_codec(result[0], *result[2:-1]),
    )


METHODS = {name: _make_method(name) for name in IDL.Transactional.thrift_services}
