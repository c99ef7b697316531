"""The engine behind `txn://host:port`: a client that commits through a server, without a store.

A commit is sent once. Where its answer is lost, nothing is sent again but a request with a `once`
token, of which at most one commits; otherwise the server is asked for the transactions that carry
the request's name. What only the server knows, such as conflicts, is settled there.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from txn.assertions import Assertion
from txn.clock import Clock, SystemClock
from txn.engine import TRANSACTIONS, Ack, Engine, Given, checked_time, checked_times
from txn.errors import (
    CommitOutcomeUnknown,
    DeadlineError,
    InvalidRequestError,
    MaybeApplied,
    StoreError,
    TableUnavailable,
    TxnError,
    describe,
)
from txn.messages import (
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
from txn.model import Cell, Delete, Key, Mutation, Row, as_bytes, check_choice
from txn.optimistic import Pace
from txn.policy import Policy
from txn.reads import Snapshot
from txn.request import Committed, Outcome, Request, bound_key, checked
from txn.spans import Span
from txn.steps import Context
from txn.stores.gateway import Gateway
from txn.stores.served import RemoteService, ServedStore, parse_server
from txn.watch import silent

NAME = b"request."
SETTLE_TRIES = 6
SETTLE_PAUSE_MS = 20
SETTLE_MANY_MS = 10_000
ANSWER_MS = 1_000  # how long after a deadline its answer may come
ACKS = {"complete": IDL.Ack.COMPLETE, "decided": IDL.Ack.DECIDED}
KNOWN = {number: outcome for outcome, number in OUTCOMES.items()}


def connect_server(
    uri: str, *, table: str | bytes | None = None, clock: Clock | None = None
) -> RemoteEngine:
    """Return an engine behind the server of a URI. Nothing is sent yet."""
    gateway, token = parse_server(urlsplit(uri))
    return RemoteEngine(gateway, token=token, table=table, clock=clock)


class RemoteEngine(Engine):
    """An engine whose store is a server's. Safe to share between threads, and across fork."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        token: str | None = None,
        table: str | bytes | None = None,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._chance = chance or random.SystemRandom()
        self._table = None if table is None else as_bytes("table", table)
        self._service = RemoteService(gateway, token, self._clock)

    @property
    def context(self) -> Context:
        """The server's store and transaction table, for recovery."""
        store, table = ServedStore(self._service), as_bytes("transactions", TRANSACTIONS)
        return Context(store, table, self._clock, self._chance, Policy(), silent)

    def commit(
        self,
        mutations: Iterable[Mutation | Delete],
        assertions: Iterable[Assertion] = (),
        *,
        once: str | bytes | None = None,
        once_retention_ms: int | None = None,
        labels: Mapping[str, str] | None = None,
        ack: Ack = "complete",
        deadline_ms: int | None = None,
    ) -> Committed:
        """Commit as Engine.commit does. Where the outcome is unknown the error carries the name of
        the request, for which `outcome` can be asked. With a time of its own, at most two seconds
        more pass until that is known."""
        check_choice("ack", ack, Ack)
        request = self._checked(mutations, assertions, once, labels, once_retention_ms)
        sent_ms = self._clock.monotonic_ms()
        due_ms = None if checked_time(deadline_ms) is None else sent_ms + (deadline_ms or 0)
        if due_ms is not None and due_ms <= sent_ms:
            raise DeadlineError("deadline passed before anything was sent")
        name = self._name()
        try:
            return self._sent(request, ack, name, due_ms)
        except TableUnavailable:  # the server's answer, and none of a commit
            raise
        except MaybeApplied as lost:
            done = None if request.once is None else self._sent_again(request, ack, name, due_ms)
            if done is None:
                done = self._traced(name, sent_ms, SETTLE_TRIES, self._given_up_ms(due_ms))
            if done is None:
                raise CommitOutcomeUnknown(name) from lost
            return done

    def commit_many(
        self,
        requests: Iterable[Given],
        *,
        ack: Ack = "complete",
        deadline_ms: Sequence[int | None] | None = None,
    ) -> list[Committed | TxnError]:
        """Commit as Engine.commit_many does, in one request to the server."""
        check_choice("ack", ack, Ack)
        wanted = [self._given(number, given) for number, given in enumerate(requests)]
        times = checked_times(deadline_ms, len(wanted))
        name, sent_ms = self._name(), self._clock.monotonic_ms()
        if not wanted:
            return []
        arguments = IDL.Transactional.commitMany_args(
            list(map(pack_request, wanted, times)),
            self._service.options(ack=ACKS[ack], request=name),
        )
        known = [time for time in times if time is not None]
        wait_ms = max(*known, 0) + ANSWER_MS if len(known) == len(times) else None
        try:
            answers = self._service.ask("commitMany", arguments, within_ms=wait_ms)
            if len(answers) != len(wanted):
                raise MaybeApplied(UNKNOWN_KIND)
        except MaybeApplied as lost:
            settle_ms = SETTLE_MANY_MS if wait_ms is None else ANSWER_MS
            return self._many_traced(name, sent_ms, len(wanted), settle_ms, lost)
        return [_unpacked(packed, _part(name, number)) for number, packed in enumerate(answers)]

    def read(self, keys: Collection[Key]) -> dict[Key, Cell | None]:
        """Return the keys' cells as of one instant, as Engine.read does."""
        bound = {key: bound_key(key, self._table) for key in keys}
        wanted = list(dict.fromkeys(bound.values()))
        if not wanted:
            return {}
        arguments = IDL.Transactional.read_args(
            [pack_key(key) for key in wanted], self._service.options()
        )
        found = unpack_cells(self._service.ask("read", arguments, repeat=True))
        return {key: found[wanted_key] for key, wanted_key in bound.items()}

    def _scan(self, wanted: Span) -> Iterator[Row]:
        raise InvalidRequestError("an engine behind txn:// does not scan")

    def _view(
        self, keys: Sequence[Key], spans: Sequence[Span]
    ) -> tuple[Snapshot, list[dict[Key, Cell]]]:
        if spans:
            raise InvalidRequestError("an engine behind txn:// does not scan")
        return self.read(keys), []

    def outcome(self, transaction: str | bytes) -> Outcome:
        """Return what has become of a transaction, by its row key or the name of its request."""
        key = as_bytes("transaction", transaction)
        if not key.startswith(NAME):
            arguments = IDL.Transactional.outcome_args(key, self._service.options())
            return KNOWN[self._service.ask("outcome", arguments, repeat=True)]
        try:
            began_ms = int(key.split(b".")[1])
        except ValueError as error:
            raise InvalidRequestError(describe("not a name of a request", given=key)) from error
        return self._settled(key, self._clock.wall_ms() - began_ms)[0]

    def ensure_table(self, table: str | bytes, families: Iterable[str | bytes]) -> None:
        """Create the table and those of its families that are missing."""
        arguments = IDL.Transactional.ensureTable_args(
            as_bytes("table", table),
            [as_bytes("family", family) for family in families],
            self._service.options(),
        )
        self._service.ask("ensureTable", arguments, repeat=True)

    def flush(self) -> None:
        """Do nothing: what was committed with ack="decided" is the server's to complete."""

    def close(self) -> None:
        """Close the connections."""
        self._service.close()

    # ------------------------------------------------------------------------- lost answers

    def _sent(self, request: Request, ack: Ack, name: bytes, due_ms: int | None) -> Committed:
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
            ),
        )
        wait_ms = None if left_ms is None else left_ms + ANSWER_MS
        return unpack_committed(self._service.ask("commit", arguments, within_ms=wait_ms))

    def _sent_again(
        self, request: Request, ack: Ack, name: bytes, due_ms: int | None
    ) -> Committed | None:
        """Send a request with a `once` token again. Only a commit tells what became of the first:
        it may still be under way where this one is refused."""
        for tries in range(SETTLE_TRIES):
            if due_ms is not None and self._clock.monotonic_ms() >= due_ms:
                return None
            try:
                return self._sent(request, ack, name, due_ms)
            except StoreError:
                self._pause(tries)
            except TxnError:  # invalid, too: the first one may have been valid
                return None
        return None

    def _given_up_ms(self, due_ms: int | None) -> int | None:
        """Return until when to look for a request whose answer was lost; None: as long as it takes
        to ask so many times."""
        return None if due_ms is None else max(due_ms, self._clock.monotonic_ms()) + ANSWER_MS

    def _traced(
        self, name: bytes, sent_ms: int, tries: int, until_ms: int | None = None
    ) -> Committed | None:
        """Look for the request's transactions, for a moment; None: it is not known to be done."""
        for number in range(tries):
            now_ms = self._clock.monotonic_ms()
            left_ms = None if until_ms is None else until_ms - now_ms
            if left_ms is not None and left_ms <= 0:
                break
            with suppress(TxnError):
                _, done = self._settled(name, now_ms - sent_ms, left_ms)
                if done is not None:
                    return done
            if number < tries - 1:
                self._pause(number)
        return None

    def _many_traced(
        self, name: bytes, sent_ms: int, count: int, settle_ms: int, lost: MaybeApplied
    ) -> list[Committed | TxnError]:
        due_ms = self._clock.monotonic_ms() + settle_ms
        results: list[Committed | TxnError] = []
        for number in range(count):
            part = _part(name, number)
            tries = SETTLE_TRIES if number == 0 else 1
            done = self._traced(part, sent_ms, tries, due_ms)
            results.append(done or _unknown(part, lost))
        return results

    def _settled(
        self, name: bytes, ago_ms: int, deadline_ms: int | None = None
    ) -> tuple[Outcome, Committed | None]:
        arguments = IDL.Transactional.settle_args(name, ago_ms, self._service.options())
        settled = self._service.ask("settle", arguments, repeat=True, within_ms=deadline_ms)
        done = settled.committed and unpack_committed(settled.committed)
        return KNOWN[settled.outcome], done

    # ------------------------------------------------------------------------------ details

    def _commit(
        self, request: Request, ack: Ack, spans: Sequence[Span] = (), deadline_ms: int | None = None
    ) -> Committed:
        """Commit what a `with` block did."""
        return self.commit(
            request.mutations,
            request.assertions,
            once=request.once,
            once_retention_ms=request.once_retention_ms,
            labels=request.labels,
            ack=ack,
            deadline_ms=deadline_ms,
        )

    @property
    def _pace(self) -> Pace:
        return Pace(self._clock, self._chance, Policy())

    def _checked(
        self,
        mutations: Iterable[Mutation | Delete],
        assertions: Iterable[Assertion],
        once: str | bytes | None = None,
        labels: Mapping[str, str] | None = None,
        once_retention_ms: int | None = None,
    ) -> Request:
        """Check what can be checked here; tables and families are the server's."""
        return checked(
            mutations,
            assertions,
            once=once,
            labels=labels,
            once_retention_ms=once_retention_ms,
            table=self._table,
        )

    def _name(self) -> bytes:
        return NAME + b"%013d.%032x" % (self._clock.wall_ms(), self._chance.getrandbits(128))

    def _pause(self, tries: int) -> None:
        self._clock.sleep_ms(SETTLE_PAUSE_MS << tries)


def _part(name: bytes, number: int) -> bytes:
    """Return the name of one request of many, as the server gives it."""
    return b"%b/%d" % (name, number)


def _unpacked(packed: Any, name: bytes) -> Committed | TxnError:
    try:
        return unpack_result(packed)
    except MaybeApplied as error:
        return _unknown(name, error)


def _unknown(name: bytes, cause: MaybeApplied) -> CommitOutcomeUnknown:
    error = CommitOutcomeUnknown(name)
    error.__cause__ = cause
    return error
