"""The Transactional service: commits, reads and outcomes for clients; stored cells for recovery.

A method gets the messages of its arguments, as the interface declares them, and returns a message;
`dispatch` decodes and encodes them. Every error is an exception of the interface that says what to
do next. If the server has a token, a request without it has no effect.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from itertools import chain
from typing import Any

from txn import model
from txn.assertions import Assertion
from txn.client.engine import Engine
from txn.client.local import LocalBackend
from txn.clock import Clock, SystemClock
from txn.errors import InvalidRequestError, TxnError
from txn.host.tokens import PAUSE_MS, WrongTokens
from txn.protocol.listing import name_time, scan_transactions
from txn.protocol.row import FAMILY, column, decode_row
from txn.request import Ack, Committed, Outcome, bind_request, check_deadline
from txn.server.connection import ServedInterface
from txn.service import messages
from txn.spans import Span
from txn.stores.base import Store
from txn.stores.hbase.places import row_after
from txn.tracing import continue_trace, continue_traces, flush_traces

UNREADABLE = "the request does not decode"
NEAR_MS = 100  # how early a clock in ms may date a request's transaction
MARGIN_MS = 64_000  # how far the server's clock may have been set since a request was sent
MOST_OUTCOMES = 1_000_000  # the most items of a request
OUTCOME_MS = 10_000  # until the search for a request is given up
PAGE_ROWS = 500
PAGE_BYTES = 1_000_000
PAGE_MS = 2_000  # until an incomplete page is sent
VIEW_BYTES = 64_000_000
LONG = frozenset({"scan", "view", "storeScan", "storeCompact"})

Page = tuple[list[model.Row], bytes | None]
FoundOutcome = tuple[Outcome, Committed | None]


def dispatch(work: Callable[..., Any]) -> Callable[..., Any]:
    """Make an interface method of one that takes values and returns or raises one."""
    method = messages.METHODS[work.__name__]

    @wraps(work)
    def call(self: Transactional, /, *given: Any) -> Any:
        options = given[-1] or messages.IDL.Options()
        try:
            *values, _ = messages.decode_message(
                method.decode, given, InvalidRequestError, UNREADABLE
            )
            result = work(self, *values, options)
            return method.result and method.result.encode(result)
        except TxnError as error:
            raise messages.encode_error(error) from error

    return call


def pass_on(name: str, method: str) -> Callable[..., Any]:
    """Make an interface method of a store's method that has the same arguments."""

    def work(self: Transactional, *values: Any) -> Any:
        return getattr(self._store, method)(*values[:-1])

    work.__name__ = name
    return dispatch(work)


