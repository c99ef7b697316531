"""The object that users hold: `connect(uri)` gives an Engine, which commits and reads.

An engine is safe to share between threads. It keeps no transaction state of its own: whatever it
began and did not finish is in the transaction rows, where every other client can finish it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, Self, TypeVar

from txn.assertions import Assertion, Not, Or, Some
from txn.background import Finisher
from txn.beats import PORTION
from txn.clock import Clock, SystemClock
from txn.codec import FAMILY, decode_marker, marker_key
from txn.errors import (
    AssertionFailedError,
    ConflictError,
    CorruptRowError,
    InvalidRequestError,
    TableUnavailable,
    TxnError,
    describe,
)
from txn.families import Families
from txn.model import Cell, Delete, Family, Key, Mutation, Row, as_bytes, check_choice, check_whole
from txn.optimistic import OptimisticTransaction, Pace, Ways, run
from txn.policy import Policy
from txn.protocol import Lock, commit, lock_at_once, lock_in_order, roll_forward, spare_others
from txn.reads import Snapshot, read_atomically
from txn.request import Committed, Outcome, Request, as_request, bound_key, checked
from txn.resolve import Resolver, read_rows
from txn.scans import by_row, scan, view
from txn.spans import Columns, Span, span
from txn.steps import Context, Transaction, begin, is_late
from txn.stores.base import Store
from txn.waiting import HotKeys, in_time
from txn.watch import Watch, guard, silent

Ack = Literal["complete", "decided"]
Given = Request | tuple[Iterable[Mutation | Delete], Iterable[Assertion]]
TRANSACTIONS = "txn"
RUN_ATTEMPTS = 1_000
T = TypeVar("T")


class Engine:
    """Commits and reads through one store. See `txn.connect` for the arguments."""

    def __init__(
        self,
        store: Store,
        *,
        table: str | bytes | None = None,
        transactions: str | bytes = TRANSACTIONS,
        buckets: int = 1,
        policy: Policy | None = None,
        watch: Watch = silent,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        if not 1 <= buckets <= 100:
            raise InvalidRequestError(describe("buckets must be 1 to 100", buckets=buckets))
        self._context = Context(
            store,
            as_bytes("transactions", transactions),
            clock or SystemClock(),
            chance or random.SystemRandom(),
            policy or Policy(),
            guard(watch),
        )
        self._table = None if table is None else as_bytes("table", table)
        self._buckets = buckets
        self._families = Families(self._context)
        self._resolver = Resolver(self._context)
        self._hot = HotKeys(self._context)
        self._finisher = Finisher(self._context)
        store.ensure_table(self._context.table, {FAMILY: Family(versions=1)}, self._splits())

    @property
    def context(self) -> Context:
        """The store, the transaction table, the clock and the policy, as recovery needs them."""
        return self._context

    # ----------------------------------------------------------------------------- committing

    def commit(
        self,
        mutations: Iterable[Mutation | Delete],
        assertions: Iterable[Assertion] = (),
        *,
        once: str | bytes | None = None,
        once_retention_ms: int | None = None,
        labels: Mapping[str, str] | None = None,
        ack: Ack = "complete",
        deadline_ms: int | None = None,
    ) -> Committed:
        """Apply all mutations if all assertions hold, else none.

        once: of all requests with this token, whoever sends them, at most one commits; the others
        return its result with `repeated=True`.
        once_retention_ms: the promise that none comes later than that after the first one's commit:
        then fsck forgets the token, and one that comes all the same commits again. None: never.
        ack: "complete" returns when every lock is released, "decided" as soon as it is committed.
        deadline_ms: until its decision; None: the policy's; 0 or less: it is too late already.
        Raises InvalidRequestError, AbortedError (ConflictError, AssertionFailedError,
        DeadlineError), CommitOutcomeUnknown, StoreError or CorruptRowError. Only with
        CommitOutcomeUnknown may it have been committed.
        """
        check_choice("ack", ack, Ack)
        request = self._checked(mutations, assertions, once, labels, once_retention_ms)
        return self._commit(request, ack, deadline_ms=checked_time(deadline_ms))

    def commit_many(
        self,
        requests: Iterable[Given],
        *,
        ack: Ack = "complete",
        deadline_ms: Sequence[int | None] | None = None,
    ) -> list[Committed | TxnError]:
        """Commit many independent transactions together; return the result of each, in order.

        Each stands alone, as in `commit`; errors are returned, not raised. Those that share a key
        happen in the order given. deadline_ms: for each, as in `commit`. Raises
        InvalidRequestError, naming the first bad request, or StoreError, before anything is
        written.
        """
        check_choice("ack", ack, Ack)
        wanted = [self._given(i, given) for i, given in enumerate(requests)]
        return self._commit_many(wanted, ack, deadline_ms=checked_times(deadline_ms, len(wanted)))

    def _commit(
        self, request: Request, ack: Ack, spans: Sequence[Span] = (), deadline_ms: int | None = None
    ) -> Committed:
        (result,) = self._commit_many([request], ack, spans, deadline_ms=[deadline_ms])
        if isinstance(result, TxnError):
            raise result
        return result

    def _commit_many(
        self,
        requests: Sequence[Request],
        ack: Ack,
        spans: Sequence[Span] = (),
        *,
        deadline_ms: Sequence[int | None],
    ) -> list[Committed | TxnError]:
        now_ms, usual_ms = self._context.clock.monotonic_ms(), self._context.policy.deadline_ms
        attempts = [
            self._begin(request, now_ms + (usual_ms if own_ms is None else own_ms), spans)
            for request, own_ms in zip(requests, deadline_ms, strict=True)
        ]
        for wave in waves([t.keys for t in attempts]):
            self._run([attempts[i] for i in wave], lock_at_once, ack)
            for tries in range(1, self._context.policy.attempts):
                again = [i for i in wave if self._may_try_again(attempts[i])]
                if not again:
                    break
                self._pause(tries)
                for i in again:
                    attempts[i] = self._begin(requests[i], attempts[i].due_ms, spans)
                self._run([attempts[i] for i in again], lock_in_order, ack)
        return [self._result(t) for t in attempts]

    def _begin(self, request: Request, due_ms: int, spans: Sequence[Span] = ()) -> Transaction:
        return begin(self._context, request, due_ms, self._buckets, spans)

    def _may_try_again(self, t: Transaction) -> bool:
        return isinstance(t.failure, ConflictError) and not is_late(self._context, t)

    def _pause(self, tries: int) -> None:
        self._context.clock.sleep_ms(self._context.policy.pause_ms(tries, self._context.random))

    def _run(self, transactions: Sequence[Transaction], lock: Lock, ack: Ack) -> None:
        finish = roll_forward if ack == "complete" else self._finisher.submit
        settle = self._resolver.settle
        try:
            due = in_time(self._context, transactions)
            live = spare_others(lambda some: self._hot.let_pass(some, settle), due)
            with self._hot.watched(live):
                commit(self._context, live, lock, settle, finish)
        except TxnError as error:  # before the decision, so nothing of these was written
            for t in transactions:
                t.failure = t.failure or error
        for t in transactions:
            self._resolver.blame(t.failure)
            if t.failure is not None and isinstance(t.failure.__cause__, TableUnavailable):
                self._families.forget(t.failure.__cause__.table)

    def _result(self, t: Transaction) -> Committed | TxnError:
        if t.failure is None:
            return Committed(t.row_key, t.decided.timestamp, complete=t.is_finished)
        if isinstance(t.failure, AssertionFailedError) and t.request.once is not None:
            marker = marker_key(self._context.table, t.request.once)
            first = t.seen.get(marker)
            if first is not None and t.failure.assertion == Not(Some(marker)):
                transaction = decode_marker(first.value).transaction
                return Committed(transaction, first.timestamp, repeated=True)
        return t.failure

    # -------------------------------------------------------------------------------- reading

    def read(self, keys: Collection[Key]) -> dict[Key, Cell | None]:
        """Return the keys' cells as of one instant: every transaction wholly or not at all.

        It waits for no writer but one that has scanned a range and is about to decide. Only where
        writers leave it no such instant, again and again, does it take the locks; then it may raise
        what `commit` raises.
        """
        bound = {key: self._bound(key) for key in keys}
        wanted = list(dict.fromkeys(bound.values()))
        found = read_atomically(self._context, wanted) if wanted else {}
        if found is None:
            found = self._read_locked(wanted)
        return {key: found[wanted_key] for key, wanted_key in bound.items()}

    def _read_locked(self, keys: Sequence[Key]) -> dict[Key, Cell | None]:
        due_ms = self._context.clock.monotonic_ms() + self._context.policy.deadline_ms
        request = Request((), tuple(Or(Some(key), Not(Some(key))) for key in keys))
        for tries in range(1, self._context.policy.attempts + 1):
            t = self._begin(request, due_ms)
            self._run([t], lock_in_order, "complete")
            if not self._may_try_again(t):
                break
            self._pause(tries)
        if t.failure is not None:
            raise t.failure
        return t.seen

    def scan(
        self,
        table: str | bytes | None = None,
        start: str | bytes = b"",
        stop: str | bytes | None = None,
        *,
        prefix: str | bytes | None = None,
        columns: Columns | None = None,
        snapshot: bool = False,
    ) -> Iterator[Row]:
        """Yield the rows from start (included) to stop (excluded), or with the prefix, in order,
        with those of their cells, or of the (family, column) pairs, that have a value.

        Each row is as of one instant during the scan, as in `read`. Two rows may be
        of different instants: a transaction may be seen in one and not in another, and rows that
        come behind the scan are not seen. With snapshot=True all rows are of one instant, up to
        10,000 of them; ConflictError where writers leave no such instant.
        """
        wanted = span(table or self._table, start, stop, prefix, columns)
        if not snapshot:
            return self._scan(wanted)
        return by_row(self._view((), [wanted])[1][0])

    def _scan(self, wanted: Span) -> Iterator[Row]:
        return scan(self._context, self._known(wanted), self._read_locked)

    def _view(
        self, keys: Sequence[Key], spans: Sequence[Span]
    ) -> tuple[Snapshot, list[dict[Key, Cell]]]:
        if not spans:
            return self.read(keys), []
        known = [self._known(wanted) for wanted in spans]
        found = view(self._context, keys, known, self._read_locked)
        if found is None:
            raise ConflictError("rows keep changing")
        return found

    def _known(self, wanted: Span) -> Span:
        self._families.table(wanted.table)
        for family, column in wanted.columns or ():
            self._families.of(Key(b"-", family, column, wanted.table))
        return wanted

    # --------------------------------------------------------------------------- interactively

    def transaction(
        self,
        *,
        once: str | bytes | None = None,
        once_retention_ms: int | None = None,
        labels: Mapping[str, str] | None = None,
        ack: Ack = "complete",
        deadline_ms: int | None = None,
    ) -> OptimisticTransaction:
        """Return a transaction for one `with` block, which commits it at its end.

        A block that wrote nothing writes nothing, `once` or not: it ends when all that it read is
        seen to have been so at one instant. deadline_ms: for the commit, until its decision; None:
        the policy's. 0 or less, a budget that is spent: DeadlineError, and nothing is written.
        """
        checked_time(deadline_ms)

        return self._block(once, once_retention_ms, labels, ack, lambda: deadline_ms)

    def _block(
        self,
        once: str | bytes | None,
        once_retention_ms: int | None,
        labels: Mapping[str, str] | None,
        ack: Ack,
        left_ms: Callable[[], int | None],
    ) -> OptimisticTransaction:
        check_choice("ack", ack, Ack)

        def commit(request: Request, spans: Sequence[Span]) -> Committed:
            valid = self._checked(
                request.mutations, request.assertions, once, labels, once_retention_ms
            )
            return self._commit(valid, ack, spans, left_ms())

        ways = Ways(self.read, self._scan, self._view, commit)
        return OptimisticTransaction(ways, self._table)

    def run(
        self,
        function: Callable[[OptimisticTransaction], T],
        *,
        attempts: int = RUN_ATTEMPTS,
        deadline_ms: int | None = None,
        once: str | bytes | None = None,
        once_retention_ms: int | None = None,
        labels: Mapping[str, str] | None = None,
        ack: Ack = "complete",
    ) -> T:
        """Call a function with a transaction, commit, and return what the function returned.

        On a ConflictError all of it is done again, after a pause, so the function should have no
        other effects. deadline_ms: for all attempts together; None: the policy's; 0 or less:
        DeadlineError at once. Raises the last ConflictError, DeadlineError, and whatever else
        `commit` and the function raise.
        """
        pace = self._pace
        deadline_ms = pace.policy.deadline_ms if deadline_ms is None else deadline_ms
        begin = partial(self._block, once, once_retention_ms, labels, ack)
        return run(begin, function, pace, attempts, deadline_ms)

    @property
    def _pace(self) -> Pace:
        return Pace(self._context.clock, self._context.random, self._context.policy)

    def outcome(self, transaction: str | bytes) -> Outcome:
        """Return what has become of a transaction, by its row key."""
        row_key = as_bytes("transaction", transaction)
        row = read_rows(self._context, [row_key])[row_key]
        if row.status is None and row.corrupt:
            raise CorruptRowError(describe(row.corrupt, row=row_key))
        if row.status is None or (row.buffer is None and row.corrupt is None):
            return Outcome.UNKNOWN
        if row.status.is_undecided:
            return Outcome.UNDECIDED
        return Outcome.COMMITTED if row.status.is_decided else Outcome.ABORTED

    # ----------------------------------------------------------------------- tables and ending

    def ensure_table(self, table: str | bytes, families: Iterable[str | bytes]) -> None:
        """Create the table and those of its families that are missing."""
        wanted = {as_bytes("family", family): Family() for family in families}
        self._context.store.ensure_table(as_bytes("table", table), wanted)

    def flush(self) -> None:
        """Wait until everything committed with ack="decided" is complete, or left to others."""
        self._finisher.flush()

    def close(self) -> None:
        """Flush, and close the store."""
        self.flush()
        self._context.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -------------------------------------------------------------------------------- details

    def _given(self, index: int, given: Given) -> Request:
        try:
            r = as_request(given)
            return self._checked(r.mutations, r.assertions, r.once, r.labels, r.once_retention_ms)
        except InvalidRequestError as error:
            raise InvalidRequestError(describe(str(error), request=index)) from error

    def _checked(
        self,
        mutations: Iterable[Mutation | Delete],
        assertions: Iterable[Assertion],
        once: str | bytes | None = None,
        labels: Mapping[str, str] | None = None,
        once_retention_ms: int | None = None,
    ) -> Request:
        request = checked(
            mutations,
            assertions,
            once=once,
            labels=labels,
            once_retention_ms=once_retention_ms,
            table=self._table,
        )
        self._families.check(request)
        return request

    def _bound(self, key: Key) -> Key:
        bound = bound_key(key, self._table)
        self._families.of(bound)
        return bound

    def _splits(self) -> list[bytes]:
        return [b"%02d." % bucket for bucket in range(1, self._buckets)]


def checked_time(deadline_ms: int | None) -> int | None:
    """Return it; raise InvalidRequestError unless it is a whole number of ms, or None."""
    if deadline_ms is not None:
        check_whole("deadline_ms", deadline_ms)
    return deadline_ms


def checked_times(deadline_ms: Sequence[int | None] | None, count: int) -> list[int | None]:
    """Return a time for each of so many requests, of which none has one where none are given."""
    if deadline_ms is None:
        return [None] * count
    times = list(map(checked_time, deadline_ms))
    if len(times) != count:
        raise InvalidRequestError(
            describe("a time for each request is needed", requests=count, times=len(times))
        )
    return times


def waves(keys: Sequence[Collection[Key]], most_keys: int = PORTION) -> list[list[int]]:
    """Group transactions, by their position, so that those of one group share no key, and those
    that share one are in groups of the order given. A group has no more keys than may be asked for
    in one call, unless it is of one transaction: who is written first waits for the others."""
    groups: list[list[int]] = []
    sizes: list[int] = []
    next_wave: dict[Key, int] = {}
    full = 0  # how many groups, from the first on, take nobody any more
    for position, touched in enumerate(keys):
        wave = max((next_wave.get(key, 0) for key in touched), default=0)
        wave = max(wave, full)
        while wave < len(groups) and sizes[wave] + len(touched) > most_keys:
            wave += 1
        if wave == len(groups):
            groups.append([])
            sizes.append(0)
        groups[wave].append(position)
        sizes[wave] += len(touched)
        next_wave.update(dict.fromkeys(touched, wave + 1))
        while full < len(groups) and sizes[full] >= most_keys:
            full += 1
    return groups
