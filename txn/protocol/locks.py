"""The locks of both protocols: the format of a lock cell, and how locks are taken, awaited and
released.

    x_lock    six-phase, of one key: the holder's row key; empty: free
    _lock     fenced, of one row and family: n [" " names] while it is free,
              n "@" holder [" " names] while it is held; absent: free, never taken

n is a decimal number that counts acquisitions, so no value of a fenced lock ever recurs. The names,
separated by commas, tell which of the last acquisitions were of commits that have no
transaction row. They stand for acquisition n (n - 1 while held), the one before, and so on; "-"
stands for a transaction that has a row.

A transaction that asserts a replaced version fails as soon as that is seen: versions only grow, so
this needs no lock. A transaction waits for hot keys before it writes anything, because a later wait
would block others from its keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from txn import assertions
from txn.assertions import Assertion, Version, is_outdated
from txn.errors import (
    AssertionFailedError,
    ConflictError,
    CorruptRowError,
    DeadlineError,
    TableUnavailable,
)
from txn.model import LOCK_SUFFIX, ROW_KEY, Cell, Check, Delete, Edit, Key, Mutation, new_tuple
from txn.protocol.context import Context, call_store, limit_patience
from txn.protocol.row import FREE
from txn.protocol.transaction import PendingCommit, is_late

T = TypeVar("T")

ROW_LOCK = LOCK_SUFFIX
NAMED = 16
NAME = 8  # hex digits; compared with one other name only
NO_LOCK = "the cell of the lock holds what is no lock"
_NOBODY = b"-"
_FENCED = re.compile(rb"(0|[1-9][0-9]{0,18})(?:@([^ ]+))?(?: ([0-9a-f,-]+))?")


class FencedLock(NamedTuple):
    """The content of a fenced lock. taken: the number of acquisitions. names: as they are stored,
    newest first, of the acquisitions before the holder's."""

    taken: int = 0
    holder: bytes = FREE
    names: bytes = b""

    def take(self, holder: bytes) -> bytes:
        """Return the value while a transaction that has a row holds the lock."""
        named = b" " + self.names if self.names else b""
        return b"%d@%b%b" % (self.taken + 1, holder, named)

    def undo_take(self) -> bytes:
        """Return the value of a held lock as its holder found it."""
        return _encode_free(self.taken - 1, self.names)

    def give_back(self) -> bytes:
        """Return the value after its holder has released it."""
        return _encode_free(self.taken, _push(_NOBODY, self.names) if self.names else b"")

    def commit_single(self, row_key: bytes) -> bytes:
        """Return the value of a free lock after a commit of a transaction without a row."""
        return _encode_free(self.taken + 1, _push(_name(row_key), self.names))

    def was_taken_by(self, row_key: bytes, count: int) -> bool | None:
        """Return whether this rowless transaction made acquisition `count`; None: unknown."""
        behind = self.taken - count - bool(self.holder)
        if behind < 0:
            return False
        if behind >= NAMED:
            return None
        names = self.names.split(b",")
        return behind < len(names) and names[behind] == _name(row_key)


NEVER_TAKEN = FencedLock()


def holder_of(lock: Key, cell: Cell | None) -> bytes:
    """Return the row key of the lock's holder; FREE if the lock is free. Content that is no lock is
    returned as a holder that is no transaction, even if it looks like a row key."""
    if cell is None or not cell.value:
        return FREE
    if lock.column != ROW_LOCK:
        return cell.value
    found = decode_lock(cell.value)
    if found is not None:
        return found.holder
    return b"?" + cell.value if ROW_KEY.fullmatch(cell.value) else cell.value


def find_held(column: bytes, values: Sequence[bytes | None]) -> list[int]:
    """Return the places of the locks that are not free, among the values of a column of locks."""
    if column != ROW_LOCK:
        return [place for place, value in enumerate(values) if value]
    match = _FENCED.fullmatch
    found = ((place, match(value)) for place, value in enumerate(values) if value)
    return [place for place, lock in found if lock is None or lock[2]]


