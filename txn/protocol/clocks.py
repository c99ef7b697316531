"""Whether this client's clock is right: compared with the store's time, before it can do harm.

Who chooses timestamps, or deletes by age, calls `check_clock` first. Servers tell their time by
what they stamp: a cell in the row of the protocol's name, in which every client writes. That takes
two requests, at first and every few minutes, and at once when the time of day was set meanwhile,
which the monotonic clock shows; in between it costs nothing.

What a store on this machine stamps is by the same clock. There another cell says what both were
when the store was first written to since the machine has booted; so a time of day that was set
later shows. Nobody can tell which of the two was right: no commit is refused there, only deleting
by age.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from txn.model import Cell, Check, Edit, Key
from txn.protocol.context import Context, call_store
from txn.protocol.row import FREE, column
from txn.protocol.transaction import PendingCommit

T = TypeVar("T")

ROW = b"protocol"
"""The row of the protocol's name: nobody takes it for a transaction's."""

COMPARE_EACH_MS = 300_000
TRY_AGAIN_MS = 60_000
STEP_MS = 1_000
"""A time of day that was set by more than this is compared again."""

FUTURE_MS = 30 * 24 * 3_600_000
"""How far ahead a cell may lie for commits to go above it: a wrong hour, day or month costs
timestamps; a wrong year, or a time in microseconds, would be carried on for ever."""

CATCH_UP_MS = 2
ACCEPT = "if it is right now, `txn fsck --repair --accept-clock` takes it for right"
DIFFERS = "this machine's clock and the store's differ, and nothing was written: set them by NTP"
WAS_SET = f"this machine's clock was set since it was noted, and nothing was written: {ACCEPT}"


class ClockNote(NamedTuple):
    """What both clocks of a machine were. origin: names the zero of its monotonic time. newest_ms:
    the latest time of day that was ever noted in the store."""

    origin: bytes
    monotonic_ms: int
    wall_ms: int
    newest_ms: int

    def encode(self) -> bytes:
        """Return the value of the cell."""
        return b"%b %d %d %d" % self

    def find_step(self, clock: Clock) -> int:
        """Return by how many ms the time of day was set since then, or if that is more, by how many
        it is behind the latest that was noted."""
        now_ms, set_ms = clock.wall_ms(), 0
        if self.origin == find_origin(clock):
            set_ms = now_ms - self.wall_ms - (clock.monotonic_ms() - self.monotonic_ms)
        return max(set_ms, min(now_ms - self.newest_ms, 0), key=abs)


def decode_note(value: bytes) -> ClockNote | None:
    """Return what a machine's clocks were; None for bytes that say nothing of the kind."""
    origin, *times = value.split(b" ")
    if len(times) != 3 or not all(map(bytes.isdigit, times)):
        return None
    return ClockNote(origin, *map(int, times))


# ------------------------------------------------------------------------------ the comparison


def check_commit_clock(context: Context) -> None:
    """Raise AbortedError if this client's commits would have timestamps of a wrong clock: see
    `check_clock`. Where servers choose them nothing is done. A store of this machine refuses only
    what others could not follow: see FUTURE_MS."""
    if not context.is_local:
        if context.rules.locks_rows and "remote_calls" in context.store.features:
            check_clock(context)
        return
    trust, clock = context.trust, context.clock
    offset_ms = clock.wall_ms() - clock.monotonic_ms()
    if trust.noted_ms is None or abs(offset_ms - trust.noted_ms) > STEP_MS:
        step_ms = _ask(context, partial(note_clock, context))
        _refuse(WAS_SET, max(step_ms, 0), max(context.policy.skew_ms, FUTURE_MS))
        trust.noted_ms = offset_ms


def check_clock(context: Context) -> None:
    """Raise AbortedError where this client's clock and the store's time differ by more than the
    policy's skew: nothing was done then. It may write, so whoever only looks does not call it.
    Raises StoreError where the store does not answer; but a clock that was right a few minutes ago,
    and was not set, is believed meanwhile."""
    trust, clock = context.trust, context.clock
    if trust.offset_ms is None or abs(trust.find_step_ms(clock)) > STEP_MS:
        _ask(context, partial(_compare, context))
    elif clock.monotonic_ms() >= trust.due_ms:
        try:
            call_until(context.until_ms, partial(_compare, context))
        except StoreError:
            trust.due_ms = clock.monotonic_ms() + TRY_AGAIN_MS


