"""Transactions through a server: done as an engine with its own store would do them.

What is new is the wire between: the token, answers that are lost, and many clients at once.
"""

from __future__ import annotations

import heapq
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import happybase
import pytest
from hypothesis import given
from hypothesis import strategies as st
from thriftpy2.thrift import TApplicationException

from tests.integration.serving import client, served, unasked, wire
from txn import (
    AbortedError,
    AssertionFailedError,
    Cell,
    CommitOutcomeUnknown,
    Committed,
    ConflictError,
    CorruptRowError,
    DeadlineError,
    Delete,
    Engine,
    Exact,
    GreaterThan,
    InvalidRequestError,
    Key,
    Mutation,
    Not,
    NotApplied,
    OptimisticTransaction,
    Outcome,
    Request,
    Some,
    StoreError,
    TokenReusedError,
    TxnError,
    Version,
    connect,
)
from txn.clock import ManualClock, SystemClock
from txn.emulator.serving import NAMES
from txn.host.owner import name_owner
from txn.locks import LockDenied, Mode, Waiting, exclusive, open_manager, shared
from txn.model import Check, Row, Stamp
from txn.protocol.codec import decode_marker, encode_buffer
from txn.protocol.row import decode_row, marker_key
from txn.protocol.statuses import ProtocolName
from txn.request import Ack
from txn.server.listening import listen
from txn.server.ports import Server
from txn.service import server as transactional
from txn.service.messages import (
    IDL,
    REQUEST_LABEL,
    decode_assertions,
    decode_error,
    decode_result,
    encode_assertions,
    encode_error,
    encode_key,
    encode_mutation,
    encode_result,
)
from txn.service.server import Transactional
from txn.stores import open_store
from txn.stores.base import Store
from txn.stores.local import LocalStore
from txn.tables.admin import Admin
from txn.tables.kv.memory import MemoryStore
from txn.testing.faulty import Call, Fault, FaultyStore, Reply

TLS = Path(__file__).with_name("tls")
X, Y, Z = (Key(row, "d", "v", "data") for row in "xyz")
ROWS = (b"transaction.", b"transaction/")


@contextmanager
def endpoint(
    store: Store | None = None, token: str | None = None, protocol: ProtocolName | None = None
) -> Iterator[tuple[str, Store]]:
    """The service over a store, in this process; its URI and the store."""
    store = store or LocalStore(MemoryStore(), SystemClock())
    hosted = Transactional(store, token=token, protocol=protocol)
    with Server([(listen("127.0.0.1", 0), hosted.service)]) as server:
        yield f"txn://127.0.0.1:{server.ports[0]}", store
    hosted.flush()


def find_port() -> int:
    with listen("127.0.0.1", 0) as free:
        port: int = free.getsockname()[1]
    return port


def plain(uri: str) -> AbstractContextManager[Any]:
    """A client as thriftpy2 makes it of the interface."""
    return client(int(uri.rpartition(":")[2]), service=IDL.Transactional)


def test_the_name_of_a_client_is_a_label() -> None:
    """The owner of its transactions, which is what dies, is the server."""
    with endpoint() as (uri, store), connect(uri, table="data", name="billing") as engine:
        engine.ensure_table("data", ["d"])
        mutation = Mutation(X, "1")
        engine.commit([mutation], labels={"a": "b"})
        engine.commit_many([([mutation], [])])
        engine.submit(([mutation], [])).result()
        rows = [decode_row(row).buffer for row in store.scan(b"txn", b"transaction.", ROWS[1])]
    for row, more in zip(rows, [{"a": "b"}, {}, {}], strict=True):
        assert row is not None
        assert row.owner == name_owner()
        labels = {k: v for k, v in row.request.labels.items() if k != REQUEST_LABEL}
        assert labels == {"client": name_owner("billing"), **more}


