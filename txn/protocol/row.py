"""The transaction row: its key, its columns, and what they say together.

    row key = [salt "."] "transaction." milliseconds(13 digits) "." uid(32 hex digits)
              ["@" database] [child]
    child   = ".part-" task(5 digits) "-" number(5 digits)

The salt has two digits. The database is named by its transaction table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import Any

from txn.errors import CorruptRowError, InvalidRequestError
from txn.model import ROW_KEY, Cell, Key, Row, new_tuple, plain_table
from txn.protocol.codec import (
    Buffer,
    Plan,
    decode_buffer,
    decode_child_counts,
    decode_plan,
    decode_status,
)
from txn.protocol.context import Context, call_store
from txn.protocol.statuses import DONE, FIRST, Rules, Status
from txn.request import Request
from txn.stores.base import find_server
from txn.text import show_text

FAMILY = b"t"
FREE = b""
"""The value of a free lock, an empty tag and a cell that is only a timestamp; absent is equal."""
MARKER = b"once."
PART = b".part-"
PROTOCOL_ROW, DOCTOR_ROW = b"protocol", b"doctor"
CLOCK_END = b"\0clock"
"""The end of a row in each region, whose cells tell the time of its server and are then deleted."""
MAX_CHILDREN = 100_000
EARLY, LATE = b"0", b"1"
"""The mark of a transaction that validates what it read: the status from which readers wait."""
OWN_TIMES = (b"status", b"buffer", b"plan", b"ranges", b"reason", b"parts")
"""The columns of a fenced transaction row whose timestamps the client chooses."""
_DATABASE = re.compile(rb"@[^@ ]*?(?=\.part-|$)")
LOST = "its transaction has committed it, but it is absent or was aborted"
NEVER_DECIDED = (None, Status.ABORTING, Status.ABORTED)
_DECIDED = (Status.ASSERTED, Status.PUT, Status.CLEANING)


class RowState(Enum):
    """The action that a transaction row calls for, from any client that reads it. DEBRIS: there is
    no status; the row was deleted, or may still be written. UNREADABLE: the decision, or what it
    would write, cannot be known. A row with any evidence of a decision is neither UNDECIDED nor
    DEBRIS."""

    UNDECIDED = "undecided"
    DECIDED = "decided"
    ABORTING = "aborting"
    FINISHED = "finished"
    DEBRIS = "debris"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class TransactionRow:
    """A transaction row as it was read at one instant.

    status: None if the row has none, or if `corrupt` says why it cannot be known. stored_status:
    the value of the status cell in either case. status_at, newest: the timestamp (ms) of the
    status, and the newest in the row. began: when each phase began, by the server's time. corrupt:
    what did not decode or is contradictory. validates: whether the transaction validates ranges or
    keys before its decision. is_withheld: whether it may have done so, and is undecided: readers
    wait for it. parts: how many parts each task wrote, empty before the decision; None: the
    transaction is not in parts. follows: whether this is a part that has not followed its parent
    yet; `follow` then sets its state, and `parent_ttl_ms`. elsewhere: for an absent row of another
    database, the transaction tables of that database and of this one.
    """

    row_key: bytes
    status: Status | None = None
    stored_status: Status | None = None
    status_at: int = 0
    buffer: Buffer | None = None
    plan: Plan | None = None
    reason: str | None = None
    heartbeat: int = 0
    newest: int = 0
    began: Mapping[Status, int] = field(default_factory=dict)
    corrupt: str | None = None
    validates: bool = False
    is_withheld: bool = False
    parts: tuple[int, ...] | None = None
    follows: bool = False
    parent_ttl_ms: int = 0
    elsewhere: tuple[bytes, bytes] | None = None

    @property
    def state(self) -> RowState:
        """The action that the row calls for."""
        if self.status is None:
            return RowState.UNREADABLE if self.corrupt or self.elsewhere else RowState.DEBRIS
        if self.status.is_finished:
            return RowState.FINISHED
        if self.status.is_undecided:
            return RowState.UNDECIDED
        if self.status.is_decided:
            return RowState.UNREADABLE if self.cause else RowState.DECIDED
        return RowState.ABORTING

    @property
    def cause(self) -> str | None:
        """Why the decision cannot be known; None: the row can be read."""
        # of a transaction in parts it is then unknown which parts were decided
        if self.corrupt is not None:
            return self.corrupt
        if self.status is None or self.status.is_finished or not self.status.is_decided:
            return None
        if self.buffer is None:
            return "the buffer is missing"
        if self.plan is None or len(self.plan.replaced) != len(self.buffer.request.mutations):
            return "the plan is missing, or does not fit the buffer"
        return None

    @property
    def lock_ttl_ms(self) -> int:
        """How long a living owner may be silent; 0: not known. A part's owner goes by the row that
        has its heartbeats, if that grants more."""
        return max(self.buffer.lock_ttl_ms if self.buffer else 0, self.parent_ttl_ms)

    @property
    def owner(self) -> str:
        """The program, process and host of its owner; empty: not known."""
        return self.buffer.owner if self.buffer else ""

    @property
    def shows_decision(self) -> bool:
        """Whether a cell besides the status shows a decision, even if not its content."""
        return self.plan is not None or Status.ASSERTED in self.began

    @property
    def is_dated(self) -> bool:
        """Whether each status is written together with its time."""
        return not FIRST.isdisjoint(self.began)

    @property
    def since(self) -> int:
        """When the row reached its status, by the server's time; retention and grace count from
        here. The status cell of a fenced transaction has a timestamp that its owner chose."""
        at = self.status_at
        return at if self.status is None else self.began.get(self.status, at)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do for the row: finished, absent or debris."""
        return self.state in (RowState.FINISHED, RowState.DEBRIS)

    @property
    def is_poisoned(self) -> bool:
        """Whether another client aborted it when it had no row. A row that was deleted looks the
        same to that client, so this says nothing about the outcome."""
        return self.status is Status.ABORTED and self.buffer is None and self.corrupt is None


