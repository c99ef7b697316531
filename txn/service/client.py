"""The engine behind `txn://host:port`: a client that commits through a server, without a store.

A commit is sent once. Where its answer is lost, nothing is sent again but a request with a `once`
token, of which at most one commits; otherwise the server is asked for the transactions that carry
the request's name. What only the server knows, such as conflicts, is settled there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from txn.backoff import Backoff
from txn.client.gather import Gatherer, InLine
from txn.clock import Clock, SystemClock
from txn.errors import (
    CommitOutcomeUnknown,
    DeadlineError,
    InvalidRequestError,
    MaybeApplied,
    StoreError,
    TableUnavailable,
    TxnError,
)
from txn.model import Cell, Key, Row, as_bytes
from txn.policy import Policy
from txn.protocol.attempt import Context, Rules
from txn.protocol.row import Buffer, encode_buffer
from txn.protocol.rules import SIX_PHASE, find_rules
from txn.reading.keys import Snapshot
from txn.request import TRANSACTIONS, Ack, Committed, Outcome, Request
from txn.service.messages import (
    IDL,
    OUTCOMES,
    UNKNOWN_KIND,
    pack_assertions,
    pack_key,
    pack_mutation,
    pack_request,
    unpack_cells,
    unpack_committed,
    unpack_result,
)
from txn.service.store import RemoteService, ServedStore, parse_server
from txn.spans import Span
from txn.stores.gateway import Gateway
from txn.tracing import Headers, Trace, begin_traces, list_headers
from txn.watch import silent

NAME = b"request."
SETTLE_TRIES = 6
SETTLING = Backoff(first_ms=20, longest_ms=640)
SETTLE_MANY_MS = 10_000
ANSWER_MS = 1_000  # how long after a deadline its answer may come
ACKS = {"complete": IDL.Ack.COMPLETE, "decided": IDL.Ack.DECIDED}
KNOWN = {number: outcome for outcome, number in OUTCOMES.items()}


@dataclass(slots=True, eq=False, kw_only=True)
class _Sent(InLine):
    """A request whose result goes to a future; None: it is not known, nor was it tried."""

    result: Committed | Exception | None = None
    trace: Trace | None = None


def connect_server(uri: str, clock: Clock | None = None) -> RemoteBackend:
    """Return the backend of a server's URI. Nothing is sent yet."""
    gateway, token = parse_server(urlsplit(uri))
    return RemoteBackend(gateway, token=token, clock=clock)