def require_lock(lock: Key, cell: Cell | None) -> None:
    """Raise CorruptRowError if a lock cell holds no lock: it may be foreign data."""
    holder = holder_of(lock, cell)
    if holder and ROW_KEY.fullmatch(holder) is None:
        raise make_foreign_error(NO_LOCK, lock, cell)


def is_lock_of_rows(key: Key, cell: Cell) -> bool | None:
    """Return True for a lock of the fenced protocol, False for a six-phase one, None otherwise."""
    if key.column == ROW_LOCK:
        return True if cell.value and decode_lock(cell.value) else None
    if not key.column.endswith(LOCK_SUFFIX):
        return None
    return False if not cell.value or ROW_KEY.fullmatch(cell.value) else None


def make_foreign_error(what: str, key: Key, cell: Cell | None) -> CorruptRowError:
    """Return the error for a cell whose content the protocol never writes. It reports only the size
    of the value, which may be foreign data, because errors reach logs."""
    return CorruptRowError(what, key=key, bytes=len(cell.value) if cell else 0)


def read_lock(lock: Key, cell: Cell | None) -> FencedLock:
    """Return the content of a fenced lock; raise CorruptRowError if it does not decode."""
    if cell is None or not cell.value:
        return NEVER_TAKEN
    found = decode_lock(cell.value)
    if found is None:
        raise make_foreign_error("not a lock of the fenced protocol", lock, cell)
    return found


@lru_cache(maxsize=1_000)  # a commit looks at the same value several times
def decode_lock(value: bytes) -> FencedLock | None:
    """Return the content of a fenced lock; None if it does not decode."""
    match = _FENCED.fullmatch(value)
    if match is None:
        return None
    return new_tuple(FencedLock, (int(match[1]), match[2] or FREE, match[3] or b""))


def _name(row_key: bytes) -> bytes:
    return row_key.partition(b"@")[0][-NAME:]


def _push(name: bytes, names: bytes) -> bytes:
    found = [name, *names.split(b",")][:NAMED] if names else [name]
    while found and found[-1] == _NOBODY:
        found.pop()
    return b",".join(found)


def _encode_free(taken: int, names: bytes) -> bytes:
    return b"%d %b" % (taken, names) if names else b"%d" % taken


class Blocker(NamedTuple):
    """A lock that an attempt did not get, as it was read. holder: FREE if it was just released."""

    t: PendingCommit
    key: Key
    holder: bytes
    cell: Cell | None


def read_locks(context: Context, wanted: Sequence[tuple[PendingCommit, Key]]) -> list[Blocker]:
    """Return each lock with its holder (FREE: none); store in `seen` when the keys changed."""
    locks, keys = [t.locks[key] for t, key in wanted], [key for _, key in wanted]
    _, cells, stamps = context.store.check_and_read((), locks, keys, durable=False)
    found = []
    for t, key in wanted:
        t.seen[key] = stamps[key]
        lock = t.locks[key]
        found.append(Blocker(t, key, holder_of(lock, cells[lock]), cells[lock]))
    return found


def release_locks(context: Context, locks: Mapping[Key, Cell]) -> bool:
    """Release each lock that is still held as it was read; return whether any was."""

    def send(checks: Sequence[Check]) -> bool:
        if not checks:
            return False
        return any(call_store(context, lambda: context.store.check_and_put(checks, durable=False)))

    return send_releases([make_release(lock, cell) for lock, cell in locks.items()], send)


def send_releases(releases: Sequence[Check], send: Callable[[Sequence[Check]], T]) -> T:
    """Send releases of locks. A refusal is fine: another client released the lock, or it was never
    taken. Locks in a missing table are skipped: if the table comes back, they belong to finished
    transactions, and any client releases them."""
    while True:
        try:
            return send(releases)
        except TableUnavailable as error:
            left = [check for check in releases if check.key.table != error.table]
            if len(left) == len(releases):
                raise
            releases = left


def make_release(lock: Key, cell: Cell) -> Check:
    """Return the compare-and-set that releases a lock if it is unchanged. A fenced lock keeps its
    count and is released one above its timestamp."""
    if lock.column != ROW_LOCK:
        return Check(lock, cell.value, ((lock, FREE),), is_deferred=True)
    free = read_lock(lock, cell).give_back()
    return Check(lock, cell.value, edits=(Edit(lock, free, cell.timestamp + 1),))


