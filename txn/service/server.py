"""The Transactional service: commits, atomic reads and outcomes, for clients without the store, and
for recovery the cells as they are stored.

Every error is an exception of the interface that says what to do next. Where the server has a
token, no request without it does anything.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from txn.client.engine import Engine
from txn.errors import InvalidRequestError, TxnError
from txn.model import Row, cell_bytes
from txn.protocol.attempt import ProtocolName
from txn.protocol.ranges import stored_rows
from txn.protocol.row import decode_row
from txn.request import Ack, Committed, Outcome, Request
from txn.server.ports import ServedInterface
from txn.service.messages import (
    IDL,
    OUTCOMES,
    REQUEST_LABEL,
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
    unpack_unless,
)
from txn.spans import Span
from txn.stores.base import Store
from txn.tracing import continue_trace, continue_traces, flush_traces
from txn.watch import Watch, silent

MARGIN_MS = 60_000  # how far the server's clock may have been set back since a request was sent
LOOK_AT = 100_000  # rows, before the search for a request is given up
PAGE_ROWS = 500
PAGE_BYTES = 1_000_000
LONG = frozenset({"storeScan", "storeCompact"})

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
        protocol: ProtocolName | None = None,
        watch: Watch = silent,
    ) -> None:
        self._store = store
        self._token = None if token is None else token.encode()
        self._engine = Engine(store, protocol=protocol, watch=watch)

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
    def commitMany(self, requests: Sequence[Any], given: Any) -> list[Any]:
        """Commit independent requests together; a result for each."""
        options = given or IDL.Options()
        wanted = [
            _request(
                r.mutations, r.assertions, r, options.request and b"%b/%d" % (options.request, i)
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
        return pack_cells(self._engine.read([unpack_key(key) for key in keys]))

    @answer_call
    def outcome(self, transaction: bytes, given: Any) -> int:
        """What has become of a transaction."""
        number: int = OUTCOMES[self._engine.outcome(transaction)]
        return number

    @answer_call
    def settle(self, request: bytes, ago_ms: int, given: Any) -> Any:
        """What has become of a request, as far as its transactions' rows tell."""
        outcome, committed = self._find_request(request, ago_ms)
        return IDL.Settled(OUTCOMES[outcome], committed and pack_committed(committed))

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
    ) -> Any:
        """The first rows of a range, up to a page of them."""
        page: list[Row] = []
        size = 0
        unless = unpack_unless(judged, left_out)
        for row in self._store.scan(table, start, stop, unpack_columns(columns), unless):
            page.append(row)
            size += sum(cell_bytes(key, cell.value) for key, cell in row.cells.items())
            if len(page) == PAGE_ROWS or size >= PAGE_BYTES:
                return pack_page(page, more=True)
        return pack_page(page, more=False)

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

    def _find_request(self, request: bytes, ago_ms: int) -> tuple[Outcome, Committed | None]:
        """Look for the request among the transactions begun since it was sent. They are this
        server's, whose row keys have no bucket. An aborted attempt tells nothing: another may
        follow."""
        context = self._engine.context
        since_ms = max(0, context.clock.wall_ms() - max(0, ago_ms) - MARGIN_MS)
        wanted, outcome = request.decode(errors="replace"), Outcome.UNKNOWN
        begun = Span(context.table, b"transaction.%013d" % since_ms, b"transaction/")
        for row in islice(stored_rows(context, begun), LOOK_AT):
            found = decode_row(row)
            if found.buffer is None or found.status is None:
                continue
            if found.buffer.request.labels.get(REQUEST_LABEL) != wanted:
                continue
            if found.status.is_decided and found.plan is not None:
                timestamp, complete = found.plan.timestamp, found.status.is_finished
                return Outcome.COMMITTED, Committed(row.row, timestamp, complete=complete)
            if found.status.is_undecided:
                outcome = Outcome.UNDECIDED
        return outcome, None


def _request(
    mutations: Sequence[Any], assertions: Sequence[Any] | None, terms: Any, name: bytes | None
) -> Request:
    """Return the request of these parts. terms: what tells its token and labels."""
    labels = dict(terms.labels or {})
    if name is not None:
        labels[REQUEST_LABEL] = name.decode(errors="replace")
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
