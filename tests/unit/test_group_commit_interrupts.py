"""Threads that are interrupted in a commit leave nobody waiting, nor does one wait for itself."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.unit.interrupting import Interruption
from tests.unit.test_group_commit import PATIENCE_S, Gate, backend_of, commit, put, refuse, until
from tests.unit.worlds import World
from txn import (
    CommitOutcomeUnknown,
    Committed,
    Engine,
    InvalidRequestError,
    Key,
    Mutation,
    Request,
    Version,
    connect,
)
from txn.client import group_commit as client_group_commit
from txn.client import local
from txn.client.local import LocalBackend
from txn.events import BatchStarted, Event
from txn.host import forks, holds, worker_pool
from txn.tables.kv import group_commit, lmdb, memory

pytestmark = pytest.mark.slow
FILES = [str(m.__file__) for m in (client_group_commit, worker_pool, group_commit)]
NAMES = {"_commit_batch", "_finish_future", "_finish_future_alone"}
Interrupt = partial(Interruption, FILES, names=NAMES)
AT_ONCE = 20
"""How many steps are tried in a test: they are tried in parallel."""


def once(name: str) -> Request:
    """A request that succeeds once: that a second one did is an assertion that fails."""
    mutations = put(name).mutations
    return Request(mutations, (Version(mutations[0].key, None),))


def interrupt_leader(at: int, *, has_pool: bool = True, then: int | None = None) -> str | None:
    """Interrupt the leader of others' requests at a step; see that these are told how they ended,
    and that the line goes on. Return which step it was; None: it came to the end before."""
    world = World()
    engine = world.engine
    group_commit = backend_of(engine)._group_commit
    gate, interrupt = Gate(engine), Interrupt(at, then)
    others: list[Future[Committed]] = []
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(commit, engine, put("first"))
        assert gate.came.acquire(timeout=PATIENCE_S)
        if not has_pool:
            group_commit._workers.submit_work = refuse  # type: ignore[method-assign, assignment]

        def lead() -> None:
            with interrupt:
                commit(engine, once("leader"))

        leader = pool.submit(lead)
        until(lambda: gate.in_line() == 1 or leader.done())
        others += [pool.submit(commit, engine, once(name)) for name in ("one", "two")]
        until(lambda: gate.in_line() == (2 if leader.done() else 3))
        others += [engine.submit(once(name)) for name in ("three", "four")]
        gate.go.set()
        leader.result(PATIENCE_S)
        if then is not None:  # whoever waits for the engine ends what is left of futures
            engine.flush()
        for other in others:
            error = other.exception(PATIENCE_S)
            assert error is None or isinstance(error, CommitOutcomeUnknown), interrupt.place
        first.result(PATIENCE_S)
    assert engine.commit(put("leader").mutations).complete
    assert engine.submit(put("one")).result(PATIENCE_S).complete
    assert not group_commit._queue and not group_commit._in_progress, interrupt.place
    engine.close()
    return interrupt.place


@pytest.mark.parametrize("has_pool", [True, False])
def test_a_leader_that_is_interrupted_anywhere_leaves_nobody_waiting(has_pool: bool) -> None:
    try_all(lambda at: interrupt_leader(at, has_pool=has_pool))


@pytest.mark.parametrize("then", [0, 1, 2, 4, 7])
def test_a_leader_that_is_interrupted_twice_leaves_nobody_waiting(then: int) -> None:
    try_all(lambda at: interrupt_leader(at * 5 + then, then=then))


def try_all(interrupt: Callable[[int], str | None]) -> None:
    """Interrupt at one step after the other, until one has come to the end."""
    places, at = set[str](), 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while None not in (found := list(pool.map(interrupt, range(at, at + AT_ONCE)))):
            places.update(place for place in found if place)
            at += AT_ONCE
    assert len(places) >= 10


def submit(engine: Engine, request: Request) -> Committed:
    return engine.submit(request).result(PATIENCE_S)


@pytest.mark.parametrize("work", [commit, submit])
def test_a_thread_that_is_interrupted_alone_keeps_no_key_and_no_engine_from_others(
    work: Callable[[Engine, Request], Committed],
) -> None:
    def interrupt_alone(at: int) -> str | None:
        engine = World().engine
        group_commit = backend_of(engine)._group_commit
        interrupt = Interrupt(at)
        with interrupt:
            work(engine, put("x"))
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(commit, engine, put("x")).result(PATIENCE_S).complete
            pool.submit(engine.close).result(PATIENCE_S)
        assert not group_commit._queue and not group_commit._in_progress, interrupt.place
        return interrupt.place

    try_all(interrupt_alone)


X, Y = Key("x", "d", "c"), Key("y", "d", "c")
SOON_S = 2.0
HANDLED = {*FILES, *(str(m.__file__) for m in (forks, holds, lmdb, memory, local))}


@pytest.fixture(params=["memory://", "embedded://"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    where = f"{tmp_path}/store?sync=off" if request.param == "embedded://" else ""
    with connect(request.param + where, table="t") as engine:
        engine.ensure_table("t", ["d"])
        engine.commit([Mutation(X, "0"), Mutation(Y, "0")])
        yield engine


CALLS: dict[str, Callable[[Engine], Any]] = {
    "commit": lambda engine: engine.commit([Mutation(X, "1")]),
    "commit_many": lambda engine: engine.commit_many([([Mutation(X, "1")], [])]),
    "submit": lambda engine: engine.submit(([Mutation(X, "1")], [])).result(),
    "run": lambda engine: engine.run(lambda t: t.put(X, "1")),
    "read": lambda engine: engine.read([X]),
    "flush": lambda engine: engine.flush(),
    "close": lambda engine: engine.close(),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_engine_refuses_calls_inside_atomically(engine: Engine, name: str) -> None:
    """`submit` waited for a thread that waited for this one; a commit could be undone later."""
    began = time.monotonic()
    with pytest.raises(InvalidRequestError, match="this thread is writing to the store already"):
        engine.context.store.atomically(lambda: CALLS[name](engine))
    assert time.monotonic() - began < SOON_S
    assert read(engine, X) == b"0"


@pytest.mark.parametrize("name", ["commit", "submit", "flush", "close"])
def test_an_engine_refuses_calls_while_its_queue_is_changed(engine: Engine, name: str) -> None:
    backend = engine.backend
    assert isinstance(backend, LocalBackend)
    with backend._group_commit._lock, pytest.raises(InvalidRequestError, match="this thread"):
        CALLS[name](engine)
    assert engine.commit([Mutation(X, "2")]).complete


def test_a_listener_that_commits_the_keys_of_its_own_batch_is_refused() -> None:
    engine: Engine
    errors: list[InvalidRequestError] = []

    def commit_again(event: Event) -> None:
        if isinstance(event, BatchStarted) and not errors:
            with pytest.raises(InvalidRequestError, match="this thread") as caught:
                engine.commit([Mutation(X, "2")])
            errors.append(caught.value)

    with connect("memory://", table="t", on_event=commit_again) as engine:
        engine.ensure_table("t", ["d"])
        assert engine.commit([Mutation(X, "1")]).complete
        assert read(engine, X) == b"1" and errors


class Handler:
    """Calls a function at one event of a commit, as a signal handler would be."""

    def __init__(self, at: int, call: Callable[[], object]) -> None:
        self.left = at
        self.result: object = None
        self._call = call

    def __enter__(self) -> None:
        self._before = sys.gettrace()  # of a measurement of coverage
        sys.settrace(self._step)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in HANDLED:
            return None
        self.left -= 1
        if self.left == 0:
            try:
                self.result = self._call()
            except InvalidRequestError as error:
                self.result = error
        return self._step


@pytest.mark.parametrize("key", [X, Y])
def test_a_signal_handler_commits_or_is_told_why_not(engine: Engine, key: Key) -> None:
    found: set[type] = set()
    at, is_there = 1, True
    while is_there:
        value = b"%d" % at
        handler = Handler(at, partial(engine.commit, [Mutation(key, value)]))
        began = time.monotonic()
        with handler:
            assert engine.commit([Mutation(X, value + b"outer")]).complete
        assert time.monotonic() - began < SOON_S
        is_there = handler.left <= 0
        is_committed = (
            handler.result is not None and type(handler.result) is not InvalidRequestError
        )
        if key == Y and is_there:
            assert (read(engine, Y) == value) == is_committed
        found.add(type(handler.result))
        at += 1
    assert len(found) == 3


def read(engine: Engine, key: Key) -> bytes | None:
    cell = engine.read([key])[key]
    return None if cell is None else cell.value