def new_row_key(wall_ms: int, uid: int, salt_buckets: int = 1, database: bytes = b"") -> bytes:
    """Return a row key for a new transaction; `uid` has 128 random bits. The key names its database
    by the transaction table, so that its locks do too."""
    name = b"transaction.%013d.%032x" % (wall_ms, uid)
    if database:
        name += b"@" + plain_table(database)
    return name if salt_buckets == 1 else b"%02d." % (uid % salt_buckets) + name


def make_row_key(context: Context, uid: int, request: Request) -> bytes:
    """Return a row key for a new transaction of a request. Of several buckets, prefer those on the
    server of most keys, so that one request carries the row and its locks. The bytes of `uid`
    choose the buckets to try. One whose server is unknown will do, or it would never be known."""
    count, table, store = context.salt_buckets, context.table, context.store
    row_key = new_row_key(context.clock.wall_ms(), uid, count, table)
    if count == 1:
        return row_key
    servers = Counter(find_server(store, key.table or b"", key.row) for key in request.keys)
    del servers[None]
    for wanted, _ in servers.most_common(1):
        for shift in range(0, 128, 8):
            near = b"%02d." % ((uid >> shift) % count) + row_key[3:]
            if find_server(store, table, near) in (wanted, None):
                return near
    return row_key


def is_row_key(row: bytes) -> bool:
    return ROW_KEY.fullmatch(row) is not None


def is_evidence(row: bytes) -> bool:
    """Return whether this is a transaction row or the marker of a `once` token."""
    return is_row_key(row) or row.startswith(MARKER)


def is_own(row: bytes) -> bool:
    """Return whether this library wrote the row; any other row is foreign."""
    return is_evidence(row) or row in (PROTOCOL_ROW, DOCTOR_ROW) or row.endswith(CLOCK_END)


@lru_cache(maxsize=1_000)  # each step of a fenced transaction needs it
def created_ms(row_key: bytes) -> int:
    """Return when the transaction began by its owner's clock (ms since the epoch)."""
    match = ROW_KEY.fullmatch(row_key)
    if match is None:
        raise InvalidRequestError("not a transaction row key", row=row_key)
    return int(match[2])


def last_timestamp(rules: Rules, key: Key, cell: Cell) -> int:
    """Return the timestamp up to which a cell of a finished transaction is deleted. No client
    writes the cell above it, early or late."""
    if rules.offsets_ms and key.column in OWN_TIMES and is_row_key(key.row):
        return max(cell.timestamp, created_ms(key.row) + rules.offsets_ms[Status.ABORTED])
    return cell.timestamp


def name_database(row_key: bytes) -> bytes | None:
    """Return the transaction table that a row key names; None if it names none."""
    match = ROW_KEY.fullmatch(row_key)
    return None if match is None else match[3]


def strip_database(row_key: bytes) -> bytes:
    """Return a row key, or a fragment of one, without the name of its database."""
    return _DATABASE.sub(b"", row_key)


def child_key(parent: bytes, task: int, number: int) -> bytes:
    """Return the row key of part `number` (0-based) of a task."""
    return b"%b.part-%05d-%05d" % (parent, task, number)


def parent_of(row_key: bytes) -> bytes | None:
    """Return the row key of a part's parent; None for any other row key."""
    if PART not in row_key:
        return None
    match = ROW_KEY.fullmatch(row_key)
    return match[1] if match is not None and match[4] is not None else None


