"""What a `once` token stands for, and the answer that is kept with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.unit.worlds import World, X, Y, Z, is_step
from txn import (
    AssertionFailedError,
    AsyncEngine,
    CommitOutcomeUnknown,
    Committed,
    ConflictError,
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
from txn.protocol.statuses import ProtocolName, Status
from txn.request import MAX_CONTENT, bind_request
from txn.server.listening import listen
from txn.server.ports import Server
from txn.service.server import Transactional
from txn.stores import open_store
from txn.testing.faulty import Call, Fault, Reply

ROW_KEY = b"transaction.1790000000000.00112233445566778899aabbccddeeff"
PUT, OTHER = [Mutation(X, b"1")], [Mutation(X, b"2")]
PLACES = [
    f"{place} {name}"
    for place in ("memory", "embedded", "served")
    for name in get_args(ProtocolName)
]
"""Stores, each with both protocols."""


@pytest.fixture(params=PLACES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    place, protocol = request.param.split()
    uri = f"embedded://{tmp_path}/store?sync=off" if place == "embedded" else "memory://"
    if place != "served":
        with connect(uri, table="data", protocol=protocol) as engine:
            engine.ensure_table("data", ["d"])
            yield engine
        return
    hosted = Transactional(open_store(uri), protocol=protocol)
    with Server([(listen("127.0.0.1", 0), hosted.service)]) as server:
        with connect(f"txn://127.0.0.1:{server.ports[0]}", table="data") as engine:
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


WAYS: dict[str, Callable[[Engine, str], object]] = {
    "commit": lambda e, c: e.commit([Mutation(X, c)], once="t"),
    "its content": lambda e, c: e.commit([Mutation(X, c)], once="t", once_content="same " + c),
    "commit_many": lambda e, c: in_batch(e, Request((Mutation(X, c),), once=b"t")),
    "submit": lambda e, c: e.submit(Request((Mutation(X, c),), once=b"t")).result(),
    "transaction": block,
    "run": lambda e, c: e.run(lambda t: t.put(X, c), once="t", once_content=c),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_token_with_another_content_is_an_error(engine: Engine, way: str) -> None:
    """A second job with the tokens of the first would else be told that all its rows are there."""
    commit = WAYS[way]
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
    a, b = Mutation(X, b"1"), Delete(Y)
    c, d = Some(X), Exact(Y, b"")
    same = {make_digest(Request(*items)) for items in (((a, b), (c, d)), ((b, a), (d, c)))}
    assert len(same) == 1
    others = [
        ((a,), ()),
        ((a, b), ()),
        ((Mutation(X, b"2"),), ()),
        ((Mutation(X, b""),), ()),
        ((Delete(X),), ()),
        ((), (c,)),
        ((a,), (c,)),
        ((a,), (~c,)),
    ]
    contents = [Request((a,), once_content=content) for content in (b"", b"1")]
    found = [make_digest(each) for each in (*(Request(*each) for each in others), *contents)]
    assert len({*found, *same}) == len(others) + len(contents) + 1
    assert make_digest(Request((a,), answer=b"")) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"once_content": "c"}, "needs once"),
        ({"once": "t", "once_content": 5}, "once_content must be bytes or str"),
        ({"once": "t", "once_content": b"c" * (MAX_CONTENT + 1)}, "at most 1 MiB.*limit="),
    ],
)
def test_a_content_that_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        bind_request(PUT, **given)


def test_a_block_is_refused_before_it_runs() -> None:
    with pytest.raises(InvalidRequestError, match="needs once"):
        World().engine.transaction(once_content="c")


ANSWERS = [
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
    world.engine.run(lambda t: (t.put(X, "1"), answer)[1], once="t")
    with pytest.raises(Repeated, match="without an answer") as caught:
        world.engine.run(lambda t: answer, once="t")
    first = world.engine.find_once("t")
    assert first is not None and caught.value.committed == first


@pytest.mark.parametrize(
    "packed",
    [b"\xc1", b"\x81", b"\x81\x90\x01", b"\xa1\xff", b"\xc7\x01\x01\x01"],
)
def test_an_answer_that_does_not_decode_names_its_key(packed: bytes) -> None:
    world = World()
    key = marker_key(b"txn", b"t")
    world.put(key, encode_marker(Marker(ROW_KEY, answer=packed)))
    with pytest.raises(CorruptRowError, match=r"does not decode.*once\.t"):
        world.engine.find_once("t")


def sell(t: OptimisticTransaction) -> tuple[str, int]:
    """Take the last one of what is left."""
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


def test_tasks_get_the_first_answer_too(engine: Engine) -> None:
    async def work() -> None:
        db = AsyncEngine(engine)

        async def add(t: Any) -> int:
            return int(await t.increment(Y))

        assert [await db.run(add, once="i") for _ in range(2)] == [1, 1]
        first = await db.find_once("i")
        assert first is not None and first.answer == 1
        async with db.transaction(once="i") as t:
            assert t.result == first
        assert t.result == first
        await db.commit(PUT, once="c", once_content="1")
        with pytest.raises(TokenReusedError):
            await db.commit(PUT, once="c", once_content="2")

    asyncio.run(work())


def lose_decision(world: World, *, applied: bool, down_ms: int) -> None:
    """Lose the answer to the next decision, and all calls for some time."""
    until: list[int] = []

    def plan(call: Call) -> Fault:
        fault = Fault(frozenset(), Reply.MAYBE_APPLIED)
        if not until and any(is_step(item, Status.ASSERTED) for item in call.items):
            until.append(world.clock.monotonic_ms() + down_ms)
            return Fault(reply=Reply.MAYBE_APPLIED) if applied else fault
        return fault if until and world.clock.monotonic_ms() < until[0] else Fault()

    world.faults.plan = plan


@pytest.mark.parametrize("protocol", get_args(ProtocolName))
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("down_ms", [20, 300])
def test_a_block_with_a_token_finds_out_what_became_of_it(
    protocol: ProtocolName, applied: bool, down_ms: int
) -> None:
    """At most one attempt commits, so it is safe to run it again."""
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
        world.engine.run(lambda t: (t.put(Y, "1"), t.put(Z, "1")))  # it may have happened


@pytest.mark.parametrize("given", [{"deadline_ms": 200}, {"attempts": 1}])
@pytest.mark.parametrize("error", [None, ValueError("sold out")])
def test_an_outcome_that_remains_unknown_is_told(given: Any, error: Exception | None) -> None:
    """Whatever ends the block afterwards: its first attempt may have committed."""
    world, calls = World(), []
    lose_decision(world, applied=False, down_ms=10_000 if "deadline_ms" in given else 15)

    def work(t: OptimisticTransaction) -> None:
        calls.append(t)
        if len(calls) > 1 and error is not None:
            raise error
        t.put(X, "1")

    with pytest.raises(CommitOutcomeUnknown):
        world.engine.run(work, once="r", **given)
    assert len(calls) == 1


def test_an_error_after_an_unknown_outcome_does_not_hide_it() -> None:
    world, calls = World(), []
    lose_decision(world, applied=False, down_ms=15)

    def work(t: OptimisticTransaction) -> None:
        calls.append(t)
        if len(calls) > 1:
            raise ValueError("sold out")
        t.put(X, "1")

    with pytest.raises(CommitOutcomeUnknown) as caught:
        world.engine.run(work, once="r")
    assert isinstance(caught.value.__context__, ValueError) and len(calls) == 2


def fail(t: OptimisticTransaction) -> None:
    raise ValueError("sold out")


ENDS: dict[str, Callable[[OptimisticTransaction], object]] = {
    "writes": lambda t: t.put(Y, "1"),
    "writes what it read": sell,
    "writes nothing": lambda t: "sold out",
    "reads and writes nothing": lambda t: t.get(X),
    "fails": fail,
    "requires": lambda t: (t.require(Exact(X, "7")), t.put(Y, "1")),
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
def test_a_block_that_fails_raises_its_own_error(attempts: int) -> None:
    world, calls = World(), []

    def work(t: OptimisticTransaction) -> None:
        calls.append(t)
        fail(t)

    with pytest.raises(ValueError, match="sold out"):
        world.engine.run(work, once="r", attempts=attempts)
    assert len(calls) == 1
    with pytest.raises(AssertionFailedError):
        world.engine.run(ENDS["requires"], once="r", attempts=attempts)
    with pytest.raises(ConflictError):
        world.engine.run(overtake(world), once="r", attempts=attempts)
    with pytest.raises(DeadlineError, match="between attempts"):
        world.engine.run(sell, once="r", deadline_ms=0)
    world.faults.plan = lambda call: Fault(frozenset(), Reply.NOT_APPLIED)
    with pytest.raises(NotApplied):
        world.engine.run(work, once="r", attempts=attempts)
    assert len(calls) == 1


def overtake(world: World) -> Callable[[OptimisticTransaction], object]:
    def work(t: OptimisticTransaction) -> None:
        t.increment(Z)
        world.client(seed=3 + world.faults.calls).run(lambda other: other.increment(Z))

    return work


@pytest.mark.parametrize("key", ["hello", b"", b"transaction.1"])
def test_the_outcome_of_no_row_key_is_refused(engine: Engine, key: str | bytes) -> None:
    with pytest.raises(InvalidRequestError, match="not "):
        engine.outcome(key)
    with pytest.raises(InvalidRequestError, match="or once"):
        engine.outcome(key, once="t")
    with pytest.raises(InvalidRequestError, match="1 to 1024 bytes"):
        engine.find_once("")
