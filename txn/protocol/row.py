"""The transaction row and its bytes: row keys, the buffer, the plan, and the row as a whole.

    row key = [bucket "."] "transaction." milliseconds(13 digits) "." uid(32 hex digits) [part]
    part    = ".part-" task(5 digits) "-" number(5 digits)
    parts   = "-", or once it is decided how many parts each task has written: number *(" " number)
    frame   = version(1 byte, 0x01) crc32-of-body(4 bytes, big-endian) body(msgpack)
    buffer  = frame of [mutations, assertions, once or nil, lease_ms, labels]
    plan    = frame of [commit timestamp, [replaced timestamp or 0, for each mutation in order]],
              fenced: and [what each lock says, held, in the order of the keys]
    mutation  = [key, value], or [key] for a delete
    assertion = ["exact", key, value] | ["some", key] | ["greater", key, value]
              | ["version", key, timestamp or nil] | ["not", assertion]
              | ["and", [assertion...]] | ["or", [assertion...]]
    key     = [row, family, column, table]
    marker  = row key [" " milliseconds]

Every version ever released stays readable. Bytes that do not decode raise CorruptRowError.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import msgpack

from txn.assertions import COMPOUNDS, LEAVES, Assertion, fold, make_leaf
from txn.errors import CorruptRowError, InvalidRequestError
from txn.model import MAX_CELL, ROW_KEY, Cell, Delete, Key, Mutation, Row, new_tuple, plain_table
from txn.protocol.phases import DONE, FIRST, Status
from txn.request import Request

FAMILY = b"t"
FORMAT = 1
MARKER = b"once."
PROTOCOL_ROW, DOCTOR_ROW = b"protocol", b"doctor"
MOST_PARTS = 100_000
MAX_BUFFER = MAX_CELL - 256  # the cell's key has its share
OPEN = b"-"
"""What the cell `parts` says before the decision."""
_FRAME = struct.Struct(">BI")
_COUNTS = re.compile(rb"\d{1,6}(?: \d{1,6})*")
_DATABASE = re.compile(rb"@[^@ ]*?(?=\.part-|$)")
_PROMISE = re.compile(rb"[1-9][0-9]{0,15}")
_DECIDED = (Status.ASSERTED, Status.PUT, Status.CLEANING)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A transaction as it was asked for, and for how long its owner may be silent."""

    request: Request
    lease_ms: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What was decided: the commit timestamp, and the version that each mutation replaces.

    replaced: timestamps in the order of the request's mutations; 0 where there is no version.
    locks: of the fenced protocol, what each of its locks says while it holds it, in the order of
    their first keys in the request.
    """

    timestamp: int
    replaced: tuple[int, ...]
    locks: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Marker:
    """What is kept of a `once` token: the transaction that committed it, and for how long after
    that, as its caller has promised, it may come again. None: for ever."""

    transaction: bytes
    retention_ms: int | None = None


class RowState(Enum):
    """What a transaction row calls for, by anybody who looks at it.

    DEBRIS: of a row that was deleted; an absent one, too, can never decide. UNREADABLE: nobody can
    know what it decided, or what it would write. A row with any evidence of a decision is neither
    undecided nor debris.
    """

    UNDECIDED = "undecided"
    DECIDED = "decided"
    ABORTING = "aborting"
    FINISHED = "finished"
    DEBRIS = "debris"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class TransactionRow:
    """A transaction row as it was read at one instant.

    status: None where the row has none, or where `corrupt` says why nobody can know it; said: what
    the cell says all the same.
    status_at, newest: the timestamp (ms) of the status, and the newest one in the row.
    began: when each phase began, by the server's time. corrupt: what did not decode, or what
    contradicts what, and why.
    has_ranges: whether it looks at ranges that it has scanned, between 1-LOCKED and its decision.
    parts: how many parts each task has written of a transaction in parts, none before the decision;
    None: it has no parts. follows: whether it is a part that has not followed its transaction yet,
    from which it then has what it is told to be: see `follow`.
    elsewhere: of an absent row whose key names another database: the transaction table of that one,
    where its decision is written, and of this one.
    """

    row_key: bytes
    status: Status | None = None
    said: Status | None = None
    status_at: int = 0
    buffer: Buffer | None = None
    plan: Plan | None = None
    reason: str | None = None
    beat: int = 0
    newest: int = 0
    began: Mapping[Status, int] = field(default_factory=dict)
    corrupt: str | None = None
    has_ranges: bool = False
    parts: tuple[int, ...] | None = None
    follows: bool = False
    elsewhere: tuple[bytes, bytes] | None = None

    @property
    def state(self) -> RowState:
        """What the row calls for: every other place matches on this."""
        if self.status is None:
            is_unknown = self.corrupt or self.elsewhere
            return RowState.UNREADABLE if is_unknown else RowState.DEBRIS
        if self.status.is_finished:
            return RowState.FINISHED
        if self.status.is_undecided:
            return RowState.UNDECIDED
        if self.status.is_decided:
            return RowState.UNREADABLE if self.cause else RowState.DECIDED
        return RowState.ABORTING

    @property
    def cause(self) -> str | None:
        """Why nobody can know what was decided, of a row that may be; None: it can be read."""
        if self.corrupt is not None:  # of one in parts nobody knows which were decided
            return self.corrupt
        if self.status is None or self.status.is_finished or not self.status.is_decided:
            return None
        if self.buffer is None:
            return "the buffer is missing"
        if self.plan is None or len(self.plan.replaced) != len(self.buffer.request.mutations):
            return "the plan is missing, or does not fit the buffer"
        return None

    @property
    def tells_decision(self) -> bool:
        """Whether more than its status tells that it was decided, even if not what."""
        return self.plan is not None or Status.ASSERTED in self.began

    @property
    def is_dated(self) -> bool:
        """Whether the time of each of its statuses is written together with the status."""
        return not FIRST.isdisjoint(self.began)

    @property
    def since(self) -> int:
        """When it came to its status, by the server's time: what retention and grace count from.
        The status of a fenced transaction has a timestamp of its owner's."""
        at = self.status_at
        return at if self.status is None else self.began.get(self.status, at)

    @property
    def is_over(self) -> bool:
        """Whether it can do nothing any more: finished, absent, or debris of what is finished."""
        return self.state in (RowState.FINISHED, RowState.DEBRIS)


