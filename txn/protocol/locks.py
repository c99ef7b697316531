"""The locks of both protocols: what a lock cell says, how locks are taken, waited for and released.

    x_lock    six-phase, of one key: the holder's row key; empty: free
    _lock     fenced, of one row and family: n [" " names] while it is free,
              n "@" holder [" " names] while it is held; absent: free, never taken

n is a decimal number, one more with each acquisition, so that no value of a fenced lock ever comes
again. The names tell which of the last acquisitions were single-row commits, which have no
transaction row: for n (held: n - 1), the one before, and so on, each the transaction's name, or "-"
for one that has a row; commas between.

A transaction that asserts a version which has been replaced fails as soon as that is seen: versions
only grow, so no lock is needed to know it. Where keys are known to be hot, a transaction waits for
them before it writes anything: one that waits inside keeps others from its keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from txn import assertions
from txn.assertions import Assertion, Version, is_outdated
from txn.errors import (
    AssertionFailedError,
    ConflictError,
    CorruptRowError,
    DeadlineError,
    TableUnavailable,
)
from txn.model import LOCK_SUFFIX, ROW_KEY, Cell, Check, Delete, Edit, Key, Mutation
from txn.protocol.context import Context, call_store, limit_patience
from txn.protocol.row import FREE
from txn.protocol.transaction import PendingCommit, is_late

ROW_LOCK = LOCK_SUFFIX
NAMED = 16
NAME = 8  # hex digits: compared with one other only
NO_LOCK = "the cell of the lock holds what is no lock"
_NOBODY = b"-"
_FENCED = re.compile(rb"(0|[1-9][0-9]{0,18})(?:@([^ ]+))?(?: ([0-9a-f,-]+))?")


class FencedLock(NamedTuple):
    """What a fenced lock says. taken: how often it was. names: newest first, of the acquisitions
    before the holder's."""

    taken: int = 0
    holder: bytes = FREE
    names: tuple[bytes, ...] = ()

    @property
    def value(self) -> bytes:
        """The bytes of the cell."""
        held = b"@" + self.holder if self.holder else b""
        named = b" " + b",".join(self.names) if self.names else b""
        return b"%d%b%b" % (self.taken, held, named)

    def take(self, holder: bytes) -> FencedLock:
        """Return the lock as held by a transaction with a row."""
        return FencedLock(self.taken + 1, holder, self.names)

    def undo_take(self) -> FencedLock:
        """Return the lock, which is held, as its holder found it."""
        return FencedLock(self.taken - 1, FREE, self.names)

    def give_back(self) -> FencedLock:
        """Return the lock, which is held, as free."""
        return FencedLock(self.taken, FREE, _push(_NOBODY, self.names))

    def commit_single(self, row_key: bytes) -> FencedLock:
        """Return the lock, which is free, as a transaction without a row leaves it."""
        return FencedLock(self.taken + 1, FREE, _push(_name(row_key), self.names))

    def was_taken_by(self, row_key: bytes, count: int) -> bool | None:
        """Return whether a transaction without a row was the one that made the count; None: nobody
        can tell any more."""
        behind = self.taken - count - bool(self.holder)
        if behind < 0:
            return False
        if behind >= NAMED:
            return None
        return behind < len(self.names) and self.names[behind] == _name(row_key)


def holder_of(lock: Key, cell: Cell | None) -> bytes:
    """Return the row key of who holds a lock; FREE: nobody. What no lock says is a holder that is
    no transaction, also where it would be the name of one."""
    if cell is None or not cell.value:
        return FREE
    if lock.column != ROW_LOCK:
        return cell.value
    match = _FENCED.fullmatch(cell.value)
    if match is not None:
        return match[2] or FREE
    return b"?" + cell.value if ROW_KEY.fullmatch(cell.value) else cell.value


def require_lock(lock: Key, cell: Cell | None) -> None:
    """Raise CorruptRowError where a cell in the place of a lock is none: it may be somebody's
    value, and nobody knows whose the key is."""
    holder = holder_of(lock, cell)
    if holder and ROW_KEY.fullmatch(holder) is None:
        raise make_foreign_error(NO_LOCK, lock, cell)


