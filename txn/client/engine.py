"""The object that users hold: `connect(uri)` returns an Engine, which commits and reads.

An engine validates its arguments and binds keys to tables; its backend does the work, through a
store or a server. An engine is safe to share between threads.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Self, TypeVar

from txn.arguments import check_calls
from txn.assertions import Assertion
from txn.client.backend import Backend
from txn.client.block import OptimisticTransaction, Repeats, find_answer, refuse_unrun
from txn.client.local import LocalBackend
from txn.client.measured import MeasuredStore
from txn.clock import Clock, SystemClock
from txn.errors import InvalidRequestError, TxnError
from txn.events import Listener, guard, silent, wants_calls
from txn.host.owner import check_name
from txn.model import (
    Cell,
    Delete,
    Key,
    Mutation,
    Row,
    RowCells,
    as_bytes,
    check_choice,
    check_items,
    check_key,
    new_tuple,
)
from txn.policy import Pace, Policy
from txn.protocol.codec import require_same
from txn.protocol.context import Context
from txn.protocol.statuses import SIX_PHASE, KeptRows, ProtocolName
from txn.reading.scans import group_by_row
from txn.reading.snapshot import Snapshot
from txn.request import (
    ACKS,
    TRANSACTIONS,
    Ack,
    Committed,
    Outcome,
    Request,
    Terms,
    as_request,
    bind_key,
    bind_request,
    check_deadline,
    make_request,
)
from txn.spans import Columns, Span, make_span
from txn.stores.base import Store

RequestLike = Request | tuple[Iterable[Mutation | Delete], Iterable[Assertion]]
RUN_ATTEMPTS = 1_000
T = TypeVar("T")


class Engine:
    """Commits and reads through one store. See `txn.connect` for the arguments."""

    _place: str | None = None  # the URI by which it was opened, without secrets

    @check_calls
    def __init__(
        self,
        store: Store,
        *,
        table: str | bytes | None = None,
        transactions: str | bytes = TRANSACTIONS,
        salt_buckets: int = 1,
        policy: Policy | None = None,
        on_event: Listener = silent,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        protocol: ProtocolName | None = None,
        rows: KeptRows | None = None,
        create: bool = True,
        name: str | None = None,
    ) -> None:
        check_name(name)
        if not 1 <= salt_buckets <= 100:
            raise InvalidRequestError("salt_buckets must be 1 to 100", salt_buckets=salt_buckets)
        listener = guard(on_event)
        context = Context(
            MeasuredStore(store, listener) if wants_calls(on_event) else store,
            as_bytes("transactions", transactions),
            clock or SystemClock(),
            rng or random.SystemRandom(),
            policy or Policy(),
            listener,
            SIX_PHASE,
            salt_buckets,
            program=name,
        )
        self._set_backend(LocalBackend(context, protocol, rows, create=create), table)

    @classmethod
    def over(cls, backend: Backend, table: str | bytes | None = None) -> Self:
        """Return an engine over a backend."""
        engine = cls.__new__(cls)
        engine._set_backend(backend, table)
        return engine

    def __repr__(self) -> str:
        context, place = self.context, self._place or "of a store"
        facts = f"transactions={context.table!r} protocol={context.rules.name!r}"
        return f"<Engine {place} table={self._table!r} {facts}>"

    def _set_backend(self, backend: Backend, table: str | bytes | None) -> None:
        self._backend = backend
        self._table = None if table is None else as_bytes("table", table)

    @property
    def context(self) -> Context:
        """The store, transaction table, clock and policy, for recovery."""
        return self._backend.context

    @property
    def pace(self) -> Pace:
        """The clock, random generator and policy for running blocks again."""
        return self._backend.pace

    @property
    def backend(self) -> Backend:
        """The backend that serves valid requests."""
        return self._backend

    # ----------------------------------------------------------------------------- committing

    def commit(
        self,
        mutations: Iterable[Mutation | Delete],
        assertions: Iterable[Assertion] = (),
        *,
        once: str | bytes | None = None,
        once_retention_ms: int | None = None,
        labels: Mapping[str, str] | None = None,
        validate: bool | None = None,
        ack: Ack = "complete",
        deadline_ms: int | None = None,
        once_content: str | bytes | None = None,
    ) -> Committed:
        """Apply all mutations if all assertions hold, else none.

        once: a token; of all requests with this token, from anywhere, at most one commits. The
        others return its result with `repeated=True`, or raise TokenReusedError.
        once_content: what the token stands for, up to 1 MiB; None: mutations and assertions.
        once_retention_ms: the caller's promise that no request with this token comes later than
        that after the first commit. fsck then forgets the token; a later request would commit
        again. None: the token is kept for ever.
        validate: whether keys that are asserted and not mutated are validated, not locked; None: as
        the policy says, see `Policy.assertions`. A request that mutates nothing locks its keys.
        ack: "complete" returns when every lock is released, "decided" as soon as it is committed.
        deadline_ms: the time until the decision; None: the policy's; 0 or less: it is too late
        already.

        Raises InvalidRequestError, AbortedError (ConflictError, AssertionFailedError,
        DeadlineError), CommitOutcomeUnknown, StoreError or CorruptRowError. Only with
        CommitOutcomeUnknown may it have been committed.
        """
        check_choice("ack", ack, ACKS)
        check_deadline(deadline_ms)
        terms = Terms(once, labels, once_retention_ms, ack, validate, once_content)
        request = self._bind((mutations, assertions), deadline_ms, terms)
        return self._backend.commit(request, ack, (), deadline_ms, {})

    def commit_many(
        self,
        requests: Iterable[RequestLike],
        *,
        validate: bool | None = None,
        ack: Ack = "complete",
        deadline_ms: Sequence[int | None] | None = None,
    ) -> list[Committed | TxnError]:
        """Commit many independent transactions together; return the result of each, in order.

        Each is committed as by `commit`; errors are returned, not raised. Transactions that share a
        key are committed in the given order, unless all of them validate it.
        validate: as in `commit`, for the requests that do not say. deadline_ms: for each.

        Raises InvalidRequestError, naming the first bad request, or StoreError, before anything is
        written.
        """
        check_choice("ack", ack, ACKS)
        given = list(check_items("requests", requests))
        if deadline_ms is None:
            deadline_ms = [None] * len(given)
        times = list(check_items("deadline_ms", deadline_ms))
        for time_ms in times:
            check_deadline(time_ms)
        if len(times) != len(given):
            words = "a time for each request is needed"
            raise InvalidRequestError(words, requests=len(given), times=len(times))
        terms = Terms(validate=validate)
        wanted = []
        for i, (each, time_ms) in enumerate(zip(given, times, strict=True)):
            try:
                wanted.append(self._bind(each, time_ms, terms))
            except InvalidRequestError as error:
                raise InvalidRequestError(str(error), request=i) from error
        return self._backend.commit_many(wanted, ack, times)

    def submit(
        self,
        request: RequestLike,
        *,
        validate: bool | None = None,
        ack: Ack = "complete",
        deadline_ms: int | None = None,
    ) -> Future[Committed]:
        """Commit a request soon, together with others; return the future of its result.

        The future gets the result or error that `commit` would have; no thread waits. Requests
        of one engine that share a key are committed in the order of submission, unless they meet
        conflicts. The future can be cancelled until its batch begins, and then nothing was
        written; after that, `cancel` has no effect, and the future gets the outcome. Threads
        that commit run the future's callbacks, which must be quick. A future belongs to its
        process: it never ends in a fork's child.

        Raises InvalidRequestError, before anything is written, and StoreClosedError after
        `close`.
        """
        check_choice("ack", ack, ACKS)
        check_deadline(deadline_ms)
        wanted = self._bind(request, deadline_ms, Terms(validate=validate))
        return self._backend.submit(wanted, ack, deadline_ms)

    def check_request(self, request: RequestLike) -> None:
        """Raise InvalidRequestError if a request cannot be committed. May raise StoreError, because
        the store is asked about tables that are new to this engine."""
        self._bind(request, None, Terms())

    # -------------------------------------------------------------------------------- reading

    def read(
        self, keys: Collection[Key], *, deadline_ms: int | None = None
    ) -> dict[Key, Cell | None]:
        """Return the keys' cells as of one instant, with each transaction complete or absent.

        deadline_ms: how long it may take before DeadlineError; None: as long as the policy allows.

        Reads do not wait for writers, with one exception: a transaction that validates ranges or
        keys and is deciding. If writers repeatedly leave no such instant, the read takes the locks;
        it may then raise the errors of `commit` except CommitOutcomeUnknown: it changes nothing.
        """
        check_deadline(deadline_ms)
        given = keys if type(keys) is list else check_items("keys", keys)
        bound = {key: bind_key(key, self._table) for key in given}
        wanted = list(dict.fromkeys(bound.values()))
        for key in wanted:
            self._backend.check_key(key, deadline_ms)
        found = self._backend.read(wanted, deadline_ms)
        return {key: found[wanted_key] for key, wanted_key in bound.items()}

    def scan(
        self,
        table: str | bytes | None = None,
        start: str | bytes = b"",
        stop: str | bytes | None = None,
        *,
        prefix: str | bytes | None = None,
        columns: Columns | None = None,
        snapshot: bool = False,
        deadline_ms: int | None = None,
    ) -> Iterator[Row]:
        """Yield the rows from start (included) to stop (excluded), or with the prefix, in order.
        Each has those of its cells, or of the (family, column) pairs, that have a value.

        Each row is as of one instant during the scan, as in `read`. Two rows may be of different
        instants, so a transaction may show in one and not in the other. Rows written behind the
        scan are missed.
        snapshot: if true, all rows are of one instant, up to `Policy.snapshot_rows` of them; raises
        ConflictError if writers leave no such instant.
        deadline_ms: the time until the last row; then DeadlineError.
        """
        check_deadline(deadline_ms)
        check_choice("snapshot", snapshot, (True, False))
        wanted = make_span(self._table if table is None else table, start, stop, prefix, columns)
        if not snapshot:
            rows = self._backend.scan(wanted, deadline_ms)
            return (new_tuple(Row, (row, RowCells(cells))) for row, cells in rows if cells)
        return group_by_row(self._backend.view((), [wanted], deadline_ms)[1][0])

    # --------------------------------------------------------------------------- interactively

    def transaction(
        self,
        *,
        once: str | bytes | None = None,
        once_retention_ms: int | None = None,
        labels: Mapping[str, str] | None = None,
        validate: bool | None = None,
        ack: Ack = "complete",
        deadline_ms: int | None = None,
        once_content: str | bytes | None = None,
    ) -> OptimisticTransaction:
        """Return a transaction for one `with` block, which commits it at its end.

        A block that wrote nothing writes nothing, even with `once`: its commit checks that all it
        read held at one instant.
        once: if the token has been committed, `result` is that commit from the beginning, and
        nothing is written.
        deadline_ms: for the commit, until its decision, and for each read; None: the policy's; 0 or
        less: DeadlineError, and nothing is written.
        """
        check_deadline(deadline_ms)
        terms = Terms(once, labels, once_retention_ms, ack, validate, once_content)
        return self.begin_block(lambda: deadline_ms, lambda: deadline_ms, terms)

    def begin_block(
        self,
        left_ms: Callable[[], int | None],
        read_ms: Callable[[], int | None],
        terms: Terms,
    ) -> OptimisticTransaction:
        """Return a transaction that asks for the time left (ms) at its commit and at each read.
        `transaction` and `run` use it."""
        check_choice("ack", terms.ack, ACKS)
        make: Callable[..., Request] = partial(make_request, **terms.of_request)

        def commit(request: Request, spans: Sequence[Span], known: Snapshot) -> Committed:
            whole = make(request.mutations, request.assertions, answer=request.answer)
            for key in whole.keys if spans else ():
                check_key(key)  # other programs may have written what it scanned
            self._backend.check_request(whole, left_ms())
            return self._backend.commit(whole, terms.ack, spans, left_ms(), known)

        block = OptimisticTransaction(self._backend, self._table, commit, read_ms)
        if terms.once is not None or terms.once_content is not None:
            empty = make((), (), answer=b"", may_be_empty=True)
            block.find_first = partial(self._find_first, empty, read_ms)
        return block

    def _find_first(self, request: Request, read_ms: Callable[[], int | None]) -> Committed | None:
        first = self._backend.find_once(request.once or b"", read_ms())
        return first and require_same(request, first)

    def run(
        self,
        function: Callable[[OptimisticTransaction], T],
        *,
        attempts: int = RUN_ATTEMPTS,
        deadline_ms: int | None = None,
        once: str | bytes | None = None,
        once_retention_ms: int | None = None,
        labels: Mapping[str, str] | None = None,
        validate: bool | None = None,
        ack: Ack = "complete",
        once_content: str | bytes | None = None,
    ) -> T:
        """Call a function with a transaction, commit, and return the function's result.

        A ConflictError repeats all of it after a pause, so the function should have no other
        effects. With a token, so does a CommitOutcomeUnknown, until time is up.
        once: if the token has been committed, call nothing and return the first result, or raise
        Repeated. A result of None, bool, int, float, str, bytes, list, tuple and dict, up to 16
        KiB, is kept with the token. A block that writes nothing keeps nothing: it runs again.
        deadline_ms: for all attempts together, reads included; None: the policy's, for commits
        alone; 0 or less: DeadlineError at once.

        Raises the last ConflictError, DeadlineError, or any other error of `commit` and the
        function.
        """
        terms = Terms(once, labels, once_retention_ms, ack, validate, once_content)
        repeats = Repeats(function, self.pace, attempts, deadline_ms, terms)
        while repeats.begin():
            try:
                with self.begin_block(repeats.left_ms, repeats.read_ms, terms) as t:
                    if t.result is None:
                        if repeats.end is not None:
                            raise repeats.end
                        t.answer = refuse_unrun(function, function(t))
                return t.answer if once is None else find_answer(t)  # type: ignore[no-any-return]
            except Exception as error:
                if (pause_ms := repeats.note(error)) is None:
                    raise
                self.pace.clock.sleep_ms(pause_ms)
        raise repeats.make_error()

    def find_once(self, token: str | bytes, *, deadline_ms: int | None = None) -> Committed | None:
        """Return the commit of a `once` token, with its block's answer if that was kept; None: no
        request with it has committed, though one in flight still may. deadline_ms: as in `read`."""
        check_deadline(deadline_ms)
        wanted = bind_request((), once=token, answer=b"", may_be_empty=True)
        return self._find_first(wanted, lambda: deadline_ms)

    def outcome(
        self, transaction: str | bytes | None = None, *, once: str | bytes | None = None
    ) -> Outcome:
        """Return the outcome of a transaction, by its row key, or of a `once` token: COMMITTED, or
        UNKNOWN, because a request in flight may still commit."""
        if (transaction is None) is (once is None):
            raise InvalidRequestError("give the row key of a transaction, or once")
        if once is not None:
            return Outcome.UNKNOWN if self.find_once(once) is None else Outcome.COMMITTED
        return self._backend.outcome(as_bytes("transaction", transaction))

    # ----------------------------------------------------------------------- tables and ending

    def ensure_table(self, table: str | bytes, families: Iterable[str | bytes]) -> None:
        """Create the table and those of its families that are missing. The transaction table is an
        InvalidRequestError."""
        wanted = [as_bytes("family", each) for each in check_items("families", families)]
        self._backend.ensure_table(as_bytes("table", table), wanted)

    def flush(self) -> None:
        """Wait until everything that was submitted or committed is complete, or left to others."""
        self._backend.flush()

    def close(self) -> None:
        """Flush, and close the store, or the connections to the server."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -------------------------------------------------------------------------------- details

    def _bind(self, given: RequestLike, deadline_ms: int | None, terms: Terms) -> Request:
        """Return a valid request. terms: for what the given one does not say."""
        if type(given) is not tuple or len(given) != 2:
            r = as_request(given)
            validate = terms.validate if r.validate is None else r.validate
            own = r.once, r.labels, r.once_retention_ms, terms.ack, validate, r.once_content
            given, terms = (r.mutations, r.assertions), Terms(*own)
        request = bind_request(*given, table=self._table, **terms.of_request)
        self._backend.check_request(request, deadline_ms)
        return request
