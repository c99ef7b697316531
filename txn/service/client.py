"""The engine behind `txn://host:port`: a client that commits through a server, without a store.

A commit is sent once. Where its answer is lost, nothing is sent again but a request with a `once`
token, of which at most one commits; otherwise the server is asked for the transactions that carry
the request's name. What only the server knows, such as conflicts, is settled there.

A call with a deadline has ended `ANSWER_MS` and `SETTLE_MS` after it, whatever the server does; one
without, after the `timeout_ms` of the URI, `PATIENCE_MS` and `SETTLE_MS`. A read writes nothing: it
fails with DeadlineError or NotApplied, and never leaves anything open.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from txn.client.group_commit import GroupCommit
from txn.client.hot_keys import Ticket
from txn.clock import Clock, SystemClock
from txn.errors import (
    CommitOutcomeUnknown,
    DeadlineError,
    InvalidRequestError,
    MaybeApplied,
    NotApplied,
    StoreError,
    TableUnavailable,
    TxnError,
    deny,
    raise_denial,
)
from txn.events import silent
from txn.model import Cell, Key, Row, as_bytes
from txn.policy import Pace, Policy
from txn.protocol.codec import encode_buffer
from txn.protocol.context import Context
from txn.protocol.protocols import find_rules
from txn.protocol.statuses import PROTOCOLS, SIX_PHASE, Rules
from txn.reading.snapshot import Snapshot
from txn.request import TRANSACTIONS, Ack, Committed, Outcome, Request
from txn.service.messages import (
    IDL,
    UNKNOWN_KIND,
    name_part,
    pack_assertions,
    pack_key,
    pack_mutation,
    pack_request,
    unpack_cells,
    unpack_committed,
    unpack_result,
)
from txn.service.settling import KNOWN, SETTLING, Settler
from txn.service.store import CALLS, RemoteService, ServedStore, is_unsupported, parse_server
from txn.service.store_messages import pack_span, unpack_page
from txn.spans import Span
from txn.stores.base import Store
from txn.stores.gateway import Gateway
from txn.stores.options import split_uri
from txn.tracing import Headers, Trace, begin_traces, list_headers

NAME = b"request."
LATE = "deadline passed before anything was sent"
PATIENCE_MS = 10_000  # for what became of a commit that has no deadline
ANSWER_MS = 1_000  # how long after a deadline its answer may come
SETTLE_MS = 500  # and then what became of it
APART_MS = 500  # how far the deadlines of a batch may lie apart: all wait for the last one
ACKS = {"complete": IDL.Ack.COMPLETE, "decided": IDL.Ack.DECIDED}


@dataclass(frozen=True, slots=True)
class _Asked:
    """A commit, as often as it is sent. name: by which it can be asked for. due_ms: when it is too
    late to decide, by the monotonic clock. headers: of its span."""

    request: Request
    spans: Sequence[Span]
    ack: Ack
    name: bytes
    due_ms: int | None
    headers: Headers | None


@dataclass(slots=True, eq=False)
class _Sent:
    """A request whose result goes to a future. result: None: it is not known, nor was it tried."""

    request: Request
    ack: Ack
    due_ms: int | None
    lock_cells: Collection[Key]
    weight: int
    future: Future[Committed] | None
    result: Committed | Exception | None = None
    trace: Trace | None = None


def _can_join(one: _Sent, other: _Sent) -> bool:
    """Whether both may be in one batch, at whose end both are told."""
    if one.due_ms is None or other.due_ms is None:
        return one.ack == other.ack and one.due_ms is other.due_ms
    return one.ack == other.ack and abs(one.due_ms - other.due_ms) <= APART_MS


def connect_server(uri: str, clock: Clock | None = None) -> RemoteBackend:
    """Return the backend of a server's URI. Nothing is sent yet."""
    gateway, token = parse_server(split_uri(uri))
    return RemoteBackend(gateway, token=token, clock=clock)


