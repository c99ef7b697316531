"""Transactions through a server: done as an engine with its own store would do them.

What is new is the wire between: the token, answers that are lost, and many clients at once.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thriftpy2.thrift import TApplicationException

from tests.integration.serving import (
    Here,
    hosting,
    plain,
    served,
    served_here,
    unasked,
    wire,
)
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
from txn.host.owner import name_owner
from txn.model import Check, Stamp
from txn.protocol.codec import decode_marker, encode_buffer
from txn.protocol.row import decode_row, marker_key
from txn.protocol.statuses import KeptRows, ProtocolName
from txn.request import Ack
from txn.server.options import listen
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
PUT = [Mutation(X, "1")]
PUT_Y = [Mutation(Y, "1")]


@pytest.fixture
def here() -> Iterator[Here]:
    with served_here() as found:
        yield found


@pytest.fixture(params=get_args(ProtocolName))
def remote(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A client does not see which protocol the server's database has."""
    with served_here(protocol=request.param) as found:
        yield found.engine


def value_of(engine: Engine, key: Key) -> bytes | None:
    cell = engine.read([key])[key]
    return cell and cell.value


def test_commits_and_reads_as_an_engine_does(remote: Engine) -> None:
    done = remote.commit([*PUT, Mutation(Y, "2")], labels={"why": "test"})
    assert (done.repeated, done.complete) == (False, True)
    short = Key("x", "d", "v")
    assert remote.read([short, Z]) == {short: Cell(b"1", done.timestamp), Z: None}
    assert remote.outcome(done.transaction) is Outcome.COMMITTED
    decided = remote.commit([Delete(X)], [Exact(X, "1"), Not(Some(Z))], ack="decided")
    assert remote.read([X]) == {X: None}
    assert decided.timestamp > done.timestamp
    assert remote.read([]) == {}
    assert remote.commit_many([]) == []
    results = remote.commit_many([(PUT, []), (PUT_Y, [Some(Z)]), Request((Mutation(X, b"2"),))])
    assert [type(each) for each in results] == [Committed, AssertionFailedError, Committed]
    assert value_of(remote, X) == b"2"
    first = remote.commit(PUT, once="job/7", once_content="7")
    again = remote.commit([Mutation(X, "2")], once="job/7", once_content="7")
    assert again == Committed(first.transaction, first.timestamp, repeated=True)


def test_a_false_assertion_comes_back_with_what_was_seen(remote: Engine) -> None:
    done = remote.commit(PUT)
    wrong = Exact(X, "2") | (Some(Y) & ~GreaterThan(X, "0"))
    with pytest.raises(AssertionFailedError) as caught:
        remote.commit([Mutation(X, "3")], [Some(X), wrong])
    assert caught.value.assertion == wrong
    assert caught.value.seen == {X: Cell(b"1", done.timestamp), Y: None}
    assert caught.value.transaction is not None
    # A fenced database has not even a row of it: it is read before anything is written.
    assert remote.outcome(caught.value.transaction) in (Outcome.ABORTED, Outcome.UNKNOWN)


INVALID: dict[str, list[Callable[[Engine], object]]] = {
    "no such family": [lambda e: e.commit([Mutation(Key("x", "q", "v"), "1")])],
    "no such table": [
        lambda e: e.commit([Mutation(Key("x", "d", "v", "absent"), "1")]),
        lambda e: e.commit([], [Some(Key("x", "d", "v", "absent"))]),
        lambda e: e.read([Key("x", "d", "v", "absent")]),
    ],
    "reserved": [lambda e: e.commit([Mutation(Key("x", "d", "v_lock"), "1")])],
    "transaction table": [lambda e: e.commit([Delete(Key("once.t", "t", "done", "txn"))])],
    "request=1": [lambda e: e.commit_many([(PUT, []), ([], [])])],
    "not a name": [lambda e: e.outcome("request.nonsense")],
}


def test_what_can_never_succeed_is_an_invalid_request(remote: Engine) -> None:
    for message, acts in INVALID.items():
        for act in acts:
            with pytest.raises(InvalidRequestError, match=message):
                act(remote)