class RemoteBackend:
    """Commits and reads by a server. Safe to share between threads, and across fork."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        token: str | None = None,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._chance = chance or random.SystemRandom()
        self._service = RemoteService(gateway, token, self._clock)
        self._rules: Rules | None = None
        lanes = Policy().lanes
        self._gatherer = Gatherer(self._commit_together, _tell, self._clock, lanes, linger_ms=0)

    @property
    def context(self) -> Context:
        """The server's store and transaction table, and the clock and chance here; how often a
        commit is tried is the server's policy."""
        store, table = ServedStore(self._service), as_bytes("transactions", TRANSACTIONS)
        if self._rules is None:
            self._rules = find_rules(store, table) or SIX_PHASE
        return Context(store, table, self._clock, self._chance, Policy(), silent, self._rules)

    def check_key(self, key: Key) -> None:
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
        request, for which `outcome` can be asked. With a time of its own, at most two seconds more
        pass until that is known."""
        assert not spans, "nothing can have been scanned"
        (trace,) = begin_traces([request], remote=True)
        with _end_traces([trace]) as results:
            done = self._commit(request, ack, deadline_ms, trace)
            results.append(done)
        return done

    def _commit(
        self, request: Request, ack: Ack, deadline_ms: int | None, trace: Trace | None
    ) -> Committed:
        sent_ms = self._clock.monotonic_ms()
        due_ms = None if deadline_ms is None else sent_ms + deadline_ms
        if due_ms is not None and due_ms <= sent_ms:
            raise DeadlineError("deadline passed before anything was sent")
        name = self._name()
        (headers,) = list_headers([trace])
        send = partial(self._send, request, ack, name, due_ms, headers)
        try:
            return send()
        except TableUnavailable:  # the server's answer, and none of a commit
            raise
        except MaybeApplied as lost:
            done = None if request.once is None else self._send_again(send, due_ms)
            if done is None:
                now_ms = self._clock.monotonic_ms()
                until_ms = None if due_ms is None else max(due_ms, now_ms) + ANSWER_MS
                done = self._find_committed(name, sent_ms, SETTLE_TRIES, until_ms)
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
        name, sent_ms = self._name(), self._clock.monotonic_ms()
        if not requests:
            return []
        arguments = IDL.Transactional.commitMany_args(
            list(map(pack_request, requests, deadlines_ms, list_headers(traces))),
            self._service.options(ack=ACKS[ack], request=name),
        )
        known = [time for time in deadlines_ms if time is not None]
        wait_ms = max(*known, 0) + ANSWER_MS if len(known) == len(deadlines_ms) else None
        try:
            answers = self._service.ask("commitMany", arguments, within_ms=wait_ms)
            if len(answers) != len(requests):
                raise MaybeApplied(UNKNOWN_KIND)
        except MaybeApplied as lost:
            settle_ms = SETTLE_MANY_MS if wait_ms is None else ANSWER_MS
            return self._find_all_committed(name, sent_ms, len(requests), settle_ms, lost)
        return [
            _unpack_part(packed, _name_part(name, number)) for number, packed in enumerate(answers)
        ]

    def submit(self, request: Request, ack: Ack, deadline_ms: int | None) -> Future[Committed]:
        """Have one request committed soon, in one request to the server with others."""
        due_ms = None if deadline_ms is None else self._clock.monotonic_ms() + deadline_ms
        future: Future[Committed] = Future()
        weight = len(encode_buffer(Buffer(request, 0)))
        sent = _Sent(request, ack, due_ms, request.keys, weight, future)
        (sent.trace,) = begin_traces([request], remote=True)
        try:
            self._gatherer.submit(sent)
        except TxnError as error:
            if sent.trace is not None:
                sent.trace.end(error)
            raise
        if sent.trace is not None:
            future.add_done_callback(sent.trace.end_future)
        return future

    def _commit_together(self, batch: Sequence[_Sent]) -> None:
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

    def read(self, keys: Sequence[Key]) -> Snapshot:
        """Return the keys' cells as of one instant."""
        if not keys:
            return {}
        arguments = IDL.Transactional.read_args(
            [pack_key(key) for key in keys], self._service.options()
        )
        return unpack_cells(self._service.ask("read", arguments, repeat=True))

    def look(self, keys: Sequence[Key], turn: object) -> Snapshot:
        """Return the keys' cells as of one instant. What is in demand the server knows."""
        return self.read(keys)

    def scan(self, wanted: Span) -> Iterator[Row]:
        """Refuse: rows cannot be asked for."""
        raise InvalidRequestError("an engine behind txn:// does not scan")

    def view(
        self, keys: Sequence[Key], spans: Sequence[Span]
    ) -> tuple[Snapshot, list[dict[Key, Cell]]]:
        """Return the cells of keys as of one instant; rows cannot be asked for."""
        if spans:
            raise InvalidRequestError("an engine behind txn:// does not scan")
        return self.read(keys), []

    def outcome(self, key: bytes) -> Outcome:
        """Return what has become of a transaction, by its row key or the name of its request."""
        if not key.startswith(NAME):
            arguments = IDL.Transactional.outcome_args(key, self._service.options())
            return KNOWN[self._service.ask("outcome", arguments, repeat=True)]
        try:
            began_ms = int(key.split(b".")[1])
        except ValueError as error:
            raise InvalidRequestError("not a name of a request", given=key) from error
        return self._ask_settled(key, self._clock.wall_ms() - began_ms)[0]

    def ensure_table(self, table: bytes, families: Collection[bytes]) -> None:
        """Create the table and those of its families that are missing."""
        arguments = IDL.Transactional.ensureTable_args(
            table, list(families), self._service.options()
        )
        self._service.ask("ensureTable", arguments, repeat=True)

    def flush(self) -> None:
        """Wait for what was submitted. What was committed with ack="decided" is the server's to
        complete."""
        self._gatherer.flush()

    def close(self) -> None:
        """Flush, and close the connections."""
        self._gatherer.close()
        self._service.close()

    # ------------------------------------------------------------------------- lost answers

    def _send(
        self,
        request: Request,
        ack: Ack,
        name: bytes,
        due_ms: int | None,
        headers: Headers | None,
    ) -> Committed:
        """Send a commit, with what is left of its time, and wait little longer for the answer."""
        left_ms = None if due_ms is None else due_ms - self._clock.monotonic_ms()
        arguments = IDL.Transactional.commit_args(
            [pack_mutation(mutation) for mutation in request.mutations],
            pack_assertions(request.assertions),
            self._service.options(
                ack=ACKS[ack],
                once=request.once,
                onceRetentionMs=request.once_retention_ms,
                labels=request.labels,
                request=name,
                withinMs=left_ms,
                trace=headers,
            ),
        )
        wait_ms = None if left_ms is None else left_ms + ANSWER_MS
        return unpack_committed(self._service.ask("commit", arguments, within_ms=wait_ms))

    def _send_again(self, send: Callable[[], Committed], due_ms: int | None) -> Committed | None:
        """Send a request with a `once` token again. Only a commit tells what became of the first:
        it may still be under way where this one is refused."""
        for _ in SETTLING.tries(self._clock, self._chance, most=SETTLE_TRIES):
            if due_ms is not None and self._clock.monotonic_ms() >= due_ms:
                return None
            try:
                return send()
            except StoreError:
                continue
            except TxnError:  # invalid, too: the first one may have been valid
                return None
        return None

    def _find_committed(
        self, name: bytes, sent_ms: int, tries: int, until_ms: int | None = None
    ) -> Committed | None:
        """Look for the request's transactions, for a moment; None: it is not known to be done."""
        for _ in SETTLING.tries(self._clock, self._chance, most=tries):
            now_ms = self._clock.monotonic_ms()
            left_ms = None if until_ms is None else until_ms - now_ms
            if left_ms is not None and left_ms <= 0:
                break
            with suppress(TxnError):
                _, done = self._ask_settled(name, now_ms - sent_ms, left_ms)
                if done is not None:
                    return done
        return None

    def _find_all_committed(
        self, name: bytes, sent_ms: int, count: int, settle_ms: int, lost: MaybeApplied
    ) -> list[Committed | TxnError]:
        due_ms = self._clock.monotonic_ms() + settle_ms
        results: list[Committed | TxnError] = []
        for number in range(count):
            part = _name_part(name, number)
            tries = SETTLE_TRIES if number == 0 else 1
            done = self._find_committed(part, sent_ms, tries, due_ms)
            results.append(done or CommitOutcomeUnknown(part, lost))
        return results

    def _ask_settled(
        self, name: bytes, ago_ms: int, deadline_ms: int | None = None
    ) -> tuple[Outcome, Committed | None]:
        arguments = IDL.Transactional.settle_args(name, ago_ms, self._service.options())
        settled = self._service.ask("settle", arguments, repeat=True, within_ms=deadline_ms)
        done = settled.committed and unpack_committed(settled.committed)
        return KNOWN[settled.outcome], done

    # ------------------------------------------------------------------------------ details

    def _name(self) -> bytes:
        return NAME + b"%013d.%032x" % (self._clock.wall_ms(), self._chance.getrandbits(128))


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


def _name_part(name: bytes, number: int) -> bytes:
    """Return the name of one request of many, as the server gives it."""
    return b"%b/%d" % (name, number)


def _unpack_part(packed: Any, name: bytes) -> Committed | TxnError:
    try:
        return unpack_result(packed)
    except MaybeApplied as error:
        return CommitOutcomeUnknown(name, error)
