"""The engine for asyncio: what threads get, tasks get."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from functools import wraps

import pytest

from tests.unit.test_group_commit import Gate
from tests.unit.worlds import TABLE, World, X, Y
from txn import (
    AssertionFailedError,
    AsyncEngine,
    AsyncTransaction,
    Committed,
    DeadlineError,
    Delete,
    Engine,
    Exact,
    InvalidRequestError,
    Key,
    Mutation,
    OptimisticTransaction,
    Outcome,
    Request,
    Some,
    connect_async,
)
from txn.protocol.statuses import ProtocolName

PATIENCE_S = 60


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def hot(world: World) -> None:
    make_hot(world)


@pytest.fixture
def db(world: World) -> AsyncEngine:
    return AsyncEngine(world.engine)


def awaited(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run(db: AsyncEngine, **given: object) -> None:
        async def main() -> None:
            async with asyncio.timeout(PATIENCE_S), db:
                await test(db, **given)

        asyncio.run(main())

    return run


@awaited
async def test_a_task_s_block_is_asynchronous(db: AsyncEngine, world: World) -> None:
    def write(t: AsyncTransaction) -> None:
        t.put(X, "1")

    for wrong in (write, lambda t: 5):
        with pytest.raises(InvalidRequestError, match="block must be async"):
            await db.run(wrong)  # type: ignore[arg-type]
    assert world.value(X) is None


def key(name: str) -> Key:
    return Key(name, "d", "x", TABLE)


Commit = asyncio.Task[Committed]


async def begin_two(db: AsyncEngine, gate: Gate) -> tuple[Commit, Commit]:
    first = asyncio.create_task(db.commit([Mutation(X, b"1")]))
    while not gate.sizes:
        await asyncio.sleep(0.001)
    second = asyncio.create_task(db.commit([Mutation(Y, b"1")]))
    while not gate.in_line():
        await asyncio.sleep(0.001)
    return first, second


@awaited
async def test_tasks_commit_in_batches(db: AsyncEngine, world: World) -> None:
    gate = Gate(world.engine)
    gate.go.set()
    wanted = [db.commit([Mutation(key(f"r{i}"), b"1")]) for i in range(300)]
    assert all(isinstance(each, Committed) for each in await asyncio.gather(*wanted))
    found = await db.read([key("r0"), key("r299")])
    assert [cell.value for cell in found.values() if cell] == [b"1", b"1"]
    assert len(gate.sizes) < 30


def test_every_way_of_an_engine_is_there() -> None:
    async def main() -> None:
        async with connect_async("memory://", table="data", threads=2) as db:
            await db.ensure_table("data", ["d"])
            a, b = Key("a", "d", "x"), Key("b", "d", "x")
            done = await db.commit([Mutation(a, "1")], once="token", labels={"n": "1"})
            again = await db.commit([Mutation(a, "1")], once=b"token")
            assert again.repeated and again.transaction == done.transaction
            assert await db.outcome(done.transaction) is Outcome.COMMITTED
            results = await db.commit_many(
                [([Mutation(b, "1")], [Exact(a, "1")])], deadline_ms=[None]
            )
            assert isinstance(results[0], Committed)
            assert [row.row for row in [row async for row in db.scan()]] == [b"a", b"b"]
            assert [row.row async for row in db.scan(prefix="b", snapshot=True)] == [b"b"]
            await db.commit([Delete(a)], ack="decided")
            await db.flush()
            assert await db.read([a]) == {a: None}
            with pytest.raises(AssertionFailedError):
                await db.commit([Mutation(a, "1")], [Some(a)])
            with pytest.raises(InvalidRequestError):
                await db.commit([])
            with pytest.raises(DeadlineError):
                await db.commit([Mutation(a, "1")], deadline_ms=0)

    asyncio.run(main())


SYNCHRONOUS = {
    *("backend", "context", "pace"),  # what an engine consists of
    *("begin_block", "check_request", "over", "submit"),  # what awaited commits and blocks use
}
"""What an AsyncEngine offers by its attribute `engine` alone."""


def list_parameters(owner: type, name: str) -> list[tuple[object, ...]]:
    """Return the parameters of a method, without the types of functions that are handed in."""
    return [
        (each.name, each.kind, each.default, str(each.annotation))
        for each in inspect.signature(getattr(owner, name)).parameters.values()
        if each.name != "function"
    ]


@pytest.mark.parametrize(
    ("blocking", "awaiting", "left_out"),
    [(Engine, AsyncEngine, SYNCHRONOUS), (OptimisticTransaction, AsyncTransaction, set())],
)
def test_what_is_awaited_has_every_method_and_parameter_of_what_blocks(
    blocking: type, awaiting: type, left_out: set[str]
) -> None:
    names = {name for name in vars(blocking) if not name.startswith("_")} - left_out
    assert names <= vars(awaiting).keys()
    for name in names:
        if callable(getattr(blocking, name)):
            assert list_parameters(awaiting, name) == list_parameters(blocking, name), name
            assert getattr(awaiting, name).__doc__, name


@awaited
async def test_a_deadline_counts_from_the_call(db: AsyncEngine, world: World) -> None:
    go = threading.Event()
    async with AsyncEngine(db.engine, threads=1) as narrow:
        blocked = asyncio.create_task(narrow._threads.call(go.wait, PATIENCE_S))
        read = asyncio.create_task(narrow.read([X], deadline_ms=50))
        request = Request((Mutation(X, b"1"),))
        commits = asyncio.create_task(narrow.commit_many([request] * 2, deadline_ms=[50, None]))
        refused = asyncio.create_task(narrow.read([X], deadline_ms="soon"))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        world.clock.advance(50)
        go.set()
        assert await blocked
        with pytest.raises(DeadlineError):
            await read
        late, timely = await commits
        assert isinstance(late, DeadlineError) and isinstance(timely, Committed)
        with pytest.raises(InvalidRequestError, match="deadline_ms"):
            await refused


@awaited
async def test_a_scan_goes_on_page_by_page(
    db: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txn.client.tasks.PAGE_ROWS", 2)
    await db.commit([Mutation(key(f"r{i}"), b"1") for i in range(5)])
    assert [row.row async for row in db.scan(TABLE)] == [b"r%d" % i for i in range(5)]


@awaited
async def test_a_block_reads_and_writes(db: AsyncEngine) -> None:
    async with db.transaction() as t:
        assert await t.get(X) is None
        t.put(X, "1")
        assert await t.increment(key("count")) == 1
        assert await t.append(key("log"), "a") == b"a"
        t.put(Y, "1")
        t.delete(Y)
        t.require(~Exact(key("other"), "1"))
        assert len(await t.scan(TABLE)) == 3
    assert t.result is not None and t.result.complete
    async with db.transaction() as reading:
        assert await reading.get_many([X, Y]) == {X: b"1", Y: None}
    assert reading.result is None


@awaited
async def test_a_run_is_done_again_on_a_conflict(db: AsyncEngine) -> None:
    tries: list[bytes | None] = []

    async def count(t: AsyncTransaction) -> int:
        tries.append(await t.get(X))
        if len(tries) == 1:
            await db.commit([Mutation(X, b"\0" * 7 + b"\5")])
        return await t.increment(X)

    assert await db.run(count) == 6
    assert tries == [None, b"\0" * 7 + b"\5"]
    counts = await asyncio.gather(*(db.run(count) for _ in range(8)))
    assert sorted(counts) == list(range(7, 15))


@awaited
async def test_a_commit_that_is_cancelled_in_line_is_not_done(
    db: AsyncEngine, world: World
) -> None:
    """One that is under way goes on: what has become of it is in its row."""
    gate = Gate(world.engine)
    first, second = await begin_two(db, gate)
    first.cancel()
    second.cancel()
    assert await asyncio.gather(first, second, return_exceptions=True) and first.cancelled()
    assert second.cancelled()
    gate.go.set()
    await db.flush()
    found = await db.read([X, Y])
    assert found[X] is not None and found[Y] is None


@awaited
async def test_a_block_that_is_cancelled_before_its_end_writes_nothing(db: AsyncEngine) -> None:
    entered = asyncio.Event()

    async def block() -> None:
        async with db.transaction() as t:
            t.put(X, "1")
            entered.set()
            await asyncio.sleep(PATIENCE_S)

    task = asyncio.create_task(block())
    await entered.wait()
    task.cancel()
    assert await asyncio.wait([task]) and task.cancelled()
    assert await db.read([X]) == {X: None}


def make_hot(world: World) -> None:
    backend = world.engine._backend
    backend._contention.note_hot([world.engine.context.rules.lock_of(X)])  # type: ignore[attr-defined]


def list_queued(db: AsyncEngine) -> list[int]:
    return [len(queue) for queue in db.engine._backend._queues._queues.values()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("once", [None, "token"])
@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_tasks_wait_at_a_hot_key_and_do_not_conflict(
    protocol: ProtocolName, once: str | None
) -> None:
    """They outnumber the threads: one that waited in a thread would be in the way of the first."""
    world, tasks, tries = World(protocol=protocol), 30, []
    make_hot(world)

    async def count(t: AsyncTransaction) -> None:
        tries.append(1)
        await t.increment(X)

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), AsyncEngine(world.engine, threads=2) as db:
            tokens = [once and f"{once}{number}" for number in range(tasks)]
            await asyncio.gather(*[db.run(count, once=token) for token in tokens])
            assert list_queued(db) == []
            assert len(tries) == tasks == int.from_bytes(world.value(X) or b"")

    asyncio.run(main())


@pytest.mark.usefixtures("hot")
@awaited
async def test_a_task_does_not_wait_for_itself(db: AsyncEngine) -> None:
    async with db.transaction() as first:
        await first.get(X)
        async with asyncio.timeout(1), db.transaction() as second:
            assert await second.get(X) is None
        with db.engine.transaction() as blocking:
            blocking.get(X)
            assert list_queued(db) == [1]


async def read_hot(db: AsyncEngine) -> None:
    async with db.transaction() as t:
        await t.get(X)


@pytest.mark.usefixtures("hot")
@awaited
async def test_a_cancelled_task_leaves_its_place(db: AsyncEngine) -> None:
    async with db.transaction() as first:
        await first.get(X)
        waiting = [asyncio.create_task(read_hot(db)) for _ in range(3)]
        while list_queued(db) != [4]:
            await asyncio.sleep(0.001)
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        assert list_queued(db) == [3]
    await asyncio.gather(*waiting[1:])
    assert list_queued(db) == []


@pytest.mark.usefixtures("hot")
@awaited
async def test_a_task_that_is_first_for_long_loses_its_place(
    db: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txn.client.tasks.LONGEST_S", 0.02)
    async with db.transaction() as slow:
        await slow.get(X)
        await asyncio.create_task(read_hot(db))
        assert list_queued(db) == []
