"""A thread that is interrupted at any step of the group commit leaves nobody waiting."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from tests.unit.interrupting import Interruption
from tests.unit.test_group_commit import PATIENCE_S, Gate, backend_of, commit, put, refuse, until
from tests.unit.worlds import World
from txn import CommitOutcomeUnknown, Committed, Engine, Request, Version
from txn.client import group_commit as client_group_commit
from txn.host import worker_pool
from txn.tables.kv import group_commit

pytestmark = pytest.mark.fast

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
