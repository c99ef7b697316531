"""The Transactional service: commits, atomic reads and outcomes, for clients without the store, and
for recovery the cells as they are stored.

Every error is an exception of the interface that says what to do next. Where the server has a
token, no request without it does anything.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from txn.client.engine import Engine
from txn.client.local import LocalBackend
from txn.clock import Clock
from txn.errors import InvalidRequestError, TxnError
from txn.model import Row, cell_bytes
from txn.protocol.attempt import ProtocolName
from txn.protocol.ranges import stored_rows
from txn.protocol.row import FAMILY, column, decode_row
from txn.request import (
    TRANSACTIONS,
    Ack,
    Committed,
    Outcome,
    Request,
    bind_request,
    check_deadline,
)
from txn.server.connection import ServedInterface
from txn.service.messages import (
    IDL,
    OUTCOMES,
    REQUEST_LABEL,
    name_part,
    pack_cells,
    pack_committed,
    pack_error,
    pack_result,
    unpack_assertions,
    unpack_key,
    unpack_mutation,
)
from txn.service.store_messages import (
    pack_families,
    pack_page,
    pack_versions,
    unpack_check,
    unpack_columns,
    unpack_edit,
    unpack_families,
    unpack_span,
    unpack_unless,
)
from txn.spans import Span
from txn.stores.base import Store
from txn.stores.hbase.places import row_after
from txn.tracing import continue_trace, continue_traces, flush_traces
from txn.watch import Watch, silent

NEAR_MS = 100  # in which a request mostly comes to its transaction
MARGIN_MS = 64_000  # how far the server's clock may have been set since a request was sent
MOST_SETTLED = 1_000_000  # as many as a request may have items
SETTLE_MS = 10_000  # before the search for a request is given up
LATEST_MS = 9_999_999_999_999
PAGE_ROWS = 500
PAGE_BYTES = 1_000_000
PAGE_MS = 2_000  # before a page is sent as it is
VIEW_BYTES = 64_000_000
LONG = frozenset({"scan", "view", "storeScan", "storeCompact"})

P = ParamSpec("P")
T = TypeVar("T")


def answer_call(
    work: Callable[Concatenate[Transactional, P], T],
) -> Callable[Concatenate[Transactional, P], T]:
    """Check the token, which comes with the options, wherever these stand; tell errors as the
    interface does."""

    @wraps(work)
    def answer(self: Transactional, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.admit(next((each for each in args if isinstance(each, IDL.Options)), None))
        try:
            return work(self, *args, **kwargs)
        except TxnError as error:
            raise pack_error(error) from error

    return cast(Callable[Concatenate["Transactional", P], T], answer)


class Transactional:
    """Carries out the requests of the service, in as many threads as there are clients."""

    def __init__(
        self,
        store: Store,
        *,
        token: str | None = None,
        transactions: str | bytes = TRANSACTIONS,
        protocol: ProtocolName | None = None,
        watch: Watch = silent,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._token = None if token is None else token.encode()
        self._engine = Engine(
            store, transactions=transactions, protocol=protocol, watch=watch, clock=clock
        )
        assert isinstance(self._engine.backend, LocalBackend)
        self._backend = self._engine.backend

    @property
    def service(self) -> ServedInterface:
        """What a server needs to offer it."""
        return ServedInterface(IDL.Transactional, self, LONG)

    def flush(self) -> None:
        """Finish what was answered before it was complete, and have the spans of it sent."""
        self._engine.flush()
        flush_traces()

    def admit(self, options: Any) -> None:
        """Raise Unauthorized unless the request has the token, if one is asked for."""
        if self._token is None:
            return
        given = (options and options.token) or ""
        if not hmac.compare_digest(given.encode(), self._token):
            raise IDL.Unauthorized("the token is missing or wrong")

    @answer_call
    def commit(self, mutations: Sequence[Any], assertions: Sequence[Any] | None, given: Any) -> Any:
        """Apply all mutations if all assertions hold, else none."""
        options = given or IDL.Options()
        request = _request(mutations, assertions, options, options.request)
        with continue_trace(options.trace):
            done = self._engine.commit(
                request.mutations,
                request.assertions,
                once=request.once,
                once_retention_ms=request.once_retention_ms,
                labels=request.labels,
                ack=_ack(options),
                deadline_ms=options.withinMs,
            )
        return pack_committed(done)

    @answer_call
    def commitScanned(
        self,
        mutations: Sequence[Any],
        assertions: Sequence[Any] | None,
        scanned: Sequence[Any],
        given: Any,
    ) -> Any:
        """Commit what has scanned ranges, if nothing has come into these."""
        options = given or IDL.Options()
        asked = _request(mutations, assertions, options, options.request)
        spans = [unpack_span(each) for each in scanned]
        check_deadline(options.withinMs)
        request = bind_request(
            asked.mutations,
            asked.assertions,
            once=asked.once,
            labels=asked.labels,
            once_retention_ms=asked.once_retention_ms,
        )
        self._backend.check_request(request, options.withinMs)
        for span in spans:
            self._backend.check_span(span, options.withinMs)
        with continue_trace(options.trace):
            done = self._backend.commit(request, _ack(options), spans, options.withinMs, {})
        return pack_committed(done)

    @answer_call
    def commitMany(self, requests: Sequence[Any], given: Any) -> list[Any]:
        """Commit independent requests together; a result for each."""
        options = given or IDL.Options()
        wanted = [
            _request(
                r.mutations, r.assertions, r, options.request and name_part(options.request, i)
            )
            for i, r in enumerate(requests)
        ]
        times = [request.withinMs for request in requests]
        with continue_traces([request.trace for request in requests]):
            done = self._engine.commit_many(wanted, ack=_ack(options), deadline_ms=times)
        return [pack_result(each) for each in done]

    @answer_call
    def read(self, keys: Sequence[Any], given: Any) -> list[Any]:
        """The keys' cells as of one instant."""
        wanted = [unpack_key(key) for key in keys]
        return pack_cells(self._engine.read(wanted, deadline_ms=_within(given)))

    @answer_call
    def scan(self, span: Any, given: Any) -> Any:
        """The first rows of a range that have a value, up to a page of them."""
        rows = self._backend.scan(unpack_span(span), _within(given))
        return self._make_page(rows)

    @answer_call
    def view(self, keys: Sequence[Any], spans: Sequence[Any], given: Any) -> Any:
        """Cells of keys and of ranges as of one instant."""
        wanted = [unpack_key(key) for key in keys]
        for key in wanted:
            self._backend.check_key(key, _within(given))
        ranges = [unpack_span(each) for each in spans]
        found, parts = self._backend.view(wanted, ranges, _within(given), VIEW_BYTES)
        return IDL.View(pack_cells(found), [pack_cells(part) for part in parts])

    @answer_call
    def database(self, given: Any) -> Any:
        """What the database is."""
        context = self._engine.context
        return IDL.Database(context.table, context.rules.name)

    @answer_call
    def outcome(self, transaction: bytes, given: Any) -> int:
        """What has become of a transaction."""
        number: int = OUTCOMES[self._engine.outcome(transaction)]
        return number

    @answer_call
    def settle(self, request: bytes, ago_ms: int, given: Any) -> Any:
        """What has become of a request, as far as its transactions' rows tell."""
        (settled,) = self._find_requests([request], ago_ms, given)
        return settled

    @answer_call
    def settleMany(self, request: bytes, count: int, ago_ms: int, given: Any) -> list[Any]:
        """The same of all requests of a commitMany, in one look."""
        if not 0 < count <= MOST_SETTLED:
            raise InvalidRequestError("too many requests", count=count, limit=MOST_SETTLED)
        names = [name_part(request, number) for number in range(count)]
        return self._find_requests(names, ago_ms, given)

    @answer_call
    def ensureTable(self, table: bytes, families: Sequence[bytes], given: Any) -> None:
        """Create the table and those of its families that are missing."""
        self._engine.ensure_table(table, families)

    # ------------------------------------------------------------------- cells, for recovery

    @answer_call
    def storeRead(self, keys: Sequence[Any], given: Any) -> list[Any]:
        """The newest versions of the keys."""
        return pack_cells(self._store.read([unpack_key(key) for key in keys]))

    @answer_call
    def storeVersions(self, keys: Sequence[Any], count: int, given: Any) -> list[Any]:
        """The visible versions of the keys, at most so many of each."""
        return pack_versions(self._store.read_versions([*map(unpack_key, keys)], count))

    @answer_call
    def storeWrite(
        self, edits: Sequence[Any], durable: bool | None, given: Any, by_row: bool | None = None
    ) -> None:
        """Puts and marks at timestamps of their own."""
        wanted = list(map(unpack_edit, edits))
        self._store.write(wanted, durable=durable is not False, by_row=by_row is True)

    @answer_call
    def storeCheck(self, checks: Sequence[Any], durable: bool | None, given: Any) -> list[bool]:
        """Checked writes, one after the other."""
        wanted = list(map(unpack_check, checks))
        return self._store.check_and_put(wanted, durable=durable is not False)

    @answer_call
    def storeScan(  # noqa: PLR0917  (they are the interface's)
        self,
        table: bytes,
        start: bytes,
        stop: bytes | None,
        columns: Sequence[Any] | None,
        given: Any,
        judged: Any = None,
        left_out: Sequence[bytes] | None = None,
        reverse: bool | None = None,
    ) -> Any:
        """The first rows of a range, up to a page of them."""
        unless, is_reverse = unpack_unless(judged, left_out), reverse is True
        wanted = unpack_columns(columns)
        rows = self._store.scan(table, start, stop, wanted, unless, reverse=is_reverse)
        return self._make_page(rows, is_reverse)

    @answer_call
    def storeTables(self, given: Any) -> list[bytes]:
        """The names of all tables."""
        return self._store.list_tables()

    @answer_call
    def storeDescribe(self, table: bytes, given: Any) -> Any:
        """A table's families."""
        found = self._store.describe(table)
        return IDL.Described(None if found is None else pack_families(found))

    @answer_call
    def storeEnsure(self, table: bytes, families: Sequence[Any], given: Any) -> None:
        """Create what is missing of a table."""
        self._store.ensure_table(table, unpack_families(families))

    @answer_call
    def storeCompact(self, table: bytes, purge_before_ms: int, given: Any) -> None:
        """Drop old delete markers."""
        self._store.compact(table, purge_before_ms)

    # ------------------------------------------------------------------------------ details

    def _make_page(self, rows: Iterable[Row], is_reverse: bool = False) -> Any:
        """Return the first rows that have cells, as many as fit, or are found in time."""
        clock, page, size = self._engine.context.clock, [], 0
        due_ms = clock.monotonic_ms() + PAGE_MS
        for row in rows:
            if row.cells:
                page.append(row)
                size += sum(cell_bytes(key, cell.value) for key, cell in row.cells.items())
            is_full = len(page) == PAGE_ROWS or size >= PAGE_BYTES
            if is_full or clock.monotonic_ms() >= due_ms:
                return pack_page(page, row.row if is_reverse else row_after(row.row))
        return pack_page(page, None)

    def _find_requests(self, names: Sequence[bytes], ago_ms: int, given: Any) -> list[Any]:
        """Look for requests among the transactions begun about when they were sent, the nearest
        ones first, however many there are of others. They are this server's, whose row keys have
        no bucket. An aborted attempt tells nothing: another may follow."""
        within_ms = min(_within(given) or SETTLE_MS, SETTLE_MS)
        settled = {_label(name): IDL.Settled(IDL.Outcome.UNKNOWN) for name in names}
        left = set(settled)
        for label, outcome, done in self._judge_rows(
            names[0].partition(b"/")[0], ago_ms, within_ms
        ):
            if label in left:
                settled[label] = IDL.Settled(OUTCOMES[outcome], done and pack_committed(done))
                left.difference_update([label] if done else ())
            if not left:
                break
        return [settled[_label(name)] for name in names]

    def _judge_rows(
        self, name: bytes, ago_ms: int, within_ms: int
    ) -> Iterator[tuple[str | None, Outcome, Committed | None]]:
        """Yield what rows tell of requests of this name, or of parts of it, until it is late."""
        context = self._engine.context
        clock, table = context.clock, context.table
        context = replace(context, policy=replace(context.policy, deadline_ms=within_ms))
        due_ms = clock.monotonic_ms() + within_ms
        columns = [(FAMILY, each) for each in (b"buffer", b"plan", b"status")]
        for start, stop in _list_windows(clock.wall_ms() - max(0, ago_ms)):
            for row in stored_rows(context, Span(table, start, stop), cells=columns):
                if clock.monotonic_ms() >= due_ms:
                    return
                buffer = row.cells.get(column(table, row.row, b"buffer"))
                # To decode each would take most of the time.
                if buffer and _label(name).encode() in buffer.value and (told := _judge_row(row)):
                    yield told