class Transactional:
    """Carries out the service's requests; transactional.thrift documents them."""

    def __init__(
        self, store: Store, *, token: str | None = None, clock: Clock | None = None, **settings: Any
    ) -> None:
        """settings: further ones of the engine."""
        self._store = store
        self._token = None if token is None else token.encode()
        self._clock = clock or SystemClock()
        self._wrong = WrongTokens(logging.getLogger("txn.serve").warning)
        self._engine = Engine(store, clock=clock, **settings)
        assert isinstance(self._engine.backend, LocalBackend)
        self._backend = self._engine.backend

    @property
    def service(self) -> ServedInterface:
        return ServedInterface(messages.IDL.Transactional, self, LONG, self.admit)

    def flush(self) -> None:
        """Complete the commits that were answered at their decision, and send all spans."""
        self._engine.flush()
        flush_traces()

    def admit(self, arguments: Any, peer: str) -> None:
        """Raise Unauthorized, after a pause, if the server has a token and the request does not."""
        if self._token is None:
            return
        shown = getattr(arguments.options, "token", None) or ""
        if not hmac.compare_digest(shown.encode(), self._token):
            self._wrong.note(peer)
            self._clock.sleep_ms(PAUSE_MS)
            raise messages.IDL.Unauthorized("the token is missing or wrong")

    @dispatch
    def commit(
        self,
        mutations: Sequence[model.Mutation | model.Delete],
        assertions: Sequence[Assertion] | None,
        options: Any,
    ) -> Committed:
        """Apply all mutations if all assertions hold and the scanned ranges have no new keys."""
        within_ms, ack = options.withinMs, _ack(options)
        spans = [messages.TYPES[messages.IDL.Span].decode(span) for span in options.scanned or ()]
        check_deadline(within_ms)
        request = bind_request(
            *(mutations, assertions or (), options.once),
            _add_name(options.labels or {}, options.request),
            options.onceRetentionMs,
            validate=options.validate,
            once_content=options.onceContent,
            answer=options.answer,
        )
        self._backend.check_request(request, within_ms)
        for span in spans:
            self._backend.check_span(span, within_ms)
        with continue_trace(options.trace):
            return self._backend.commit(request, ack, spans, within_ms, {})

    @dispatch
    def commitMany(
        self, requests: Sequence[messages.TimedRequest], options: Any
    ) -> list[Committed | TxnError]:
        if options.scanned:
            raise InvalidRequestError("only a commit of its own can have scanned ranges")
        name = options.request
        named = [
            replace(r, labels=_add_name(r.labels, name and messages.name_part(name, number)))
            for number, (r, _, _) in enumerate(requests)
        ]
        times = [each.deadline_ms for each in requests]
        with continue_traces([each.trace for each in requests]):
            return self._engine.commit_many(named, ack=_ack(options), deadline_ms=times)

    @dispatch
    def read(self, keys: Sequence[model.Key], options: Any) -> dict[model.Key, model.Cell | None]:
        return self._engine.read(keys, deadline_ms=options.withinMs)

    @dispatch
    def scan(self, span: Span, options: Any) -> Page:
        return self._make_page(self._backend.scan(span, options.withinMs))

    @dispatch
    def view(
        self, keys: Sequence[model.Key], spans: Sequence[Span], options: Any
    ) -> tuple[Mapping[model.Key, model.Cell | None], list[dict[model.Key, model.Cell]]]:
        for key in keys:
            self._backend.check_key(key, options.withinMs)
        return self._backend.view(keys, spans, options.withinMs, VIEW_BYTES)

    @dispatch
    def database(self, options: Any) -> Any:
        context = self._engine.context
        rules = context.rules
        return messages.IDL.Database(context.table, rules.stored_name.decode(), rules.keeps_rows)

    @dispatch
    def outcome(self, transaction: bytes, options: Any) -> Outcome:
        return self._engine.outcome(transaction)

    @dispatch
    def findOnce(self, token: bytes, options: Any) -> FoundOutcome:
        first = self._engine.find_once(token, deadline_ms=options.withinMs)
        return Outcome.UNKNOWN if first is None else Outcome.COMMITTED, first

    @dispatch
    def findOutcome(self, request: bytes, ago_ms: int, options: Any) -> FoundOutcome:
        return self._find_requests([request], ago_ms, options)[0]

    @dispatch
    def findOutcomes(
        self, request: bytes, count: int, ago_ms: int, options: Any
    ) -> list[FoundOutcome]:
        if not 0 < count <= MOST_OUTCOMES:
            raise InvalidRequestError("too many requests", count=count, limit=MOST_OUTCOMES)
        names = [messages.name_part(request, number) for number in range(count)]
        return self._find_requests(names, ago_ms, options)

    @dispatch
    def ensureTable(self, table: bytes, families: Sequence[bytes], options: Any) -> None:
        self._engine.ensure_table(table, families)

    storeRead = pass_on("storeRead", "read")
    storeVersions = pass_on("storeVersions", "read_versions")
    storeTables = pass_on("storeTables", "list_tables")
    storeDescribe = pass_on("storeDescribe", "describe")
    storeEnsure = pass_on("storeEnsure", "ensure_table")
    storeCompact = pass_on("storeCompact", "compact")

    @dispatch
    def storeWrite(
        self, edits: Sequence[model.Edit], durable: bool | None, by_row: bool | None, options: Any
    ) -> None:
        self._store.write(edits, durable=durable is not False, by_row=by_row is True)

    @dispatch
    def storeCheck(
        self, checks: Sequence[model.Check], durable: bool | None, options: Any
    ) -> list[bool]:
        return self._store.check_and_put(checks, durable=durable is not False)

    @dispatch
    def storeScan(  # noqa: PLR0917  (the interface's arguments)
        self,
        table: bytes,
        start: bytes,
        stop: bytes | None,
        columns: model.Columns,
        exclude: model.RowExclusion | None,
        reverse: bool | None,
        options: Any,
    ) -> Page:
        is_reverse = reverse is True
        rows = self._store.scan(table, start, stop, columns, exclude, reverse=is_reverse)
        return self._make_page(rows, is_reverse)

    def _make_page(self, rows: Iterable[model.Row], is_reverse: bool = False) -> Page:
        """Return the first rows with cells, limited by size and time."""
        clock, page, size = self._engine.context.clock, [], 0
        due_ms = clock.monotonic_ms() + PAGE_MS
        for row in rows:
            if row.cells:
                page.append(row)
                size += sum(model.cell_bytes(key, cell.value) for key, cell in row.cells.items())
            is_full = len(page) == PAGE_ROWS or size >= PAGE_BYTES
            if is_full or clock.monotonic_ms() >= due_ms:
                return page, row.row if is_reverse else row_after(row.row)
        return page, None

    def _find_requests(
        self, names: Sequence[bytes], ago_ms: int, options: Any
    ) -> list[FoundOutcome]:
        """Search for requests among the transactions begun since they were sent, oldest first: the
        request is mostly among the first rows, however many others follow. If the clock was set
        meanwhile, it comes before these. An aborted attempt is no answer, as another may follow."""
        within_ms = min(options.withinMs or OUTCOME_MS, OUTCOME_MS)
        found: dict[str | None, FoundOutcome] = dict.fromkeys(
            map(_label, names), (Outcome.UNKNOWN, None)
        )
        left = set(found)
        common = names[0].partition(b"/")[0]
        for label, outcome, done in self._judge_rows(common, ago_ms, within_ms):
            if label in left:
                found[label] = (outcome, done)
                left.difference_update([label] if done else ())
            if not left:
                break
        return [found[_label(name)] for name in names]

    def _judge_rows(
        self, name: bytes, ago_ms: int, within_ms: int
    ) -> Iterator[tuple[str | None, Outcome, Committed | None]]:
        """Yield the outcomes in rows of requests with this name, until time is up."""
        context = self._engine.context
        clock, table = context.clock, context.table
        context = replace(context, policy=replace(context.policy, deadline_ms=within_ms))
        due_ms = clock.monotonic_ms() + within_ms
        cells = [(FAMILY, each) for each in (b"buffer", b"plan", b"status")]
        sent_ms = clock.wall_ms() - max(0, ago_ms)
        sent, first = name_time(sent_ms - NEAR_MS), name_time(sent_ms - MARGIN_MS)
        since = scan_transactions(context, sent, cells=cells, reverse=False)
        for row in chain(since, scan_transactions(context, first, sent, cells=cells)):
            if clock.monotonic_ms() >= due_ms:
                return
            buffer = row.cells.get(column(table, row.row, b"buffer"))
            if buffer is None or _label(name).encode() not in buffer.value:
                continue  # decoding each row would take most of the time
            found = decode_row(row)
            if found.buffer is None or found.status is None:
                continue
            label, status = found.buffer.request.labels.get(messages.REQUEST_LABEL), found.status
            if status.is_decided and found.plan is not None:
                done = Committed(row.row, found.plan.timestamp, complete=status.is_finished)
                yield label, Outcome.COMMITTED, done
            elif status.is_undecided:
                yield label, Outcome.UNDECIDED, None


def _label(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


def _add_name(labels: Mapping[str, str], name: bytes | None) -> Mapping[str, str]:
    return labels if name is None else {**labels, messages.REQUEST_LABEL: _label(name)}


def _ack(options: Any) -> Ack:
    for ack, number in messages.ACKS.items():
        if options.ack in (number, None):
            return ack
    raise InvalidRequestError("unknown ack", ack=options.ack)