def group_by_holder(missing: Iterable[Blocker]) -> dict[bytes, dict[Key, Cell]]:
    met: dict[bytes, dict[Key, Cell]] = {}
    for t, key, holder, cell in missing:
        if holder != FREE and cell is not None:
            met.setdefault(holder, {})[t.locks[key]] = cell
    return met


Resolve = Callable[[Mapping[bytes, Mapping[Key, Cell]]], Collection[bytes]]
"""Resolves holders (row key -> their lock cells); returns those whose locks are released."""

POLITE_TRIES = 8
HOT_MS = 1_000
MOST_HOT = 3
REMEMBERED = 10_000
LARGE_BYTES = 100  # longer values are not remembered


class Contention:
    """One client's view of contention: recent conflicts by key, and how long an attempt takes."""

    def __init__(self, context: Context, resolve: Resolve) -> None:
        self.resolve = resolve
        self._context = context
        self._since_ms: dict[Key, int] = {}
        self._written: dict[Key, Cell] = {}
        self._hot_ms = -HOT_MS  # when a key was last found to be hot
        self._pace_ms = 1

    def record_results(self, attempts: Sequence[PendingCommit]) -> None:
        """Learn from finished attempts how long one takes and where they conflicted."""
        now_ms = self._context.clock.monotonic_ms()
        written = [ms for t in attempts if t.failure is None and (ms := t.written_ms) is not None]
        if written:  # waiting before the first write delays no other client
            self._pace_ms = (3 * self._pace_ms + now_ms - min(written)) // 4
        for t in attempts:
            match t.failure:
                case (
                    ConflictError(key=Key() as key)
                    | AssertionFailedError(assertion=Version(key=key))
                ) if key in t.locks:
                    self.note_hot([t.locks[key]])
        if now_ms - self._hot_ms < HOT_MS:
            for t in attempts:
                if t.failure is None and t.plan is not None:
                    self._note_written(t.request.mutations, t.plan.timestamp)

    def note_hot(self, locks: Iterable[Key]) -> None:
        now_ms = self._context.clock.monotonic_ms()
        for lock in locks:
            self._hot_ms = now_ms
            if len(self._since_ms) >= REMEMBERED:
                self._since_ms = {}  # costs at most an extra attempt
            self._since_ms[lock] = now_ms

    def _note_written(self, mutations: Iterable[Mutation | Delete], timestamp: int) -> None:
        if len(self._written) >= REMEMBERED:
            # costs at most an extra attempt; threads that iterate over the old one keep it
            self._written = {}
        for m in mutations:
            if isinstance(m, Mutation) and len(m.value) <= LARGE_BYTES:
                self._written[m.key] = Cell(m.value, timestamp)

    def list_hot_keys(self, keys: Collection[Key]) -> list[Key]:
        """Return the hot keys among `keys`, in key order."""
        now_ms, hot = self._context.clock.monotonic_ms(), self._since_ms
        if self.is_calm(now_ms):
            return []
        since_ms = now_ms - HOT_MS
        lock_of = self._context.rules.lock_of
        return sorted(k for k in keys if hot.get(lock_of(k), since_ms) > since_ms)[:MOST_HOT]

    def is_calm(self, now_ms: int) -> bool:
        """Whether no key is hot."""
        return now_ms - self._hot_ms >= HOT_MS

    def wait_for_hot_keys(self, attempts: Sequence[PendingCommit]) -> list[PendingCommit]:
        """Wait for a while, with nothing written yet, for the holders of hot keys. Fail attempts
        whose version assertions become outdated meanwhile; return the others."""
        missing = self._read_hot_locks(attempts)
        for tries in range(POLITE_TRIES):
            if missing:
                missing = self.wait_for_holders(missing, tries)
        return [t for t in attempts if t.failure is None]

    def fail_blocked(self, attempts: Sequence[PendingCommit]) -> list[PendingCommit]:
        """Fail, with nothing written yet, the attempts that would have to wait for the holder of a
        hot key, and return them. Also fail attempts with outdated version assertions; versions that
        this client wrote since they were read need no read."""
        for t in attempts if self._written else ():
            # passes one dictionary; other threads may replace the attribute
            _fail_outdated(t, self._written)
        live = [t for t in attempts if t.failure is None]
        held = [item for item in self._read_hot_locks(live) if item.holder != FREE]
        self.note_hot(item.t.locks[item.key] for item in held)
        for item in held:
            item.t.failure = make_conflict(item.t, item.key, item.holder)
        return list(dict.fromkeys(item.t for item in held))

    def _read_hot_locks(self, attempts: Sequence[PendingCommit]) -> list[Blocker]:
        # The locks that a block has read were free a moment ago.
        hot = [(t, key) for t in attempts for key in self.list_hot_keys(t.keys)]
        wanted = [(t, key) for t, key in hot if t.locks[key] not in t.found]
        if not wanted or self._context.policy.attempts == 1:
            return []  # a client of one attempt never waits
        return self._read_blockers(wanted)

    def _read_blockers(self, wanted: Sequence[tuple[PendingCommit, Key]]) -> list[Blocker]:
        limited = limit_patience(self._context, [t for t, _ in wanted])
        return fail_outdated(call_store(limited, lambda: read_locks(self._context, wanted)))

    def wait_for_holders(self, missing: list[Blocker], tries: int) -> list[Blocker]:
        """Resolve the holders, or sleep for a moment; return those that still hold their locks."""
        context = self._context
        # Most holders live and release their locks soon, so resolve them only from the second try.
        gone = {FREE, *(self.resolve(group_by_holder(missing)) if tries else ())}
        for t, key, holder, _ in missing:
            if is_late(context, t):
                words = "deadline passed waiting for a lock"
                t.failure = DeadlineError(
                    words, transaction=t.row_key, key=key, holder=holder or None
                )
        missing = [item for item in missing if item.t.failure is None]
        held = [item for item in missing if item.holder not in gone]
        if missing and tries and gone == {FREE} and not held:
            # Refused, yet free: other clients are faster, or the store returned an older state.
            context.clock.sleep_ms(context.policy.backoff.pause_ms(tries, context.rng))
        if held:
            context.clock.sleep_ms(self.pause_ms(tries))
            seen = self._read_blockers([(item.t, item.key) for item in held])
            held = [item for item in seen if item in held]
        return held

    def pause_ms(self, tries: int) -> int:
        """Return how long to wait for a living holder: one to four times what an attempt takes.
        Reading more often, or all at once, would slow down the servers and so the holder."""
        random = self._context.rng
        pause_ms = self._context.policy.backoff.pause_ms(tries, random)
        return max(pause_ms, random.randint(self._pace_ms, 4 * self._pace_ms))