class RemoteBackend:
    """Commits and reads by a server. Safe to share between threads, and across fork."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        token: str | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._rng = rng or random.SystemRandom()
        self._service = RemoteService(gateway, token, self._clock)
        self._settler = Settler(self._service, self._clock, self._rng)
        self.pace = Pace(self._clock, self._rng, Policy())
        self._database: tuple[bytes, Rules] | None = None
        concurrent_batches = self.pace.policy.concurrent_batches
        self._group_commit = GroupCommit(
            self._commit_batch,
            _tell,
            self._clock,
            concurrent_batches,
            linger_ms=0,
            can_join=_can_join,
        )

    @property
    def context(self) -> Context:
        """The server's store and transaction table, and the clock and chance here; how often a
        commit is tried is the server's policy."""
        store = ServedStore(self._service)
        if self._database is None:
            self._database = self._ask_database(store)
        table, rules = self._database
        return Context(store, table, self._clock, self._rng, self.pace.policy, silent, rules)

    def _ask_database(self, store: Store) -> tuple[bytes, Rules]:
        """Return the server's transaction table and protocol; one of an older version does not tell
        the table's name, which it cannot choose."""
        try:
            arguments = CALLS.database_args(self._service.options())
            found = self._service.ask("database", arguments, repeat=True)
        except NotApplied as error:
            if not is_unsupported(error):
                raise
            table = as_bytes("transactions", TRANSACTIONS)
            return table, find_rules(store, table) or SIX_PHASE
        if found.protocol not in PROTOCOLS:
            raise InvalidRequestError("the server has a newer protocol", found=found.protocol)
        return found.transactions, PROTOCOLS[found.protocol]

    def check_key(self, key: Key, deadline_ms: int | None = None) -> None:
        """Leave it to the server, which knows its tables and families."""

    def check_request(self, request: Request, deadline_ms: int | None) -> None:
        """Leave it to the server, which knows its tables and families."""

    def commit(
        self,
        request: Request,
        ack: Ack,
        spans: Sequence[Span],
        deadline_ms: int | None,
        known: Snapshot,
    ) -> Committed:
        """Commit by the server. Where the outcome is unknown the error carries the name of the
        request, for which `outcome` can be asked."""
        (trace,) = begin_traces([request], remote=True)
        with _end_traces([trace]) as results:
            done = self._commit(request, ack, deadline_ms, trace, spans)
            results.append(done)
        return done

    def _commit(
        self,
        request: Request,
        ack: Ack,
        deadline_ms: int | None,
        trace: Trace | None,
        spans: Sequence[Span] = (),
    ) -> Committed:
        sent_ms = self._clock.monotonic_ms()
        due_ms = None if deadline_ms is None else sent_ms + deadline_ms
        _require_time(deadline_ms)
        name = self._name()
        (headers,) = list_headers([trace])
        send = partial(self._send, _Asked(request, spans, ack, name, due_ms, headers))
        try:
            return send()
        except StoreError as lost:
            if isinstance(lost, TableUnavailable) or not isinstance(lost, MaybeApplied):
                raise_denial(lost, "")  # see `StoreFailed` of the wire
            now_ms = self._clock.monotonic_ms()
            last_ms = now_ms + PATIENCE_MS
            until_ms = last_ms if due_ms is None else due_ms + ANSWER_MS
            done = None
            if request.once is not None:
                done = self._send_again(send, last_ms if due_ms is None else min(due_ms, last_ms))
            if done is None:
                done = self._settler.find_committed(name, sent_ms, until_ms + SETTLE_MS)
            if done is None:
                raise CommitOutcomeUnknown(name, lost) from lost
            return done

    def commit_many(
        self, requests: Sequence[Request], ack: Ack, deadlines_ms: Sequence[int | None]
    ) -> list[Committed | TxnError]:
        """Commit independent requests in one request to the server."""
        traces = begin_traces(requests, remote=True)
        with _end_traces(traces) as results:
            results.extend(self._commit_many(requests, ack, deadlines_ms, traces))
        return results

    def _commit_many(
        self,
        requests: Sequence[Request],
        ack: Ack,
        deadlines_ms: Sequence[int | None],
        traces: Sequence[Trace | None],
    ) -> list[Committed | TxnError]:
        due = [n for n, time in enumerate(deadlines_ms) if time is None or time > 0]
        results: list[Committed | TxnError] = [DeadlineError(LATE) for _ in requests]
        if due:
            sent = self._send_many(
                [requests[n] for n in due],
                ack,
                [deadlines_ms[n] for n in due],
                [traces[n] for n in due],
            )
            for n, result in zip(due, sent, strict=True):
                results[n] = result
        return results

    def _send_many(
        self,
        requests: Sequence[Request],
        ack: Ack,
        deadlines_ms: Sequence[int | None],
        traces: Sequence[Trace | None],
    ) -> list[Committed | TxnError]:
        """Send requests that are not late."""
        name, sent_ms = self._name(), self._clock.monotonic_ms()
        arguments = CALLS.commitMany_args(
            list(map(pack_request, requests, deadlines_ms, list_headers(traces))),
            self._service.options(ack=ACKS[ack], request=name),
        )
        known = [time for time in deadlines_ms if time is not None]
        wait_ms = max(known) + ANSWER_MS if len(known) == len(deadlines_ms) else None
        try:
            answers = self._service.ask("commitMany", arguments, within_ms=wait_ms)
            if len(answers) != len(requests):
                raise MaybeApplied(UNKNOWN_KIND)
        except MaybeApplied as lost:
            now_ms = self._clock.monotonic_ms()
            until_ms = now_ms + PATIENCE_MS if wait_ms is None else sent_ms + wait_ms + SETTLE_MS
            return self._settler.find_all_committed(name, sent_ms, len(requests), until_ms, lost)
        return [
            _unpack_part(packed, name_part(name, number)) for number, packed in enumerate(answers)
        ]

    def submit(self, request: Request, ack: Ack, deadline_ms: int | None) -> Future[Committed]:
        """Have one request committed soon, in one request to the server with others."""
        due_ms = None if deadline_ms is None else self._clock.monotonic_ms() + deadline_ms
        future: Future[Committed] = Future()
        weight = len(encode_buffer(request, 0))
        sent = _Sent(request, ack, due_ms, request.keys, weight, future)
        (sent.trace,) = begin_traces([request], remote=True)
        try:
            self._group_commit.submit(sent)
        except TxnError as error:
            if sent.trace is not None:
                sent.trace.end(error)
            raise
        if sent.trace is not None:
            future.add_done_callback(sent.trace.end_future)
        return future

    def _commit_batch(self, batch: Sequence[_Sent]) -> None:
        now_ms = self._clock.monotonic_ms()
        times = [None if each.due_ms is None else each.due_ms - now_ms for each in batch]
        results: list[Committed | TxnError]
        try:
            results = self._commit_many(
                [each.request for each in batch],
                batch[0].ack,
                times,
                [each.trace for each in batch],
            )
        except InvalidRequestError:  # one of them; nothing was written: each is told its own
            results = [self._try(each) for each in batch]
        except Exception as error:
            for each in batch:
                each.result = error
            if not isinstance(error, TxnError):  # a mistake of ours
                raise
            return
        for each, result in zip(batch, results, strict=True):
            each.result = result

    def _try(self, sent: _Sent) -> Committed | TxnError:
        left_ms = None if sent.due_ms is None else sent.due_ms - self._clock.monotonic_ms()
        try:
            return self._commit(sent.request, sent.ack, left_ms, sent.trace)
        except TxnError as error:
            return error

    def read(self, keys: Sequence[Key], deadline_ms: int | None = None) -> Snapshot:
        """Return the keys' cells as of one instant."""
        if not keys:
            return {}
        packed = [pack_key(key) for key in keys]
        return unpack_cells(self._ask_read("read", deadline_ms, packed))

    def look(self, keys: Sequence[Key], ticket: Ticket, deadline_ms: int | None = None) -> Snapshot:
        """Return the keys' cells as of one instant. What is in demand the server knows."""
        return self.read(keys, deadline_ms)

    def scan(self, wanted: Span, deadline_ms: int | None = None) -> Iterator[Row]:
        """Yield the span's rows that have a value, a page at a time; the first one is asked for at
        once. Between the pages the server keeps nothing."""
        due_ms = None if deadline_ms is None else self._clock.monotonic_ms() + deadline_ms
        return self._list_pages(wanted, due_ms, self._ask_page(wanted, deadline_ms))

    def _list_pages(
        self, wanted: Span, due_ms: int | None, page: tuple[list[Row], bytes | None]
    ) -> Iterator[Row]:
        rows, following = page
        yield from rows
        while following is not None:
            left_ms = None if due_ms is None else due_ms - self._clock.monotonic_ms()
            rows, following = self._ask_page(replace(wanted, start=following), left_ms)
            yield from rows

    def _ask_page(self, wanted: Span, deadline_ms: int | None) -> tuple[list[Row], bytes | None]:
        return unpack_page(self._ask_read("scan", deadline_ms, pack_span(wanted)))

    def view(
        self, keys: Sequence[Key], spans: Sequence[Span], deadline_ms: int | None = None
    ) -> tuple[Snapshot, list[dict[Key, Cell]]]:
        """Return the cells of the keys, and those of each span, as of one instant."""
        if not spans:
            return self.read(keys, deadline_ms), []
        packed = [pack_key(key) for key in keys], [pack_span(span) for span in spans]
        view = self._ask_read("view", deadline_ms, *packed)
        parts = [unpack_cells(part) for part in view.spans]
        return unpack_cells(view.keys), [
            {key: cell for key, cell in part.items() if cell is not None} for part in parts
        ]

    def _ask_read(self, method: str, deadline_ms: int | None, *arguments: Any) -> Any:
        """Ask for what changes nothing, so that no answer is a definite failure."""
        _require_time(deadline_ms)
        due_ms = None if deadline_ms is None else self._clock.monotonic_ms() + deadline_ms
        options = self._service.options(withinMs=deadline_ms)
        request = getattr(CALLS, f"{method}_args")(*arguments, options)
        try:
            return self._service.ask(method, request, repeat=True, within_ms=deadline_ms)
        except TableUnavailable:  # the server's answer
            raise
        except (MaybeApplied, NotApplied) as lost:
            if due_ms is not None and self._clock.monotonic_ms() >= due_ms:
                raise DeadlineError("deadline passed before the server answered") from lost
            raise NotApplied(str(lost)) from lost

    def outcome(self, key: bytes) -> Outcome:
        """Return what has become of a transaction, by its row key or the name of its request."""
        if not key.startswith(NAME):
            return KNOWN[self._ask_read("outcome", None, key)]
        try:
            began_ms = int(key.split(b".")[1])
        except ValueError as error:
            raise InvalidRequestError("not a name of a request", given=key) from error
        ago_ms = self._clock.wall_ms() - began_ms
        return KNOWN[self._ask_read("settle", None, key, ago_ms).outcome]

    def ensure_table(self, table: bytes, families: Collection[bytes]) -> None:
        """Create the table and those of its families that are missing."""
        arguments = CALLS.ensureTable_args(table, list(families), self._service.options())
        self._service.ask("ensureTable", arguments, repeat=True)

    def flush(self) -> None:
        """Wait for what was submitted. What was committed with ack="decided" is the server's to
        complete."""
        self._group_commit.flush()

    def close(self) -> None:
        """Flush, and close the connections."""
        self._group_commit.close()
        self._service.close()

    # ------------------------------------------------------------------------- lost answers

    def _send(self, asked: _Asked, most_ms: int | None = None) -> Committed:
        """Send a commit, with what is left of its time, and wait little longer for the answer; for
        one that has no time of its own, at most for most_ms."""
        request = asked.request
        left_ms = None if asked.due_ms is None else asked.due_ms - self._clock.monotonic_ms()
        mutations = [pack_mutation(mutation) for mutation in request.mutations]
        assertions = pack_assertions(request.assertions)
        options = self._service.options(
            ack=ACKS[asked.ack],
            once=request.once,
            onceRetentionMs=request.once_retention_ms,
            labels=request.labels,
            request=asked.name,
            withinMs=left_ms,
            trace=asked.headers,
        )
        wait_ms = most_ms if left_ms is None else left_ms + ANSWER_MS
        if not asked.spans:
            arguments = CALLS.commit_args(mutations, assertions, options)
            return unpack_committed(self._service.ask("commit", arguments, within_ms=wait_ms))
        # Not an argument of `commit`: a server of an older version would not look at it.
        scanned = [pack_span(span) for span in asked.spans]
        arguments = CALLS.commitScanned_args(mutations, assertions, scanned, options)
        return unpack_committed(self._service.ask("commitScanned", arguments, within_ms=wait_ms))

    def _send_again(self, send: Callable[[int], Committed], until_ms: int) -> Committed | None:
        """Send a request with a `once` token again. Only a commit tells what became of the first:
        it may still be under way where this one is refused."""
        for _ in SETTLING.tries(self._clock, self._rng, due_ms=until_ms):
            left_ms = until_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return None
            try:
                return send(left_ms)
            except StoreError:
                continue
            except TxnError:  # invalid, too: the first one may have been valid
                return None
        return None

    # ------------------------------------------------------------------------------ details

    def _name(self) -> bytes:
        return NAME + b"%013d.%032x" % (self._clock.wall_ms(), self._rng.getrandbits(128))


def _require_time(deadline_ms: int | None) -> None:
    if deadline_ms is not None and deadline_ms <= 0:
        raise DeadlineError(LATE)


def _tell(sent: _Sent) -> None:
    assert sent.future is not None
    if isinstance(sent.result, Committed):
        sent.future.set_result(sent.result)
    else:
        sent.future.set_exception(sent.result or CommitOutcomeUnknown(b"-"))


@contextmanager
def _end_traces(
    traces: Sequence[Trace | None],
) -> Iterator[list[Committed | TxnError]]:
    """Yield a list for the results of requests, with which their spans end."""
    results: list[Committed | TxnError] = []
    error: BaseException = CommitOutcomeUnknown(b"-")
    try:
        yield results
    except BaseException as raised:
        error = raised
        raise
    finally:
        for number, trace in enumerate(traces):
            if trace is not None:
                trace.end(results[number] if results else error)


def _unpack_part(packed: Any, name: bytes) -> Committed | TxnError:
    try:
        result = unpack_result(packed)
    except MaybeApplied as error:
        return CommitOutcomeUnknown(name, error)
    return result if isinstance(result, Committed) else deny(result, "")