def _ask(context: Context, call: Callable[[], T]) -> T:
    """Return what a call returns that writes nothing but clocks: whatever became of it, what it
    comes before did not happen."""
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
    offset_ms = clock.wall_ms() - now_ms  # one that is set meanwhile is compared again
    _refuse(DIFFERS, measure_skew(context), limit_ms)
    if context.is_local:
        _refuse(WAS_SET, note_clock(context), limit_ms)
    trust.offset_ms, trust.due_ms = offset_ms, now_ms + COMPARE_EACH_MS


def was_set(context: Context) -> bool:
    """Whether the time of day was set since it was compared with that of servers."""
    step_ms = context.trust.find_step_ms(context.clock)
    return not context.is_local and abs(step_ms) > context.policy.skew_ms


def _refuse(words: str, skew_ms: int, limit_ms: int) -> None:
    if abs(skew_ms) > limit_ms:
        raise AbortedError(
            words,
            ahead_ms=skew_ms if skew_ms > 0 else None,
            behind_ms=-skew_ms if skew_ms < 0 else None,
            limit_ms=limit_ms,
        )


def measure_skew(context: Context) -> int:
    """Return by how many ms this client's clock is ahead of the store's, or if negative behind it,
    at least: how long the answers took is no difference. Raises StoreError where they took too
    long to tell anything."""
    store, clock, token = context.store, context.clock, b"%016x" % context.rng.getrandbits(64)
    for name in (b"clock", b"clock-" + token):
        key = column(context.table, ROW, name)
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
        # Another client came in between, or a server has stamped it whose clock was ahead.
    return 0


# ----------------------------------------------------------------------- a store of this machine


def find_step(context: Context) -> int:
    """Return by how many ms the time of day was set, on this machine, since it was noted in the
    store: see `ClockNote.find_step`. It only reads."""
    note = _decode(_read_note(context))
    return 0 if note is None else note.find_step(context.clock)


def note_clock(context: Context) -> int:
    """Note what the clocks are, once each time that the machine has booted, and return what
    `find_step` does."""
    origin = find_origin(context.clock)
    if not origin:
        return 0
    cell = _read_note(context)
    note = _decode(cell)
    if note is None or note.origin != origin:
        _put_note(context, cell, note.newest_ms if note else 0)
    return 0 if note is None else note.find_step(context.clock)


def accept_clock(context: Context) -> None:
    """Take this machine's time of day for right, from now on. InvalidRequestError where the store
    has servers, with clocks of their own."""
    if not context.is_local:
        raise InvalidRequestError("the store's servers have clocks of their own: set this one")
    call_store(context, lambda: _put_note(context, _read_note(context), 0))


def _read_note(context: Context) -> Cell | None:
    key = column(context.table, ROW, b"boot")
    return context.store.read([key])[key]


def _decode(cell: Cell | None) -> ClockNote | None:
    return None if cell is None else decode_note(cell.value)


def _put_note(context: Context, old: Cell | None, newest_ms: int) -> None:
    """Replace a note, if nobody else has done so meanwhile: then that one holds."""
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
    cells: Iterable[tuple[Key, Cell | None]],
) -> AbortedError | None:
    """Return why a commit must not go above the newest cell that it has read; None: it may.

    What changes every millisecond outruns the clock, which is let catch up a little. What lies
    further ahead than the skew was written by a wrong clock, or past the protocol.
    """
    ahead_ms, skew_ms = newest - now_ms, context.policy.skew_ms
    if skew_ms // 2 < ahead_ms <= skew_ms:
        context.clock.sleep_ms(CATCH_UP_MS)
    limit_ms = max(skew_ms, FUTURE_MS)
    if ahead_ms <= limit_ms:
        return None
    return AbortedError(
        "a cell lies in the future, too far for a commit to follow it: delete that version, or "
        "raise Policy(skew_ms=)",
        transaction=t.row_key,
        key=next(key for key, cell in cells if cell and cell.timestamp == newest),
        ahead_ms=ahead_ms,
        limit_ms=limit_ms,
    )


def uncover_locks(context: Context, t: PendingCommit, keys: Sequence[Key]) -> AbortedError:
    """Bring the locks of keys, which were granted and do not show, above the delete marker that
    hides what is written there; return why the attempt fails: a conflict, if the next one may have
    them. A free lock is put ever further ahead until it shows, if nobody else's does."""
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
    """Put free locks at a time, where nobody else's show; return those that do not show."""
    checks = [Check(lock, FREE, edits=(Edit(lock, FREE, at_ms),)) for lock in locks]
    context.store.check_and_put(checks, durable=False)
    found = context.store.read(locks)
    return [lock for lock in locks if found[lock] is None]
