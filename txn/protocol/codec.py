"""The bytes of a transaction row: the buffer, the plan, the marker and the counts of children.

    frame   = version(1 byte, 0x01) crc32-of-body(4 bytes, big-endian) body(msgpack)
    buffer  = frame of [mutations, assertions, once or nil, lock_ttl_ms, labels, validate, owner];
              validate: whether the keys that it only asserts are validated, not locked. An empty
              owner is left out, and then a false `validate` too
    plan    = frame of [commit timestamp, [replaced timestamp or 0, for each mutation in order]],
              fenced: and [the value of each lock while it is held, in the order of the keys]
    mutation  = [key, value], or [key] for a delete
    assertion = ["exact", key, value] | ["some", key] | ["greater", key, value]
              | ["version", key, timestamp or nil] | ["not", assertion]
              | ["and", [assertion...]] | ["or", [assertion...]]
    key     = [row, family, column, table]
    parts   = "-"; after the decision, how many children each task wrote: number *(" " number)
    marker  = row key [" " milliseconds] [" #" digest(32 hex digits)] [" =" answer(msgpack)]
    digest  = BLAKE2b (16 bytes) of what the token stands for: of the given content (personalized
              with "content"), or of [[[key, value or nil]...], [assertion...]], each item packed
              as bytes and both lists sorted ("request")
    answer  = the result of a block, with each tuple as an extension of type 1 that has its list

Every version ever released stays readable. Bytes that do not decode raise CorruptRowError, and so
does a request that no client would have accepted, whatever its checksum says.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any

import msgpack

from txn.assertions import COMPOUNDS, LEAVES, MAX_DEPTH, Assertion, Operand, bind, fold, make_leaf
from txn.errors import CorruptRowError, InvalidRequestError, TokenReusedError, annotate
from txn.model import MAX_CELL, ROW_KEY, Cell, Delete, Key, Mutation, check_whole
from txn.protocol.statuses import Status
from txn.request import MAX_ANSWER, Committed, Request, bind_key, bind_request

FORMAT = 1
MAX_BUFFER = MAX_CELL - 256  # leaves room for the cell's key

MAX_OWNER = 1024  # characters, more than `name_owner` returns
PACKED_AT_FIRST = 2048  # bytes; the buffer grows, and msgpack's default of 256 KB takes time
OPEN = b"-"
"""The value of the cell `parts` before the decision."""

_FRAME = struct.Struct(">BI")
_COUNTS = re.compile(rb"\d{1,6}(?: \d{1,6})*")
_MARKED = re.compile(rb"(?: ([1-9][0-9]{0,15}))?(?: #([0-9a-f]{32}))?(?: =(.+))?", re.DOTALL)
_TUPLE = 1


@dataclass(frozen=True, slots=True)
class Buffer:
    """A transaction's request, and how long its owner may be silent. owner: its program, process
    and host, for people; empty if it is not known."""

    request: Request
    lock_ttl_ms: int
    owner: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """The decision's content: the commit timestamp, and the version that each mutation replaces.

    replaced: timestamps in the order of the request's mutations; 0 if there is no version. locks:
    in the fenced protocol, the value of each held lock, in the order of their first keys in the
    request.
    """

    timestamp: int
    replaced: tuple[int, ...]
    locks: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Marker:
    """The stored record of a `once` token: the transaction that committed it, and how long the
    token may be repeated after that (None: for ever). None of the others: not known."""

    transaction: bytes
    retention_ms: int | None = None
    digest: bytes | None = None
    answer: bytes | None = None


def encode_marker(marker: Marker) -> bytes:
    value = marker.transaction
    if marker.retention_ms is not None:
        value += b" %d" % marker.retention_ms
    if marker.digest is not None:
        value += b" #" + marker.digest
    return value + b" =" + marker.answer if marker.answer else value


def decode_marker(value: bytes, key: Key | None = None) -> Marker:
    """Decode a marker; raise CorruptRowError, with `key`, if it names no transaction. If the rest
    does not decode, the marker is kept for ever and has nothing else."""
    transaction = value.partition(b" ")[0]
    if ROW_KEY.fullmatch(transaction) is None:
        raise CorruptRowError("a token's marker names no transaction", key=key, bytes=len(value))
    match = _MARKED.fullmatch(value, len(transaction))
    promise, digest, answer = match.groups() if match else (None, None, None)
    return Marker(transaction, None if promise is None else int(promise), digest, answer)


def make_marker(row_key: bytes, request: Request) -> bytes:
    digest = make_digest(request)
    return encode_marker(Marker(row_key, request.once_retention_ms, digest, request.answer))


def make_digest(request: Request) -> bytes | None:
    """Return the digest of what the request's token stands for; None if that is not known."""
    kind, whole = b"content", request.once_content
    if whole is None:
        if request.answer is not None:
            return None
        pack = msgpack.Packer(buf_size=PACKED_AT_FIRST).pack
        changes = [pack([m.key, m.value]) for m in request.mutations]
        conditions = [pack(fold(each, _pack_leaf, _pack_compound)) for each in request.assertions]
        kind, whole = b"request", pack([sorted(changes), sorted(conditions)])
    return blake2b(whole, digest_size=16, person=kind).hexdigest().encode()


