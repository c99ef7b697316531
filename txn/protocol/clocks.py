"""Compares this client's clock with the store's time, before a wrong clock can do harm.

Code that chooses timestamps, or deletes by age, calls `check_clock` first. A server's time is the
timestamp that it gives to a cell, in the row of the protocol's name, which every client writes. A
comparison takes two requests: on first use, every few minutes, and at once if the monotonic clock
shows that the time of day was set. All other calls are free.

A store on this machine has the same clock. A cell there records both clocks at the first write
after each boot, so a later change of the time of day shows. It cannot be known which time was
right: only deletion by age is refused then, no commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from txn.clock import Clock, call_until, find_origin
from txn.errors import (
    AbortedError,
    ConflictError,
    InvalidRequestError,
    MaybeApplied,
    NotApplied,
    StoreError,
    TableUnavailable,
)
from txn.model import Cell, Check, Edit, Key, Stamp
from txn.protocol.context import Context, call_store
from txn.protocol.row import FREE, column
from txn.protocol.transaction import PendingCommit

T = TypeVar("T")

ROW = b"protocol"
"""The row of the protocol's name, which is never taken for a transaction's."""

COMPARE_EACH_MS = 300_000
TRY_AGAIN_MS = 60_000
STEP_MS = 1_000
"""A larger change of the time of day causes a new comparison."""

FUTURE_MS = 30 * 24 * 3_600_000
"""How far ahead of the clock a cell may lie for a commit to go above it. A wrong hour, day or month
costs timestamps; a wrong year, or a time in microseconds, would persist for ever."""

CATCH_UP_MS = 2
ACCEPT = "if it is right now, `txn fsck --repair --accept-clock` takes it for right"
DIFFERS = "this machine's clock and the store's differ, and nothing was written: set them by NTP"
WAS_SET = f"this machine's clock was set since it was noted, and nothing was written: {ACCEPT}"


class ClockNote(NamedTuple):
    """Both clocks of a machine at one moment. origin: identifies the zero of its monotonic clock.
    newest_ms: the latest time of day ever noted in the store."""

    origin: bytes
    monotonic_ms: int
    wall_ms: int
    newest_ms: int

    def encode(self) -> bytes:
        return b"%b %d %d %d" % self

    def find_step(self, clock: Clock) -> int:
        """Return how far (ms) the time of day was set since the note, or how far it is behind the
        latest noted time, if that is more."""
        now_ms, set_ms = clock.wall_ms(), 0
        if self.origin == find_origin(clock):
            set_ms = now_ms - self.wall_ms - (clock.monotonic_ms() - self.monotonic_ms)
        return max(set_ms, min(now_ms - self.newest_ms, 0), key=abs)


def decode_note(value: bytes) -> ClockNote | None:
    """Decode a note; return None for bytes that are none."""
    origin, *times = value.split(b" ")
    if len(times) != 3 or not all(map(bytes.isdigit, times)):
        return None
    return ClockNote(origin, *map(int, times))


# ------------------------------------------------------------------------------ the comparison


def check_commit_clock(context: Context) -> None:
    """Raise AbortedError if this client's clock would give commits wrong timestamps: see
    `check_clock`. If servers choose the timestamps, nothing is done. A store on this machine
    refuses only a clock that other clients could not follow: see FUTURE_MS."""
    if not context.is_local:
        if context.rules.locks_rows and "remote_calls" in context.store.features:
            check_clock(context)
        return
    trust, clock = context.trust, context.clock
    offset_ms = clock.wall_ms() - clock.monotonic_ms()
    if trust.noted_ms is None or abs(offset_ms - trust.noted_ms) > STEP_MS:
        step_ms = _call_for_time(context, partial(note_clock, context))
        _refuse(WAS_SET, max(step_ms, 0), max(context.policy.skew_ms, FUTURE_MS))
        trust.noted_ms = offset_ms


def check_clock(context: Context) -> None:
    """Raise AbortedError if this client's clock and the store's time differ by more than the
    policy's skew; nothing was done then. May write, so read-only code must not call it. Raises
    StoreError if the store does not answer, unless the clock was right a few minutes ago and not
    set since."""
    trust, clock = context.trust, context.clock
    now_ms = clock.monotonic_ms()
    if trust.offset_ms is None or abs(trust.find_step_ms(clock.wall_ms(), now_ms)) > STEP_MS:
        _call_for_time(context, partial(_compare, context))
    elif now_ms >= trust.due_ms:
        try:
            call_until(context.until_ms, partial(_compare, context))
        except StoreError:
            trust.due_ms = clock.monotonic_ms() + TRY_AGAIN_MS


def _call_for_time(context: Context, call: Callable[[], T]) -> T:
    """Call a function that writes only clocks. MaybeApplied becomes NotApplied, because the
    caller's own work has not begun."""
    try:
        return call_store(context, call)
    except TableUnavailable:
        raise
    except MaybeApplied as error:
        words = "the store did not tell its time, and nothing else was written"
        raise NotApplied(f"{words}: {error}") from error