def child_range(parent: bytes) -> tuple[bytes, bytes]:
    return parent + PART, parent + b".part."


def column(table: bytes, row_key: bytes, name: bytes) -> Key:
    return new_tuple(Key, (row_key, FAMILY, name, table))


def status_key(table: bytes, row_key: bytes) -> Key:
    return new_tuple(Key, (row_key, FAMILY, b"status", table))


def marker_key(table: bytes, token: bytes) -> Key:
    return new_tuple(Key, (MARKER + token, FAMILY, b"done", table))


def decode_row(row: Row) -> TransactionRow:
    """Return the transaction row that the cells make. Never raises: see `corrupt`."""
    cells = {key.column: cell for key, cell in row.cells.items()}
    newest = max((cell.timestamp for cell in cells.values()), default=0)
    cell = cells.get(b"status")
    corrupt: list[str] = []
    stored = _decode_cell(decode_status, cell, corrupt) if cell and cell.value else None
    status = (
        stored if corrupt else _judge_status(stored, cells, parent_of(row.row) is not None, corrupt)
    )
    if status is None and not corrupt:  # the remaining cells can never be decided
        return TransactionRow(row.row, newest=newest)
    return TransactionRow(
        row.row,
        status=status,
        stored_status=stored,
        status_at=cell.timestamp if cell is not None else 0,
        buffer=_decode_cell(decode_buffer, cells.get(b"buffer"), corrupt),
        plan=_decode_cell(decode_plan, cells.get(b"plan"), corrupt),
        reason=show_text(cells[b"reason"].value.decode("utf-8", "surrogateescape"))
        if b"reason" in cells
        else None,
        heartbeat=cells[b"beat"].timestamp if b"beat" in cells else 0,
        newest=newest,
        began={each: cells[each.at].timestamp for each in Status if each.at in cells},
        validates=b"ranges" in cells,
        is_withheld=is_withheld(status, cells.get(b"ranges")),
        parts=_decode_cell(decode_child_counts, cells.get(b"parts"), corrupt),
        follows=status is Status.PART,
        corrupt="; ".join(corrupt) or None,  # must come last, after all cells were decoded
    )


def is_withheld(status: Status | None, mark: Cell | None) -> bool:
    """Whether readers wait for a holder with this status, whose row has this mark. It may have
    validated what it read, and be about to decide."""
    if mark is None:
        return False
    return status is Status.LOCKED or (status is Status.WRITTEN and mark.value == EARLY)


def _judge_status(
    stored: Status | None, cells: Mapping[bytes, Cell], is_part: bool, corrupt: list[str]
) -> Status | None:
    """Return the status that all cells of the row prove. A decision leaves a plan, and each status
    leaves its time; the final status is put when no work is left. If other cells contradict the
    status cell, `corrupt` says so."""
    if Status.COMPLETE.at in cells:
        return stored and Status.COMPLETE
    if _was_decided(stored, cells, is_part):
        if stored is None or not stored.is_decided:
            corrupt.append(f"the status is {stored or 'missing'}, but other cells show a decision")
            return None
    elif Status.ABORTED.at in cells:
        return stored and Status.ABORTED
    if stored in DONE and stored.at not in cells and _is_dated(cells):
        corrupt.append(f"the status is {stored}, but no cell shows since when")
        return None
    return stored


def _was_decided(stored: Status | None, cells: Mapping[bytes, Cell], is_part: bool) -> bool:
    """Whether a cell besides the status shows a decision. A plan does if it came in the same step,
    which is not so for a part, nor for a store that writes cell by cell."""
    if any(status.at in cells for status in _DECIDED):
        return True
    if b"plan" not in cells:
        return False
    if is_part:
        is_open = stored is Status.PART or Status.ABORTING.at in cells
        return not is_open and Status.ABORTED.at not in cells
    return stored is None or _is_dated(cells)


def _is_dated(cells: Mapping[bytes, Cell]) -> bool:
    return any(status.at in cells for status in FIRST)


