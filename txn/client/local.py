"""The backend that runs the protocol itself, through a store.

It keeps no transaction state of its own: whatever it began and did not finish is in the transaction
rows, where every other client can finish it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from threading import get_ident
from types import MappingProxyType
from typing import NoReturn

from txn.client.families import Families
from txn.client.finisher import Finisher
from txn.client.gather import Gatherer, InLine
from txn.client.turns import Lines, Turn
from txn.clock import Clock, measure_ms
from txn.errors import (
    AssertionFailedError,
    CommitOutcomeUnknown,
    ConflictError,
    CorruptRowError,
    DeadlineError,
    StoreError,
    TableUnavailable,
    TxnError,
    deny,
    raise_denial,
)
from txn.host.crew import Crew
from txn.model import Cell, Family, Key, Row, plain_table
from txn.policy import Pace
from txn.protocol.attempt import (
    Attempt,
    Context,
    ProtocolName,
    begin_attempt,
    call_store,
    is_late,
)
from txn.protocol.commit import commit, run_for_available
from txn.protocol.lock_cells import holder_of
from txn.protocol.resolve import Resolver, make_corrupt_error
from txn.protocol.row import FAMILY, RowState, decode_marker, is_row_key, marker_key
from txn.protocol.row_cells import read_rows
from txn.protocol.rules import choose_rules, require_transactions
from txn.protocol.waiting import Contention, fail_late
from txn.reading.keys import Snapshot, read_atomically
from txn.reading.look import find_holders
from txn.reading.rows import read_view, scan_rows
from txn.request import Ack, Committed, Outcome, Request, lock_request
from txn.spans import Span
from txn.tracing import Trace, begin_traces, watch_batch
from txn.watch import Ended, name_outcome, result_of, silent

LOOKS = 8
"""How often a block looks at keys in demand, of which somebody holds one: it would be overtaken."""

FRESH_MS = 1_000
"""How old the row key of an attempt may be when its row is written: it tells when it began."""

EAGER = 4
"""In how many rounds a request of many goes that was in conflict, before it waits alone."""

ALONE = 8
"""How many requests with futures wait for others at a time."""


@dataclass(slots=True, eq=False, kw_only=True)
class Wanted(InLine):
    """A request on its way to its result.

    attempt: the latest one, since begun_ms. tries: how many have been made. rounds: how many
    batches it was in. is_aside: whether it left the last one before anything was written.
    asked_ms: when it was asked for, as `measure_ms` tells it. trace: its span, if there is one.
    teller: which thread settles its future, once one has begun to.
    """

    attempt: Attempt
    begun_ms: int
    tries: int = 0
    rounds: int = 0
    is_aside: bool = False
    asked_ms: float = 0.0
    trace: Trace | None = None
    teller: dict[str, int] = field(default_factory=dict)


class LocalBackend:
    """Commits and reads with the protocol. Its transaction table is made where it is missing."""

    def __init__(self, context: Context, protocol: ProtocolName | None, *, create: bool) -> None:
        splits = [b"%02d." % bucket for bucket in range(1, context.buckets)]
        own = Family(versions=1, database=plain_table(context.table))
        if create:
            context.store.ensure_table(context.table, {FAMILY: own}, splits)
        else:
            require_transactions(context.store, context.table)
        self._context = context = replace(
            context, rules=choose_rules(context, protocol, create=create)
        )
        self._families = Families(context)
        self._resolver = Resolver(context)
        self._contention = Contention(context, self._resolver.settle)
        self._finisher = Finisher(context)
        self._lines = Lines()
        self._crew = Crew(ALONE, "txn-alone")
        policy = context.policy
        # A store of one writer, and of calls in this process, gains nothing by several.
        lanes = policy.lanes if "remote_calls" in context.store.features else 1
        self._is_remote = "remote_calls" in context.store.features
        self._gatherer = Gatherer(
            self._commit_together,
            self._tell,
            context.clock,
            lanes,
            policy.linger_ms,
            watch=context.watch,
        )

    @property
    def context(self) -> Context:
        """What every phase works with."""
        return self._context

    @property
    def pace(self) -> Pace:
        """How blocks wait before they are run again."""
        context = self._context
        return Pace(context.clock, context.random, context.policy)

    # ----------------------------------------------------------------------------- validating

    def check_key(self, key: Key, deadline_ms: int | None = None) -> None:
        """Raise InvalidRequestError unless the key's family may be used."""
        self._families.of(key, deadline_ms)

    def check_request(self, request: Request, deadline_ms: int | None) -> None:
        """Raise InvalidRequestError unless the request may be committed to its families."""
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
        """Commit one request, if its spans have no keys but its own; raise why it was not."""
        wanted = self._want(request, ack, deadline_ms, spans, known)
        with self._tell_results([wanted]):
            if spans:  # looking at ranges may take long: nobody else has to wait for it
                self._commit_alone(wanted)
            else:
                self._gatherer.commit([wanted])
                if self._is_open(wanted):
                    self._commit_alone(wanted)
            result = self._result(wanted.attempt)
        if isinstance(result, TxnError):
            raise result
        return result

    def commit_many(
        self, requests: Sequence[Request], ack: Ack, deadlines_ms: Sequence[int | None]
    ) -> list[Committed | TxnError]:
        """Commit independent requests together; return the result of each.

        In each round go all of them that no earlier one keeps from a lock. Those in conflict go
        again with the next, and keep nobody waiting; only where a round has brought nothing does
        the first of them wait, alone, for whoever holds its locks.
        """
        wanted = [
            self._want(request, ack, deadline_ms)
            for request, deadline_ms in zip(requests, deadlines_ms, strict=True)
        ]
        with self._tell_results(wanted):
            order = Order(wanted)
            while order.ready:
                self._commit_eager(list(order.ready))
                self._end_round(order)
        return [self._result(w.attempt) for w in wanted]

    def submit(self, request: Request, ack: Ack, deadline_ms: int | None) -> Future[Committed]:
        """Have one request committed soon, with others; the future tells the result."""
        wanted = self._want(request, ack, deadline_ms)
        wanted.future = Future()
        is_told = self._begin_telling([wanted])
        try:
            self._gatherer.submit(wanted)
        except TxnError as error:
            if is_told:
                self._tell_result(wanted, error)
            raise
        if is_told:
            wanted.future.add_done_callback(lambda future: self._tell_future(wanted))
        return wanted.future

    def _want(
        self,
        request: Request,
        ack: Ack,
        deadline_ms: int | None,
        spans: Sequence[Span] = (),
        known: Mapping[Key, Cell | None] = MappingProxyType({}),
    ) -> Wanted:
        now_ms, usual_ms = self._context.clock.monotonic_ms(), self._context.policy.deadline_ms
        due_ms = now_ms + (usual_ms if deadline_ms is None else deadline_ms)
        attempt = self._begin(request, due_ms, spans)
        attempt.know(known)
        units = attempt.units.keys()
        weight = len(attempt.buffer)
        return Wanted(request, ack, due_ms, units, weight, attempt=attempt, begun_ms=now_ms)

    def _begin_telling(self, some: Sequence[Wanted]) -> bool:
        """Begin the spans of requests; return whether anybody is to be told of their results."""
        traces = begin_traces([w.request for w in some], remote=self._is_remote)
        asked_ms = measure_ms()
        for w, trace in zip(some, traces, strict=True):
            w.trace, w.asked_ms = trace, asked_ms
        return self._context.watch is not silent or any(traces)

    @contextmanager
    def _tell_results(self, some: Sequence[Wanted]) -> Iterator[None]:
        if not self._begin_telling(some):
            yield
            return
        try:
            yield
        except BaseException as error:
            for w in some:
                self._tell_result(w, error)
            raise
        for w in some:
            self._tell_result(w, self._result(w.attempt))

    def _tell_future(self, w: Wanted) -> None:
        """Tell of a future that is done."""
        assert w.future is not None
        self._tell_result(w, result_of(w.future))

    def _tell_result(self, w: Wanted, result: Committed | BaseException) -> None:
        if self._context.watch is not silent:
            elapsed_ms = measure_ms() - w.asked_ms
            self._context.watch(Ended(name_outcome(result), w.tries, elapsed_ms))
        if w.trace is not None:
            w.trace.end(result, transaction=w.attempt.row_key, tries=w.tries)

    def _watch_batch(self, some: Sequence[Wanted]) -> Context:
        """Return what the phases work with, whose watch tells the spans of these requests too."""
        context = self._context
        watch = watch_batch({w.attempt.row_key: w.trace for w in some}, context.watch)
        return context if watch is context.watch else replace(context, watch=watch)

    def _begin(self, request: Request, due_ms: int, spans: Sequence[Span] = ()) -> Attempt:
        return begin_attempt(self._context, request, due_ms, spans)

    def _begin_again(self, w: Wanted) -> None:
        """Give the request an attempt of which nothing was written, with a row key of about now."""
        now_ms, w.is_aside = self._context.clock.monotonic_ms(), False
        if w.attempt.failure is not None:
            w.attempt = self._begin(w.request, w.attempt.due_ms, w.attempt.spans)
            w.begun_ms = now_ms
        elif now_ms - w.begun_ms > FRESH_MS:
            old, w.begun_ms = w.attempt, now_ms
            w.attempt = self._begin(w.request, old.due_ms, old.spans)
            w.attempt.know({**old.seen, **old.found})

    def _is_open(self, w: Wanted) -> bool:
        """Whether the request is to be tried, for the first time or again."""
        if w.is_aside or (w.attempt.failure is None and w.attempt.status is None and not w.tries):
            return True
        failure = w.attempt.failure
        is_conflict = isinstance(failure, ConflictError)
        if isinstance(failure, ConflictError) and failure.holder and not is_row_key(failure.holder):
            return False  # nobody ever gives back what is no lock
        is_worth_it = w.tries < self._context.policy.attempts
        return is_conflict and is_worth_it and not is_late(self._context, w.attempt)

    def _commit_eager(self, ready: Sequence[Wanted]) -> None:
        """Try, with others and without waiting for anybody, those that were not in conflict too
        often."""
        policy = self._context.policy
        eager = [w for w in ready if w.rounds < min(EAGER, policy.attempts)]
        rounds = max((w.rounds for w in eager), default=0)
        if rounds:
            self._context.clock.sleep_ms(policy.backoff.pause_ms(rounds, self._context.random))
        if eager:
            self._gatherer.commit(eager)

    def _end_round(self, order: Order) -> None:
        """Take out those that are done with. Where there is none, the first waits, alone."""
        done = [w for w in order.ready if not self._is_open(w)]
        if not done:
            done = list(order.ready)[:1]
            self._commit_alone(done[0])
        for w in done:
            order.remove(w)

    def _commit_together(self, batch: Sequence[Wanted]) -> None:
        """Try a batch once, and wait for nobody: one whose keys are in demand, and held just now,
        stands aside before anything is written."""
        due: list[Attempt] = []
        aside: list[Attempt] = []
        try:
            for w in batch:
                self._begin_again(w)
                w.rounds += 1
            due = fail_late(self._context, [w.attempt for w in batch])
            self._run(
                self._watch_batch(batch),
                due,
                batch[0].ack,
                patient=False,
                meet=lambda some: aside.extend(self._contention.stand_aside(some)),
            )
        except BaseException as error:
            leave_unknown(due, error)
            raise
        finally:
            tried = set(due).difference(aside)
            for w in batch:
                w.is_aside = w.attempt in aside
                w.tries += w.attempt in tried

    def _commit_alone(self, w: Wanted) -> None:
        """Try a request until it is done with, and wait for whoever is in its way."""
        policy = self._context.policy
        while self._is_open(w):
            if w.tries:
                self._context.clock.sleep_ms(policy.backoff.pause_ms(w.tries, self._context.random))
            self._begin_again(w)
            due = fail_late(self._context, [w.attempt])
            w.tries += len(due)
            self._run(self._watch_batch([w]), due, w.ack, patient=w.tries > 1)

    def _tell(self, w: Wanted) -> None:
        """Settle the future of a request; one that is not done with goes on alone."""
        if self._is_open(w) and self._crew.hand_over(self._tell_alone, w):
            return
        self._tell_alone(w)

    def _tell_alone(self, w: Wanted) -> None:
        assert w.future is not None
        # One thread does this, which may have been interrupted at it before.
        if w.future.done() or w.teller.setdefault("by", get_ident()) != get_ident():
            return
        try:
            self._commit_alone(w)
        except BaseException as error:
            leave_unknown([w.attempt], error)
            raise
        finally:
            result = self._result(w.attempt)
            if isinstance(result, TxnError):
                w.future.set_exception(result)
            else:
                w.future.set_result(result)

    def _run(
        self,
        context: Context,
        attempts: Sequence[Attempt],
        ack: Ack,
        patient: bool,
        meet: Callable[[Sequence[Attempt]], None] | None = None,
    ) -> None:
        """Run the phases of attempts that are not late. meet: what is done first about keys in
        demand; None: their holders are waited for."""
        finish = self._finisher.release if ack == "complete" else self._finisher.submit
        try:
            live = run_for_available(meet or self._contention.wait_for_hot_keys, attempts)
            commit(context, live, self._contention, patient, finish)
            self._contention.learn(live)
        except TxnError as error:  # before the decision, so nothing of these is ever committed
            for t in attempts:
                t.failure = t.failure or deny(error)
        for t in attempts:
            t.failure = self._resolver.blame(t.failure)
            if t.failure is not None and isinstance(t.failure.__cause__, TableUnavailable):
                self._families.forget(t.failure.__cause__.table)

    def _result(self, t: Attempt) -> Committed | TxnError:
        if t.failure is None:
            return Committed(t.row_key, t.decided.timestamp, complete=t.is_finished)
        if isinstance(t.failure, AssertionFailedError) and t.request.once is not None:
            # That there is no marker yet is asserted first: if there is one, that is what failed.
            marker = marker_key(self._context.table, t.request.once)
            first = t.seen.get(marker)
            try:
                if first is not None:
                    transaction = decode_marker(first.value, marker).transaction
                    return Committed(transaction, first.timestamp, repeated=True)
            except CorruptRowError as error:
                return error
        return t.failure

    # -------------------------------------------------------------------------------- reading

    def read(self, keys: Sequence[Key], deadline_ms: int | None = None) -> Snapshot:
        """Return the keys' cells as of one instant, under locks where writers leave none."""
        context, locked = self._limit(deadline_ms)
        try:
            found = read_atomically(context, keys) if keys else {}
        except StoreError as error:
            _deny_read(error)
        return locked(keys) if found is None else found

    def _limit(
        self, deadline_ms: int | None
    ) -> tuple[Context, Callable[[Sequence[Key]], Snapshot]]:
        """Return what a read works with, and what reads under locks, both until the deadline."""
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
            t = self._begin(request, due_ms)
            self._run(context, fail_late(context, [t]), "complete", patient=True)
            if not isinstance(t.failure, ConflictError) or is_late(context, t):
                break
        if t.failure is not None:
            raise t.failure
        return t.seen

    def look(self, keys: Sequence[Key], turn: Turn, deadline_ms: int | None = None) -> Snapshot:
        """Return the keys' cells, in a fenced database with their locks where these are free."""
        context, contention = self._limit(deadline_ms)[0], self._contention
        lock_of = context.rules.lock_of
        hot = contention.list_hot_keys(keys)
        if hot:
            contention.note_hot(self._lines.wait(turn, map(lock_of, hot)))
        if not context.rules.locks_rows:
            return self.read(keys, deadline_ms)
        wanted = [*keys, *dict.fromkeys(map(lock_of, keys))]
        for tries in range(LOOKS if hot else 1):
            if tries:
                context.clock.sleep_ms(self._contention.pause_ms(tries))
            try:
                cells = call_store(context, lambda: context.store.read(wanted))
            except StoreError as error:
                _deny_read(error)
            if not find_holders(cells):
                return cells
            contention.note_hot(
                lock for lock in wanted[len(keys) :] if holder_of(lock, cells[lock])
            )
        return self.read(keys, deadline_ms)

    def scan(self, wanted: Span, deadline_ms: int | None = None) -> Iterator[Row]:
        """Yield the span's rows, each as of one instant; some of them may have no value."""
        self.check_span(wanted, deadline_ms)
        context, locked = self._limit(deadline_ms)
        rows = _deny_failures(scan_rows(context, wanted, locked))
        return rows if deadline_ms is None else _stop_at(rows, context.clock, deadline_ms)

    def view(
        self,
        keys: Sequence[Key],
        spans: Sequence[Span],
        deadline_ms: int | None = None,
        most_bytes: int | None = None,
    ) -> tuple[Snapshot, list[dict[Key, Cell]]]:
        """Return the cells of the keys, and those of each span, as of one instant. most_bytes: of
        the spans; InvalidRequestError where there are more."""
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
        """Raise InvalidRequestError unless the span's table and columns may be read."""
        self._families.table(wanted.table, deadline_ms)
        for family, column in wanted.columns or ():
            self._families.of(Key(b"-", family, column, wanted.table), deadline_ms)

    def outcome(self, row_key: bytes) -> Outcome:
        """Return what has become of a transaction, by its row key."""
        try:
            row = read_rows(self._context, [row_key])[row_key]
        except StoreError as error:
            _deny_read(error)
        match row.state:
            case RowState.UNREADABLE if row.status is None or not row.tells_decision:
                raise make_corrupt_error(row)
            case RowState.DEBRIS:
                return Outcome.UNKNOWN
            case RowState.UNDECIDED:
                return Outcome.UNDECIDED
            case _:
                is_committed = row.status is not None and row.status.is_decided
                return Outcome.COMMITTED if is_committed else Outcome.ABORTED

    # ----------------------------------------------------------------------- tables and ending

    def ensure_table(self, table: bytes, families: Collection[bytes]) -> None:
        """Create the table and those of its families that are missing."""
        own = Family(database=plain_table(self._context.table))
        self._context.store.ensure_table(table, dict.fromkeys(families, own))

    def flush(self) -> None:
        """Wait until everything that was submitted or committed is complete, or left to others."""
        self._gatherer.flush()
        self._finisher.flush()

    def close(self) -> None:
        """Flush, and close the store."""
        self._gatherer.close()
        self._crew.close()
        self._finisher.flush()
        self._context.store.close()


