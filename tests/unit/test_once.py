"""What a `once` token stands for: its answer, how long it is kept, and how it is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from recovery import Kind, LeftAlone, NothingToDo, Repaired, Result, check, purge_token, repair
from tests.unit.worlds import DOWN, LOST, World, X, Y, Z, always, before, steps_to
from txn import (
    AssertionFailedError,
    CommitOutcomeUnknown,
    Committed,
    CorruptRowError,
    DeadlineError,
    Delete,
    Engine,
    Exact,
    InvalidRequestError,
    Mutation,
    NotApplied,
    OptimisticTransaction,
    Outcome,
    Repeated,
    Request,
    Some,
    TokenReusedError,
    TxnError,
    connect,
)
from txn.model import Cell, Check
from txn.protocol.codec import (
    MAX_ANSWER,
    Marker,
    decode_answer,
    decode_marker,
    encode_answer,
    encode_marker,
    make_digest,
)
from txn.protocol.row import marker_key
from txn.protocol.statuses import PROTOCOLS, ProtocolName, Status
from txn.request import MAX_CONTENT, MAX_RETENTION_MS
from txn.server.options import listen
from txn.server.ports import Server
from txn.service.server import Transactional
from txn.stores import open_store
from txn.testing.faulty import Fault, Reply


@pytest.fixture
def world() -> World:
    return World()


MARKER = marker_key(b"txn", b"job/7")
DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
PUT = [Mutation(X, b"1")]
ROW_KEY = b"transaction.1790000000000.00112233445566778899aabbccddeeff"


def promised(world: World, within_ms: int | None = WEEK_MS) -> Committed:
    return world.engine.commit(PUT, once="job/7", once_retention_ms=within_ms)


def repairs(world: World, **options: int) -> list[Result]:
    context = world.engine.context
    findings = list(check(context, **options))  # type: ignore[arg-type]
    markers = [finding for finding in findings if finding.kind is Kind.EXPIRED_MARKER]
    return [repair(context, finding) for finding in markers]


def cells_left(world: World) -> list[Cell]:
    cells = world.store.read([MARKER, MARKER.lock, MARKER.tag]).values()
    return [cell for cell in cells if cell is not None]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"once": "t", "once_retention_ms": 0}, "at least 1"),
        ({"once": "t", "once_retention_ms": "7d"}, "whole number"),
        ({"once": "t", "once_retention_ms": True}, "whole number"),
        ({"once": "t", "once_retention_ms": MAX_RETENTION_MS + 1}, "too long.*limit="),
        ({"once_retention_ms": 5}, "give once"),
        ({"once_content": "c"}, "needs once"),
        ({"once": "t", "once_content": 5}, "once_content must be bytes or str"),
        ({"once": "t", "once_content": b"c" * (MAX_CONTENT + 1)}, "at most 1 MiB.*limit="),
    ],
)
def test_what_makes_no_sense_is_refused(world: World, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        world.engine.commit(PUT, **given)
    if "once_content" in given:
        with pytest.raises(InvalidRequestError, match=message):
            world.engine.transaction(**given)
    assert world.rows() == []


@pytest.mark.parametrize("promise", [b"", b"0", b"-1", b"x", b"1 2", b"9" * 17, "٣".encode()])
def test_a_promise_that_does_not_decode_is_none(promise: bytes) -> None:
    assert decode_marker(ROW_KEY + b" " + promise) == Marker(ROW_KEY)


@pytest.mark.parametrize("first_ms", [None, 5])
@pytest.mark.parametrize("second_ms", [None, 7])
def test_a_repeat_is_told_the_first_ones_transaction(
    world: World, first_ms: int | None, second_ms: int | None
) -> None:
    first = promised(world, first_ms)
    marker = world.value(MARKER)
    again = world.engine.commit(PUT, once="job/7", once_retention_ms=second_ms)
    assert again == Committed(first.transaction, first.timestamp, repeated=True)
    assert world.value(MARKER) == marker


def test_fsck_forgets_a_token_when_its_promise_has_run_out(world: World) -> None:
    promised(world)
    world.clock.advance(WEEK_MS - 1)
    assert repairs(world) == []
    world.clock.advance(2)
    assert repairs(world) == [Repaired("deleted")]
    assert cells_left(world) == []
    assert repairs(world) == []
    assert world.value(X) == b"1"


def test_a_short_promise_lasts_as_long_as_the_retention(world: World) -> None:
    """A late request of the first transaction must find its marker, or nothing that it can harm."""
    promised(world, 1)
    world.clock.advance(DAY_MS - 10)
    assert repairs(world) == []
    assert repairs(world, retention_ms=DAY_MS - 100) == [Repaired("deleted")]


def test_without_a_promise_a_token_is_kept(world: World) -> None:
    promised(world, None)
    world.clock.advance(1_000 * WEEK_MS)
    assert repairs(world, retention_ms=0) == []
    assert promised(world).repeated


def test_a_marker_that_is_being_asked_for_is_left_alone(world: World) -> None:
    promised(world)
    world.clock.advance(WEEK_MS + 1)
    findings = [f for f in check(world.engine.context) if f.kind is Kind.EXPIRED_MARKER]
    lock = Check(MARKER.lock, b"", ((MARKER.lock, ROW_KEY),))
    assert world.store.check_and_put([lock]) == [True]
    assert isinstance(repair(world.engine.context, findings[0]), NothingToDo)
    assert world.value(MARKER) is not None
    assert repairs(world, retention_ms=0) == []


def test_a_marker_that_was_forgotten_and_came_again_is_another(world: World) -> None:
    promised(world, 1)
    world.clock.advance(DAY_MS + 1)
    findings = [f for f in check(world.engine.context) if f.kind is Kind.EXPIRED_MARKER]
    repairs(world)
    promised(world)
    assert isinstance(repair(world.engine.context, findings[0]), NothingToDo)
    assert promised(world).repeated


def test_where_a_store_cannot_forget_it_says_so(world: World) -> None:
    promised(world, 1)
    world.faults.features = world.faults.features - {"row_mutations"}
    world.clock.advance(DAY_MS + 1)
    before = cells_left(world)
    (result,) = repairs(world)
    assert isinstance(result, LeftAlone) and "Thrift 2" in result.why
    assert cells_left(world) == before


def test_a_person_may_forget_a_token_at_any_time(world: World) -> None:
    promised(world, None)
    assert purge_token(world.engine.context, b"job/7") == Repaired("deleted")
    assert cells_left(world) == []
    with pytest.raises(InvalidRequestError, match="no request with this token"):
        purge_token(world.engine.context, b"job/7")
    assert not promised(world).repeated


@pytest.mark.parametrize("stop", range(8))
def test_a_repeat_at_the_same_time_finds_the_token_or_commits_once(world: World, stop: int) -> None:
    """Who comes before the purge finds the first; of all who come after, one commits."""
    first, other = promised(world, None), world.client(seed=7)
    told: list[Committed] = []
    calls = count()
    before(
        world,
        lambda call: next(calls) == stop,
        lambda: told.append(other.commit(PUT, once="job/7")),
    )
    result = purge_token(world.engine.context, b"job/7")
    again = other.commit(PUT, once="job/7")
    anew = [each.transaction for each in (*told, again) if not each.repeated]
    assert len(anew) == 1 or (not anew and isinstance(result, NothingToDo))
    assert again.transaction in (first.transaction, *anew)


OTHER = [Mutation(X, b"2")]


@pytest.fixture(params=[(place, name) for place in ("memory", "served") for name in PROTOCOLS])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    place, protocol = request.param
    hosted = Transactional(open_store("memory://"), protocol=protocol)
    with Server([(listen("127.0.0.1", 0), hosted.service)]) as server:
        uri = "memory://" if place == "memory" else f"txn://127.0.0.1:{server.ports[0]}"
        own = protocol if place == "memory" else None
        with connect(uri, table="data", protocol=own) as engine:
            engine.ensure_table("data", ["d"])
            yield engine
        hosted.flush()


def block(engine: Engine, content: str | None) -> Committed | None:
    with engine.transaction(once="t", once_content=content) as t:
        t.put(X, content or "1")
    return t.result


def in_batch(engine: Engine, request: Request) -> Committed:
    result = engine.commit_many([request, Request((Mutation(Y, b"1"),))])[0]
    if isinstance(result, TxnError):
        raise result
    return result


CONTENTS: dict[str, Callable[[Engine, str], object]] = {
    "commit": lambda e, c: e.commit([Mutation(X, c)], once="t"),
    "its content": lambda e, c: e.commit([Mutation(X, c)], once="t", once_content="same " + c),
    "commit_many": lambda e, c: in_batch(e, Request((Mutation(X, c),), once=b"t")),
    "submit": lambda e, c: e.submit(Request((Mutation(X, c),), once=b"t")).result(),
    "transaction": block,
    "run": lambda e, c: e.run(lambda t: t.put(X, c), once="t", once_content=c),
}


@pytest.mark.parametrize("way", CONTENTS)
def test_a_token_with_another_content_is_an_error(engine: Engine, way: str) -> None:
    """A second job with the tokens of the first would else be told that all its rows are there."""
    commit = CONTENTS[way]
    commit(engine, "1")
    first = engine.find_once("t")
    assert first is not None and first.digest is not None
    commit(engine, "1")
    with pytest.raises(TokenReusedError, match="nothing of this was written") as caught:
        commit(engine, "2")
    assert (caught.value.token, caught.value.transaction) == (b"t", first.transaction)
    assert f"timestamp={first.timestamp}" in str(caught.value)
    assert str(caught.value).count("igest=b'") == 2
    found = engine.read([X])[X]
    assert found is not None and found.value == b"1"


def test_a_repeat_of_unknown_content_is_a_repeat(engine: Engine) -> None:
    assert block(engine, None) is not None
    first = engine.find_once("t")
    assert first is not None and first.digest is None and not first.has_answer
    assert engine.commit(OTHER, once="t") == first
    assert block(engine, "x") == first
    engine.commit(PUT, once="u")
    with engine.transaction(once="u") as t:
        assert t.result is not None
        t.put(X, "3")
    assert t.result.repeated


def test_the_order_of_items_is_no_content() -> None:
    a, b, c, d = Mutation(X, b"1"), Delete(Y), Some(X), Exact(Y, b"")
    same = {make_digest(Request((a, b), (c, d))), make_digest(Request((b, a), (d, c)))}
    assert len(same) == 1
    changes = [(a,), (a, b), (Mutation(X, b"2"),), (Mutation(X, b""),), (Delete(X),)]
    others = [
        *(Request(each) for each in changes),
        *(Request((), (c,)), Request((a,), (c,)), Request((a,), (~c,))),
        *(Request((a,), once_content=content) for content in (b"", b"1")),
    ]
    assert len({*map(make_digest, others), *same}) == len(others) + 1
    assert make_digest(Request((a,), answer=b"")) is None


ANSWERS: list[object] = [
    *(None, True, 0, -1, 1.5, float("inf"), "ä", b"\0", [], {}, ()),
    [1, (2, ("x", b"y", [None])), {"a": (1,), (1, 2): 3, 4: 5}],
    "x" * (MAX_ANSWER - 3),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda value: repr(value)[:40])
def test_an_answer_comes_back_as_it_was(answer: object) -> None:
    packed = encode_answer(answer)
    assert packed and repr(decode_answer(packed)) == repr(answer)
    for marker in (Marker(ROW_KEY, 5, b"d" * 32, packed), Marker(ROW_KEY, None, None, packed)):
        assert decode_marker(encode_marker(marker)) == marker
    assert encode_marker(Marker(ROW_KEY)) == ROW_KEY


class Text(str):
    pass


def make_knot() -> list[Any]:
    knot: list[Any] = []
    knot.append((knot,))
    return knot


@pytest.mark.parametrize(
    "answer",
    [Text("x"), bytearray(b"x"), {1, 2}, 2**64, "\ud800", object(), "x" * MAX_ANSWER, make_knot()],
    ids=lambda value: repr(value)[:20],
)
def test_an_answer_that_would_change_is_not_kept(answer: object) -> None:
    assert encode_answer(answer) == b""
    world = World()

    def work(t: OptimisticTransaction) -> object:
        t.put(X, "1")
        return answer

    world.engine.run(work, once="t")
    with pytest.raises(Repeated, match="without an answer") as caught:
        world.engine.run(lambda t: answer, once="t")
    first = world.engine.find_once("t")
    assert first is not None and caught.value.committed == first


@pytest.mark.parametrize(
    "packed",
    [b"\xc1", b"\x81", b"\x81\x90\x01", b"\xa1\xff", b"\xc7\x01\x01\x01"],
)
def test_an_answer_that_does_not_decode_names_its_key(world: World, packed: bytes) -> None:
    key = marker_key(b"txn", b"t")
    world.put(key, encode_marker(Marker(ROW_KEY, answer=packed)))
    with pytest.raises(CorruptRowError, match=r"does not decode.*once\.t"):
        world.engine.find_once("t")


def sell(t: OptimisticTransaction) -> tuple[str, int]:
    left = int(t.get(X) or b"1")
    if left < 1:
        return "sold out", left
    t.put(X, str(left - 1))
    return "taken", left - 1


def test_a_repeated_block_returns_the_first_answer(engine: Engine) -> None:
    assert engine.find_once("r") is None
    assert engine.outcome(once="r") is Outcome.UNKNOWN
    assert [engine.run(sell, once="r") for _ in range(2)] == [("taken", 0)] * 2
    assert engine.outcome(once="r") is Outcome.COMMITTED
    assert engine.run(sell, once="s") == ("sold out", 0)
    first = engine.find_once(b"r")
    assert first is not None and first.answer == ("taken", 0)
    assert first.repeated and engine.outcome(first.transaction) is Outcome.COMMITTED


def lose_decision(world: World, *, applied: bool, down_ms: int) -> None:
    def go_down() -> None:
        back_ms = world.clock.monotonic_ms() + down_ms
        always(world, lambda call: world.clock.monotonic_ms() < back_ms, LOST)

    fault = Fault(reply=Reply.MAYBE_APPLIED) if applied else LOST
    before(world, steps_to(Status.ASSERTED), go_down, fault)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("down_ms", [20, 300])
def test_a_block_with_a_token_finds_out_what_became_of_it(
    protocol: ProtocolName, applied: bool, down_ms: int
) -> None:
    world, calls = World(protocol=protocol), []
    lose_decision(world, applied=applied, down_ms=down_ms)

    def counted(t: OptimisticTransaction) -> tuple[str, int]:
        calls.append(t)
        return sell(t)

    assert world.engine.run(counted, once="r") == ("taken", 0)
    found = world.engine.read([X])[X]
    assert found is not None and (found.value, len(calls) > 1) == (b"0", not applied)
    lose_decision(world, applied=applied, down_ms=down_ms)
    with pytest.raises(CommitOutcomeUnknown):
        world.engine.run(put_both)  # it may have happened


@pytest.mark.parametrize(
    ("given", "down_ms", "runs"),
    [({"deadline_ms": 200}, 10_000, 1), ({"attempts": 1}, 15, 1), ({}, 15, 2)],
)
def test_an_outcome_that_remains_unknown_is_told(
    world: World, given: Any, down_ms: int, runs: int
) -> None:
    """Whatever ends the block afterwards: its first attempt may have committed."""
    calls: list[OptimisticTransaction] = []
    lose_decision(world, applied=False, down_ms=down_ms)

    def work(t: OptimisticTransaction) -> None:
        calls.append(t)
        if len(calls) > 1:
            fail(t)
        t.put(X, "1")

    with pytest.raises(CommitOutcomeUnknown) as caught:
        world.engine.run(work, once="r", **given)
    assert len(calls) == runs
    assert isinstance(caught.value.__context__, ValueError) is (runs == 2)


def put_both(t: OptimisticTransaction) -> None:
    t.put(Y, "1")
    t.put(Z, "1")


def fail(t: OptimisticTransaction) -> None:
    raise ValueError("sold out")


def require(t: OptimisticTransaction) -> None:
    t.require(Exact(X, "7"))
    t.put(Y, "1")


ENDS: dict[str, Callable[[OptimisticTransaction], object]] = {
    "writes": lambda t: t.put(Y, "1"),
    "writes what it read": sell,
    "writes nothing": lambda t: "sold out",
    "reads and writes nothing": lambda t: t.get(X),
    "fails": fail,
    "requires": require,
    "requires only": lambda t: t.require(Exact(X, "7")),
}


@pytest.mark.parametrize("attempts", [1, 5])
@pytest.mark.parametrize("end", ENDS)
def test_a_block_whose_token_is_committed_meanwhile_has_that_answer(
    engine: Engine, end: str, attempts: int
) -> None:
    def overtaken(t: OptimisticTransaction) -> object:
        t.get(X)
        assert engine.run(sell, once="r") == ("taken", 0)
        return ENDS[end](t)

    assert engine.run(overtaken, once="r", attempts=attempts) == ("taken", 0)
    assert engine.read([Y]) == {Y: None}


@pytest.mark.parametrize("attempts", [1, 5])
def test_a_block_that_fails_raises_its_own_error(world: World, attempts: int) -> None:
    calls: list[OptimisticTransaction] = []

    def work(t: OptimisticTransaction) -> None:
        calls.append(t)
        fail(t)

    with pytest.raises(ValueError, match="sold out"):
        world.engine.run(work, once="r", attempts=attempts)
    assert len(calls) == 1
    with pytest.raises(AssertionFailedError):
        world.engine.run(ENDS["requires"], once="r", attempts=attempts)
    with pytest.raises(DeadlineError, match="between attempts"):
        world.engine.run(sell, once="r", deadline_ms=0)
    always(world, lambda call: True, DOWN)
    with pytest.raises(NotApplied):
        world.engine.run(work, once="r", attempts=attempts)
    assert len(calls) == 1


@pytest.mark.parametrize("key", ["hello", b"", b"transaction.1"])
def test_the_outcome_of_no_row_key_is_refused(engine: Engine, key: str | bytes) -> None:
    with pytest.raises(InvalidRequestError, match="not "):
        engine.outcome(key)
    with pytest.raises(InvalidRequestError, match="or once"):
        engine.outcome(key, once="t")
    with pytest.raises(InvalidRequestError, match="1 to 1024 bytes"):
        engine.find_once("")