def new_row_key(wall_ms: int, uid: int, buckets: int = 1, database: bytes = b"") -> bytes:
    """Return a row key for a new transaction; uid has 128 random bits. It names its database by
    the transaction table, so that its locks do too."""
    name = b"transaction.%013d.%032x" % (wall_ms, uid)
    if database:
        name += b"@" + plain_table(database)
    return name if buckets == 1 else b"%02d." % (uid % buckets) + name


def is_row_key(row: bytes) -> bool:
    """Return whether this is the row key of a transaction."""
    return ROW_KEY.fullmatch(row) is not None


def is_evidence(row: bytes) -> bool:
    """Return whether a row of the transaction table tells of a transaction: its own row, or the
    marker of its `once` token."""
    return is_row_key(row) or row.startswith(MARKER)


def is_own(row: bytes) -> bool:
    """Return whether a row of the transaction table is one that this library keeps there: any
    other is foreign."""
    return is_evidence(row) or row in (PROTOCOL_ROW, DOCTOR_ROW)


def created_ms(row_key: bytes) -> int:
    """Return when the owner's clock says that it began the transaction (ms since the epoch)."""
    match = ROW_KEY.fullmatch(row_key)
    if match is None:
        raise InvalidRequestError("not a transaction row key", row=row_key)
    return int(match[2])


def name_database(row_key: bytes) -> bytes | None:
    """Return the transaction table that a row key names; None: it names none, as older ones."""
    match = ROW_KEY.fullmatch(row_key)
    return None if match is None else match[3]


def strip_database(row_key: bytes) -> bytes:
    """Return a row key, or a piece of one, without the name of its database."""
    return _DATABASE.sub(b"", row_key)


def part_key(whole: bytes, task: int, number: int) -> bytes:
    """Return the row key of a part: the how-manyth, from 0, that a task has written."""
    return b"%b.part-%05d-%05d" % (whole, task, number)


def whole_of(row_key: bytes) -> bytes | None:
    """Return the row key of the transaction that a part is of; None for any other row key."""
    if b".part-" not in row_key:
        return None
    match = ROW_KEY.fullmatch(row_key)
    return match[1] if match is not None and match[4] is not None else None


def rows_of_parts(whole: bytes) -> tuple[bytes, bytes]:
    """Return where the rows of a transaction's parts begin and end."""
    return whole + b".part-", whole + b".part."


def column(table: bytes, row_key: bytes, name: bytes) -> Key:
    """Return the key of one column of a transaction row."""
    return new_tuple(Key, (row_key, FAMILY, name, table))


def status_key(table: bytes, row_key: bytes) -> Key:
    """Return the key of the status, the cell that every decision is taken on."""
    return column(table, row_key, b"status")


def marker_key(table: bytes, token: bytes) -> Key:
    """Return the key that holds, once committed, the marker of a `once` token."""
    return Key(MARKER + token, FAMILY, b"done", table)


def encode_marker(marker: Marker) -> bytes:
    """Return the marker's value, which is text."""
    if marker.retention_ms is None:
        return marker.transaction
    return b"%b %d" % (marker.transaction, marker.retention_ms)


