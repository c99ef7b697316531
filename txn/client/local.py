"""The backend that runs the protocol itself, through a store.

It keeps no transaction state: unfinished work is in transaction rows, for any client to finish.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import NoReturn, TypeVar

from txn.client.finisher import Finisher
from txn.client.group_commit import GroupCommit
from txn.client.hot_keys import ROUNDS, HotKeyQueues, HotKeyTicket
from txn.client.schema import OWN, Families
from txn.clock import Clock, call_until, measure_s
from txn.errors import (
    AssertionFailedError,
    CommitOutcomeUnknown,
    ConflictError,
    CorruptRowError,
    DeadlineError,
    InvalidRequestError,
    NotApplied,
    StoreError,
    TableUnavailable,
    TokenReusedError,
    TxnError,
    deny,
    raise_denial,
)
from txn.events import Ended, name_outcome, result_of, silent
from txn.host.holds import Holds, SafeFuture, refuse_own_thread
from txn.host.worker_pool import WorkerPool
from txn.model import Cell, Family, Key, Row, plain_table, require_cell
from txn.policy import Pace
from txn.protocol.codec import decode_first, require_same
from txn.protocol.commit import commit
from txn.protocol.context import Context, call_store, make_durable
from txn.protocol.locks import Contention, holder_of
from txn.protocol.prepare import run_for_available
from txn.protocol.protocols import choose_rules, require_transactions
from txn.protocol.recovery import Resolver, make_corrupt_error
from txn.protocol.row import FAMILY, RowState, is_row_key, marker_key, read_rows
from txn.protocol.statuses import KeptRows, ProtocolName
from txn.protocol.transaction import PendingCommit, begin_commit, fail_late, is_late, renew
from txn.reading.columns import scan_columns
from txn.reading.scans import read_view, scan_rows
from txn.reading.snapshot import Snapshot, read_atomically
from txn.request import Ack, Committed, Outcome, Request, lock_request
from txn.spans import Span
from txn.stores.base import ColumnPage, find_inside
from txn.tracing import begin_traces, find_tracer, watch_batch

HOT_READS = 8
"""How often a block reads hot keys while one of them is locked, since it would be overtaken."""

FRESH_MS = 1_000
"""The greatest age of a row key, which contains the start time, when its row is written."""

T = TypeVar("T")

EAGER = 4
"""How many rounds a conflicting request of many runs together with others before it runs alone."""

ALONE = 8
"""How many requests with futures run alone at a time."""


class LocalBackend:
    """Commits and reads with the protocol. Creates its transaction table if it is missing."""

    def __init__(
        self, context: Context, wanted: ProtocolName | None, rows: KeptRows | None, *, create: bool
    ) -> None:
        due_ms = context.clock.monotonic_ms() + context.policy.deadline_ms
        ensure = partial(require_transactions, context.store, context.table)
        if create:
            splits = [b"%02d." % bucket for bucket in range(1, context.salt_buckets)]
            own = {FAMILY: Family(versions=1, database=plain_table(context.table))}
            ensure = partial(context.store.ensure_table, context.table, own, splits)
        call_until(due_ms, ensure)
        rules = choose_rules(replace(context, until_ms=due_ms), wanted, rows, create=create)
        self._context = context = replace(context, rules=rules)
        self._families = Families(context)
        self._resolver = Resolver(context)
        self._contention = Contention(context, self._resolver.resolve)
        self._finisher = Finisher(context)
        self._queues = HotKeyQueues()
        self._workers = WorkerPool(ALONE, "txn-alone")
        self._is_remote = "remote_calls" in context.store.features
        self._is_inside = find_inside(context.store)
        # A store with one writer, or in this process, gains nothing from several batches.
        policy = context.policy
        policy = policy if self._is_remote else replace(policy, concurrent_batches=1)
        self._group_commit = GroupCommit(
            self._commit_batch,
            self._finish_future,
            context.clock,
            policy,
            on_event=context.on_event,
        )

    @property
    def context(self) -> Context:
        return self._context

    @property
    def pace(self) -> Pace:
        context = self._context
        return Pace(context.clock, context.rng, context.policy)

    # ----------------------------------------------------------------------------- validating

    def check_key(self, key: Key, deadline_ms: int | None = None) -> None:
        self._families.of(key, deadline_ms)

    def check_request(self, request: Request, deadline_ms: int | None) -> None:
        self._families.check(request, deadline_ms)

    # ----------------------------------------------------------------------------- committing

    def commit(
        self,
        request: Request,
        ack: Ack,
        spans: Sequence[Span],
        deadline_ms: int | None,
        known: Snapshot,
    ) -> Committed:
        if self._is_inside is not None and self._is_inside():
            raise refuse_own_thread()
        t = begin_commit(self._context, request, deadline_ms, spans, ack)
        if known:
            t.add_known(known, known)
        (result,) = self._report_results([t], partial(self._commit_one, t))
        if isinstance(result, TxnError):
            raise result
        return result

    def _refuse_inside(self) -> None:
        """Refuse a call inside the store's `atomically`: other threads wait for its end, and its
        failure would undo what was acknowledged or read."""
        if self._is_inside is not None and self._is_inside():
            raise refuse_own_thread()

    def _commit_one(self, t: PendingCommit) -> None:
        if not t.spans:  # validating ranges may take long, so other requests do not wait for it
            self._group_commit.commit([t])
        if self._is_open(t):
            self._commit_alone(t)

    def commit_many(
        self, requests: Sequence[Request], ack: Ack, deadlines_ms: Sequence[int | None]
    ) -> list[Committed | TxnError]:
        """Commit independent requests together; return the result of each. Each round runs all
        requests that share no lock with an earlier one. Conflicting requests run again in the next
        round and do not delay others. Only if a round completes nothing does the first request run
        alone, waiting for lock holders."""
        self._refuse_inside()
        pending = [
            begin_commit(self._context, request, deadline_ms, ack=ack)
            for request, deadline_ms in zip(requests, deadlines_ms, strict=True)
        ]
        return self._report_results(pending, partial(self._commit_in_order, pending))

    def _commit_in_order(self, pending: Sequence[PendingCommit]) -> None:
        if len(pending) == 1:  # the same with fewer calls
            self._commit_one(pending[0])
            return
        order = Order(pending)
        while order.ready:
            self._commit_eager(list(order.ready))
            self._end_round(order)

    def submit(self, request: Request, ack: Ack, deadline_ms: int | None) -> Future[Committed]:
        self._refuse_inside()
        t = begin_commit(self._context, request, deadline_ms, ack=ack)
        t.future, t.future_setters = SafeFuture(), Holds()
        is_reported = self._begin_reports([t])
        try:
            self._group_commit.submit(t)
        except TxnError as error:
            if is_reported:
                self._report_result(t, error)
            raise
        if is_reported:
            t.future.add_done_callback(lambda done: self._report_result(t, result_of(done)))
        return t.future

    def _begin_reports(self, pending: Sequence[PendingCommit]) -> bool:
        """Begin the reports of requests; return False if nobody listens."""
        if self._context.on_event is silent and find_tracer() is None:
            return False
        traces = begin_traces([t.asked for t in pending], remote=self._is_remote)
        asked_s = measure_s()
        for t, trace in zip(pending, traces, strict=True):
            t.trace, t.asked_s = trace, asked_s
        return True

    def _report_results(
        self, pending: Sequence[PendingCommit], work: Callable[[], None]
    ) -> list[Committed | TxnError]:
        """Do the work of requests, and report and return their results."""
        is_reported = self._begin_reports(pending)
        try:
            work()
        except BaseException as error:
            for t in pending if is_reported else ():
                self._report_result(t, error)
            raise
        results = list(map(self._result, pending))
        for t, result in zip(pending, results, strict=True) if is_reported else ():
            self._report_result(t, result)
        return results

    def _report_result(self, t: PendingCommit, result: Committed | BaseException) -> None:
        if self._context.on_event is not silent:
            elapsed_ms = (measure_s() - t.asked_s) * 1000
            self._context.on_event(Ended(name_outcome(result), t.tries, elapsed_ms))
        if t.trace is not None:
            t.trace.end(result, transaction=t.row_key, tries=t.tries)

    def _trace_batch(self, batch: Sequence[PendingCommit]) -> Context:
        context = self._context
        traces = {t.row_key: t.trace for t in batch if t.trace is not None}
        on_event = watch_batch(traces, context.on_event) if traces else context.on_event
        return context if on_event is context.on_event else replace(context, on_event=on_event)

    def _renew(self, t: PendingCommit, now_ms: int, *, is_alone: bool) -> None:
        """Give an unwritten request a fresh row key."""
        t.was_deferred = False
        is_old = now_ms - t.begun_ms > FRESH_MS
        if t.failure is not None or is_old:
            renew(self._context, t, keep=t.failure is None, is_alone=is_alone)

    def _is_open(self, t: PendingCommit) -> bool:
        failure = t.failure
        is_new = failure is None and t.status is None and not t.tries
        if t.was_deferred or (is_new and not t.is_running):
            return True
        if failure is None or not isinstance(failure, ConflictError):
            return False
        if failure.holder and not is_row_key(failure.holder):
            return False  # a cell that holds no lock is never released
        return t.tries < self._context.policy.attempts and not is_late(self._context, t)

    def _commit_eager(self, ready: Sequence[PendingCommit]) -> None:
        """Try requests with few conflicts, together with others and without waiting."""
        policy = self._context.policy
        eager = [t for t in ready if t.rounds < min(EAGER, policy.attempts)]
        rounds = max((t.rounds for t in eager), default=0)
        if rounds:
            self._context.clock.sleep_ms(policy.backoff.pause_ms(rounds, self._context.rng))
        if eager:
            self._group_commit.commit(eager)

    def _end_round(self, order: Order) -> None:
        """Remove finished requests. If there are none, run the first one alone, with waiting."""
        done = [t for t in order.ready if not self._is_open(t)]
        if not done:
            done = list(order.ready)[:1]
            self._commit_alone(done[0])
        for t in done:
            order.remove(t)

    def _commit_batch(self, batch: Sequence[PendingCommit]) -> None:
        """Try a batch once, without waiting; defer requests whose hot keys are locked."""
        due: list[PendingCommit] = []
        deferred: list[PendingCommit] = []

        def defer(some: Sequence[PendingCommit]) -> list[PendingCommit]:
            deferred.extend(self._contention.fail_blocked(some))
            return [t for t in some if t.failure is None]

        try:
            now_ms = self._context.clock.monotonic_ms()
            for t in batch:
                self._renew(t, now_ms, is_alone=False)
                t.rounds += 1
            due = fail_late(batch, now_ms)
            self._run(
                self._trace_batch(batch), due, batch[0].ack, now_ms, patient=False, wait=defer
            )
        except BaseException as error:
            leave_unknown(due, error)
            raise
        finally:
            for t in batch:
                t.was_deferred = t in deferred
            for t in due:
                if not t.was_deferred:
                    t.tries += 1

    def _commit_alone(self, t: PendingCommit) -> None:
        policy = self._context.policy
        while self._is_open(t):
            if t.tries:
                self._context.clock.sleep_ms(policy.backoff.pause_ms(t.tries, self._context.rng))
            now_ms = self._context.clock.monotonic_ms()
            self._renew(t, now_ms, is_alone=True)
            due = fail_late([t], now_ms)
            t.tries += len(due)
            self._run(self._trace_batch([t]), due, t.ack, now_ms, patient=t.tries > 1)

    def _finish_future(self, t: PendingCommit) -> None:
        """Set the result of a request's future; an unfinished request continues alone."""
        if self._is_open(t) and self._workers.submit_work(self._finish_future_alone, t):
            return
        self._finish_future_alone(t)

    def _finish_future_alone(self, t: PendingCommit) -> None:
        with (hold := Lock()): self._set_result(t, hold)  # fmt: skip  # noqa: E701

    def _set_result(self, t: PendingCommit, hold: Lock) -> None:
        assert t.future is not None and t.future_setters is not None
        # One thread does this; if it was interrupted, another may repeat it.
        t.future_setters.add(hold, None)
        if t.future.done() or not t.future_setters.is_first(hold):
            return
        try:
            self._commit_alone(t)
        except BaseException as error:
            leave_unknown([t], error)
            raise
        finally:
            result = self._result(t)
            if isinstance(result, TxnError):
                t.future.set_exception(result)
            else:
                t.future.set_result(result)

    def _run(
        self,
        context: Context,
        attempts: Sequence[PendingCommit],
        ack: Ack,
        now_ms: int,
        *,
        patient: bool,
        wait: Callable[[Sequence[PendingCommit]], list[PendingCommit]] | None = None,
    ) -> None:
        """Run the phases of attempts whose deadline has not passed.

        wait: fails the attempts that would wait for hot keys; None: wait for their holders.
        """
        finish = self._finisher.release if ack == "complete" else self._finisher.submit
        for t in attempts:
            t.is_running = True
        try:
            live = attempts
            if not self._contention.is_calm(now_ms):
                live = run_for_available(wait or self._contention.wait_for_hot_keys, attempts)
            commit(context, live, self._contention, patient, finish)
            self._contention.record_results(live)
        except TxnError as error:  # raised before the decision of all but those that have one
            for t in attempts:
                if t.status is None or not t.status.is_decided:
                    t.failure = t.failure or deny(error)
        for t in attempts:
            t.is_running = False
            if t.failure is not None:
                t.failure = failure = self._resolver.add_cause(t.failure)
                if isinstance(failure.__cause__, TableUnavailable):
                    self._families.forget(failure.__cause__.table)
        refused = [t for t in attempts if isinstance(t.failure, AssertionFailedError)]
        if refused:
            _confirm_repeated(context, refused)

    def _result(self, t: PendingCommit) -> Committed | TxnError:
        if t.is_running or t.status is None:
            leave_unknown([t])  # its thread was interrupted even as it did so
        if t.failure is None:
            return Committed(t.row_key, t.decided.timestamp, complete=t.is_finished)
        if isinstance(t.failure, AssertionFailedError) and t.request.once is not None:
            # The absence of the marker is asserted first, so an existing marker is what failed.
            marker = marker_key(self._context.table, t.request.once)
            first = require_cell(t.seen.get(marker))
            try:
                if first is not None:
                    return require_same(t.asked, decode_first(first, marker))
            except (CorruptRowError, TokenReusedError) as error:
                return error
        return t.failure

    # -------------------------------------------------------------------------------- reading

    def read(self, keys: Sequence[Key], deadline_ms: int | None = None) -> Snapshot:
        context, locked = self._limit(deadline_ms)
        try:
            found = read_atomically(context, keys) if keys else {}
        except StoreError as error:
            _deny_read(error)
        return locked(keys) if found is None else found

    def _limit(
        self, deadline_ms: int | None
    ) -> tuple[Context, Callable[[Sequence[Key]], Snapshot]]:
        if self._is_inside is not None and self._is_inside():
            raise refuse_own_thread()
        context = self._context
        if deadline_ms is None:
            return context, partial(self._read_under_locks, None)
        if deadline_ms <= 0:
            raise DeadlineError("deadline passed before anything was read")
        due_ms = context.clock.monotonic_ms() + deadline_ms
        return replace(context, until_ms=due_ms), partial(self._read_under_locks, due_ms)

    def _read_under_locks(self, due_ms: int | None, keys: Sequence[Key]) -> dict[Key, Cell | None]:
        context = self._context
        if due_ms is None:
            due_ms = context.clock.monotonic_ms() + context.policy.deadline_ms
        request = lock_request(keys)
        for _ in context.tries(most=context.policy.attempts):
            now_ms = context.clock.monotonic_ms()
            t = begin_commit(context, request, due_ms - now_ms)
            self._run(context, fail_late([t], now_ms), "complete", now_ms, patient=True)
            if not isinstance(t.failure, ConflictError) or is_late(context, t):
                break
        if isinstance(t.failure, CommitOutcomeUnknown):  # it was to write nothing
            cause = t.failure.__cause__ or t.failure
            raise NotApplied(f"nothing was read: {cause}") from t.failure
        if t.failure is not None:
            raise t.failure
        return {key: require_cell(found) for key, found in t.seen.items()}

    def read_for_block(
        self, keys: Sequence[Key], ticket: HotKeyTicket, deadline_ms: int | None = None
    ) -> Snapshot:
        """Return the keys' cells, in a fenced database with their locks if these are free."""
        context, contention = self._limit(deadline_ms)[0], self._contention
        lock_of = context.rules.lock_of
        hot = contention.list_hot_keys(keys)
        if hot:
            rounds = ROUNDS if deadline_ms is None else min(ROUNDS, 1 + deadline_ms // 2_000)
            contention.note_hot(self._queues.wait(ticket, map(lock_of, hot), rounds))
        if not context.rules.locks_rows:
            return self.read(keys, deadline_ms)
        locks = {lock_of(key): None for key in keys}
        wanted = [*keys, *locks]
        for tries in range(HOT_READS if hot else 1):
            if tries:
                context.clock.sleep_ms(self._contention.pause_ms(tries))
            try:
                cells = call_store(context, partial(context.store.read, wanted))
            except StoreError as error:
                _deny_read(error)
            held = [lock for lock in locks if holder_of(lock, cells[lock])]
            if not held:
                return cells
            contention.note_hot(held)
        return self.read(keys, deadline_ms)

    def scan(self, wanted: Span, deadline_ms: int | None = None) -> Iterator[Row]:
        self.check_span(wanted, deadline_ms)
        context, locked = self._limit(deadline_ms)
        rows = _deny_failures(scan_rows(context, wanted, locked))
        return rows if deadline_ms is None else _stop_at(rows, context.clock, deadline_ms)

    def scan_columns(
        self, wanted: Span, columns: Sequence[tuple[bytes, bytes]]
    ) -> Iterator[ColumnPage]:
        self.check_span(wanted)
        context, locked = self._limit(None)
        return _deny_failures(scan_columns(context, wanted, columns, locked))

    def view(
        self,
        keys: Sequence[Key],
        spans: Sequence[Span],
        deadline_ms: int | None = None,
        most_bytes: int | None = None,
    ) -> tuple[Snapshot, list[dict[Key, Cell]]]:
        """Return the cells of the keys, and those of each span, as of one instant.

        most_bytes: the limit for the spans; InvalidRequestError if they exceed it.
        """
        for wanted in spans:
            self.check_span(wanted, deadline_ms)
        if not spans:
            return self.read(keys, deadline_ms), []
        context, locked = self._limit(deadline_ms)
        try:
            found = read_view(context, keys, spans, locked, most_bytes)
        except StoreError as error:
            _deny_read(error)
        if found is None:
            raise ConflictError("rows keep changing")
        return found

    def check_span(self, wanted: Span, deadline_ms: int | None = None) -> None:
        self._families.table(wanted.table, deadline_ms)
        for family, column in wanted.columns or ():
            self._families.of(Key(b"-", family, column, wanted.table), deadline_ms)

    def find_once(self, token: bytes, deadline_ms: int | None = None) -> Committed | None:
        marker = marker_key(self._context.table, token)
        cell = self.read([marker], deadline_ms)[marker]
        if cell is None:
            return None
        try:
            make_durable(self._context)
        except StoreError as error:
            _deny_read(error)
        return decode_first(cell, marker)

    def outcome(self, row_key: bytes) -> Outcome:
        if not is_row_key(row_key):
            raise InvalidRequestError("not the row key of a transaction", given=row_key)
        try:
            row = read_rows(self._context, [row_key])[row_key]
            if row.status is not None and row.status.is_decided:
                make_durable(self._context)
        except StoreError as error:
            _deny_read(error)
        match row.state:
            case RowState.UNREADABLE if row.status is None or not row.shows_decision:
                raise make_corrupt_error(row)
            case RowState.DEBRIS:
                return Outcome.UNKNOWN
            case RowState.FINISHED if row.is_poisoned:
                return Outcome.UNKNOWN
            case RowState.UNDECIDED:
                return Outcome.UNDECIDED
            case _:
                is_committed = row.status is not None and row.status.is_decided
                return Outcome.COMMITTED if is_committed else Outcome.ABORTED

    # ----------------------------------------------------------------------- tables and ending

    def ensure_table(self, table: bytes, families: Collection[bytes]) -> None:
        if table in self._families.own_names:
            raise InvalidRequestError(OWN, table=table)
        own = Family(database=plain_table(self._context.table))
        self._context.store.ensure_table(table, dict.fromkeys(families, own))

    def flush(self) -> None:
        self._refuse_inside()
        self._group_commit.flush()
        self._finisher.flush()

    def close(self) -> None:
        self._refuse_inside()
        self._group_commit.close()
        self._workers.close()
        self._finisher.flush()
        self._context.store.close()


def _confirm_repeated(context: Context, refused: Sequence[PendingCommit]) -> None:
    """Make the earlier commits durable whose tokens refused these attempts, for `_result`."""
    tokens = [(t, once) for t in refused if (once := t.request.once) is not None]
    repeated = [t for t, once in tokens if t.seen.get(marker_key(context.table, once))]
    try:
        if repeated:
            make_durable(context)
    except StoreError as error:
        for t in repeated:
            t.failure = CommitOutcomeUnknown(t.row_key, error)


class Order:
    """Requests of one call; those that need the same lock run in the given order.

    ready: those that wait for no other, as the keys of a dictionary.
    """

    __slots__ = ("_ordered", "_queues", "ready")

    def __init__(self, pending: Sequence[PendingCommit]) -> None:
        self._queues: dict[Key, deque[PendingCommit]] = {}
        # Locks that none of them changes need no order.
        shared = [(t, t.shared) for t in pending]
        self._ordered = {lock for t, some in shared for lock in t.lock_cells if lock not in some}
        needed = [lock for t in pending for lock in t.lock_cells if lock in self._ordered]
        if len(self._ordered) == len(needed):  # the usual case
            self.ready = dict.fromkeys(pending)
            return
        for t in pending:
            for lock_cell in self._list_ordered(t):
                self._queues.setdefault(lock_cell, deque()).append(t)
        self.ready = {t: None for t in pending if self._is_first(t)}

    def _list_ordered(self, t: PendingCommit) -> list[Key]:
        return [lock_cell for lock_cell in t.lock_cells if lock_cell in self._ordered]

    def _is_first(self, t: PendingCommit) -> bool:
        return all(self._queues[lock_cell][0] is t for lock_cell in self._list_ordered(t))

    def remove(self, t: PendingCommit) -> None:
        """Remove a ready request; those that waited only for it become ready."""
        del self.ready[t]
        if not self._queues:
            return
        queues = [self._queues[lock_cell] for lock_cell in self._list_ordered(t)]
        for queue in queues:
            queue.popleft()
        self.ready.update(
            (queue[0], None) for queue in queues if queue and self._is_first(queue[0])
        )


def _deny_read(error: StoreError) -> NoReturn:
    """Raise the error of a read, which writes nothing. A missing table keeps its own error."""
    if isinstance(error, TableUnavailable):
        error.written = "no"
        raise error
    raise_denial(error, "nothing was read")


def _deny_failures(rows: Iterator[T]) -> Iterator[T]:
    try:
        yield from rows
    except StoreError as error:
        _deny_read(error)


def _stop_at(rows: Iterator[Row], clock: Clock, deadline_ms: int) -> Iterator[Row]:
    due_ms = clock.monotonic_ms() + deadline_ms
    for row in rows:
        if clock.monotonic_ms() >= due_ms:
            raise DeadlineError("deadline passed before the last row")
        yield row


def leave_unknown(attempts: Sequence[PendingCommit], error: BaseException | None = None) -> None:
    for t in attempts:
        if t.failure is None and (t.status is None or t.status.is_undecided):
            t.failure = CommitOutcomeUnknown(t.row_key, error)
