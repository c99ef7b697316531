"""The backend that runs the protocol itself, through a store.

It keeps no transaction state of its own: whatever it began and did not finish is in the transaction
rows, where every other client can finish it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from txn.client.families import Families
from txn.client.finisher import Finisher
from txn.client.turns import Lines, Turn
from txn.errors import (
    AssertionFailedError,
    ConflictError,
    CorruptRowError,
    TableUnavailable,
    TxnError,
)
from txn.model import Cell, Family, Key, Row
from txn.protocol.attempt import (
    Attempt,
    Context,
    ProtocolName,
    begin_attempt,
    call_store,
    is_late,
)
from txn.protocol.beats import PORTION
from txn.protocol.commit import commit, run_for_available
from txn.protocol.lock_cells import holder_of
from txn.protocol.resolve import Resolver, read_rows
from txn.protocol.row import FAMILY, RowState, decode_marker, marker_key
from txn.protocol.rules import choose_rules
from txn.protocol.waiting import Contention, fail_late
from txn.reading.keys import Snapshot, read_atomically
from txn.reading.look import find_holders
from txn.reading.rows import read_view, scan_rows
from txn.request import Ack, Committed, Outcome, Request, lock_request
from txn.spans import Span

LOOKS = 8
"""How often a block looks at keys in demand, of which somebody holds one: it would be overtaken."""


class LocalBackend:
    """Commits and reads with the protocol. Its transaction table is made where it is missing."""

    def __init__(self, context: Context, buckets: int, protocol: ProtocolName | None) -> None:
        splits = [b"%02d." % bucket for bucket in range(1, buckets)]
        context.store.ensure_table(context.table, {FAMILY: Family(versions=1)}, splits)
        self._context = context = replace(context, rules=choose_rules(context, protocol))
        self._buckets = buckets
        self._families = Families(context)
        self._resolver = Resolver(context)
        self._contention = Contention(context, self._resolver.settle)
        self._finisher = Finisher(context)
        self._lines = Lines()

    @property
    def context(self) -> Context:
        """What every phase works with."""
        return self._context

    # ----------------------------------------------------------------------------- validating

    def check_key(self, key: Key) -> None:
        """Raise InvalidRequestError unless the key's family may be used."""
        self._families.of(key)

    def check_request(self, request: Request) -> None:
        """Raise InvalidRequestError unless the request may be committed to its families."""
        self._families.check(request)

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
        (result,) = self._commit_all([request], ack, [deadline_ms], spans, known)
        if isinstance(result, TxnError):
            raise result
        return result

    def commit_many(
        self, requests: Sequence[Request], ack: Ack, deadlines_ms: Sequence[int | None]
    ) -> list[Committed | TxnError]:
        """Commit independent requests together; return the result of each."""
        return self._commit_all(requests, ack, deadlines_ms)

    def _commit_all(
        self,
        requests: Sequence[Request],
        ack: Ack,
        deadlines_ms: Sequence[int | None],
        spans: Sequence[Span] = (),
        known: Mapping[Key, Cell | None] = MappingProxyType({}),
    ) -> list[Committed | TxnError]:
        now_ms, usual_ms = self._context.clock.monotonic_ms(), self._context.policy.deadline_ms
        attempts = [
            self._begin(request, now_ms + (usual_ms if own_ms is None else own_ms), spans)
            for request, own_ms in zip(requests, deadlines_ms, strict=True)
        ]
        for t in attempts:
            t.know(known)
        for wave in group_apart([t.units for t in attempts]):
            again = wave
            for number in self._context.tries(most=self._context.policy.attempts):
                if number > 1:
                    for i in again:
                        attempts[i] = self._begin(requests[i], attempts[i].due_ms, spans)
                self._run([attempts[i] for i in again], number > 1, ack)
                again = [i for i in again if self._may_try_again(attempts[i])]
                if not again:
                    break
        return [self._result(t) for t in attempts]

    def _begin(self, request: Request, due_ms: int, spans: Sequence[Span] = ()) -> Attempt:
        return begin_attempt(self._context, request, due_ms, self._buckets, spans)

    def _may_try_again(self, t: Attempt) -> bool:
        return isinstance(t.failure, ConflictError) and not is_late(self._context, t)

    def _run(self, attempts: Sequence[Attempt], patient: bool, ack: Ack) -> None:
        finish = self._finisher.release if ack == "complete" else self._finisher.submit
        try:
            due = fail_late(self._context, attempts)
            live = run_for_available(self._contention.wait_for_hot_keys, due)
            commit(self._context, live, self._contention, patient, finish)
            self._contention.learn(live)
        except TxnError as error:  # before the decision, so nothing of these was written
            for t in attempts:
                t.failure = t.failure or error
        for t in attempts:
            self._resolver.blame(t.failure)
            if t.failure is not None and isinstance(t.failure.__cause__, TableUnavailable):
                self._families.forget(t.failure.__cause__.table)

    def _result(self, t: Attempt) -> Committed | TxnError:
        if t.failure is None:
            return Committed(t.row_key, t.decided.timestamp, complete=t.is_finished)
        if isinstance(t.failure, AssertionFailedError) and t.request.once is not None:
            # That there is no marker yet is asserted first: if there is one, that is what failed.
            first = t.seen.get(marker_key(self._context.table, t.request.once))
            if first is not None:
                transaction = decode_marker(first.value).transaction
                return Committed(transaction, first.timestamp, repeated=True)
        return t.failure

    # -------------------------------------------------------------------------------- reading

    def read(self, keys: Sequence[Key]) -> Snapshot:
        """Return the keys' cells as of one instant, under locks where writers leave none."""
        found = read_atomically(self._context, keys) if keys else {}
        return self._read_under_locks(keys) if found is None else found

    def _read_under_locks(self, keys: Sequence[Key]) -> dict[Key, Cell | None]:
        due_ms = self._context.clock.monotonic_ms() + self._context.policy.deadline_ms
        request = lock_request(keys)
        for _ in self._context.tries(most=self._context.policy.attempts):
            t = self._begin(request, due_ms)
            self._run([t], patient=True, ack="complete")
            if not self._may_try_again(t):
                break
        if t.failure is not None:
            raise t.failure
        return t.seen

    def look(self, keys: Sequence[Key], turn: Turn) -> Snapshot:
        """Return the keys' cells, in a fenced database with their locks where these are free."""
        context, contention = self._context, self._contention
        lock_of = context.rules.lock_of
        hot = contention.list_hot_keys(keys)
        if hot:
            contention.note_hot(self._lines.wait(turn, map(lock_of, hot)))
        if not context.rules.locks_rows:
            return self.read(keys)
        wanted = [*keys, *dict.fromkeys(map(lock_of, keys))]
        for tries in range(LOOKS if hot else 1):
            if tries:
                context.clock.sleep_ms(self._contention.pause_ms(tries))
            cells = call_store(context, lambda: context.store.read(wanted))
            if not find_holders(cells):
                return cells
            contention.note_hot(
                lock for lock in wanted[len(keys) :] if holder_of(lock, cells[lock])
            )
        return self.read(keys)

    def scan(self, wanted: Span) -> Iterator[Row]:
        """Yield the span's rows that have a value, each as of one instant."""
        self._check_span(wanted)
        return scan_rows(self._context, wanted, self._read_under_locks)

    def view(
        self, keys: Sequence[Key], spans: Sequence[Span]
    ) -> tuple[Snapshot, list[dict[Key, Cell]]]:
        """Return the cells of the keys, and those of each span, as of one instant."""
        for wanted in spans:
            self._check_span(wanted)
        if not spans:
            return self.read(keys), []
        found = read_view(self._context, keys, spans, self._read_under_locks)
        if found is None:
            raise ConflictError("rows keep changing")
        return found

    def _check_span(self, wanted: Span) -> None:
        self._families.table(wanted.table)
        for family, column in wanted.columns or ():
            self._families.of(Key(b"-", family, column, wanted.table))

    def outcome(self, row_key: bytes) -> Outcome:
        """Return what has become of a transaction, by its row key."""
        row = read_rows(self._context, [row_key])[row_key]
        match row.state:
            case RowState.UNREADABLE if row.status is None:
                raise CorruptRowError(str(row.corrupt), row=row_key)
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
        self._context.store.ensure_table(table, {family: Family() for family in families})

    def flush(self) -> None:
        """Wait until everything that was committed is complete, or left to others."""
        self._finisher.flush()

    def close(self) -> None:
        """Flush, and close the store."""
        self.flush()
        self._context.store.close()


def group_apart(keys: Sequence[Collection[Key]], most_keys: int = PORTION) -> list[list[int]]:
    """Group transactions, by their position, so that those of one group share no key, and those
    that share one are in groups of the order given. A group has no more keys than may be asked for
    in one call, unless it is of one transaction: the row written first waits for the others."""
    if len(keys) == 1:
        return [[0]]
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