def test_the_names_of_clients_and_requests_are_labels(here: Here) -> None:
    """The owner of its transactions, which is what dies, is the server; `txn show` tells which
    request a transaction was."""
    with connect(here.uri, table="data", name="billing") as engine:
        engine.commit(PUT, labels={"a": "b"})
        engine.commit_many([(PUT, [])])
        engine.submit((PUT, [])).result()
        rows = [decode_row(row).buffer for row in here.store.scan(b"txn", *ROWS)]
        more = []
        for row in rows:
            assert row is not None
            assert row.owner == name_owner()
            labels = dict(row.request.labels)
            assert engine.outcome(labels.pop(REQUEST_LABEL)) is Outcome.COMMITTED
            assert labels.pop("client") == name_owner("billing")
            more.append(labels)
        assert sorted(more, key=len) == [{}, {}, {"a": "b"}]  # rows of one ms are in any order


def test_the_options_of_a_request_reach_the_server(here: Here) -> None:
    """By each way that a request has; and the server's policy holds for those that do not say."""
    engine, asserted = here.engine, [Not(Some(Z))]
    engine.commit(PUT, once="a", once_retention_ms=5)
    engine.commit_many([Request(tuple(PUT), once=b"b", once_retention_ms=6)])
    markers = [marker_key(b"txn", token) for token in (b"a", b"b")]
    found = [cell.value for cell in here.store.read(markers).values() if cell]
    assert [decode_marker(value).retention_ms for value in found] == [5, 6]
    done = [
        engine.commit(PUT, asserted, validate=True),
        *engine.commit_many([(PUT, asserted)], validate=True),
        *engine.commit_many([Request(tuple(PUT), tuple(asserted), validate=True)]),
        engine.submit((PUT, asserted), validate=True).result(),
        engine.commit(PUT, asserted),
        engine.commit(PUT, asserted, validate=False),
    ]
    rows = {row.row: decode_row(row) for row in here.store.scan(b"txn", *ROWS)}
    validates = [rows[each.transaction].validates for each in done if isinstance(each, Committed)]
    assert validates == [True] * 4 + [False] * 2


NONSENSE = [
    [IDL.Assertion(IDL.AssertionKind.NOT)],
    [IDL.Assertion(IDL.AssertionKind.AND, count=2)],
    [IDL.Assertion(IDL.AssertionKind.SOME)],
    [IDL.Assertion(IDL.AssertionKind.EXACT, encode_key(X))],
    [IDL.Assertion(99, encode_key(X))],
    [IDL.Assertion(IDL.AssertionKind.OR, count=-1)],
    [IDL.Assertion(IDL.AssertionKind.SOME, encode_key(X))] + [IDL.Assertion(5)] * 200,
    [IDL.Assertion(IDL.AssertionKind.SOME, encode_key(X))] + [IDL.Assertion(5)] * 100_000,
]