def _compare(context: Context) -> None:
    trust, clock, limit_ms = context.trust, context.clock, context.policy.skew_ms
    now_ms = clock.monotonic_ms()
    # read first, so that a change during the comparison causes another one
    offset_ms = clock.wall_ms() - now_ms
    _refuse(DIFFERS, measure_skew(context), limit_ms)
    if context.is_local:
        _refuse(WAS_SET, note_clock(context), limit_ms)
    trust.offset_ms, trust.due_ms = offset_ms, now_ms + COMPARE_EACH_MS


def was_set(context: Context, now_ms: int) -> bool:
    """Whether the time of day was set since the comparison with the servers' time."""
    step_ms = context.trust.find_step_ms(now_ms, context.clock.monotonic_ms())
    return abs(step_ms) > context.policy.skew_ms and not context.is_local


def _refuse(words: str, skew_ms: int, limit_ms: int) -> None:
    if abs(skew_ms) > limit_ms:
        raise AbortedError(
            words,
            ahead_ms=skew_ms if skew_ms > 0 else None,
            behind_ms=-skew_ms if skew_ms < 0 else None,
            limit_ms=limit_ms,
        )


def measure_skew(context: Context, row: bytes = ROW) -> int:
    """Return how far (ms) this client's clock is at least ahead of the store's, or behind it if
    negative; the duration of the calls is allowed for. Raises StoreError if they took too long for
    a result. row: the row whose cells are written."""
    store, clock, token = context.store, context.clock, b"%016x" % context.rng.getrandbits(64)
    for name in (b"clock", b"clock-" + token):
        key = column(context.table, row, name)
        before_ms, began_ms = clock.wall_ms(), clock.monotonic_ms()
        store.write([Edit(key, token, None)], durable=False)
        cell = store.read([key])[key]
        after_ms, took_ms = clock.wall_ms(), clock.monotonic_ms() - began_ms
        if cell is not None and name != b"clock":
            store.write([Edit(key, None, cell.timestamp)], durable=False)
        if took_ms > context.policy.skew_ms // 2:
            raise NotApplied("took too long to tell its time", took_ms=took_ms)
        if cell is not None and cell.value == token:
            return max(before_ms - cell.timestamp, 0) + min(after_ms - cell.timestamp, 0)
        # Another client interfered, or a server whose clock was ahead has written the cell.
    return 0


# ----------------------------------------------------------------------- a store of this machine


def find_step(context: Context) -> int:
    """Return how far (ms) the time of day was set since it was noted: see `ClockNote.find_step`.
    Only reads."""
    _, note = _read_note(context)
    return 0 if note is None else note.find_step(context.clock)


def note_clock(context: Context) -> int:
    """Note both clocks, once after each boot, and return the result of `find_step`."""
    origin = find_origin(context.clock)
    if not origin:
        return 0
    cell, note = _read_note(context)
    if note is None or note.origin != origin:
        _put_note(context, cell, note.newest_ms if note else 0)
    return 0 if note is None else note.find_step(context.clock)