def is_lock_of_rows(key: Key, cell: Cell) -> bool | None:
    """Return True for a cell that is a lock of the fenced protocol, False for one of the six-phase
    protocol, None for any other."""
    if key.column == ROW_LOCK:
        return True if cell.value and _FENCED.fullmatch(cell.value) else None
    if not key.column.endswith(LOCK_SUFFIX):
        return None
    return False if not cell.value or ROW_KEY.fullmatch(cell.value) else None


def make_foreign_error(what: str, key: Key, cell: Cell | None) -> CorruptRowError:
    """Return the error of a cell that says what the protocol never writes there. Of the value it
    tells the size alone: it may be somebody's, and errors go to the logs of servers and programs.
    """
    return CorruptRowError(what, key=key, bytes=len(cell.value) if cell else 0)


def read_lock(lock: Key, cell: Cell | None) -> FencedLock:
    """Return what a fenced lock says; CorruptRowError where that is nothing."""
    if cell is None or not cell.value:
        return FencedLock()
    match = _FENCED.fullmatch(cell.value)
    if match is None:
        raise make_foreign_error("not a lock of the fenced protocol", lock, cell)
    names = tuple(match[3].split(b",")) if match[3] else ()
    return FencedLock(int(match[1]), match[2] or FREE, names)


def _name(row_key: bytes) -> bytes:
    return row_key.partition(b"@")[0][-NAME:]


def _push(name: bytes, names: tuple[bytes, ...]) -> tuple[bytes, ...]:
    found = (name, *names)[:NAMED]
    while found and found[-1] == _NOBODY:
        found = found[:-1]
    return found


class Blocker(NamedTuple):
    """A lock that an attempt wants for a key and has not got, as it was found. holder: FREE where
    it just went."""

    t: PendingCommit
    key: Key
    holder: bytes
    cell: Cell | None


def take_locks(context: Context, wanted: Sequence[tuple[PendingCommit, Key]]) -> list[Blocker]:
    """Ask for the locks of keys; return those not got, and keep the cells under them as seen."""

    def attempt() -> list[Blocker]:
        checks = [Check(t.locks[key], FREE, ((t.locks[key], t.row_key),)) for t, key in wanted]
        answers = context.store.check_and_put(checks, durable=False)
        refused = [item for item, got in zip(wanted, answers, strict=True) if not got]
        # A repeated request is refused by the lock it took.
        return [item for item in read_locks(context, refused) if item.holder != item.t.row_key]

    for t, key in wanted:
        t.held.add(t.locks[key])
    missing = call_store(context, attempt) if wanted else []
    for item in missing:
        item.t.held.discard(item.t.locks[item.key])
    return missing


def read_locks(context: Context, wanted: Sequence[tuple[PendingCommit, Key]]) -> list[Blocker]:
    """Return who holds each lock (FREE: nobody), and keep the cells under them as seen."""
    if not wanted:
        return []
    cells = context.store.read([cell for t, key in wanted for cell in (t.locks[key], key)])
    found = []
    for t, key in wanted:
        t.seen[key] = cells[key]
        lock = t.locks[key]
        found.append(Blocker(t, key, holder_of(lock, cells[lock]), cells[lock]))
    return found


def release_locks(context: Context, locks: Mapping[Key, Cell]) -> bool:
    """Free each lock that is still as it was found, held; return whether one was. A "no" is as good
    as a "yes": somebody else freed it, or it was never taken. Locks in a table that is gone
    are left: when it comes back they are a finished transaction's, which anybody frees."""
    checks = [make_release(lock, cell) for lock, cell in locks.items()]

    def attempt() -> list[bool]:
        return context.store.check_and_put(checks, durable=False)

    while checks:
        try:
            return any(call_store(context, attempt))
        except TableUnavailable as error:
            left = [check for check in checks if check.key.table != error.table]
            if len(left) == len(checks):
                raise
            checks = left
    return False


def make_release(lock: Key, cell: Cell) -> Check:
    """Return the compare-and-set that frees a lock, if it still is as it was found, held: a fenced
    one with its count, one above its timestamp."""
    if lock.column != ROW_LOCK:
        return Check(lock, cell.value, ((lock, FREE),))
    free = read_lock(lock, cell).give_back().value
    return Check(lock, cell.value, edits=(Edit(lock, free, cell.timestamp + 1),))