def decode_first(cell: Cell, key: Key) -> Committed:
    """Return the commit that a marker's cell records; raise CorruptRowError if it has none."""
    marker = decode_marker(cell.value, key)
    answer = None if marker.answer is None else decode_answer(marker.answer, key)
    facts = marker.transaction, cell.timestamp, True, True, marker.digest
    return Committed(*facts, marker.answer is not None, answer)


def require_same(request: Request, first: Committed) -> Committed:
    """Return the first commit of the request's token; raise TokenReusedError if its content is
    known to be another than this request's."""
    digest, token = make_digest(request), request.once or b""
    if digest is None or first.digest in (None, digest):
        return first
    facts = {"token": token, "transaction": first.transaction, "timestamp": first.timestamp}
    facts |= {"digest": digest, "committed_digest": first.digest}
    words = "the token was committed with another content, and nothing of this was written"
    raise TokenReusedError(annotate(words, **facts), token, first.transaction)


def encode_answer(value: object) -> bytes:
    """Return the bytes of a block's result; none if it would not come back the same, or is longer
    than MAX_ANSWER."""

    def pack_tuple(part: object) -> object:
        return msgpack.ExtType(_TUPLE, pack([*part])) if type(part) is tuple else part

    pack = partial(msgpack.packb, strict_types=True, default=pack_tuple)
    try:
        packed: bytes = pack(value)
        is_same = len(packed) <= MAX_ANSWER and repr(decode_answer(packed)) == repr(value)
    except (TypeError, ValueError, OverflowError, RecursionError, CorruptRowError):
        return b""
    return packed if is_same else b""


def decode_answer(packed: bytes, key: Key | None = None) -> Any:
    """Return the block's result; raise CorruptRowError, with `key`, if it does not decode."""

    def unpack(code: int, part: bytes) -> object:
        return tuple(decode_answer(part, key)) if code == _TUPLE else msgpack.ExtType(code, part)

    try:
        return msgpack.unpackb(packed, ext_hook=unpack, strict_map_key=False)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CorruptRowError("an answer does not decode", key=key, cause=str(error)) from error


def encode_buffer(request: Request, lock_ttl_ms: int, owner: str = "") -> bytes:
    """Return the buffer's bytes; raise InvalidRequestError if they exceed one cell."""
    encoded = _frame(
        [
            [[m.key] if m.value is None else [m.key, m.value] for m in request.mutations],
            [fold(assertion, _pack_leaf, _pack_compound) for assertion in request.assertions],
            request.once,
            lock_ttl_ms,
            dict(request.labels),
            *((bool(request.validate), owner) if owner else (True,) if request.validate else ()),
        ]
    )
    if len(encoded) > MAX_BUFFER:
        raise InvalidRequestError(
            "transaction is too large for one cell", bytes=len(encoded), limit=MAX_BUFFER
        )
    return encoded


def decode_buffer(encoded: bytes) -> Buffer:
    """Return the decoded buffer; raise CorruptRowError if the bytes are not a buffer."""
    body = _unframe("buffer", encoded)
    try:
        mutations, assertions, once, lock_ttl_ms, labels, *more = body
        check_whole("lock_ttl_ms", lock_ttl_ms, 0)
        _require(dict, labels)
        match more:
            case [] | [True]:
                validate, owner = bool(more), ""
            case [bool(validate), str(owner)] if 0 < len(owner) <= MAX_OWNER:
                pass
            case _:
                raise ValueError("fields that are not known")
        request = bind_request(
            [_unpack_mutation(packed) for packed in mutations],
            (),
            once,
            labels,
            validate=validate or None,
            may_be_empty=True,
        )
        asserted = [bind(_unpack_assertion(packed), _check_stored_key) for packed in assertions]
        return Buffer(replace(request, assertions=tuple(asserted)), lock_ttl_ms, owner)
    except (TypeError, ValueError, LookupError, RecursionError) as error:
        raise CorruptRowError("buffer has an unknown shape", cause=str(error)) from error