def accept_clock(context: Context) -> None:
    """Accept this machine's time of day from now on. Raise InvalidRequestError if the store has
    servers, which have clocks of their own."""
    if not context.is_local:
        raise InvalidRequestError("the store's servers have clocks of their own: set this one")
    call_store(context, lambda: _put_note(context, _read_note(context)[0], 0))


def _read_note(context: Context) -> tuple[Cell | None, ClockNote | None]:
    key = column(context.table, ROW, b"boot")
    cell = context.store.read([key])[key]
    return cell, None if cell is None else decode_note(cell.value)


def _put_note(context: Context, old: Cell | None, newest_ms: int) -> None:
    clock, key = context.clock, column(context.table, ROW, b"boot")
    now_ms = clock.wall_ms()
    note = ClockNote(find_origin(clock), clock.monotonic_ms(), now_ms, max(now_ms, newest_ms))
    check = Check(key, old.value if old else FREE, ((key, note.encode()),))
    context.store.check_and_put([check], durable=False)


# -------------------------------------------------------------------------- cells in the future


def judge_ahead(
    context: Context,
    t: PendingCommit,
    newest: int,
    now_ms: int,
    cells: Mapping[Key, Cell | Stamp | None],
) -> AbortedError | None:
    """Return why a commit must not go above the newest cell that it read; None if it may. Cells
    that change every millisecond outrun the clock, so this sleeps a little to let the clock catch
    up. A cell beyond the skew was written by a wrong clock, or outside the protocol."""
    ahead_ms, skew_ms = newest - now_ms, context.policy.skew_ms
    if ahead_ms <= skew_ms // 2:
        return None
    if ahead_ms <= skew_ms:
        context.clock.sleep_ms(CATCH_UP_MS)
    limit_ms = max(skew_ms, FUTURE_MS)
    if ahead_ms <= limit_ms:
        return None
    return AbortedError(
        "a cell lies in the future, too far for a commit to follow it: delete that version, or "
        "raise Policy(skew_ms=)",
        transaction=t.row_key,
        key=next(key for key, cell in cells.items() if cell and cell.timestamp == newest),
        ahead_ms=ahead_ms,
        limit_ms=limit_ms,
    )


def uncover_locks(context: Context, t: PendingCommit, keys: Sequence[Key]) -> AbortedError:
    """Lift the granted but hidden locks of keys above the delete marker that hides them, and return
    the attempt's error: a conflict if the next attempt may succeed. A free lock is put further and
    further ahead until it shows, or another client's does."""
    hidden = "a delete marker in the future hides what is written to the key, and its lock"
    try:
        if "row_mutations" not in context.store.features:
            mend = "this store cannot mend it: open it as hbase://, or through Thrift 2"
            return AbortedError(f"{hidden}: {mend}", transaction=t.row_key, key=keys[0])
        if not context.is_local:
            check_clock(context)
    except AbortedError as error:
        return error
    left, now_ms, ahead_ms = [t.locks[key] for key in keys], context.clock.wall_ms(), 0
    while ahead_ms <= FUTURE_MS:
        left = call_store(context, partial(_put_free_locks, context, left, now_ms + ahead_ms))
        if not left:
            return ConflictError(
                f"{hidden}: that is mended, run it again", transaction=t.row_key, key=keys[0]
            )
        ahead_ms = ahead_ms * 5 // 4 + STEP_MS
    return AbortedError(
        hidden,
        transaction=t.row_key,
        key=keys[0],
        lock=left[0],
        until_ms_or_later=now_ms + FUTURE_MS,
    )


def _put_free_locks(context: Context, locks: Sequence[Key], at_ms: int) -> list[Key]:
    """Put free locks at a timestamp, unless another client's show; return those still hidden."""
    checks = [Check(lock, FREE, edits=(Edit(lock, FREE, at_ms),)) for lock in locks]
    context.store.check_and_put(checks, durable=False)
    found = context.store.read(locks)
    return [lock for lock in locks if found[lock] is None]