class Order:
    """Requests of one call, of which those that need the same lock go in the order given.

    ready: those that no other has to go before, as the keys of a dictionary.
    """

    __slots__ = ("_lines", "ready")

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._lines: dict[Key, deque[Wanted]] = {}
        units = [unit for w in wanted for unit in w.units]
        if len(set(units)) == len(units):  # as it mostly is
            self.ready = dict.fromkeys(wanted)
            return
        for w in wanted:
            for unit in w.units:
                self._lines.setdefault(unit, deque()).append(w)
        self.ready = {w: None for w in wanted if self._is_first(w)}

    def _is_first(self, w: Wanted) -> bool:
        return all(self._lines[unit][0] is w for unit in w.units)

    def remove(self, w: Wanted) -> None:
        """Take out one that is ready; those that waited for it alone become so."""
        del self.ready[w]
        if not self._lines:
            return
        lines = [self._lines[unit] for unit in w.units]
        for line in lines:
            line.popleft()
        self.ready.update((line[0], None) for line in lines if line and self._is_first(line[0]))


def _deny_read(error: StoreError) -> NoReturn:
    """Raise the error of a read, of which a store may know no more than that it failed. One of a
    table says what that table is like."""
    if isinstance(error, TableUnavailable):
        raise error
    raise_denial(error, "nothing was read")


def _deny_failures(rows: Iterator[Row]) -> Iterator[Row]:
    try:
        yield from rows
    except StoreError as error:
        _deny_read(error)


def _stop_at(rows: Iterator[Row], clock: Clock, deadline_ms: int) -> Iterator[Row]:
    """Yield rows until the time is over, and then raise DeadlineError."""
    due_ms = clock.monotonic_ms() + deadline_ms
    for row in rows:
        if clock.monotonic_ms() >= due_ms:
            raise DeadlineError("deadline passed before the last row")
        yield row


def leave_unknown(attempts: Sequence[Attempt], error: BaseException) -> None:
    """Say of those of which it is not known how they ended that it is not."""
    for t in attempts:
        if t.failure is None and (t.status is None or t.status.is_undecided):
            t.failure = CommitOutcomeUnknown(t.row_key, error)