def _check_stored_key(key: Key) -> Key:
    """Return the key; without a column it stands for a unit, which a fenced read has locked."""
    bind_key(key if key.column else key._replace(column=b"-"), None)
    return key


def encode_plan(plan: Plan) -> bytes:
    return _frame([plan.timestamp, plan.replaced, *([plan.locks] if plan.locks else ())])


def decode_plan(encoded: bytes) -> Plan:
    """Return the decoded plan; raise CorruptRowError if the bytes are not a plan."""
    body = _unframe("plan", encoded)
    try:
        timestamp, replaced, *locks = body
        _require(tuple, replaced, *locks)
        _require(int, timestamp, *replaced)
        _require(bytes, *(lock for each in locks for lock in each))
        if timestamp == 0 or not all(0 <= number < 1 << 63 for number in (timestamp, *replaced)):
            raise ValueError("a timestamp that is none")
        return Plan(timestamp, replaced, *locks)
    except (TypeError, ValueError, RecursionError) as error:
        raise CorruptRowError("plan has an unknown shape", cause=str(error)) from error


def encode_child_counts(counts: Sequence[int]) -> bytes:
    return b" ".join(b"%d" % count for count in counts) or OPEN


def decode_child_counts(encoded: bytes) -> tuple[int, ...]:
    """Return the number of parts that each task wrote; raise CorruptRowError if unknown."""
    if encoded == OPEN:
        return ()
    if not _COUNTS.fullmatch(encoded):
        raise CorruptRowError("parts have an unknown shape", value=encoded)
    return tuple(map(int, encoded.split(b" ")))


def decode_status(encoded: bytes) -> Status:
    """Return the status; raise CorruptRowError if this version does not know it."""
    try:
        return Status(encoded)
    except ValueError as error:
        raise CorruptRowError("unknown status", value=encoded) from error


def _frame(body: list[Any]) -> bytes:
    packed: bytes = msgpack.Packer(buf_size=PACKED_AT_FIRST).pack(body)
    return _FRAME.pack(FORMAT, zlib.crc32(packed)) + packed


def _unframe(what: str, encoded: bytes) -> Any:
    if len(encoded) < _FRAME.size:
        raise CorruptRowError(f"{what} is cut short", bytes=len(encoded))
    version, checksum = _FRAME.unpack_from(encoded)
    if version != FORMAT:
        raise CorruptRowError(f"{what} is of an unknown format", version=version, known=FORMAT)
    packed = encoded[_FRAME.size :]
    if zlib.crc32(packed) != checksum:
        raise CorruptRowError(f"{what} does not match its checksum")
    try:
        return msgpack.unpackb(packed, use_list=False)
    except ValueError as error:
        raise CorruptRowError(f"{what} is not msgpack", cause=str(error)) from error


def _require(kind: type, *values: object) -> None:
    if not all(isinstance(value, kind) for value in values):
        raise TypeError(f"not of type {kind.__name__}")


def _unpack_mutation(packed: Any) -> Mutation | Delete:
    if len(packed) == 1:
        return Delete(Key(*packed[0]))
    key, value = packed
    return Mutation(Key(*key), value)


def _pack_leaf(name: str, key: Key, operand: Operand) -> list[Any]:
    return [name, key] if name == "some" else [name, key, operand]


def _pack_compound(name: str, parts: list[list[Any]]) -> list[Any]:
    return [name, parts[0] if name == "not" else parts]


def _unpack_assertion(packed: Any, depth: int = 1) -> Assertion:
    name, first, *operand = packed
    if name in LEAVES:
        return make_leaf(name, Key(*first), *operand)
    if name not in COMPOUNDS or operand:
        raise ValueError("unknown assertion")
    if depth == MAX_DEPTH:
        raise ValueError(f"assertion is nested too deeply limit={MAX_DEPTH}")
    parts = [first] if name == "not" else first
    return COMPOUNDS[name](*[_unpack_assertion(part, depth + 1) for part in parts])