@pytest.fixture(params=get_args(ProtocolName))
def remote(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A client does not see which protocol the server's database has."""
    with endpoint(protocol=request.param) as (uri, _), connect(uri, table="data") as engine:
        engine.ensure_table("data", ["d"])
        yield engine


# ------------------------------------------------------------------------- as an engine does


def test_commits_and_reads_as_an_engine_does(remote: Engine) -> None:
    """The whole of what a client without a store needs."""
    done = remote.commit([Mutation(X, "1"), Mutation(Y, "2")], labels={"why": "test"})
    assert (done.repeated, done.complete) == (False, True)
    short = Key("x", "d", "v")
    assert remote.read([short, Z]) == {short: Cell(b"1", done.timestamp), Z: None}
    assert remote.outcome(done.transaction) is Outcome.COMMITTED
    decided = remote.commit([Delete(X)], [Exact(X, "1"), Not(Some(Z))], ack="decided")
    assert remote.read([X]) == {X: None}
    assert decided.timestamp > done.timestamp
    assert remote.read([]) == {}
    assert remote.commit_many([]) == []


@pytest.mark.parametrize("protocol", get_args(ProtocolName))
def test_locks_are_held_through_a_server(protocol: ProtocolName) -> None:
    """`open_manager` takes any URI that `connect` takes, and lists locks through it."""
    with (
        endpoint(protocol=protocol) as (uri, _),
        open_manager(uri, name="one") as one,
        open_manager(uri, name="two") as two,
    ):
        with one.hold(exclusive("D/t/p=1")) as held:
            held.check()
            assert Mode.EXCLUSIVE in {lock.request.mode for lock in one.locks()}
            with pytest.raises(LockDenied):
                two.hold(shared("d/T/p=1"), waiting=Waiting(retries=0))
        two.hold(exclusive("d/t")).release()
        assert not one.locks()


def test_a_false_assertion_comes_back_with_what_was_seen(remote: Engine) -> None:
    """The client decides by it."""
    done = remote.commit([Mutation(X, "1")])
    wrong = Exact(X, "2") | (Some(Y) & ~GreaterThan(X, "0"))
    with pytest.raises(AssertionFailedError) as caught:
        remote.commit([Mutation(X, "3")], [Some(X), wrong])
    assert caught.value.assertion == wrong
    assert caught.value.seen == {X: Cell(b"1", done.timestamp), Y: None}
    assert caught.value.transaction is not None
    # A fenced database has not even a row of it: it is read before anything is written.
    assert remote.outcome(caught.value.transaction) in (Outcome.ABORTED, Outcome.UNKNOWN)


def test_many_stand_alone_and_keep_their_order(remote: Engine) -> None:
    """One answer for each, as from an engine."""
    results = remote.commit_many(
        [([Mutation(X, "1")], []), ([Mutation(Y, "1")], [Some(Z)]), Request((Mutation(X, b"2"),))]
    )
    assert [type(each) for each in results] == [Committed, AssertionFailedError, Committed]
    assert remote.read([X])[X].value == b"2"  # type: ignore[union-attr]


def test_a_token_commits_once(remote: Engine) -> None:
    """Wherever the repetition comes from."""
    first = remote.commit([Mutation(X, "1")], once="job/7", once_content="7")
    again = remote.commit([Mutation(X, "2")], once="job/7", once_content="7")
    assert again == Committed(first.transaction, first.timestamp, repeated=True)


def test_a_promise_about_a_token_reaches_the_server() -> None:
    """By each way that a request has."""
    with endpoint() as (uri, store), connect(uri, table="data") as engine:
        engine.ensure_table("data", ["d"])
        engine.commit([Mutation(X, "1")], once="a", once_retention_ms=5)
        engine.commit_many([Request((Mutation(X, b"2"),), once=b"b", once_retention_ms=6)])
        engine.run(lambda t: t.put(X, "3"), once="c", once_retention_ms=7)
        markers = [marker_key(b"txn", token) for token in (b"a", b"b", b"c")]
        found = [cell.value for cell in store.read(markers).values() if cell]
        assert [decode_marker(value).retention_ms for value in found] == [5, 6, 7]


def test_whether_keys_are_validated_reaches_the_server() -> None:
    """By each way that a request has; and the server's policy holds for those that do not say."""
    put, asserted = [Mutation(X, "1")], [Not(Some(Z))]
    with endpoint() as (uri, store), connect(uri, table="data") as engine:
        engine.ensure_table("data", ["d"])

        def block(t: OptimisticTransaction) -> None:
            assert t.get(Z) is None
            t.put(X, "1")

        done = [
            engine.commit(put, asserted, validate=True),
            *engine.commit_many([(put, asserted)], validate=True),
            *engine.commit_many([Request(tuple(put), tuple(asserted), validate=True)]),
            engine.submit((put, asserted), validate=True).result(),
            engine.commit(put, asserted),
            engine.commit(put, asserted, validate=False),
        ]
        engine.run(block, validate=True)
        rows = {row.row: decode_row(row) for row in store.scan(b"txn")}
        found = [rows[each.transaction] for each in done if isinstance(each, Committed)]
        assert [row.validates for row in found] == [True] * 4 + [False] * 2
        assert sum(row.validates for row in rows.values()) == 5


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda e: e.commit([Mutation(Key("x", "q", "v"), "1")]), "no such family"),
        (lambda e: e.commit([Mutation(Key("x", "d", "v", "absent"), "1")]), "no such table"),
        (lambda e: e.read([Key("x", "d", "v", "absent")]), "no such table"),
        (lambda e: e.commit([Mutation(Key("x", "d", "v_lock"), "1")]), "reserved"),
        (lambda e: e.commit([Delete(Key("once.t", "t", "done", "txn"))]), "transaction table"),
        (lambda e: e.commit_many([([Mutation(X, "1")], []), ([], [])]), "request=1"),
        (lambda e: e.commit([], [Some(Key("x", "d", "v", "absent"))]), "no such table"),
        (lambda e: e.outcome("request.nonsense"), "not a name"),
    ],
)
def test_what_can_never_succeed_is_an_invalid_request(
    remote: Engine, act: Callable[[Engine], object], message: str
) -> None:
    """Found here or there, it is the same error."""
    with pytest.raises(InvalidRequestError, match=message):
        act(remote)


def test_plain_thrift_is_enough() -> None:
    """Any Thrift client can commit with two arguments, as with the coprocessor's endpoint."""
    with (
        endpoint() as (uri, _),
        client(int(uri.rpartition(":")[2]), service=IDL.Transactional) as c,
    ):
        c.ensureTable(b"data", [b"d"])
        done = c.commit([encode_mutation(Mutation(X, "1"))])
        assert done.transaction.startswith(b"transaction.")
        done = c.commit([encode_mutation(Mutation(X, "2"))], encode_assertions([Exact(X, "1")]))
        assert c.outcome(done.transaction) == IDL.Outcome.COMMITTED
        with pytest.raises(IDL.AssertionFailed) as caught:
            c.commit([encode_mutation(Mutation(X, "3"))], encode_assertions([Exact(X, "1")]))
        assert caught.value.seen[0].cell.value == b"2"
        (found,) = c.read([encode_key(X)])
        assert found.cell == IDL.Cell(b"2", done.timestamp)