def fail_outdated(missing: list[Blocker]) -> list[Blocker]:
    """Fail the transactions that assert a replaced version; return the others' blockers. A
    transaction with a token is spared, since its own first commit may have replaced the version:
    the marker must be read first."""
    for t in dict.fromkeys(item.t for item in missing):
        _fail_outdated(t, t.seen)
    return [item for item in missing if item.t.failure is None]


def _fail_outdated(t: PendingCommit, seen: assertions.Evidence) -> None:
    lost = next((a for a in t.request.assertions if is_outdated(a, seen)), None)
    if lost is not None and t.request.once is None:
        t.seen.update((key, seen[key]) for key in assertions.list_keys(lost))
        t.failure = make_assertion_error(t, lost)


def make_conflict(t: PendingCommit, key: Key, holder: bytes) -> ConflictError:
    """Return the error that names the holder of the key; FREE: the holder has released it."""
    words = "key is locked" if holder else "key is locked by others, again and again"
    return ConflictError(words, key=key, holder=holder or None, transaction=t.row_key)


def make_assertion_error(t: PendingCommit, assertion: Assertion) -> AssertionFailedError:
    seen = {key: t.seen[key] for key in assertions.list_keys(assertion)}
    return AssertionFailedError(assertion, seen, transaction=t.row_key)


def find_failed(t: PendingCommit) -> Assertion | None:
    """Return the first assertion that does not hold for the cells in `seen`."""
    for assertion in t.request.assertions:
        if not assertions.holds(assertion, t.seen):
            return assertion
    return None