def follow(child: TransactionRow, parent: TransactionRow) -> TransactionRow:
    """Return a part's row in the state that its parent gives it. A part that has followed already
    is unchanged; one that was decided is unreadable if it is absent or was aborted. After
    2-ASSERTED all parts of the parent are complete, so a part that has not followed came late or
    was not counted. An absent parent may still arrive, and is poisoned before its parts abort."""
    is_open = parent.state is RowState.DECIDED and parent.status is Status.ASSERTED
    is_counted = is_open and _is_counted(child, parent)
    if is_counted and child.status in NEVER_DECIDED and child.corrupt is None:
        return replace(child, status=None, corrupt=LOST)
    if not child.follows or parent.state is RowState.DEBRIS:
        return child
    match parent.state:
        case RowState.UNREADABLE:
            return replace(child, status=None, corrupt=f"its transaction: {parent.cause}")
        case RowState.UNDECIDED:
            return replace(
                child,
                status=parent.status,
                status_at=parent.status_at,
                began=parent.began,
                heartbeat=parent.heartbeat,
                parent_ttl_ms=parent.lock_ttl_ms,
            )
        case RowState.DECIDED if parent.parts is None:
            return replace(child, status=None, corrupt="its transaction: the parts are missing")
        case RowState.DECIDED if is_counted:
            plan = child.plan
            if plan is not None and parent.plan is not None:
                plan = replace(plan, timestamp=parent.plan.timestamp)
            began = {**child.began, Status.ASSERTED: parent.since}
            return replace(child, status=Status.ASSERTED, plan=plan, began=began)
    return replace(child, status=Status.ABORTING)


def _is_counted(child: TransactionRow, parent: TransactionRow) -> bool:
    match = ROW_KEY.fullmatch(child.row_key)
    assert match is not None
    task, number = int(match[4]), int(match[5])
    counts = parent.parts or ()
    return task < len(counts) and number < counts[task]


def _decode_cell(decode: Any, cell: Cell | None, corrupt: list[str]) -> Any:
    if cell is None:
        return None
    try:
        return decode(cell.value)
    except CorruptRowError as error:
        corrupt.append(str(error))
        return None


COLUMNS = (
    *(b"status", b"buffer", b"plan", b"reason", b"beat", b"ranges", b"parts"),
    *(status.at for status in Status),
)
OPEN_TO_BOTH = (Status.WRITTEN.encoded, Status.LOCKED.encoded)


def read_rows(context: Context, row_keys: Collection[bytes]) -> dict[bytes, TransactionRow]:
    """Return the transaction rows, each from one instant; an absent row has no status. A part that
    has not followed its parent has the state of its parent."""
    return decode_rows(context, row_keys, read_row_cells(context, row_keys))


def read_row_cells(
    context: Context, row_keys: Collection[bytes], others: Collection[Key] = ()
) -> dict[Key, Cell | None]:
    """Return the cells of these transaction rows, and `others`. Each row is of an instant of its
    own. A part that was read before its parent's decision may have been planned, or completed,
    since. So if the parent has decided or aborted, its part is read again."""
    wanted = [*others, *list_row_cells(context, row_keys)]
    found = call_store(context, lambda: context.store.read(wanted))
    early = [row for row in row_keys if _is_early(context, row, found)]
    if early and "instant_reads" not in context.store.features:
        again = [column(context.table, row, name) for row in early for name in COLUMNS]
        found = {**found, **call_store(context, lambda: context.store.read(again))}
    return found


def _is_early(context: Context, row_key: bytes, found: Mapping[Key, Cell | None]) -> bool:
    parent = parent_of(row_key)
    if parent is None:
        return False
    own, decisive = (found[status_key(context.table, row)] for row in (row_key, parent))
    if own is not None and own.value != Status.PART.encoded:
        return False
    return decisive is None or decisive.value not in OPEN_TO_BOTH


def list_row_cells(context: Context, row_keys: Collection[bytes]) -> list[Key]:
    """Return the keys of the cells of these transaction rows and of their parents."""
    rows = dict.fromkeys(row_keys)
    rows.update(dict.fromkeys(parent for row in row_keys if (parent := parent_of(row))))
    return [column(context.table, row, name) for row in rows for name in COLUMNS]


def decode_rows(
    context: Context, row_keys: Collection[bytes], found: Mapping[Key, Cell | None]
) -> dict[bytes, TransactionRow]:
    """Return the transaction rows from cells that were read, perhaps among others."""
    parents: dict[bytes, TransactionRow] = {}
    rows: dict[bytes, TransactionRow] = {}
    for row_key in row_keys:
        row = rows[row_key] = _decode(context, row_key, found)
        may_follow = row.follows or row.status in NEVER_DECIDED
        if may_follow and (parent := parent_of(row_key)):
            if parent not in parents:
                parents[parent] = _decode(context, parent, found)
            rows[row_key] = follow(row, parents[parent])
    return rows


def _decode(context: Context, row_key: bytes, found: Mapping[Key, Cell | None]) -> TransactionRow:
    own = [column(context.table, row_key, name) for name in COLUMNS]
    cells = {key: cell for key in own if (cell := found[key]) is not None}
    if not cells and (theirs := name_database(row_key)) is not None:
        ours = plain_table(context.table)
        if theirs != ours:
            return TransactionRow(row_key, elsewhere=(theirs, ours))
    return decode_row(Row(row_key, cells))