def decode_marker(value: bytes, key: Key | None = None) -> Marker:
    """Return what a marker says; CorruptRowError, with its key, where it names no transaction. A
    promise that does not decode is none: it is kept for ever."""
    transaction, _, promise = value.partition(b" ")
    if not is_row_key(transaction):
        raise CorruptRowError("a token's marker names no transaction", key=key, bytes=len(value))
    return Marker(transaction, int(promise) if _PROMISE.fullmatch(promise) else None)


def encode_buffer(buffer: Buffer) -> bytes:
    """Return the buffer's bytes; InvalidRequestError where they exceed what one cell can hold."""
    request = buffer.request
    encoded = _frame(
        [
            [_pack_mutation(mutation) for mutation in request.mutations],
            [_pack_assertion(assertion) for assertion in request.assertions],
            request.once,
            buffer.lease_ms,
            dict(request.labels),
        ]
    )
    if len(encoded) > MAX_BUFFER:
        raise InvalidRequestError(
            "transaction is too large for one cell", bytes=len(encoded), limit=MAX_BUFFER
        )
    return encoded


def decode_buffer(encoded: bytes) -> Buffer:
    """Return what `encode_buffer` was given; CorruptRowError where the bytes are not its."""
    body = _unframe("buffer", encoded)
    try:
        mutations, assertions, once, lease_ms, labels = body
        _require(int, lease_ms)
        _require(dict, labels)
        request = Request(
            tuple(_unpack_mutation(packed) for packed in mutations),
            tuple(_unpack_assertion(packed) for packed in assertions),
            once,
            labels,
        )
        return Buffer(request, lease_ms)
    except (TypeError, ValueError, LookupError) as error:
        raise CorruptRowError("buffer has an unknown shape", cause=str(error)) from error


def encode_plan(plan: Plan) -> bytes:
    """Return the plan's bytes."""
    return _frame([plan.timestamp, plan.replaced, *([plan.locks] if plan.locks else ())])


def decode_plan(encoded: bytes) -> Plan:
    """Return what `encode_plan` was given; CorruptRowError where the bytes are not its."""
    body = _unframe("plan", encoded)
    try:
        timestamp, replaced, *locks = body
        _require(tuple, replaced, *locks)
        _require(int, timestamp, *replaced)
        _require(bytes, *(lock for each in locks for lock in each))
        if timestamp == 0 or not all(0 <= number < 1 << 63 for number in (timestamp, *replaced)):
            raise ValueError("a timestamp that is none")
        return Plan(timestamp, replaced, *locks)
    except (TypeError, ValueError) as error:
        raise CorruptRowError("plan has an unknown shape", cause=str(error)) from error


def encode_parts(counts: Sequence[int]) -> bytes:
    """Return what tells how many parts each task has written, which is text."""
    return b" ".join(b"%d" % count for count in counts) or OPEN


def decode_parts(encoded: bytes) -> tuple[int, ...]:
    """Return how many parts each task has written; CorruptRowError where that is nothing known."""
    if encoded == OPEN:
        return ()
    if not _COUNTS.fullmatch(encoded):
        raise CorruptRowError("parts have an unknown shape", value=encoded)
    return tuple(map(int, encoded.split(b" ")))


def decode_status(encoded: bytes) -> Status:
    """Return the status; CorruptRowError where it is none that this version knows."""
    try:
        return Status(encoded)
    except ValueError as error:
        raise CorruptRowError("unknown status", value=encoded) from error


def decode_row(row: Row) -> TransactionRow:
    """Return a transaction row from its cells. It never raises: see `corrupt`."""
    cells = {key.column: cell for key, cell in row.cells.items()}
    newest = max((cell.timestamp for cell in cells.values()), default=0)
    cell = cells.get(b"status")
    has_status = cell is not None and cell.value != b""
    corrupt: list[str] = []
    said = _decode_cell(decode_status, cell, corrupt) if has_status else None
    status = said if corrupt else _judge_status(said, cells, whole_of(row.row) is not None, corrupt)
    if status is None and not corrupt:  # whatever else is there can never be decided
        return TransactionRow(row.row, newest=newest)
    return TransactionRow(
        row.row,
        status=status,
        said=said,
        status_at=cell.timestamp if cell is not None else 0,
        buffer=_decode_cell(decode_buffer, cells.get(b"buffer"), corrupt),
        plan=_decode_cell(decode_plan, cells.get(b"plan"), corrupt),
        reason=cells[b"reason"].value.decode(errors="replace") if b"reason" in cells else None,
        beat=cells[b"beat"].timestamp if b"beat" in cells else 0,
        newest=newest,
        began=_began(cells),
        has_ranges=b"ranges" in cells,
        parts=_decode_cell(decode_parts, cells.get(b"parts"), corrupt),
        follows=status is Status.PART,
        corrupt="; ".join(corrupt) or None,  # the last: of all that was decoded
    )