def group_by_holder(missing: Iterable[Blocker]) -> dict[bytes, dict[Key, Cell]]:
    """Return the lock cells that each holder was met in."""
    met: dict[bytes, dict[Key, Cell]] = {}
    for t, key, holder, cell in missing:
        if holder != FREE and cell is not None:
            met.setdefault(holder, {})[t.locks[key]] = cell
    return met


Resolve = Callable[[Mapping[bytes, Mapping[Key, Cell]]], Collection[bytes]]
"""Meets holders (row key -> the lock cells they were met in); returns those that let go."""

POLITE_TRIES = 8
HOT_MS = 1_000
MOST_HOT = 3
REMEMBERED = 10_000
LARGE_BYTES = 100  # values that are not remembered


class Contention:
    """How one client meets keys that others hold. It remembers which keys it met conflicts on of
    late, and how long an attempt takes here."""

    def __init__(self, context: Context, resolve: Resolve) -> None:
        self.resolve = resolve
        self._context = context
        self._since_ms: dict[Key, int] = {}
        self._written: dict[Key, Cell] = {}
        self._hot_ms = -HOT_MS  # when a key was last found to be in demand
        self._pace_ms = 1

    def record_results(self, attempts: Sequence[PendingCommit]) -> None:
        """Learn, of attempts that have just been run, how long one takes here, and where they met
        conflicts."""
        now_ms = self._context.clock.monotonic_ms()
        written = [ms for t in attempts if t.failure is None and (ms := t.written_ms) is not None]
        if written:  # whoever waited before has kept nobody waiting
            began_ms = min(written)
            self._pace_ms = (3 * self._pace_ms + now_ms - began_ms) // 4
        for t in attempts:
            if t.failure is not None:
                self.note_hot(t.locks[key] for key in _list_contended(t) if key in t.locks)
        if now_ms - self._hot_ms < HOT_MS:
            for t in attempts:
                if t.failure is None and t.plan is not None:
                    self._note_written(t.request.mutations, t.plan.timestamp)

    def note_hot(self, locks: Iterable[Key]) -> None:
        """Remember that keys of these locks are in demand."""
        now_ms = self._context.clock.monotonic_ms()
        for lock in locks:
            self._hot_ms = now_ms
            if len(self._since_ms) >= REMEMBERED:
                self._since_ms = {}  # costs an attempt at worst
            self._since_ms[lock] = now_ms

    def _note_written(self, mutations: Iterable[Mutation | Delete], timestamp: int) -> None:
        if len(self._written) >= REMEMBERED:
            self._written = {}  # costs an attempt at worst; others may look at the old one
        for m in mutations:
            if isinstance(m, Mutation) and len(m.value) <= LARGE_BYTES:
                self._written[m.key] = Cell(m.value, timestamp)

    def list_hot_keys(self, keys: Collection[Key]) -> list[Key]:
        """Return those of the keys that are in demand, in key order."""
        if not self._since_ms:
            return []
        since_ms, hot = self._context.clock.monotonic_ms() - HOT_MS, self._since_ms
        lock_of = self._context.rules.lock_of
        return sorted(k for k in keys if hot.get(lock_of(k), since_ms) > since_ms)[:MOST_HOT]

    def wait_for_hot_keys(self, attempts: Sequence[PendingCommit]) -> None:
        """Wait for a while, with nothing written yet, for the holders of keys that are in demand;
        fail the attempts whose assertions become hopeless meanwhile."""
        missing = self._read_hot_locks(attempts)
        for tries in range(POLITE_TRIES):
            if missing:
                missing = self.wait_for_holders(missing, tries)

    def fail_blocked(self, attempts: Sequence[PendingCommit]) -> list[PendingCommit]:
        """Fail, with nothing written yet, the attempts that would have to wait for the holder of a
        key in demand, and return them; fail those whose assertions have become hopeless. What this
        client has written since they were read it knows without asking."""
        for t in attempts if self._written else ():
            _fail_outdated(t, self._written)  # this one, whole, while others begin a new one
        live = [t for t in attempts if t.failure is None]
        held = [item for item in self._read_hot_locks(live) if item.holder != FREE]
        self.note_hot(item.t.locks[item.key] for item in held)
        for item in held:
            item.t.failure = ConflictError(
                "key is locked", key=item.key, holder=item.holder, transaction=item.t.row_key
            )
        return list(dict.fromkeys(item.t for item in held))

    def _read_hot_locks(self, attempts: Sequence[PendingCommit]) -> list[Blocker]:
        # What a block has brought of a lock was free a moment ago.
        hot = [(t, key) for t in attempts for key in self.list_hot_keys(t.keys)]
        wanted = [(t, key) for t, key in hot if t.locks[key] not in t.found]
        if not wanted or self._context.policy.attempts == 1:
            return []  # a client of one attempt waits for nobody
        return fail_outdated(
            call_store(
                limit_patience(self._context, [t for t, _ in wanted]),
                lambda: read_locks(self._context, wanted),
            )
        )

    def wait_for_holders(self, missing: list[Blocker], tries: int) -> list[Blocker]:
        """Settle the holders, or let a moment pass; return those that are still in the way."""
        context = self._context
        # Most that hold a lock live, and let it go by themselves: ask who they are only then.
        gone = {FREE, *(self.resolve(group_by_holder(missing)) if tries else ())}
        missing = _fail_late_waiters(context, missing)
        held = [item for item in missing if item.holder not in gone]
        if missing and tries and gone == {FREE} and not held:
            # Refused, and yet free: others are faster, or the store tells of an older moment.
            context.clock.sleep_ms(context.policy.backoff.pause_ms(tries, context.rng))
        if held:
            context.clock.sleep_ms(self.pause_ms(tries))
            asked = [(item.t, item.key) for item in held]
            limited = limit_patience(context, [t for t, _ in asked])
            seen = call_store(limited, lambda: read_locks(context, asked))
            held = [item for item in fail_outdated(seen) if item in held]
        return held

    def pause_ms(self, tries: int) -> int:
        """Return how long to wait for a living holder: one to four times what an attempt takes.
        To look more often, or all at a time, would keep the servers from what is waited for."""
        random = self._context.rng
        pause_ms = self._context.policy.backoff.pause_ms(tries, random)
        return max(pause_ms, random.randint(self._pace_ms, 4 * self._pace_ms))