@pytest.mark.parametrize(
    "nodes",
    [
        [IDL.Assertion(IDL.AssertionKind.NOT)],
        [IDL.Assertion(IDL.AssertionKind.AND, count=2)],
        [IDL.Assertion(IDL.AssertionKind.SOME)],
        [IDL.Assertion(IDL.AssertionKind.EXACT, encode_key(X))],
        [IDL.Assertion(99, encode_key(X))],
        [IDL.Assertion(IDL.AssertionKind.OR, count=-1)],
        [IDL.Assertion(IDL.AssertionKind.SOME, encode_key(X))] + [IDL.Assertion(5)] * 200,
        [IDL.Assertion(IDL.AssertionKind.SOME, encode_key(X))] + [IDL.Assertion(5)] * 100_000,
    ],
    ids=lambda nodes: f"{nodes[-1].kind}x{len(nodes)}",
)
def test_assertions_that_make_no_sense_are_invalid(nodes: list[object]) -> None:
    """They are from a wire that anybody can write to."""
    with (
        endpoint() as (uri, _),
        client(int(uri.rpartition(":")[2]), service=IDL.Transactional) as c,
    ):
        c.ensureTable(b"data", [b"d"])
        with pytest.raises(IDL.Invalid):
            c.commit([], nodes)


keys = st.sampled_from([X, Y, Z])
assertions = st.recursive(
    st.builds(Exact, keys, st.binary(min_size=1))
    | st.builds(Some, keys)
    | st.builds(GreaterThan, keys, st.binary(min_size=1))
    | st.builds(Version, keys, st.none() | st.integers(1, 2**60)),
    lambda inner: (
        st.builds(Not, inner)
        | st.builds(lambda a, b: a & b, inner, inner)
        | st.lists(inner, min_size=2, max_size=4).map(lambda parts: parts[0] | parts[1])
    ),
)