def _judge_row(row: Row) -> tuple[str | None, Outcome, Committed | None] | None:
    """Return the name of the request that a transaction's row is of, and what it tells of it."""
    found = decode_row(row)
    if found.buffer is None or found.status is None:
        return None
    label = found.buffer.request.labels.get(REQUEST_LABEL)
    if found.status.is_decided and found.plan is not None:
        complete = found.status.is_finished
        done = Committed(row.row, found.plan.timestamp, complete=complete)
        return label, Outcome.COMMITTED, done
    return (label, Outcome.UNDECIDED, None) if found.status.is_undecided else None


def _list_windows(sent_ms: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield ranges of row keys, which together are all that may be of a request that was sent at
    that time, the likely ones first."""
    near_ms = NEAR_MS
    yield _begun_at(sent_ms - near_ms), _begun_at(sent_ms + near_ms)
    while near_ms < MARGIN_MS:
        yield _begun_at(sent_ms + near_ms), _begun_at(sent_ms + 2 * near_ms)
        yield _begun_at(sent_ms - 2 * near_ms), _begun_at(sent_ms - near_ms)
        near_ms *= 2
    yield _begun_at(sent_ms + near_ms), b"transaction/"


def _label(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


def _begun_at(wall_ms: int) -> bytes:
    return b"transaction.%013d" % min(max(0, wall_ms), LATEST_MS)


def _within(options: Any) -> int | None:
    """Return how long the answer may take."""
    within_ms: int | None = None if options is None else options.withinMs
    return within_ms


def _request(
    mutations: Sequence[Any], assertions: Sequence[Any] | None, terms: Any, name: bytes | None
) -> Request:
    """Return the request of these parts. terms: what tells its token and labels."""
    labels = dict(terms.labels or {})
    if name is not None:
        labels[REQUEST_LABEL] = _label(name)
    changes = tuple(map(unpack_mutation, mutations))
    wanted = tuple(unpack_assertions(assertions))
    return Request(changes, wanted, terms.once, labels, terms.onceRetentionMs)


def _ack(options: Any) -> Ack:
    match options.ack:
        case None | IDL.Ack.COMPLETE:
            return "complete"
        case IDL.Ack.DECIDED:
            return "decided"
        case unknown:
            raise InvalidRequestError("unknown ack", ack=unknown)
