"""The engine behind `txn://host:port`: a client that commits through a server, without a store.

A commit is sent once. If its answer is lost, the client sends it again only if it has a `once`
token, of which at most one commits. Otherwise the client asks the server for transactions with the
request's name. The server handles everything that only it knows, such as conflicts.

A call with a deadline ends at most `ANSWER_MS` and `OUTCOME_MS` after it, whatever the server does.
A call without one ends after the URI's `timeout_ms`, `PATIENCE_MS` and `OUTCOME_MS`. A read writes
nothing: it fails with DeadlineError or NotApplied, and leaves nothing open.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from txn.client.group_commit import GroupCommit
from txn.client.hot_keys import HotKeyTicket
from txn.clock import Clock, SystemClock
from txn.errors import (
    CommitOutcomeUnknown,
    DeadlineError,
    InvalidRequestError,
    MaybeApplied,
    NotApplied,
    StoreError,
    TableUnavailable,
    TokenReusedError,
    TxnError,
    deny,
    raise_denial,
)
from txn.events import silent
from txn.host.holds import SafeFuture
from txn.host.owner import check_name, name_owner
from txn.model import Cell, Key, Row
from txn.policy import Backoff, Pace, Policy
from txn.protocol.codec import encode_buffer
from txn.protocol.context import Context
from txn.protocol.statuses import PROTOCOLS, Rules
from txn.reading.columns import group_columns
from txn.reading.snapshot import Snapshot
from txn.request import Ack, Committed, Outcome, Request
from txn.service.messages import ACKS, IDL, TYPES, UNKNOWN_KIND, TimedRequest, name_part
from txn.service.store import RemoteService, ServedStore, parse_server, refuse_missing
from txn.spans import Span, Spans
from txn.stores.base import ColumnPage
from txn.stores.gateway import Gateway
from txn.stores.options import split_uri
from txn.tracing import Trace, begin_traces, list_headers

NAME = b"request."
LATE = "deadline passed before anything was sent"
PATIENCE_MS = 10_000  # to find the outcome of a commit without a deadline
ANSWER_MS = 1_000  # how long after a deadline its answer may come
OUTCOME_MS = 500  # and then its outcome
OUTCOME_TRIES = 6
OUTCOME_PAUSES = Backoff(first_ms=20, longest_ms=640)
APART_MS = 500  # deadlines in a batch differ by at most this: all wait for the last one


@dataclass(slots=True, eq=False)
class _Sent:
    """A request with a future for its result. result: None if it is still unknown."""

    request: Request
    ack: Ack
    due_ms: int | None
    lock_cells: Collection[Key]
    weight: int
    future: Future[Committed] | None
    result: Committed | Exception | None = None
    trace: Trace | None = None

    @property
    def shared(self) -> Collection[Key]:
        """The keys that the server does not lock, as far as the request says so."""
        if not self.request.validate:
            return ()
        return set(self.lock_cells).difference([m.key for m in self.request.mutations])


def _can_join(one: _Sent, other: _Sent) -> bool:
    """Return True if both may share a batch, whose end reports both results."""
    if one.due_ms is None or other.due_ms is None:
        return one.ack == other.ack and one.due_ms is other.due_ms
    return one.ack == other.ack and abs(one.due_ms - other.due_ms) <= APART_MS


def connect_server(
    uri: str, clock: Clock | None = None, program: str | None = None
) -> RemoteBackend:
    """Return the backend of a server's URI, without sending anything yet. program: see `connect`;
    the owner of transactions is the server, so it becomes their label `client`."""
    check_name(program)
    gateway, token = parse_server(split_uri(uri))
    return RemoteBackend(gateway, token=token, clock=clock, program=program)


class RemoteBackend:
    """Commits and reads through a server; safe for threads and across fork."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        token: str | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        program: str | None = None,
    ) -> None:
        self._program = program
        self._clock = clock or SystemClock()
        self._rng = rng or random.SystemRandom()
        self._service = RemoteService(gateway, token, self._clock)
        self.pace = Pace(self._clock, self._rng, Policy())
        self._database: tuple[bytes, Rules] | None = None
        self._group_commit = GroupCommit(
            self._commit_batch, _report, self._clock, self.pace.policy, can_join=_can_join
        )

    @property
    def context(self) -> Context:
        """The server's store and transaction table, with this client's clock and rng. The server's
        policy limits the tries of a commit."""
        if self._database is None:
            found = self._call_read("database", None)
            names = {rules.stored_name.decode(): rules for rules in PROTOCOLS.values()}
            if found.protocol not in names or not found.transactions:
                raise InvalidRequestError("the server is of another version", found=found.protocol)
            rules = names[found.protocol].choose_variant(keeps_rows=found.keepsRows is True)
            self._database = found.transactions, rules
        table, rules = self._database
        store = ServedStore(self._service)
        return Context(store, table, self._clock, self._rng, self.pace.policy, silent, rules)

    def check_key(self, key: Key, deadline_ms: int | None = None) -> None:
        """Do nothing: the server knows its tables and families."""

    def check_request(self, request: Request, deadline_ms: int | None) -> None:
        """Do nothing: the server knows its tables and families."""

    def commit(
        self, request: Request, ack: Ack, spans: Spans, deadline_ms: int | None, known: Snapshot
    ) -> Committed:
        """Commit through the server. An unknown outcome raises an error with the request's name."""
        request = self._sign(request)
        traces = begin_traces([request], remote=True)
        with _end_traces(traces) as results:
            (headers,) = list_headers(traces)
            done = self._commit(TimedRequest(request, deadline_ms, headers), ack, spans)
            results.append(done)
        return done

    def _sign(self, request: Request) -> Request:
        if self._program is None:
            return request
        return replace(request, labels={"client": name_owner(self._program), **request.labels})

    def _commit(self, timed: TimedRequest, ack: Ack, spans: Spans = ()) -> Committed:
        request, deadline_ms, headers = timed
        sent_ms = self._clock.monotonic_ms()
        due_ms = None if deadline_ms is None else sent_ms + deadline_ms
        _require_time(deadline_ms)
        name = self._name()

        def send(most_ms: int | None = None) -> Committed:
            """Send the request with the rest of its time, and wait little longer for the reply;
            without a deadline, wait at most most_ms."""
            left_ms = self._left_ms(due_ms)
            done: Committed = self._service.call(
                *("commit", request.mutations, request.assertions),
                within_ms=most_ms if left_ms is None else left_ms + ANSWER_MS,
                ack=ACKS[ack],
                once=request.once,
                onceRetentionMs=request.once_retention_ms,
                labels=request.labels,
                request=name,
                withinMs=left_ms,
                trace=headers,
                scanned=[TYPES[IDL.Span].encode(span) for span in spans] or None,
                validate=request.validate,
                onceContent=request.once_content,
                answer=request.answer,
            )
            return done

        try:
            return send()
        except StoreError as lost:
            if isinstance(lost, TableUnavailable) or not isinstance(lost, MaybeApplied):
                raise_denial(lost, "")  # see `StoreFailed` of the wire
            last_ms = self._clock.monotonic_ms() + PATIENCE_MS
            until_ms = last_ms if due_ms is None else due_ms + ANSWER_MS
            done = None
            if request.once is not None:
                done = self._send_again(send, last_ms if due_ms is None else min(due_ms, last_ms))
            if done is None:
                (done,) = self._find_outcomes(
                    "findOutcome", (name,), 1, sent_ms, until_ms + OUTCOME_MS
                )
            if done is None:
                raise CommitOutcomeUnknown(name, lost) from lost
            return done

    def commit_many(
        self, requests: Sequence[Request], ack: Ack, deadlines_ms: Sequence[int | None]
    ) -> list[Committed | TxnError]:
        traces = begin_traces(requests, remote=True)
        with _end_traces(traces) as results:
            signed = map(self._sign, requests)
            timed = map(TimedRequest, signed, deadlines_ms, list_headers(traces))
            results.extend(self._commit_many([*timed], ack))
        return results

    def _commit_many(
        self, requests: Sequence[TimedRequest], ack: Ack
    ) -> list[Committed | TxnError]:
        timely = [each for each in requests if not _is_late(each.deadline_ms)]
        results = iter(self._send_many(timely, ack) if timely else ())
        return [
            DeadlineError(LATE) if _is_late(each.deadline_ms) else next(results)
            for each in requests
        ]

    def _send_many(self, requests: Sequence[TimedRequest], ack: Ack) -> list[Committed | TxnError]:
        name, sent_ms = self._name(), self._clock.monotonic_ms()
        times = [each.deadline_ms for each in requests if each.deadline_ms is not None]
        wait_ms = max(times) + ANSWER_MS if len(times) == len(requests) else None
        try:
            results = self._service.call(
                "commitMany", requests, within_ms=wait_ms, ack=ACKS[ack], request=name
            )
            if len(results) != len(requests):
                raise MaybeApplied(UNKNOWN_KIND)
        except MaybeApplied as lost:
            now_ms = self._clock.monotonic_ms()
            until_ms = now_ms + PATIENCE_MS if wait_ms is None else sent_ms + wait_ms + OUTCOME_MS
            count = len(requests)
            found = self._find_outcomes("findOutcomes", (name, count), count, sent_ms, until_ms)
            return [
                done or CommitOutcomeUnknown(name_part(name, number), lost)
                for number, done in enumerate(found)
            ]
        return [_judge(result, name_part(name, number)) for number, result in enumerate(results)]

    def submit(self, request: Request, ack: Ack, deadline_ms: int | None) -> Future[Committed]:
        """Queue a request, to be committed soon in one server request with others."""
        due_ms = self._due_ms(deadline_ms)
        future: Future[Committed] = SafeFuture()
        weight = len(encode_buffer(request, 0))
        sent = _Sent(self._sign(request), ack, due_ms, request.keys, weight, future)
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
        requests = [self._time(each) for each in batch]
        results: list[Committed | TxnError]
        try:
            results = self._commit_many(requests, batch[0].ack)
        except InvalidRequestError:  # one is invalid; nothing was written: each gets its own error
            results = [self._try(each) for each in batch]
        except Exception as error:
            for each in batch:
                each.result = error
            if not isinstance(error, TxnError):  # a bug of ours
                raise
            return
        for each, result in zip(batch, results, strict=True):
            each.result = result

    def _time(self, sent: _Sent) -> TimedRequest:
        (headers,) = list_headers([sent.trace])
        return TimedRequest(sent.request, self._left_ms(sent.due_ms), headers)

    def _try(self, sent: _Sent) -> Committed | TxnError:
        try:
            return self._commit(self._time(sent), sent.ack)
        except TxnError as error:
            return error

    def read(self, keys: Sequence[Key], deadline_ms: int | None = None) -> Snapshot:
        cells: Snapshot = self._call_read("read", deadline_ms, keys) if keys else {}
        refuse_missing(keys, cells)
        return cells

    def read_for_block(
        self, keys: Sequence[Key], ticket: HotKeyTicket, deadline_ms: int | None = None
    ) -> Snapshot:
        """Return the keys' cells as of one instant; only the server knows the hot keys."""
        return self.read(keys, deadline_ms)

    def scan(self, wanted: Span, deadline_ms: int | None = None) -> Iterator[Row]:
        """Yield the span's rows page by page, the first one at once; the server keeps no state."""
        due_ms = self._due_ms(deadline_ms)
        page = self._call_read("scan", deadline_ms, wanted)

        def list_rows() -> Iterator[Row]:
            rows, following = page
            yield from rows
            while following is not None:
                span = replace(wanted, start=following)
                rows, following = self._call_read("scan", self._left_ms(due_ms), span)
                yield from rows

        return list_rows()

    def scan_columns(
        self, wanted: Span, columns: Sequence[tuple[bytes, bytes]]
    ) -> Iterator[ColumnPage]:
        return group_columns(self.scan(wanted), wanted.table, columns)

    def view(
        self, keys: Sequence[Key], spans: Spans, deadline_ms: int | None = None
    ) -> tuple[Snapshot, list[dict[Key, Cell]]]:
        if not spans:
            return self.read(keys, deadline_ms), []
        cells, ranges = self._call_read("view", deadline_ms, keys, spans)
        refuse_missing(keys, cells)
        if len(ranges) != len(spans):
            message = "ranges are missing in the server's answer"
            raise NotApplied(message, asked=len(spans), got=len(ranges))
        return cells, ranges

    def _call_read(self, name: str, deadline_ms: int | None, *values: Any) -> Any:
        """Call a method that changes nothing, so that a lost reply is a definite failure."""
        _require_time(deadline_ms)
        due_ms = self._due_ms(deadline_ms)
        try:
            return self._service.call(
                name, *values, repeat=True, within_ms=deadline_ms, withinMs=deadline_ms
            )
        except TableUnavailable as answer:  # the server's
            answer.written = "no"
            raise
        except (MaybeApplied, NotApplied) as lost:
            if due_ms is not None and self._clock.monotonic_ms() >= due_ms:
                raise DeadlineError("deadline passed before the server answered") from lost
            raise NotApplied(str(lost)) from lost

    def find_once(self, token: bytes, deadline_ms: int | None = None) -> Committed | None:
        return cast(Committed | None, self._call_read("findOnce", deadline_ms, token)[1])

    def outcome(self, key: bytes) -> Outcome:
        """Return the outcome of a transaction, by its row key or its request's name."""
        if not key.startswith(NAME):
            return cast(Outcome, self._call_read("outcome", None, key))
        try:
            began_ms = int(key.split(b".")[1])
        except ValueError as error:
            raise InvalidRequestError("not a name of a request", given=key) from error
        ago_ms = self._clock.wall_ms() - began_ms
        return cast(Outcome, self._call_read("findOutcome", None, key, ago_ms)[0])

    def ensure_table(self, table: bytes, families: Collection[bytes]) -> None:
        self._service.call("ensureTable", table, families, repeat=True)

    def flush(self) -> None:
        """Wait for everything submitted. The server completes the commits with ack="decided"."""
        self._group_commit.flush()

    def close(self) -> None:
        self._group_commit.close()
        self._service.close()

    def _send_again(self, send: Callable[[int], Committed], until_ms: int) -> Committed | None:
        """Send a request with a `once` token again. Only a commit shows the outcome of the first
        one: if this one is refused, the first may still be in progress."""
        for _ in OUTCOME_PAUSES.tries(self._clock, self._rng, due_ms=until_ms):
            left_ms = until_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return None
            try:
                return send(left_ms)
            except StoreError:
                continue
            except TokenReusedError:
                raise
            except TxnError:  # even an invalid one: the first may have been valid
                return None
        return None

    def _find_outcomes(
        self, method: str, asked: tuple[Any, ...], count: int, sent_ms: int, until_ms: int
    ) -> list[Committed | None]:
        """Search for requests by name; return None for each that is not known to be committed.
        Repeat while one is in progress or the server is away; otherwise only a few times, since
        they may be in flight or between attempts."""
        found: list[tuple[Outcome, Committed | None]] = []
        seen = 0
        for number in OUTCOME_PAUSES.tries(self._clock, self._rng, due_ms=until_ms):
            now_ms = self._clock.monotonic_ms()
            left_ms = until_ms - now_ms
            if left_ms <= 0:
                break
            times = {"within_ms": left_ms, "withinMs": left_ms}
            try:
                answer = self._service.call(method, *asked, now_ms - sent_ms, repeat=True, **times)
                answers = answer if method == "findOutcomes" else [answer]
                if len(answers) != count:
                    raise MaybeApplied(UNKNOWN_KIND)
                found = answers
                is_open = any(outcome is Outcome.UNDECIDED for outcome, _ in found)
            except TxnError as error:
                is_open = isinstance(error, StoreError)
            if found and all(done for _, done in found):
                break
            if is_open:
                seen = number
            if number >= seen + OUTCOME_TRIES:
                break
        return [done for _, done in found] or [None] * count

    def _due_ms(self, deadline_ms: int | None) -> int | None:
        return None if deadline_ms is None else self._clock.monotonic_ms() + deadline_ms

    def _left_ms(self, due_ms: int | None) -> int | None:
        return None if due_ms is None else due_ms - self._clock.monotonic_ms()

    def _name(self) -> bytes:
        return NAME + b"%013d.%032x" % (self._clock.wall_ms(), self._rng.getrandbits(128))


def _is_late(deadline_ms: int | None) -> bool:
    return deadline_ms is not None and deadline_ms <= 0


def _require_time(deadline_ms: int | None) -> None:
    if _is_late(deadline_ms):
        raise DeadlineError(LATE)


def _report(sent: _Sent) -> None:
    assert sent.future is not None
    if isinstance(sent.result, Committed):
        sent.future.set_result(sent.result)
    else:
        sent.future.set_exception(sent.result or CommitOutcomeUnknown(b"-"))


@contextmanager
def _end_traces(traces: Sequence[Trace | None]) -> Iterator[list[Committed | TxnError]]:
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


def _judge(result: Committed | TxnError, name: bytes) -> Committed | TxnError:
    if isinstance(result, Committed):
        return result
    if isinstance(result, MaybeApplied) and not isinstance(result, TableUnavailable):
        return CommitOutcomeUnknown(name, result)
    return deny(result, "")
