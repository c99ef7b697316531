"""The engine behind `txn://host:port`: a client that commits through a server, without a store.

A commit is sent once. Where its answer is lost, nothing is sent again but a request with a `once`
token, of which at most one commits; otherwise the server is asked for the transactions that carry
the request's name. What only the server knows, such as conflicts, is settled there.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from txn.assertions import Assertion
from txn.clock import Clock, SystemClock
from txn.engine import Ack, Engine, Given, Outcome
from txn.errors import (
    CommitOutcomeUnknown,
    InvalidRequestError,
    MaybeApplied,
    NotApplied,
    StoreError,
    TxnError,
    describe,
)
from txn.messages import (
    FIELDS,
    IDL,
    OUTCOMES,
    pack_assertions,
    pack_key,
    pack_mutation,
    pack_request,
    unpack_cells,
    unpack_committed,
    unpack_error,
    unpack_result,
)
from txn.model import Cell, Delete, Key, Mutation, Row, as_bytes
from txn.optimistic import Pace
from txn.policy import Policy
from txn.reads import Snapshot
from txn.request import Committed, Request, bound_key, checked
from txn.spans import Span
from txn.steps import Context
from txn.stores.gateway import Gateway, Refused, Service, parse_gateway
from txn.stores.pool import Job, Pool

DEFAULT_PORT = 9092
TIMEOUT_MS = 60_000  # more than a commit may take until it is decided
NAME = b"request."
SETTLE_TRIES = 6
SETTLE_PAUSE_MS = 20
SETTLE_MANY_MS = 10_000
ACKS = {"complete": IDL.Ack.COMPLETE, "decided": IDL.Ack.DECIDED}
UNKNOWN_METHOD = 1  # what a TApplicationException says of a server that is another one
DECLARED = (*FIELDS, IDL.Invalid, IDL.Unauthorized)
KNOWN = {number: outcome for outcome, number in OUTCOMES.items()}


def connect_server(
    uri: str, *, table: str | bytes | None = None, clock: Clock | None = None
) -> RemoteEngine:
    """Return an engine behind the server of a URI. Nothing is sent yet."""
    gateway, token = parse_server(uri)
    return RemoteEngine(gateway, token=token, table=table, clock=clock)


def parse_server(uri: str) -> tuple[Gateway, str | None]:
    """Return where the server of a URI is, and the token it wants. The token is in no message."""
    parts = urlsplit(uri)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    token = options.pop("token", None)
    if "token_file" in options:
        token = read_token(Path(unquote(options.pop("token_file"))))
    parts = SplitResult(parts.scheme, parts.netloc, parts.path, urlencode(options), parts.fragment)
    gateway = parse_gateway(parts)
    if parts.port is None:
        gateway = replace(gateway, port=DEFAULT_PORT)
    if "timeout_ms" not in options:
        gateway = replace(gateway, timeout_ms=TIMEOUT_MS)
    return gateway, token


def read_token(path: Path) -> str:
    """Return the token in a file: its text, without white space around it."""
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeError) as error:
        raise InvalidRequestError(
            describe("cannot read the token", file=str(path), cause=str(error))
        ) from error
    if not token:
        raise InvalidRequestError(describe("the token's file is empty", file=str(path)))
    return token


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
        self._token = token
        self._table = None if table is None else as_bytes("table", table)
        self._pool = Pool(gateway, Service(IDL.Transactional), self._clock)

    @property
    def context(self) -> Context:
        """There is none here: the store is the server's."""
        raise InvalidRequestError("an engine behind txn:// has no store of its own")

    def commit(
        self,
        mutations: Iterable[Mutation | Delete],
        assertions: Iterable[Assertion] = (),
        *,
        once: str | bytes | None = None,
        labels: Mapping[str, str] | None = None,
        ack: Ack = "complete",
    ) -> Committed:
        """Commit as Engine.commit does. Where the outcome is unknown the error carries the name of
        the request, for which `outcome` can be asked."""
        request = self._checked(mutations, assertions, once=once, labels=labels)
        name, sent_ms = self._name(), self._clock.monotonic_ms()
        arguments = IDL.Transactional.commit_args(
            [pack_mutation(mutation) for mutation in request.mutations],
            pack_assertions(request.assertions),
            self._options(ack=ACKS[ack], once=request.once, labels=request.labels, request=name),
        )
        try:
            return unpack_committed(self._ask("commit", arguments))
        except MaybeApplied as lost:
            done = self._sent_again(arguments) if request.once is not None else None
            if done is None:
                done = self._traced(name, sent_ms, SETTLE_TRIES)
            if done is None:
                raise CommitOutcomeUnknown(name) from lost
            return done

    def commit_many(
        self, requests: Iterable[Given], *, ack: Ack = "complete"
    ) -> list[Committed | TxnError]:
        """Commit as Engine.commit_many does, in one request to the server."""
        wanted = [self._given(number, given) for number, given in enumerate(requests)]
        name, sent_ms = self._name(), self._clock.monotonic_ms()
        arguments = IDL.Transactional.commitMany_args(
            [pack_request(request) for request in wanted],
            self._options(ack=ACKS[ack], request=name),
        )
        if not wanted:
            return []
        try:
            return [unpack_result(packed) for packed in self._ask("commitMany", arguments)]
        except MaybeApplied as lost:
            return self._many_traced(name, sent_ms, len(wanted), lost)

    def read(self, keys: Collection[Key]) -> dict[Key, Cell | None]:
        """Return the keys' cells as of one instant, as Engine.read does."""
        bound = {key: bound_key(key, self._table) for key in keys}
        wanted = list(dict.fromkeys(bound.values()))
        if not wanted:
            return {}
        arguments = IDL.Transactional.read_args([pack_key(key) for key in wanted], self._options())
        found = unpack_cells(self._ask("read", arguments, repeat=True))
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
            arguments = IDL.Transactional.outcome_args(key, self._options())
            return KNOWN[self._ask("outcome", arguments, repeat=True)]
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
            self._options(),
        )
        self._ask("ensureTable", arguments, repeat=True)

    def flush(self) -> None:
        """Do nothing: what was committed with ack="decided" is the server's to complete."""

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    # ------------------------------------------------------------------------- lost answers

    def _sent_again(self, arguments: Any) -> Committed | None:
        """Send a request with a `once` token again. Only a commit tells what became of the first:
        it may still be under way where this one is refused."""
        for tries in range(SETTLE_TRIES):
            try:
                return unpack_committed(self._ask("commit", arguments))
            except StoreError:
                self._pause(tries)
            except TxnError:  # invalid, too: the first one may have been valid
                return None
        return None

    def _traced(self, name: bytes, sent_ms: int, tries: int) -> Committed | None:
        """Look for the request's transactions, for a moment; None: it is not known to be done."""
        for number in range(tries):
            with suppress(TxnError):
                _, done = self._settled(name, self._clock.monotonic_ms() - sent_ms)
                if done is not None:
                    return done
            if number < tries - 1:
                self._pause(number)
        return None

    def _many_traced(
        self, name: bytes, sent_ms: int, count: int, lost: MaybeApplied
    ) -> list[Committed | TxnError]:
        due_ms = self._clock.monotonic_ms() + SETTLE_MANY_MS
        results: list[Committed | TxnError] = []
        for number in range(count):
            part = b"%b/%d" % (name, number)
            tries = SETTLE_TRIES if number == 0 else 1
            late = self._clock.monotonic_ms() > due_ms
            done = None if late else self._traced(part, sent_ms, tries)
            if done is None:
                unknown = CommitOutcomeUnknown(part)
                unknown.__cause__ = lost
            results.append(done or unknown)
        return results

    def _settled(self, name: bytes, ago_ms: int) -> tuple[Outcome, Committed | None]:
        arguments = IDL.Transactional.settle_args(name, ago_ms, self._options())
        settled = self._ask("settle", arguments, repeat=True)
        done = settled.committed and unpack_committed(settled.committed)
        return KNOWN[settled.outcome], done

    # ------------------------------------------------------------------------------ details

    def _ask(self, method: str, arguments: Any, *, repeat: bool = False) -> Any:
        """Send one request and return its answer; raise what its exception stands for."""

        def job() -> Job[Any]:
            return (yield method, arguments)

        try:
            (answer,) = self._pool.run(lambda: [job()], repeat=repeat)
        except Refused as refused:
            raise _meant(refused, str(self._pool.gateway)) from refused
        return answer

    def _commit(
        self, request: Request, ack: Ack, spans: Sequence[Span] = (), within_ms: int | None = None
    ) -> Committed:
        """Commit what a `with` block did; the server has a deadline of its own."""
        return self.commit(
            request.mutations,
            request.assertions,
            once=request.once,
            labels=request.labels,
            ack=ack,
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
    ) -> Request:
        """Check what can be checked here; tables and families are the server's."""
        return checked(mutations, assertions, once=once, labels=labels, table=self._table)

    def _options(self, **given: Any) -> Any:
        return IDL.Options(token=self._token, **given)

    def _name(self) -> bytes:
        return NAME + b"%013d.%032x" % (self._clock.wall_ms(), self._chance.getrandbits(128))

    def _pause(self, tries: int) -> None:
        self._clock.sleep_ms(SETTLE_PAUSE_MS << tries)


def _meant(refused: Refused, server: str) -> TxnError:
    """Return the error that a server's exception stands for. What is no exception of the interface
    is the server's own failure, at any point of the work, or a request that it does not know."""
    cause = refused.__cause__
    if type(cause) in DECLARED:
        return unpack_error(cause)
    kind = getattr(cause, "type", None)
    unsupported = kind == UNKNOWN_METHOD
    error = NotApplied if unsupported else MaybeApplied
    return error(describe("the server failed", server=server, cause=str(refused)))