@given(st.lists(assertions, max_size=4))
def test_every_assertion_survives_the_wire(given_ones: list[object]) -> None:
    """A tree that came out as another one would commit what must not be."""
    assert decode_assertions(encode_assertions(given_ones)) == given_ones  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError("wrong"),
        AbortedError("a cell lies in the future", transaction=b"t"),
        ConflictError("key is locked", key=X, holder=b"other", transaction=b"t"),
        ConflictError("aborted by another client", transaction=b"t"),
        AssertionFailedError(Some(X), {X: None}, transaction=b"t"),
        AssertionFailedError(Version(X, 4), {X: Stamp(5), Y: Cell(b"1", 5)}, transaction=b"t"),
        DeadlineError("deadline passed", transaction=b"t"),
        CommitOutcomeUnknown(b"t"),
        StoreError("broken"),
        CorruptRowError("cannot decode"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_error_survives_the_wire(error: TxnError) -> None:
    """What to do next is in the type, and in these attributes."""
    back = decode_error(encode_error(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.__dict__ == error.__dict__
    if not isinstance(error, InvalidRequestError):
        assert str(decode_result(encode_result(error))) == str(error)


# ---------------------------------------------------------------------------- lost answers


@contextmanager
def lossy(uri: str, method: bytes) -> Iterator[tuple[Engine, Callable[[], int]]]:
    """An engine that never hears the first answer to a method."""
    with wire(int(uri.rpartition(":")[2])) as between:
        between.lose = lambda answer: method in answer and not between.lost
        with connect(f"txn://127.0.0.1:{between.port}", table="data") as engine:
            yield engine, lambda: between.lost


def test_a_commit_whose_answer_is_lost_is_found_and_not_sent_again() -> None:
    """Twice would be wrong, and "unknown" is not needed: the rows tell."""
    with endpoint() as (uri, store), lossy(uri, b"commit") as (engine, lost):
        engine.ensure_table("data", ["d"])
        done = engine.commit([Mutation(X, "1")], [Not(Some(X))])
        assert lost() == 1
        assert not done.repeated
        assert engine.outcome(done.transaction) is Outcome.COMMITTED
        assert engine.read([X]) == {X: Cell(b"1", done.timestamp)}
        assert len(list(store.scan(b"txn", *ROWS))) == 1


def test_a_commit_with_a_token_is_sent_again() -> None:
    """Of all requests with the token one commits; the second answer tells which."""
    with endpoint() as (uri, _), lossy(uri, b"commit") as (engine, lost):
        engine.ensure_table("data", ["d"])
        done = engine.commit([Mutation(X, "1")], [Not(Some(X))], once="token")
        assert (lost(), done.repeated) == (1, True)
        assert engine.read([X]) == {X: Cell(b"1", done.timestamp)}


def test_a_token_that_another_has_is_refused_though_the_first_answer_is_lost() -> None:
    """So the request was never committed, and its outcome is not unknown."""
    with endpoint() as (uri, _), connect(uri, table="data") as other:
        other.ensure_table("data", ["d"])
        other.commit([Mutation(X, "1")], once="token")
        with lossy(uri, b"commit") as (engine, lost), pytest.raises(TokenReusedError):
            engine.commit([Mutation(X, "2")], once="token")
        assert lost() == 1


def test_a_commit_with_a_token_whose_answers_are_all_lost_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sending it again took all the time that there was, and its row was never looked for."""
    monkeypatch.setattr("txn.service.client.PATIENCE_MS", 500)
    with endpoint() as (uri, _), wire(int(uri.rpartition(":")[2])) as between:
        between.lose = lambda answer: b"commit" in answer
        with connect(f"txn://127.0.0.1:{between.port}", table="data") as engine:
            engine.ensure_table("data", ["d"])
            done = engine.commit([Mutation(X, "1")], once="token")
            assert between.lost > 1
            assert engine.read([X]) == {X: Cell(b"1", done.timestamp)}


def test_an_abort_whose_answer_is_lost_is_not_known() -> None:
    """An aborted attempt may be followed by one that commits: only the server knew better."""
    with endpoint() as (uri, _), lossy(uri, b"commit") as (engine, _lost):
        engine.ensure_table("data", ["d"])
        with pytest.raises(CommitOutcomeUnknown) as caught:
            engine.commit([Mutation(X, "1")], [Some(X)])
        assert caught.value.transaction.startswith(b"request.")
        assert engine.outcome(caught.value.transaction) is Outcome.UNKNOWN
        assert engine.read([X]) == {X: None}


def test_a_repeated_refusal_does_not_tell_what_became_of_the_first() -> None:
    """The first may still be under way, and commit after the second was refused."""
    with endpoint() as (uri, _), lossy(uri, b"commit") as (engine, _lost):
        engine.ensure_table("data", ["d"])
        with pytest.raises(CommitOutcomeUnknown):
            engine.commit([Mutation(X, "1")], [Some(X)], once="token")


class Busy(LocalStore):
    """A store with as many transactions of others as there are milliseconds around a request's
    time, and none of which is stored. It counts those that are looked at."""

    rows = 0

    def scan(
        self, table: bytes, start: bytes = b"", stop: bytes | None = None, *args: Any, **kwargs: Any
    ) -> Iterator[Row]:
        if not start.startswith(b"transaction."):
            yield from super().scan(table, start, stop, *args, **kwargs)
            return
        own = super().scan(table, start, stop, *args, **kwargs)
        last = int(stop.partition(b".")[2] or 10**13) if stop else 10**13
        others = (
            Row(row, {Key(row, "t", "buffer", table): Cell(b"others'", 1)})
            for ms in range(int(start.split(b".")[1]), last)
            for row in (b"transaction.%013d.%032x" % (ms, number) for number in range(10))
        )
        for row in heapq.merge(own, others, key=lambda each: each.row):
            self.rows += 1
            yield row


def test_a_commit_is_found_among_those_of_a_busy_server() -> None:
    """Ten thousand a second: those of the minute before would be more than can be looked at."""
    busy = Busy(MemoryStore(), SystemClock())
    with endpoint(busy) as (uri, _), lossy(uri, b"commit") as (engine, lost):
        engine.ensure_table("data", ["d"])
        done = engine.commit([Mutation(X, "1")])
        assert (lost(), done.repeated) == (1, False)
        assert engine.read([X]) == {X: Cell(b"1", done.timestamp)}
        assert busy.rows < 100_000


def test_many_commits_are_found_among_those_of_a_busy_server_in_one_look() -> None:
    """A look for each would take longer than anybody waits."""
    busy = Busy(MemoryStore(), SystemClock())
    with endpoint(busy) as (uri, _), lossy(uri, b"commitMany") as (engine, lost):
        engine.ensure_table("data", ["d"])
        keys = [Key(f"{number}", "d", "v", "data") for number in range(200)]
        results = engine.commit_many([([Mutation(key, "1")], []) for key in keys])
        assert (lost(), {type(each) for each in results}) == (1, {Committed})
        assert [each.timestamp for each in results if isinstance(each, Committed)] == [
            cell and cell.timestamp for cell in engine.read(keys).values()
        ]
        assert busy.rows < 100_000


def test_a_commit_that_is_under_way_when_its_connection_breaks_is_waited_for() -> None:
    """Its row says so, and it has time."""
    with (
        endpoint(protocol="six-phase") as (uri, store),
        wire(int(uri.rpartition(":")[2])) as between,
        connect(f"txn://127.0.0.1:{between.port}", table="data") as engine,
        ThreadPoolExecutor(1) as pool,
    ):
        engine.ensure_table("data", ["d"])
        holder = locked_by_somebody(store)
        waiting = pool.submit(engine.commit, [Mutation(X, "1")], deadline_ms=60_000)
        while not any(row.row != holder for row in store.scan(b"txn", *ROWS)):
            time.sleep(0.01)
        for each in list(between._open):
            each.shutdown(socket.SHUT_RDWR)
        time.sleep(3)  # longer than a request is looked for of which nothing is seen
        assert not waiting.done()
        store.check_and_put([Check(X.lock, holder, ((X.lock, b""),))])
        assert waiting.result(120).timestamp
        assert (cell := engine.read([X])[X]) is not None and cell.value == b"1"


STARTS_WITHIN_MS = 100_000  # a server, on a busy machine


@pytest.mark.slow
@pytest.mark.parametrize("many", [False, True])
def test_a_commit_is_found_when_its_server_has_been_started_again(
    tmp_path: Path, many: bool
) -> None:
    """It was killed as it answered, and is away for as long as that takes."""
    store, log = f"embedded://{tmp_path}/store", tmp_path / "log"
    port = find_port()
    options = ("--transactional", str(port))
    with ExitStack() as ends, wire(port) as between, ThreadPoolExecutor(1) as pool:
        first = ends.enter_context(served(store, log, *options))

        def lose(answer: bytes) -> bool:
            if b"commit" in answer:
                first.process.kill()
            return b"commit" in answer

        engine = ends.enter_context(connect(f"txn://127.0.0.1:{between.port}", table="data"))
        engine.ensure_table("data", ["d"])
        between.lose = lose
        if many:
            request = ([Mutation(X, "1")], [])
            done = pool.submit(engine.commit_many, [request], deadline_ms=[STARTS_WITHIN_MS])
        else:
            done = pool.submit(
                lambda: [engine.commit([Mutation(X, "1")], deadline_ms=STARTS_WITHIN_MS)]
            )
        first.process.wait(120)
        time.sleep(2)
        between.lose = lambda answer: False
        ends.enter_context(served(store, log, *options))
        (result,) = done.result(120)
        assert isinstance(result, Committed)


@pytest.mark.parametrize("set_ms", [-50_000, 50_000])
def test_a_commit_is_found_after_the_servers_clock_was_set(set_ms: int) -> None:
    """The time of a request is known as the server's clock tells it when it is asked."""
    clock = ManualClock()
    hosted = Transactional(LocalStore(MemoryStore(), clock), clock=clock)
    hosted.ensureTable(b"data", [b"d"], None)
    hosted.commit([encode_mutation(Mutation(X, "1"))], [], IDL.Options(request=b"request.1.1"))
    clock.set_wall_ms(clock.wall_ms() + set_ms)
    assert hosted.findOutcome(b"request.1.1", 10, None).outcome == IDL.Outcome.COMMITTED


def test_a_search_for_a_request_is_given_up_in_time() -> None:
    """Whoever asks for one that never came would else read all that has been committed since."""
    clock = ManualClock()

    class Slow(LocalStore):
        rows = 0

        def scan(self, *args: Any, **kwargs: Any) -> Iterator[Row]:
            for row in super().scan(*args, **kwargs):
                clock.advance(1_000)
                self.rows += 1
                yield row

    store = Slow(MemoryStore(), clock)
    hosted = Transactional(store, clock=clock)
    hosted.ensureTable(b"data", [b"d"], None)
    for number in range(5):
        hosted.commit([encode_mutation(Mutation(X, str(number)))], [], None)
    store.rows = 0
    asked = hosted.findOutcome(b"request.1.1", 0, IDL.Options(withinMs=3_000))
    assert asked.outcome == IDL.Outcome.UNKNOWN
    assert store.rows == 3


@pytest.mark.parametrize("once", [None, "token"])
@pytest.mark.parametrize("many", [False, True])
def test_a_server_that_admits_us_no_longer_does_not_make_a_commit_invalid(
    once: str | None, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid request wrote nothing. This one did, before the server came with another token."""
    monkeypatch.setattr("txn.service.client.PATIENCE_MS", 1_000)
    store = LocalStore(MemoryStore(), SystemClock())
    hosted = Transactional(store, token="first")

    def lose(answer: bytes) -> bool:
        if b"commit" in answer:
            hosted._token = b"second"
        return b"commit" in answer

    with (
        Server([(listen("127.0.0.1", 0), hosted.service)]) as server,
        wire(server.ports[0]) as between,
        connect(f"txn://127.0.0.1:{between.port}?token=first", table="data") as engine,
    ):
        engine.ensure_table("data", ["d"])
        between.lose = lose
        if many:
            (result,) = engine.commit_many([Request((Mutation(X, b"1"),), once=once)])
            assert isinstance(result, CommitOutcomeUnknown)
        else:
            with pytest.raises(CommitOutcomeUnknown):
                engine.commit([Mutation(X, "1")], once=once)
        assert store.read([X])[X] is not None


def test_the_lost_answer_of_many_is_found_for_each() -> None:
    """As far as they committed; the others are unknown, each by its own name."""
    with endpoint() as (uri, _), lossy(uri, b"commitMany") as (engine, _lost):
        engine.ensure_table("data", ["d"])
        first, second, third = engine.commit_many(
            [([Mutation(X, "1")], []), ([Mutation(Y, "1")], [Some(Z)]), ([Mutation(Z, "1")], [])]
        )
        assert isinstance(first, Committed)
        assert isinstance(third, Committed)
        assert isinstance(second, CommitOutcomeUnknown)
        assert second.transaction.endswith(b"/1")


class Newer(Transactional):
    """A server of a later version, which answers what no client of this one knows."""

    def commit(self, mutations: Any, assertions: Any, given: Any) -> Any:
        super().commit(mutations, assertions, given)

    def commitMany(self, requests: Any, given: Any) -> Any:
        first, *_ = super().commitMany(requests, given)
        return [first, IDL.Result()] if len(requests) == 2 else [first]


def test_an_answer_of_an_unknown_kind_tells_of_no_failure() -> None:
    """What was sent is looked for as if no answer had come; what is not found is unknown."""
    hosted = Newer(LocalStore(MemoryStore(), SystemClock()))
    with Server([(listen("127.0.0.1", 0), hosted.service)]) as server:
        uri = f"txn://127.0.0.1:{server.ports[0]}"
        with connect(uri, table="data") as engine:
            engine.ensure_table("data", ["d"])
            done = engine.commit([Mutation(X, "1")])
            assert engine.outcome(done.transaction) is Outcome.COMMITTED
            first, second = engine.commit_many([([Mutation(X, "2")], []), ([Mutation(Y, "2")], [])])
            assert isinstance(first, Committed)
            assert isinstance(second, CommitOutcomeUnknown)
            assert engine.outcome(second.transaction) is Outcome.COMMITTED
            short = engine.commit_many([([Mutation(key, "3")], []) for key in (X, Y, Z)])
            assert [type(result) for result in short] == [Committed] * 3


class Older(Transactional):
    """A server of version 0.1.0."""

    def database(self, given: Any) -> Any:
        return IDL.Database(b"txn", "six-phase")


def test_recovery_and_a_server_of_another_version_refuse_each_other() -> None:
    """A client of 0.1.0 knows "six-phase" only. It would free the lock of a row that is on its way,
    and an old server does not know checks without a condition."""
    current = Transactional(LocalStore(MemoryStore(), SystemClock()))
    assert current.database(IDL.Options()).protocol == "six-phase/2"
    hosted = Older(LocalStore(MemoryStore(), SystemClock()))
    with (
        Server([(listen("127.0.0.1", 0), hosted.service)]) as server,
        pytest.raises(InvalidRequestError, match="of another version found='six-phase'"),
    ):
        connect(f"txn://127.0.0.1:{server.ports[0]}")


def test_a_commit_whose_table_went_is_told_as_committed_and_not_sent_again() -> None:
    """Through the server, alone and in a batch, by the one who leads it and by those with it."""
    memory = MemoryStore()
    admin = Admin(memory, SystemClock())

    def plan(call: Call) -> Fault:
        if call.method == "write" and admin.table(b"other").enabled:
            admin.disable(b"other")
        return Fault()

    faulty = FaultyStore(LocalStore(memory, SystemClock()))
    far, further = (Key(row, "d", "v", "other") for row in "xy")
    with endpoint(faulty) as (uri, store), connect(uri, table="data") as engine:
        engine.ensure_table("data", ["d"])
        engine.ensure_table("other", ["d"])
        engine.commit([Mutation(far, "0")])
        faulty.plan = plan
        assert not engine.commit([Mutation(X, "1"), Mutation(far, "1")]).complete
        assert len(list(store.scan(b"txn", *ROWS))) == 2
        admin.enable(b"other")
        atomically = engine.commit_many(
            [([Mutation(Y, "1"), Mutation(further, "1")], []), ([Mutation(Z, "1")], [])]
        )
        complete = [isinstance(result, Committed) and result.complete for result in atomically]
        assert complete == [False, True]
        assert all(isinstance(result, Committed) for result in atomically)
        admin.enable(b"other")
        found = engine.read([X, Y, Z, far, further])
        assert {cell and cell.value for cell in found.values()} == {b"1"}


def test_a_store_that_fails_behind_a_server_means_not_committed() -> None:
    """The wire promises that, as on a full disk; a StoreError said neither yes nor no."""
    faulty = FaultyStore(open_store("memory://"))
    with endpoint(faulty) as (uri, _), connect(uri, table="data") as engine:
        engine.ensure_table("data", ["d"])
        engine.commit([Mutation(X, "0")])
        faulty.plan = lambda call: Fault(frozenset(), Reply.MAYBE_APPLIED)
        for call in (
            lambda: engine.commit([Mutation(X, "1"), Mutation(Y, "1")], deadline_ms=200),
            lambda: engine.submit(([Mutation(X, "1")], []), deadline_ms=200).result(60),
        ):
            with pytest.raises(NotApplied, match="the reply was lost"):
                call()
        (result,) = engine.commit_many([([Mutation(X, "1")], [])], deadline_ms=[200])
        assert isinstance(result, NotApplied)


def test_a_lost_read_is_asked_again() -> None:
    """Reading twice harms nobody."""
    with endpoint() as (uri, _), lossy(uri, b"read") as (engine, lost):
        engine.ensure_table("data", ["d"])
        assert engine.read([X]) == {X: None}
        assert lost() == 1


def test_a_server_that_is_not_there_means_not_committed() -> None:
    """Nothing was sent: the caller may simply try again."""
    with socket.socket() as silent:  # it has the port, so that nobody else gets it
        silent.bind(("127.0.0.1", 0))
        uri = f"txn://127.0.0.1:{silent.getsockname()[1]}"
        with unasked(uri) as engine, pytest.raises(StoreError, match="cannot conn"):
            engine.commit([Mutation(X, "1")])
        with pytest.raises(NotApplied, match="cannot connect"):
            connect(uri)


def test_a_name_is_found_among_the_labels() -> None:
    """So that `txn show` tells which request a transaction was."""
    with endpoint() as (uri, store), connect(uri, table="data") as engine:
        engine.ensure_table("data", ["d"])
        engine.commit([Mutation(X, "1")], labels={"mine": "kept"})
        (row,) = store.scan(b"txn", *ROWS)
        buffer = decode_row(row).buffer
        assert buffer is not None
        labels = dict(buffer.request.labels)
        name = labels.pop(REQUEST_LABEL)
        assert labels == {"mine": "kept"}
        assert engine.outcome(name) is Outcome.COMMITTED


def test_a_name_tells_of_no_request_but_its_own() -> None:
    """Other languages' clients choose the names, such as the bytes of a UUID."""
    names = [b"", b"\xff", b"\xfe"]
    with endpoint() as (uri, _), plain(uri) as c:
        c.ensureTable(b"data", [b"d"], None)
        c.commit([encode_mutation(Mutation(X, "1"))], None, None)
        for name in names:
            assert c.findOutcome(name, 0, None).committed is None
            c.commit([encode_mutation(Mutation(X, "1"))], None, IDL.Options(request=name))
        found = {c.findOutcome(name, 0, None).committed.transaction for name in names}
        assert len(found) == len(names)


# ---------------------------------------------------------------------------------- token


def test_no_request_without_the_token_does_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is all that stands between a network and the data."""
    monkeypatch.setattr(transactional, "PAUSE_MS", 1)
    with endpoint(token="s3cret") as (uri, store):
        for wrong in (uri, f"{uri}?token=S3cret", f"{uri}?token=", f"{uri}?token=s%C3%A9"):
            with pytest.raises(InvalidRequestError, match="token is missing or wrong"):
                connect(wrong)
            with unasked(wrong) as engine:
                for act in (
                    lambda e: e.ensure_table("data", ["d"]),
                    lambda e: e.commit([Mutation(X, "1")]),
                    lambda e: e.commit_many([([Mutation(X, "1")], [])]),
                    lambda e: e.read([X]),
                    lambda e: e.outcome("transaction.1"),
                    lambda e: e.outcome("request.1.1"),
                ):
                    with pytest.raises(InvalidRequestError, match="token is missing or wrong"):
                        act(engine)
        assert store.describe(b"data") is None
        with connect(f"{uri}?token=s3cret", table="data") as engine:
            engine.ensure_table("data", ["d"])
            engine.commit([Mutation(X, "1")])


def test_wrong_tokens_are_slowed_and_logged_with_their_address(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guesses are seen, and fill no log. Nothing is told about the arguments before."""
    monkeypatch.setattr(transactional, "PAUSE_MS", 50)
    with endpoint(token="s3cret") as (uri, _):
        port = urlsplit(uri).port
        assert port is not None
        with client(port, service=IDL.Transactional) as remote:
            began = time.monotonic()
            for _ in range(5):
                with pytest.raises(IDL.Unauthorized):
                    remote.storeVersions([IDL.Key(b"a")], 1, IDL.Options(token="guess"))
            assert time.monotonic() - began >= 0.25
            with pytest.raises(TApplicationException, match="Required field"):
                remote.storeVersions([IDL.Key(b"a")], 1, IDL.Options(token="s3cret"))
    counts = [
        int(count)
        for count in re.findall(r"a wrong token peer='127.0.0.1' count=(\d+)", caplog.text)
    ]
    assert counts == [1, 2, 4]


def test_a_token_may_come_from_a_file_and_is_in_no_error(tmp_path: Path) -> None:
    """URIs are logged, and shown in process lists."""
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    file.chmod(0o600)
    with (
        endpoint(token="s3cret") as (uri, _),
        connect(f"{uri}?token_file={file}", table="data") as engine,
    ):
        engine.ensure_table("data", ["d"])
    with pytest.raises(InvalidRequestError) as caught:
        connect("txn://host?token=s3cret&nonsense=1")
    assert "s3cret" not in str(caught.value)
    for bad in (f"token_file={tmp_path}/absent", f"token_file={os.devnull}"):
        with pytest.raises(InvalidRequestError, match="token"):
            connect(f"txn://host?{bad}")
    with pytest.raises(InvalidRequestError, match="the server's own"):
        connect("txn://host", transactions="other")


# ------------------------------------------------------------------------ many at once


def test_clients_at_once_share_batches_and_lose_nothing() -> None:
    """A counter that all of them count up is the sum of what they were told."""
    with endpoint() as (uri, _), connect(uri, table="data") as engine:
        engine.ensure_table("data", ["d"])
        engine.commit([Mutation(X, "0")])

        def count(client_number: int) -> int:
            own = Key(f"own{client_number}", "d", "v", "data")
            done = 0
            for turn in range(20):
                seen = engine.read([X])[X]
                assert seen is not None
                try:
                    engine.commit(
                        [Mutation(X, str(int(seen.value) + 1)), Mutation(own, str(turn))],
                        [Version(X, seen.timestamp)],
                    )
                    done += 1
                except AbortedError:
                    pass
            return done

        with ThreadPoolExecutor(8) as pool:
            told = sum(pool.map(count, range(8)))
        seen = engine.read([X])[X]
        assert seen is not None
        assert int(seen.value) == told > 0


def test_futures_go_to_the_server_in_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is told its own result, an invalid one among them too."""
    sizes: list[int] = []
    inner = Transactional.commitMany

    def counted(self: Transactional, requests: Sequence[Any], given: Any) -> Any:
        sizes.append(len(requests))
        return inner(self, requests, given)

    monkeypatch.setattr(Transactional, "commitMany", counted)
    with endpoint() as (uri, _), connect(uri, table="data") as engine:
        engine.ensure_table("data", ["d"])
        keys = [Key(f"r{i}", "d", "v", "data") for i in range(100)]
        done = [engine.submit(([Mutation(k, "1")], [])) for k in keys]
        assert all(isinstance(each.result(120), Committed) for each in done)
        assert len(sizes) < 100
        bad = engine.submit(([Mutation(Key("x", "q", "v", "data"), "1")], []))
        good = engine.submit(([Mutation(X, "1")], []), deadline_ms=60_000)
        late = engine.submit(([Mutation(Y, "1")], []), deadline_ms=0)
        with pytest.raises(InvalidRequestError, match="no such family"):
            bad.result(120)
        assert good.result(120).complete
        with pytest.raises(DeadlineError):
            late.result(120)
        engine.flush()


def test_futures_of_one_key_go_to_the_server_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever ack each of them has asked for."""
    came, go = threading.Event(), threading.Event()
    inner = Transactional.commitMany

    def stopped(self: Transactional, requests: Sequence[Any], given: Any) -> Any:
        came.set()
        assert go.wait(60)
        return inner(self, requests, given)

    monkeypatch.setattr(Transactional, "commitMany", stopped)
    with endpoint() as (uri, _), connect(uri, table="data") as engine:
        engine.ensure_table("data", ["d"])
        first = engine.submit(([Mutation(Y, "1")], []))
        assert came.wait(60)
        acks: list[Ack] = ["complete", "decided", "complete"]
        futures = [
            engine.submit(([Mutation(X, str(i))], []), ack=ack) for i, ack in enumerate(acks)
        ]
        go.set()
        done = [each.result(120) for each in (first, *futures)]
        assert [each.timestamp for each in done[1:]] == sorted(each.timestamp for each in done[1:])
        seen = engine.read([X])[X]
        assert seen is not None and seen.value == b"2"


def test_futures_of_a_server_that_is_gone_are_told_so() -> None:
    """None of them waits for ever."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with unasked(f"txn://127.0.0.1:{port}") as engine:
        lost = [engine.submit(([Mutation(X, "1")], []), deadline_ms=200) for _ in range(3)]
        assert all(
            isinstance(each.exception(120), StoreError | CommitOutcomeUnknown) for each in lost
        )


def locked_by_somebody(store: Store) -> bytes:
    """Let a transaction that lives for an hour hold X; return its row key."""
    holder = b"transaction.%013d.%032x" % (SystemClock().wall_ms(), 1)
    buffer = encode_buffer(Request((Mutation(X, b"0"),)), 3_600_000)
    alive = [
        Check(Key(holder, "t", "status", "txn"), b"", ((Key(holder, "t", c, "txn"), v),))
        for c, v in (("buffer", buffer), ("status", b"0-WRITTEN"))
    ]
    store.check_and_put([*alive, Check(X.lock, b"", ((X.lock, holder),))])
    return holder


def test_who_waits_for_a_lock_holds_nobody_else(tmp_path: Path) -> None:
    """Batches are of strangers: one must not pay for another's conflicts."""
    with endpoint() as (uri, store), connect(uri, table="data") as engine:
        engine.ensure_table("data", ["d"])
        holder = locked_by_somebody(store)
        with ThreadPoolExecutor(1) as pool:
            stuck = pool.submit(engine.commit, [Mutation(X, "1")])
            for turn in range(3):
                engine.commit([Mutation(Y, str(turn))])
            assert not stuck.done()
            store.check_and_put([Check(X.lock, holder, ((X.lock, b""),))])
            assert isinstance(stuck.result(120), Committed)


# ------------------------------------------------------------------- tables of HBase's clients


def test_who_may_delete_from_a_table_that_happybase_made(tmp_path: Path) -> None:
    """The server keeps its delete markers; Thrift 2 shows HBase's default, not to keep them."""
    ports = [word for name in NAMES for word in (f"--{name}", "0")]
    with served("memory://", tmp_path / "log", *ports) as server:
        with closing(happybase.Connection("127.0.0.1", server.ports["thrift1"])) as plain:
            plain.create_table("data", {"d": {}})
        for name in ("transactional", "thrift2", "thrift1"):
            with connect(server.uris[name]) as engine:
                engine.commit([Mutation(X, "1")])
                if name == "thrift2":
                    with pytest.raises(InvalidRequestError, match="delete markers"):
                        engine.commit([Delete(X)])
                else:
                    engine.commit([Delete(X)])
                    assert engine.read([X]) == {X: None}


# ----------------------------------------------------------------------------- deadlines


@pytest.mark.parametrize("way", ["commit", "commit_many", "block", "run"])
def test_a_deadline_goes_with_the_commit(way: str) -> None:
    """The server waits for a lock until then, and not for the 30 s of its own policy."""
    with endpoint() as (uri, store), connect(uri, table="data") as engine:
        engine.ensure_table("data", ["d"])
        locked_by_somebody(store)
        began_ms = SystemClock().monotonic_ms()
        with pytest.raises(DeadlineError):
            if way == "commit":
                engine.commit([Mutation(X, "1")], deadline_ms=300)
            elif way == "commit_many":
                given = [([Mutation(X, "1")], []), ([Mutation(Y, "1")], [])]
                late, done = engine.commit_many(given, deadline_ms=[300, None])
                assert isinstance(done, Committed)
                raise late if isinstance(late, TxnError) else AssertionError(late)
            elif way == "block":
                with engine.transaction(deadline_ms=300) as t:
                    t.put(X, "1")
            else:
                engine.run(lambda t: t.put(X, "1"), deadline_ms=300)
        assert 300 <= SystemClock().monotonic_ms() - began_ms < 15_000


@pytest.mark.parametrize("once", [None, "token"])
def test_nobody_waits_long_beyond_a_deadline_for_an_answer(once: str | None) -> None:
    """The server may be stopped, or behind a network that swallows everything."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        with unasked(f"txn://127.0.0.1:{port}") as engine:
            began_ms = SystemClock().monotonic_ms()
            with pytest.raises(CommitOutcomeUnknown):
                engine.commit([Mutation(X, "1")], once=once, deadline_ms=200)
            (result,) = engine.commit_many([([Mutation(X, "1")], [])], deadline_ms=[200])
            assert isinstance(result, CommitOutcomeUnknown)
            assert SystemClock().monotonic_ms() - began_ms < 30_000


def test_a_time_that_is_over_is_taken_at_its_word() -> None:
    """Nothing is sent, so that a server which is not there is not even noticed."""
    with unasked("txn://127.0.0.1:1") as engine:
        with pytest.raises(DeadlineError, match="before anything was sent"):
            engine.commit([Mutation(X, "1")], deadline_ms=0)
        with pytest.raises(InvalidRequestError, match="a time for each request"):
            engine.commit_many([([Mutation(X, "1")], [])], deadline_ms=[])
    with endpoint() as (uri, _), connect(uri, table="data") as engine:
        engine.ensure_table("data", ["d"])
        late, done = engine.commit_many(
            [([Mutation(X, "1")], []), ([Mutation(Y, "1")], [])], deadline_ms=[0, 60_000]
        )
        assert isinstance(late, DeadlineError) and isinstance(done, Committed)
        assert engine.read([X]) == {X: None}


# ----------------------------------------------------------------------------- the command


def test_the_command_serves_with_tls_token_and_workers(tmp_path: Path) -> None:
    """All of it together, as an operator would."""
    token = tmp_path / "token"
    token.write_text("s3cret")
    token.chmod(0o600)
    arguments = ["--transactional", "0", "--workers", "2", "--token-file", str(token)]
    arguments += ["--tls-cert", str(TLS / "certificate.pem"), "--tls-key", str(TLS / "key.pem")]
    with served(f"embedded://{tmp_path}/store", tmp_path / "log", *arguments) as server:
        uri = f"txn://localhost:{server.ports['transactional']}?ca={TLS / 'certificate.pem'}"
        uri += "&connect_ms=120000"  # eight greet at once, which is work
        with connect(f"{uri}&token_file={token}", table="data") as engine:
            engine.ensure_table("data", ["d"])
            with ThreadPoolExecutor(8) as pool:
                keys = [Key(f"r{i}", "d", "v") for i in range(64)]
                list(pool.map(lambda key: engine.commit([Mutation(key, "1")]), keys))
            assert all(engine.read(keys).values())
        with pytest.raises(InvalidRequestError, match="token"):
            connect(uri)
        assert server.stop() == 0
    store = open_store(f"embedded://{tmp_path}/store")
    assert len(list(store.scan(b"data"))) == 64
    store.close()


def test_a_client_of_another_service_is_answered() -> None:
    """A mistaken port is the commonest mistake."""
    from txn.stores.hbase.thrift2 import IDL as HBASE2  # noqa: PLC0415

    with (
        endpoint() as (uri, _),
        client(int(uri.rpartition(":")[2]), service=HBASE2.THBaseService) as other,
        pytest.raises(TApplicationException, match="Invalid method name"),
    ):
        other.getMultiple(b"t", [])