def _list_contended(t: PendingCommit) -> Sequence[Key]:
    """Return the keys over which the attempt failed: held by others, or changed by them."""
    if isinstance(t.failure, ConflictError) and isinstance(t.failure.key, Key):
        return [t.failure.key]
    if isinstance(t.failure, AssertionFailedError) and isinstance(t.failure.assertion, Version):
        return [t.failure.assertion.key]
    return []


def _fail_late_waiters(context: Context, missing: list[Blocker]) -> list[Blocker]:
    """Fail those whose time is over; return what the others miss."""
    for t, key, holder, _ in missing:
        if is_late(context, t):
            t.failure = DeadlineError(
                "deadline passed waiting for a lock",
                transaction=t.row_key,
                key=key,
                holder=holder or None,
            )
    return [item for item in missing if item.t.failure is None]


def fail_outdated(missing: list[Blocker]) -> list[Blocker]:
    """Fail the transactions that assert an overtaken version; return what the others miss.

    With a token the marker has to be seen first: what overtook it may be its own first commit.
    """
    for t in dict.fromkeys(item.t for item in missing):
        _fail_outdated(t, t.seen)
    return [item for item in missing if item.t.failure is None]


def _fail_outdated(t: PendingCommit, seen: Mapping[Key, Cell | None]) -> None:
    lost = next((a for a in t.request.assertions if is_outdated(a, seen)), None)
    if lost is not None and t.request.once is None:
        t.seen.update((key, seen[key]) for key in assertions.list_keys(lost))
        t.failure = make_assertion_error(t, lost)


def make_assertion_error(t: PendingCommit, assertion: Assertion) -> AssertionFailedError:
    """Return the error that names the assertion and what was seen of its keys."""
    seen = {key: t.seen[key] for key in assertions.list_keys(assertion)}
    return AssertionFailedError(assertion, seen, transaction=t.row_key)