def test_any_thrift_client_can_commit_and_send_nonsense(here: Here) -> None:
    """Two arguments are enough, as with the coprocessor's endpoint. Names of requests are the
    client's choice, such as the bytes of a UUID, and tell of no request but their own."""
    change = [encode_mutation(Mutation(X, "1"))]
    with plain(here.port) as c:
        done = c.commit(change, None, None)
        assert done.transaction.startswith(b"transaction.")
        done = c.commit(change, encode_assertions([Exact(X, "1")]))
        assert c.outcome(done.transaction) == IDL.Outcome.COMMITTED
        with pytest.raises(IDL.AssertionFailed) as caught:
            c.commit(change, encode_assertions([Exact(X, "2")]))
        assert caught.value.seen[0].cell.value == b"1"
        (found,) = c.read([encode_key(X)])
        assert found.cell == IDL.Cell(b"1", done.timestamp)
        for nodes in NONSENSE:
            with pytest.raises(IDL.Invalid):
                c.commit([], nodes)
        for name in (b"", b"\xff", b"\xfe"):
            assert c.findOutcome(name, 0, None).committed is None
            done = c.commit(change, None, IDL.Options(request=name))
            assert c.findOutcome(name, 0, None).committed.transaction == done.transaction


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
    back = decode_error(encode_error(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.__dict__ == error.__dict__
    if not isinstance(error, InvalidRequestError):
        assert str(decode_result(encode_result(error))) == str(error)


def test_every_end_of_a_commit_survives_the_wire() -> None:
    for done in (Committed(b"t", 5), Committed(b"t", 5, complete=False, repeated=True)):
        assert decode_result(encode_result(done)) == done


@contextmanager
def lossy(here: Here, method: bytes, answers: int = 1) -> Iterator[Engine]:
    """An engine that never hears the first answer, or some, to a method; one has been lost."""
    with wire(here.port) as between:
        between.lose = lambda answer: method in answer and between.lost < answers
        with connect(f"txn://127.0.0.1:{between.port}", table="data") as engine:
            yield engine
        assert between.lost >= 1


def test_a_commit_whose_answer_is_lost_is_found_and_not_sent_again(here: Here) -> None:
    """Twice would be wrong, and "unknown" is not needed: the rows tell. With a token it is sent
    again, and the second answer tells which one has committed. Reading twice harms nobody."""
    with lossy(here, b"commit") as engine:
        done = engine.commit(PUT, [Not(Some(X))])
        assert not done.repeated
        assert engine.outcome(done.transaction) is Outcome.COMMITTED
        assert len(list(here.store.scan(b"txn", *ROWS))) == 1
    with lossy(here, b"read") as engine:
        assert engine.read([X]) == {X: Cell(b"1", done.timestamp)}
    with lossy(here, b"commit") as engine:
        done = engine.commit(PUT_Y, [Not(Some(Y))], once="token")
        assert done.repeated
        assert engine.read([Y]) == {Y: Cell(b"1", done.timestamp)}
    with lossy(here, b"commit") as engine, pytest.raises(TokenReusedError):
        engine.commit([Mutation(Z, "2")], once="token")  # so it was never committed


def test_a_commit_with_a_token_whose_answers_are_all_lost_is_found(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sending it again took all the time that there was, and its row was never looked for."""
    monkeypatch.setattr("txn.service.client.PATIENCE_MS", 500)
    with lossy(here, b"commit", answers=1_000_000) as engine:
        done = engine.commit(PUT, once="token")
        assert engine.read([X]) == {X: Cell(b"1", done.timestamp)}


@pytest.mark.parametrize("once", [None, "token"])
def test_an_abort_whose_answer_is_lost_is_not_known(here: Here, once: str | None) -> None:
    """An aborted attempt may be followed by one that commits: only the server knew better. A
    repeated refusal does not tell either: the first may still be under way."""
    with lossy(here, b"commit") as engine:
        with pytest.raises(CommitOutcomeUnknown) as caught:
            engine.commit(PUT, [Some(X)], once=once)
        if once is None:
            assert caught.value.transaction.startswith(b"request.")
            assert engine.outcome(caught.value.transaction) is Outcome.UNKNOWN
        assert engine.read([X]) == {X: None}


def test_the_lost_answer_of_many_is_found_for_each(here: Here) -> None:
    """As far as they committed; the others are unknown, each by its own name."""
    with lossy(here, b"commitMany") as engine:
        first, second, third = engine.commit_many(
            [(PUT, []), (PUT_Y, [Some(Z)]), ([Mutation(Z, "1")], [])]
        )
        assert isinstance(first, Committed)
        assert isinstance(third, Committed)
        assert isinstance(second, CommitOutcomeUnknown)
        assert second.transaction.endswith(b"/1")


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


def test_a_commit_that_is_under_way_when_its_connection_breaks_is_waited_for() -> None:
    """Its row says so, and it has time. Who waits for a lock holds nobody else meanwhile: batches
    are of strangers."""
    with (
        served_here(protocol="six-phase") as here,
        wire(here.port) as between,
        connect(f"txn://127.0.0.1:{between.port}", table="data") as engine,
        ThreadPoolExecutor(1) as pool,
    ):
        holder = locked_by_somebody(here.store)
        waiting = pool.submit(engine.commit, PUT, deadline_ms=60_000)
        while not any(row.row != holder for row in here.store.scan(b"txn", *ROWS)):
            time.sleep(0.01)
        for each in list(between._open):
            each.shutdown(socket.SHUT_RDWR)
        time.sleep(3)  # longer than a request is looked for of which nothing is seen
        for turn in range(3):
            here.engine.commit([Mutation(Y, str(turn))])
        assert not waiting.done()
        here.store.check_and_put([Check(X.lock, holder, ((X.lock, b""),))])
        assert waiting.result(120).timestamp
        assert value_of(here.engine, X) == b"1"


@pytest.mark.parametrize("set_ms", [-50_000, 50_000])
def test_a_commit_is_found_after_the_servers_clock_was_set(set_ms: int) -> None:
    """The time of a request is known as the server's clock tells it when it is asked."""
    clock = ManualClock()
    hosted = Transactional(LocalStore(MemoryStore(), clock), clock=clock)
    hosted.ensureTable(b"data", [b"d"], None)
    hosted.commit([encode_mutation(Mutation(X, "1"))], [], IDL.Options(request=b"request.1.1"))
    clock.set_wall_ms(clock.wall_ms() + set_ms)
    assert hosted.findOutcome(b"request.1.1", 10, None).outcome == IDL.Outcome.COMMITTED


@pytest.mark.parametrize("once", [None, b"token"])
def test_a_server_that_admits_us_no_longer_does_not_make_a_commit_invalid(
    once: bytes | None, monkeypatch: pytest.MonkeyPatch
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
        hosting(hosted) as port,
        wire(port) as between,
        connect(f"txn://127.0.0.1:{between.port}?token=first", table="data") as engine,
    ):
        engine.ensure_table("data", ["d"])
        between.lose = lose
        (result,) = engine.commit_many([Request((Mutation(X, b"1"),), once=once)])
        assert isinstance(result, CommitOutcomeUnknown)
        assert store.read([X])[X] is not None


class Newer(Transactional):
    """A server of a later version, which answers what no client of this one knows."""

    def commit(self, mutations: Any, assertions: Any, given: Any) -> Any:
        super().commit(mutations, assertions, given)

    def commitMany(self, requests: Any, given: Any) -> Any:
        first, _ = super().commitMany(requests, given)
        return [first, IDL.Result()]


@pytest.mark.parametrize("rows", get_args(KeptRows))
def test_a_client_knows_which_rows_its_server_keeps(rows: KeptRows) -> None:
    store = LocalStore(MemoryStore(), SystemClock())
    Engine(store, protocol="fenced", rows=rows)
    with hosting(Transactional(store)) as port, connect(f"txn://127.0.0.1:{port}") as engine:
        assert engine.context.rules.rows == rows
    with pytest.raises(InvalidRequestError, match="rows are of the server"):
        connect(f"txn://127.0.0.1:{port}", rows=rows)


class Older(Transactional):
    """A server of version 0.1.0."""

    def database(self, given: Any) -> Any:
        return IDL.Database(b"txn", "six-phase")


def test_an_answer_of_an_unknown_kind_tells_of_no_failure() -> None:
    """What was sent is looked for as if no answer had come; what is not found is unknown."""
    with (
        hosting(Newer(LocalStore(MemoryStore(), SystemClock()))) as port,
        connect(f"txn://127.0.0.1:{port}", table="data") as engine,
    ):
        engine.ensure_table("data", ["d"])
        done = engine.commit(PUT)
        assert engine.outcome(done.transaction) is Outcome.COMMITTED
        first, second = engine.commit_many([(PUT, []), (PUT_Y, [])])
        assert isinstance(first, Committed)
        assert isinstance(second, CommitOutcomeUnknown)
        assert engine.outcome(second.transaction) is Outcome.COMMITTED


def test_recovery_and_a_server_of_another_version_refuse_each_other() -> None:
    """A client of 0.1.0 knows "six-phase" only. It would free the lock of a row that is on its way,
    and an old server does not know checks without a condition."""
    current = Transactional(LocalStore(MemoryStore(), SystemClock()))
    assert current.database(IDL.Options()).protocol == "six-phase/2"
    with (
        hosting(Older(LocalStore(MemoryStore(), SystemClock()))) as port,
        pytest.raises(InvalidRequestError, match="of another version found='six-phase'"),
    ):
        connect(f"txn://127.0.0.1:{port}")


def test_a_store_that_fails_behind_a_server_means_not_committed() -> None:
    """The wire promises that, as on a full disk; a StoreError said neither yes nor no."""
    faulty = FaultyStore(open_store("memory://"))
    with served_here(faulty) as here:
        engine = here.engine
        engine.commit([Mutation(X, "0")])
        faulty.plan = lambda call: Fault(frozenset(), Reply.MAYBE_APPLIED)
        with pytest.raises(NotApplied, match="the reply was lost"):
            engine.commit([*PUT, *PUT_Y], deadline_ms=200)
        (result,) = engine.commit_many([(PUT, [])], deadline_ms=[200])
        assert isinstance(result, NotApplied)


def test_a_server_that_is_not_there_means_not_committed() -> None:
    """Nothing was sent: the caller may simply try again; and no future waits for ever."""
    with socket.socket() as silent:  # it has the port, so that nobody else gets it
        silent.bind(("127.0.0.1", 0))
        uri = f"txn://127.0.0.1:{silent.getsockname()[1]}"
        with unasked(uri) as engine:
            with pytest.raises(StoreError, match="cannot conn"):
                engine.commit(PUT)
            lost = [engine.submit((PUT, []), deadline_ms=200) for _ in range(3)]
            for each in lost:
                assert isinstance(each.exception(120), StoreError | CommitOutcomeUnknown)
        with pytest.raises(NotApplied, match="cannot connect"):
            connect(uri)


ACTS: list[Callable[[Engine], object]] = [
    lambda e: e.ensure_table("data", ["d"]),
    lambda e: e.commit(PUT),
    lambda e: e.commit_many([(PUT, [])]),
    lambda e: e.read([X]),
    lambda e: e.outcome("transaction.1"),
    lambda e: e.outcome("request.1.1"),
]


def test_no_request_without_the_token_does_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is all that stands between a network and the data. URIs are logged, and shown in process
    lists: it may come from a file, and is in no error."""
    monkeypatch.setattr(transactional, "PAUSE_MS", 1)
    store, file = LocalStore(MemoryStore(), SystemClock()), tmp_path / "token"
    file.write_text("s3cret\n")
    file.chmod(0o600)
    with hosting(Transactional(store, token="s3cret")) as port:
        uri = f"txn://127.0.0.1:{port}"
        for wrong in (uri, f"{uri}?token=S3cret", f"{uri}?token=", f"{uri}?token=s%C3%A9"):
            with pytest.raises(InvalidRequestError, match="token is missing or wrong"):
                connect(wrong)
            with unasked(wrong) as engine:
                for act in ACTS:
                    with pytest.raises(InvalidRequestError, match="token is missing or wrong"):
                        act(engine)
        assert store.describe(b"data") is None
        for right in ("token=s3cret", f"token_file={file}"):
            with connect(f"{uri}?{right}", table="data") as engine:
                engine.ensure_table("data", ["d"])
                engine.commit(PUT)
    with pytest.raises(InvalidRequestError) as caught:
        connect("txn://host?token=s3cret&nonsense=1")
    assert "s3cret" not in str(caught.value)


def test_wrong_tokens_are_slowed_and_logged_with_their_address(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guesses are seen, and fill no log. Nothing is told about the arguments before."""
    monkeypatch.setattr(transactional, "PAUSE_MS", 50)
    hosted = Transactional(LocalStore(MemoryStore(), SystemClock()), token="s3cret")
    with hosting(hosted) as port, plain(port) as remote:
        began = time.monotonic()
        for _ in range(5):
            with pytest.raises(IDL.Unauthorized):
                remote.storeVersions([IDL.Key(b"a")], 1, IDL.Options(token="guess"))
        assert time.monotonic() - began >= 0.25
        with pytest.raises(TApplicationException, match="Required field"):
            remote.storeVersions([IDL.Key(b"a")], 1, IDL.Options(token="s3cret"))
    found = re.findall(r"a wrong token peer='127.0.0.1' count=(\d+)", caplog.text)
    assert found == ["1", "2", "4"]


def test_futures_go_to_the_server_in_few_requests_and_in_the_order_of_their_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever ack each of them has asked for. Each is told its own result, an invalid one too."""
    sizes: list[int] = []
    came, go = threading.Event(), threading.Event()
    inner = Transactional.commitMany

    def stopped(self: Transactional, requests: Sequence[Any], given: Any) -> Any:
        sizes.append(len(requests))
        came.set()
        assert go.wait(60)
        return inner(self, requests, given)

    monkeypatch.setattr(Transactional, "commitMany", stopped)
    acks: list[Ack] = ["complete", "decided", "complete"]
    with served_here() as here:
        engine = here.engine
        first = engine.submit((PUT_Y, []))
        assert came.wait(60)
        ordered = [engine.submit(([Mutation(X, ack)], []), ack=ack) for ack in acks]
        others = [engine.submit(([Mutation(Key(f"r{i}", "d", "v"), "1")], [])) for i in range(100)]
        bad = engine.submit(([Mutation(Key("x", "q", "v"), "1")], []))
        go.set()
        times = [each.result(120).timestamp for each in ordered]
        assert times == sorted(times)
        assert all(each.result(120).complete for each in (first, *others))
        assert 2 <= len(sizes) < 100
        with pytest.raises(InvalidRequestError, match="no such family"):
            bad.result(120)


def commit_many(engine: Engine) -> None:
    late, done = engine.commit_many([(PUT, []), (PUT_Y, [])], deadline_ms=[300, None])
    assert isinstance(done, Committed)
    raise late if isinstance(late, TxnError) else AssertionError(late)


def test_a_deadline_goes_with_the_commit(here: Here) -> None:
    """The server waits for a lock until then, and not for the 30 s of its own policy; nothing is
    sent of what has no time."""
    locked_by_somebody(here.store)
    for way in (
        lambda e: e.commit(PUT, deadline_ms=300),
        lambda e: e.run(lambda t: t.put(X, "1"), deadline_ms=300),
        commit_many,
    ):
        began_ms = SystemClock().monotonic_ms()
        with pytest.raises(DeadlineError):
            way(here.engine)
        assert 300 <= SystemClock().monotonic_ms() - began_ms < 15_000
    late, done = here.engine.commit_many(
        [([Mutation(Z, "1")], []), (PUT_Y, [])], deadline_ms=[0, 60_000]
    )
    assert isinstance(late, DeadlineError) and isinstance(done, Committed)
    assert here.engine.read([Z]) == {Z: None}


def test_the_command_serves_with_tls_token_and_workers(tmp_path: Path) -> None:
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
            keys = [Key(f"r{i}", "d", "v") for i in range(64)]
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda key: engine.commit([Mutation(key, "1")]), keys))
            assert all(engine.read(keys).values())
        with pytest.raises(InvalidRequestError, match="token"):
            connect(uri)
        assert server.stop() == 0
    with closing(open_store(f"embedded://{tmp_path}/store")) as store:
        assert len(list(store.scan(b"data"))) == 64


STARTS_WITHIN_MS = 100_000  # a server, on a busy machine


@pytest.mark.slow
def test_a_commit_is_found_when_its_server_has_been_started_again(tmp_path: Path) -> None:
    """It was killed as it answered, and is away for as long as that takes."""
    store, log = f"embedded://{tmp_path}/store", tmp_path / "log"
    with listen("127.0.0.1", 0) as free:
        port: int = free.getsockname()[1]
    options = ("--transactional", str(port))
    with ExitStack() as ends, wire(port) as between, ThreadPoolExecutor(1) as pool:
        first = ends.enter_context(served(store, log, *options))
        engine = ends.enter_context(connect(f"txn://127.0.0.1:{between.port}", table="data"))
        engine.ensure_table("data", ["d"])

        def lose(answer: bytes) -> bool:
            if b"commit" in answer:
                first.process.kill()
            return b"commit" in answer

        between.lose = lose
        done = pool.submit(engine.commit, PUT, deadline_ms=STARTS_WITHIN_MS)
        first.process.wait(120)
        time.sleep(2)
        between.lose = lambda answer: False
        ends.enter_context(served(store, log, *options))
        assert done.result(120).timestamp


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
    with served_here(faulty) as here:
        engine = here.engine
        engine.ensure_table("other", ["d"])
        engine.commit([Mutation(far, "0")])
        faulty.plan = plan
        assert not engine.commit([*PUT, Mutation(far, "1")]).complete
        assert len(list(here.store.scan(b"txn", *ROWS))) == 2
        admin.enable(b"other")
        results = engine.commit_many(
            [([*PUT_Y, Mutation(further, "1")], []), ([Mutation(Z, "1")], [])]
        )
        assert [isinstance(each, Committed) and each.complete for each in results] == [False, True]
        assert all(isinstance(each, Committed) for each in results)
        admin.enable(b"other")
        found = engine.read([X, Y, Z, far, further])
        assert {cell and cell.value for cell in found.values()} == {b"1"}
