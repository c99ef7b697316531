"""Waiting for keys that others hold, and giving up early what cannot succeed any more.

A transaction that asserts a version which has been overtaken fails as soon as that is seen:
versions only grow, so no lock is needed to know it. Where keys are known to be in demand, an
attempt waits for them before it writes anything: one that waits inside keeps others from its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from txn import assertions
from txn.assertions import Assertion, Version, overtaken
from txn.errors import AssertionFailedError, ConflictError, DeadlineError
from txn.model import Cell, Delete, Key, Mutation
from txn.protocol.attempt import (
    Attempt,
    Context,
    Met,
    call_store,
    group_by_holder,
    is_late,
    limit_patience,
    look_at_locks,
)
from txn.protocol.lock_cells import FREE

Settle = Callable[[Mapping[bytes, Mapping[Key, Cell]]], Collection[bytes]]
"""Meets holders (row key -> the lock cells they were met in); returns those that let go."""

POLITE_TRIES = 8
HOT_MS = 1_000
MOST_HOT = 3
REMEMBERED = 10_000
LARGE_BYTES = 100  # values that are not remembered


class Contention:
    """How one client meets keys that others hold. It remembers which keys it met conflicts on of
    late, and how long an attempt takes here."""

    def __init__(self, context: Context, settle: Settle) -> None:
        self.settle = settle
        self._context = context
        self._since_ms: dict[Key, int] = {}
        self._written: dict[Key, Cell] = {}
        self._hot_ms = -HOT_MS  # when a key was last found to be in demand
        self._pace_ms = 1

    def learn(self, attempts: Sequence[Attempt]) -> None:
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

    def wait_for_hot_keys(self, attempts: Sequence[Attempt]) -> None:
        """Wait for a while, with nothing written yet, for the holders of keys that are in demand;
        fail the attempts whose assertions become hopeless meanwhile."""
        missing = self._look_at_hot_keys(attempts)
        for tries in range(POLITE_TRIES):
            if missing:
                missing = self.wait_for_holders(missing, tries)

    def stand_aside(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Fail, with nothing written yet, the attempts that would have to wait for the holder of a
        key in demand, and return them; fail those whose assertions have become hopeless. What this
        client has written since they were read it knows without asking."""
        for t in attempts if self._written else ():
            _fail_overtaken(t, self._written)  # this one, whole, while others begin a new one
        live = [t for t in attempts if t.failure is None]
        held = [item for item in self._look_at_hot_keys(live) if item.holder != FREE]
        self.note_hot(item.t.locks[item.key] for item in held)
        for item in held:
            item.t.failure = ConflictError(
                "key is locked", key=item.key, holder=item.holder, transaction=item.t.row_key
            )
        return list(dict.fromkeys(item.t for item in held))

    def _look_at_hot_keys(self, attempts: Sequence[Attempt]) -> list[Met]:
        # What a block has brought of a lock was free a moment ago.
        hot = [(t, key) for t in attempts for key in self.list_hot_keys(t.keys)]
        wanted = [(t, key) for t, key in hot if t.locks[key] not in t.found]
        if not wanted or self._context.policy.attempts == 1:
            return []  # a client of one attempt waits for nobody
        return fail_overtaken(
            call_store(
                limit_patience(self._context, [t for t, _ in wanted]),
                lambda: look_at_locks(self._context, wanted),
            )
        )

    def wait_for_holders(self, missing: list[Met], tries: int) -> list[Met]:
        """Settle the holders, or let a moment pass; return those that are still in the way."""
        context = self._context
        # Most that hold a lock live, and let it go by themselves: ask who they are only then.
        gone = {FREE, *(self.settle(group_by_holder(missing)) if tries else ())}
        missing = _fail_late_waiters(context, missing)
        held = [item for item in missing if item.holder not in gone]
        if missing and tries and gone == {FREE} and not held:
            # Refused, and yet free: others are faster, or the store tells of an older moment.
            context.clock.sleep_ms(context.policy.backoff.pause_ms(tries, context.random))
        if held:
            context.clock.sleep_ms(self.pause_ms(tries))
            asked = [(item.t, item.key) for item in held]
            limited = limit_patience(context, [t for t, _ in asked])
            seen = call_store(limited, lambda: look_at_locks(context, asked))
            held = [item for item in fail_overtaken(seen) if item in held]
        return held

    def pause_ms(self, tries: int) -> int:
        """Return how long to wait for a living holder: one to four times what an attempt takes.
        To look more often, or all at a time, would keep the servers from what is waited for."""
        random = self._context.random
        pause_ms = self._context.policy.backoff.pause_ms(tries, random)
        return max(pause_ms, random.randint(self._pace_ms, 4 * self._pace_ms))


def _list_contended(t: Attempt) -> Sequence[Key]:
    """Return the keys over which the attempt failed: held by others, or changed by them."""
    if isinstance(t.failure, ConflictError) and isinstance(t.failure.key, Key):
        return [t.failure.key]
    if isinstance(t.failure, AssertionFailedError) and isinstance(t.failure.assertion, Version):
        return [t.failure.assertion.key]
    return []


def fail_late(context: Context, transactions: Sequence[Attempt]) -> list[Attempt]:
    """Fail those whose time was over before anything was written; return the others."""
    for t in transactions:
        if is_late(context, t):
            t.failure = DeadlineError("deadline passed before anything was written")
    return [t for t in transactions if t.failure is None]


def _fail_late_waiters(context: Context, missing: list[Met]) -> list[Met]:
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


def fail_overtaken(missing: list[Met]) -> list[Met]:
    """Fail the transactions that assert an overtaken version; return what the others miss.

    With a token the marker has to be seen first: what overtook it may be its own first commit.
    """
    for t in dict.fromkeys(item.t for item in missing):
        _fail_overtaken(t, t.seen)
    return [item for item in missing if item.t.failure is None]


def _fail_overtaken(t: Attempt, seen: Mapping[Key, Cell | None]) -> None:
    lost = next((a for a in t.request.assertions if overtaken(a, seen)), None)
    if lost is not None and t.request.once is None:
        t.seen.update((key, seen[key]) for key in assertions.list_keys(lost))
        t.failure = make_assertion_error(t, lost)


def make_assertion_error(t: Attempt, assertion: Assertion) -> AssertionFailedError:
    """Return the error that names the assertion and what was seen of its keys."""
    seen = {key: t.seen[key] for key in assertions.list_keys(assertion)}
    return AssertionFailedError(assertion, seen, transaction=t.row_key)
