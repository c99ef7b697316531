"""Group commit: what threads and futures ask for while a batch is under way is the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging import ERROR
from random import Random

import pytest

from tests.unit.worlds import POLICY, TABLE, World, X, Y, Z, stopped_at
from txn import (
    AssertionFailedError,
    Committed,
    DeadlineError,
    Delete,
    Engine,
    Key,
    Mutation,
    Policy,
    Request,
    Some,
    Version,
)
from txn.client.group_commit import GroupCommit, Item
from txn.client.local import LocalBackend
from txn.clock import ManualClock, SystemClock
from txn.errors import StoreClosedError, StoreError
from txn.events import BatchStarted, Event, Phase, Queued
from txn.protocol.statuses import Status
from txn.protocol.transaction import PendingCommit
from txn.request import Ack
from txn.service.client import connect_server
from txn.testing.faulty import Call, Fault

PATIENCE_S = 60


@pytest.fixture(autouse=True)
def overdue_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txn.client.group_commit.OVERDUE_MS", 50)


@pytest.fixture
def world() -> World:
    return World()


@dataclass(slots=True, eq=False)
class Plain:
    """The least that a group is made of."""

    request: Request
    ack: Ack
    due_ms: int | None
    lock_cells: Collection[Key] = ()
    shared: Collection[Key] = ()
    weight: int = 0
    future: Future[Committed] | None = None


def backend_of(engine: Engine) -> LocalBackend:
    assert isinstance(engine._backend, LocalBackend)
    return engine._backend


def allow_batches(engine: Engine, number: int) -> None:
    """Allow so many at a time, as on a store whose calls are requests."""
    group_commit = backend_of(engine)._group_commit
    group_commit._policy = replace(group_commit._policy, concurrent_batches=number)


def key(name: str) -> Key:
    return Key(name, "d", "x", TABLE)


def put(name: str, value: str = "1") -> Request:
    return Request((Mutation(key(name), value.encode()),))


def until(is_so: Callable[[], bool]) -> None:
    turn = threading.Event()
    for _ in range(PATIENCE_S * 1000):
        if is_so():
            return
        turn.wait(0.001)
    raise AssertionError("it has not come")


class Gate:
    """Keeps the first batches of an engine under way until it is opened."""

    def __init__(self, engine: Engine) -> None:
        self.group_commit: GroupCommit[PendingCommit] = backend_of(engine)._group_commit
        self.batches: list[list[PendingCommit]] = []
        self.came, self.go = threading.Semaphore(0), threading.Event()
        self._run, self.group_commit._run = self.group_commit._run, self.run

    def run(self, batch: Sequence[PendingCommit]) -> None:
        self.batches.append(list(batch))
        self.came.release()
        assert self.go.wait(PATIENCE_S)
        self._run(batch)

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]

    def in_line(self) -> int:
        return sum(len(caller.waiting) for caller in self.group_commit._queue)


@contextmanager
def a_batch_under_way(
    engine: Engine, request: Request | None = None
) -> Iterator[tuple[Gate, ThreadPoolExecutor]]:
    """Have a batch of one be under way, and threads to spare; let all end afterwards."""
    gate = Gate(engine)
    with ThreadPoolExecutor(12) as pool:
        first = pool.submit(commit, engine, request or put("first"))
        try:
            assert gate.came.acquire(timeout=PATIENCE_S)
            yield gate, pool
        finally:
            gate.go.set()
        assert isinstance(first.result(PATIENCE_S), Committed)


def refuse(work: Callable[[], object]) -> bool:
    return False


def commit(engine: Engine, request: Request) -> Committed:
    return engine.commit(request.mutations, request.assertions)


def test_a_batch_under_way_gathers_the_next_one_and_who_watches_is_told(world: World) -> None:
    with a_batch_under_way(world.engine) as (gate, pool):
        done = [pool.submit(commit, world.engine, put(f"r{i}")) for i in range(3)]
        many = pool.submit(world.engine.commit_many, [put("a"), put("b")])
        futures = [world.engine.submit(put(f"f{i}")) for i in range(2)]
        until(lambda: gate.in_line() == 7)
        until(lambda: sum(queue_changes(world)) == 7)
        assert futures[0].cancel()
        gate.go.set()
        results = [*(each.result(PATIENCE_S) for each in [*done, futures[1]]), *many.result()]
        assert all(isinstance(result, Committed) for result in results)
    assert sum(queue_changes(world)) == 0 and gate.sizes == [1, 6]
    assert [e.transactions for e in world.events if isinstance(e, BatchStarted)] == gate.sizes


def queue_changes(world: World) -> list[int]:
    return [e.change for e in list(world.events) if isinstance(e, Queued) and e.queue == "line"]


def test_what_shares_a_lock_goes_in_different_batches_in_the_order_of_coming(world: World) -> None:
    with a_batch_under_way(world.engine) as (gate, _):
        done = [world.engine.submit(put("same", str(i))) for i in range(3)]
        other = world.engine.submit(put("other"))
        gate.go.set()
        stamps = [each.result(PATIENCE_S).timestamp for each in (*done, other)]
    assert gate.sizes == [1, 2, 1, 1] and stamps[:3] == sorted(stamps[:3])
    assert world.value(key("same")) == b"2"
    assert all(w.tries == 1 for batch in gate.batches for w in batch)


def test_what_needs_a_lock_of_a_batch_under_way_waits_in_line(world: World) -> None:
    """It would find it held by its own engine. What comes behind it does not overtake it."""
    allow_batches(world.engine, 2)
    with a_batch_under_way(world.engine, Request((Mutation(X, b"1"),))) as (gate, _):
        both = world.engine.submit(([Mutation(X, b"2"), Mutation(Y, b"2")], []))
        second = world.engine.submit(([Mutation(Y, b"3")], []))
        free = world.engine.submit(([Mutation(Z, b"2")], []))
        assert gate.came.acquire(timeout=PATIENCE_S)
        assert gate.sizes == [1, 1] and gate.in_line() == 2
        assert gate.batches[1][0].request.mutations[0].key == Z
        gate.go.set()
        assert [each.result(PATIENCE_S).complete for each in (both, second, free)] == [True] * 3
    assert (world.value(X), world.value(Y)) == (b"2", b"3")


def asserting(name: str, *, validate: bool = True) -> Request:
    return Request((Mutation(key(name), b"1"),), (Some(key("parent")),), validate=validate)


def test_requests_that_validate_the_same_key_go_in_one_batch(world: World) -> None:
    world.engine.commit(put("parent").mutations)
    with a_batch_under_way(world.engine) as (gate, _):
        first = [world.engine.submit(asserting(f"a{number}")) for number in range(3)]
        writes = world.engine.submit(put("parent", "2"))
        second = [world.engine.submit(asserting(f"b{number}")) for number in range(2)]
        locks = world.engine.submit(asserting("c", validate=False))
        gate.go.set()
        done = [each.result(PATIENCE_S) for each in (*first, writes, *second, locks)]
    assert gate.sizes == [1, 3, 1, 2, 1]
    assert all(w.tries == 1 for batch in gate.batches for w in batch)
    assert done[3].timestamp >= max(each.timestamp for each in done[:3])


def test_both_acks_are_kept_in_a_line_of_both(world: World) -> None:
    with a_batch_under_way(world.engine) as (gate, _):
        kinds: list[Ack] = ["complete", "decided"] * 2
        acks = [world.engine.submit(put(f"r{i}"), ack=ack) for i, ack in enumerate(kinds)]
        gate.go.set()
        first, _, third, _ = (each.result(PATIENCE_S) for each in acks)
        assert first.complete and third.complete  # and so may the others be, by now
    atomically = [[w.ack for w in batch] for batch in gate.batches[1:]]
    assert atomically == [["complete"] * 2, ["decided"] * 2]
    world.engine.flush()
    assert {status for status in world.statuses()} == {Status.COMPLETE}


def wide(name: str, keys: int) -> Request:
    return Request(tuple(Mutation(key(f"{name}{i}"), b"1") for i in range(keys)))


@pytest.mark.parametrize(
    ("policy", "requests", "keys"),
    [
        (Policy(batch_requests=3), [put(f"r{i}") for i in range(7)], [[1] * 3, [1] * 3, [1]]),
        (
            Policy(batch_bytes=1_000),
            [put(name, "1" * size) for name, size in (("a", 400), ("b", 2_000), ("c", 400))],
            [[1, 1], [1]],
        ),
        (Policy(), [wide("a", 2), wide("b", 2), wide("c", 5), put("d")], [[2, 1], [2], [5]]),
    ],
    ids=["requests", "bytes", "keys"],
)
def test_a_batch_has_an_end(
    policy: Policy, requests: list[Request], keys: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txn.client.group_commit.PORTION", 3)
    world = World(policy)
    gate = Gate(world.engine)
    gate.go.set()
    assert all(isinstance(each, Committed) for each in world.engine.commit_many(requests))
    assert [[len(w.lock_cells) for w in batch] for batch in gate.batches] == keys


def test_who_lingers_waits_for_company_and_goes_as_soon_as_somebody_has_to_lead() -> None:
    world = World(policy=Policy(linger_ms=60_000, deadline_ms=120_000))
    gate = Gate(world.engine)
    gate.go.set()
    with ThreadPoolExecutor(2) as pool:
        lingering = [pool.submit(commit, world.engine, put(name)) for name in ("a", "b")]
        until(lambda: gate.in_line() == 2)
        future = world.engine.submit(put("c"))
        assert all(each.result(PATIENCE_S).complete for each in (*lingering, future))
    assert gate.sizes == [3]
    before_ms = world.clock.monotonic_ms()
    world.engine.submit(put("d")).result(PATIENCE_S)
    assert world.clock.monotonic_ms() - before_ms >= 60_000


@contextmanager
def a_future_under_way(engine: Engine, request: Request) -> Iterator[Gate]:
    """Have a batch of a future be under way, and let all end afterwards."""
    gate = Gate(engine)
    first = engine.submit(request)
    try:
        assert gate.came.acquire(timeout=PATIENCE_S)
        yield gate
    finally:
        gate.go.set()
    assert first.result(PATIENCE_S).complete


def test_a_batch_that_takes_long_keeps_no_futures_waiting(world: World) -> None:
    with a_future_under_way(world.engine, put("first")) as gate:
        for number in range(2, 5):
            other = world.engine.submit(put(f"other{number}"))
            assert gate.in_line() == 1
            world.clock.advance(50)
            assert gate.came.acquire(timeout=PATIENCE_S)
            assert gate.sizes == [1] * number and not other.done()
    world.engine.flush()
    assert other.result().complete
    until(lambda: not gate.group_commit._is_watched)


def test_where_every_thread_is_stuck_a_late_future_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txn.client.group_commit.SPARE", 0)
    world = World()
    with a_future_under_way(world.engine, put("first")) as gate:
        patient = world.engine.submit(put("patient"))
        late, *cancelled = [world.engine.submit(put(f"r{i}"), deadline_ms=70) for i in range(2)]
        assert all(each.cancel() for each in cancelled)
        until(lambda: gate.group_commit._is_watched)
        world.clock.advance(70)
        until(lambda: gate.group_commit._is_called)
        assert gate.came.acquire(timeout=PATIENCE_S)  # though no thread is free to lead
        assert gate.sizes == [1, 1] and not patient.done()
        gate.go.set()
        with pytest.raises(DeadlineError, match="before anything was written"):
            late.result(PATIENCE_S)
        assert patient.result(PATIENCE_S).complete


@pytest.mark.parametrize("concurrent_batches", [1, 2])
def test_a_future_that_is_late_in_line_is_told_so(
    world: World, concurrent_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_batches(world.engine, concurrent_batches)
    with a_future_under_way(world.engine, put("same")) as gate:
        late = world.engine.submit(put("same"), deadline_ms=70)
        until(lambda: gate.group_commit._is_watched)
        assert gate.in_line() == 1
        world.clock.advance(70)
        assert gate.came.acquire(timeout=PATIENCE_S)
        gate.go.set()
        with pytest.raises(DeadlineError, match="before anything was written"):
            late.result(PATIENCE_S)
    assert len(world.rows()) == 1


def test_those_of_a_call_in_conflict_go_again_without_the_others(world: World) -> None:
    holder = stopped_at(world, Status.LOCKED, X)
    gate = Gate(world.engine)
    gate.go.set()
    results = world.engine.commit_many([Request((Mutation(X, b"2"),)), put("a"), put("b")])
    assert all(isinstance(each, Committed) for each in results)
    assert gate.sizes == [3, 1] and gate.batches[1][0].request.mutations[0].key == X
    assert world.engine.outcome(holder).value == "aborted"


def test_a_key_in_demand_that_is_held_is_left_before_anything_is_written() -> None:
    world = World(policy=Policy(lock_ttl_ms=1_000, deadline_ms=60_000))
    stopped_at(world, Status.LOCKED, X)
    backend_of(world.engine)._contention.note_hot([X.lock])
    gate = Gate(world.engine)
    gate.go.set()
    run, rows = gate._run, list[int]()

    def count_rows(batch: Sequence[PendingCommit]) -> None:
        run(batch)
        rows.append(len(world.rows()))

    gate._run = count_rows
    results = world.engine.commit_many([Request((Mutation(X, b"2"),)), put("a")])
    assert all(isinstance(each, Committed) for each in results)
    assert rows[0] == 2, "the holder's, and that of the other"


def test_what_a_server_refuses_is_told_by_futures_alone(caplog: pytest.LogCaptureFixture) -> None:
    backend = connect_server("txn://127.0.0.1:1")  # where nobody listens
    with caplog.at_level(ERROR, "txn"):
        for number in range(2):
            future = backend.submit(put("a"), "complete", None)
            assert isinstance(future.exception(PATIENCE_S), StoreError)
            if not number:
                backend._group_commit._workers.submit_work = refuse  # type: ignore[method-assign,assignment]
        backend.close()
    assert not caplog.records


@pytest.mark.parametrize("cancelled", [1, 2])
@pytest.mark.parametrize("leader", ["thread", "pool"])
def test_what_is_behind_cancelled_futures_goes_on(
    world: World, leader: str, cancelled: int
) -> None:
    """They take no lock, so they keep nobody in line: nothing would call the one behind them."""
    gate = Gate(world.engine)
    with ThreadPoolExecutor(1) as pool:
        by_thread = leader == "thread"
        request = put("first")
        engine = world.engine
        first = pool.submit(commit, engine, request) if by_thread else engine.submit(request)
        assert gate.came.acquire(timeout=PATIENCE_S)
        gone = [world.engine.submit(put("same")) for _ in range(cancelled)]
        last = world.engine.submit(put("same", "2"))
        assert all(each.cancel() for each in gone)
        gate.go.set()
        assert first.result(PATIENCE_S).complete
        assert last.result(PATIENCE_S).complete
    world.engine.flush()
    assert world.value(key("same")) == b"2" and gate.sizes == [1, 1]


def test_a_place_is_done_with_when_the_last_of_its_items_is_dropped() -> None:
    """Its thread would wait for ever: a cancelled item is in no batch that ends."""
    group_commit: GroupCommit[Item] = GroupCommit(
        lambda batch: None, lambda w: None, ManualClock(), Policy(linger_ms=1)
    )
    items = [Plain(put("a"), "complete", None, future=Future()) for _ in range(2)]
    assert items[0].future is not None and items[0].future.cancel()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(group_commit.commit, items).result(PATIENCE_S)
    assert not group_commit._queue


def test_flush_waits_for_futures_and_close_for_all(world: World) -> None:
    stopped_at(world, Status.LOCKED, X)
    futures = [world.engine.submit(each) for each in (Request((Mutation(X, b"2"),)), put("a"))]
    world.engine.flush()
    assert all(each.done() for each in futures)
    last = world.engine.submit(put("b"))
    world.engine.close()
    assert last.done()
    with pytest.raises(StoreClosedError):
        world.engine.submit(put("c"))


def test_futures_for_which_there_is_no_thread_do_not_wait_for_a_leader_that_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(world.engine)

    def broken(batch: Sequence[PendingCommit]) -> None:
        raise ZeroDivisionError(len(gate.batches))

    gate._run = broken
    monkeypatch.setattr(gate.group_commit._workers, "submit_work", refuse)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(commit, world.engine, put("first"))
        assert gate.came.acquire(timeout=PATIENCE_S)
        others = [world.engine.submit(put("same", str(i))) for i in range(2)]
        gate.go.set()
        with pytest.raises(ZeroDivisionError, match="1"):
            first.result(PATIENCE_S)
        assert all(each.result(PATIENCE_S).complete for each in others)
    assert world.engine.submit(put("last")).result(PATIENCE_S).complete


def test_flush_leads_futures_for_which_there_is_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = World().engine
    group_commit = backend_of(engine)._group_commit
    monkeypatch.setattr(group_commit._workers, "submit_work", refuse)
    monkeypatch.setattr(group_commit, "_lead_all", lambda: None)
    future = engine.submit(put("a"))
    monkeypatch.undo()
    assert not future.done()
    monkeypatch.setattr(group_commit._workers, "submit_work", refuse)
    engine.flush()
    assert future.result(0).complete


def test_who_is_killed_as_it_leads_futures_of_others_leaves_the_line_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = World().engine
    group_commit = backend_of(engine)._group_commit
    run = group_commit._run

    def kill(batch: Sequence[PendingCommit]) -> None:
        group_commit._run = run
        raise KeyboardInterrupt

    group_commit._run = kill
    monkeypatch.setattr(group_commit._workers, "submit_work", refuse)
    with pytest.raises(KeyboardInterrupt):
        engine.submit(put("a"))
    assert not group_commit._queue and not group_commit._in_progress
    assert engine.submit(put("a")).result(PATIENCE_S).complete


def test_a_watch_may_commit(world: World) -> None:
    told: list[Event] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Phase) and not told:
            told.append(event)
            engine.commit([Mutation(Y, b"1")])

    engine = Engine(
        world.store, table=TABLE, clock=world.clock, rng=Random(3), on_event=on_event, policy=POLICY
    )
    engine.commit([Mutation(X, b"1")])
    assert told and (world.value(X), world.value(Y)) == (b"1", b"1")


@pytest.mark.parametrize("linger_ms", [0, 1])
def test_a_leader_goes_on_as_the_child_that_it_has_become(linger_ms: int) -> None:
    def run(batch: Sequence[Plain]) -> None:
        assert len(group_commit._in_progress) == 1
        group_commit._start()

    group_commit: GroupCommit[Plain] = GroupCommit(
        run, lambda w: None, SystemClock(), Policy(linger_ms=linger_ms)
    )
    for _ in range(2):
        group_commit.commit([Plain(put("a"), "complete", None)])
        assert not group_commit._in_progress and not group_commit._queue


def test_what_was_overtaken_in_line_fails_without_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own client has written what the request asserts to be older: nothing has to be asked. So
    it is for one that asserts a version only, and for small values."""
    world = World()
    contention = backend_of(world.engine)._contention
    large, gone = key("large"), key("gone")
    every = [X, Y, large, gone]
    done = world.engine.commit([Mutation(k, b"1") for k in every])
    contention.note_hot([Z.lock])
    world.engine.commit(
        [Mutation(X, b"2"), Mutation(Y, b"2"), Mutation(large, b"2" * 101), Delete(gone)]
    )
    assert contention._written.keys() == {X, Y}
    calls: list[Call] = []

    def plan(call: Call) -> Fault:
        calls.append(call)
        return Fault()

    world.faults.plan = plan
    with pytest.raises(AssertionFailedError) as failed:
        world.engine.commit([Mutation(Z, b"1")], [Version(X, done.timestamp)])
    assert not calls and failed.value.seen[X] == world.cell(X)
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(Z, b"1")], [Version(X, done.timestamp)], once="token")
    assert calls, "it may be its own first commit that came between"
    monkeypatch.setattr("txn.protocol.locks.REMEMBERED", 1)
    contention.note_hot([Z.lock])
    world.engine.commit([Mutation(Z, b"1")])
    assert contention._written.keys() == {Z}