def _judge_status(
    said: Status | None, cells: Mapping[bytes, Cell], is_part: bool, corrupt: list[str]
) -> Status | None:
    """Return the status that the row has reached, which its other cells tell too. A decision leaves
    a plan, and each status the time of its own; the last one of these is put when nothing is left
    to do. Where they contradict the status cell nobody knows: `corrupt` says so."""
    if Status.COMPLETE.at in cells:
        return said and Status.COMPLETE
    if _was_decided(said, cells, is_part):
        if said is None or not said.is_decided:
            corrupt.append(f"the status is {said or 'missing'}, and other cells tell of a decision")
            return None
    elif Status.ABORTED.at in cells:
        return said and Status.ABORTED
    if said in DONE and said.at not in cells and _is_dated(cells):
        corrupt.append(f"the status is {said}, and no cell tells since when")
        return None
    return said


def _was_decided(said: Status | None, cells: Mapping[bytes, Cell], is_part: bool) -> bool:
    """Whether a cell besides the status tells of a decision. A plan does so if it came in the same
    step: not that of a part, which is there before, nor one from a store that writes cell by cell.
    """
    if any(status.at in cells for status in _DECIDED):
        return True
    if b"plan" not in cells:
        return False
    if is_part:
        is_open = said is Status.PART or Status.ABORTING.at in cells
        return not is_open and Status.ABORTED.at not in cells
    return said is None or _is_dated(cells)


def _is_dated(cells: Mapping[bytes, Cell]) -> bool:
    return any(status.at in cells for status in FIRST)


def follow(part: TransactionRow, whole: TransactionRow) -> TransactionRow:
    """Return a part's row as that of its transaction has it. One that has followed already stands
    for itself. Once its transaction is past 2-ASSERTED all its parts are complete; what is then
    found as a part came late, as one that was not counted, or whose transaction is absent."""
    if not part.follows:
        return part
    match whole.state:
        case RowState.UNREADABLE:
            return replace(part, status=None, corrupt=f"its transaction: {whole.cause}")
        case RowState.UNDECIDED:
            return replace(
                part,
                status=whole.status,
                status_at=whole.status_at,
                began=whole.began,
                beat=whole.beat,
            )
        case RowState.DECIDED if whole.parts is None:
            return replace(part, status=None, corrupt="its transaction: the parts are missing")
        case RowState.DECIDED if whole.status is Status.ASSERTED and _is_counted(part, whole):
            plan = part.plan
            if plan is not None and whole.plan is not None:
                plan = replace(plan, timestamp=whole.plan.timestamp)
            began = {Status.ASSERTED: whole.since}
            return replace(part, status=Status.ASSERTED, plan=plan, began=began)
    return replace(part, status=Status.ABORTING)


def _is_counted(part: TransactionRow, whole: TransactionRow) -> bool:
    """Whether a part is one of those that were decided."""
    match = ROW_KEY.fullmatch(part.row_key)
    assert match is not None
    task, number = int(match[4]), int(match[5])
    counts = whole.parts or ()
    return task < len(counts) and number < counts[task]


def _began(cells: Mapping[bytes, Cell]) -> dict[Status, int]:
    times = {status: cells.get(status.at) for status in Status}
    return {status: cell.timestamp for status, cell in times.items() if cell is not None}


def _decode_cell(decode: Any, cell: Cell | None, corrupt: list[str]) -> Any:
    if cell is None:
        return None
    try:
        return decode(cell.value)
    except CorruptRowError as error:
        corrupt.append(str(error))
        return None


def _frame(body: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(body)
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


def _pack_mutation(mutation: Mutation | Delete) -> list[Any]:
    if isinstance(mutation, Delete):
        return [mutation.key]
    return [mutation.key, mutation.value]


def _unpack_mutation(packed: Any) -> Mutation | Delete:
    if len(packed) == 1:
        return Delete(Key(*packed[0]))
    key, value = packed
    return Mutation(Key(*key), value)


def _pack_assertion(assertion: Assertion) -> list[Any]:
    return fold(
        assertion,
        lambda name, key, operand: [name, key] if name == "some" else [name, key, operand],
        lambda name, parts: [name, parts[0] if name == "not" else parts],
    )


def _unpack_assertion(packed: Any) -> Assertion:
    name, first, *operand = packed
    if name in LEAVES:
        return make_leaf(name, Key(*first), *operand)
    if name not in COMPOUNDS:
        raise ValueError(f"unknown assertion {packed!r}")
    return COMPOUNDS[name](*map(_unpack_assertion, [first] if name == "not" else first))
