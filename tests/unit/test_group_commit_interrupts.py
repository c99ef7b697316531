"""A thread that is interrupted at any line of the group commit leaves nobody waiting.

The interrupt is raised before one line after the other of what a thread does that leads a batch of
others' requests, which is worse than what Ctrl-C can do: that comes between two of them as well.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from tests.unit.test_group_commit import PATIENCE_S, Gate, backend_of, commit, put, refuse, until
from tests.unit.worlds import World
from txn import CommitOutcomeUnknown, Committed, Request, Version
from txn.client import group_commit as client_group_commit
from txn.client import local
from txn.host import worker_pool
from txn.tables.kv import group_commit

pytestmark = pytest.mark.fast

BOOKKEEPING = {
    client_group_commit.__file__: None,
    worker_pool.__file__: None,
    group_commit.__file__: None,
    local.__file__: {"_commit_batch", "_finish_future", "_finish_future_alone"},
}
AT_ONCE = 20
"""How many lines are tried in a test: they are tried in parallel."""


def once(name: str) -> Request:
    """A request that succeeds once: that a second one did is an assertion that fails."""
    mutations = put(name).mutations
    return Request(mutations, (Version(mutations[0].key, None),))


class Interrupt:
    """Raises KeyboardInterrupt before the how-manyth line of the bookkeeping in its thread. then:
    after so many more calls and returns it raises another one; None: it does not."""

    def __init__(self, at: int, then: int | None = None) -> None:
        self.left = at
        self.then = then
        self.place: str | None = None

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._enter)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.setprofile(None)
        sys.settrace(self._before)
        return kind is KeyboardInterrupt

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if code.co_filename not in BOOKKEEPING:
            return None
        names = BOOKKEEPING[code.co_filename]
        return self._step if names is None or code.co_name in names else None

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        if event != "line" or self.place is not None:
            return self._step
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        is_left = line.startswith("with self._lock") and frame.f_locals["self"]._lock.locked()
        if is_left or line == "try:":
            return self._step  # the interpreter takes no interrupt there
        self.left -= 1
        if self.left < 0:
            self.place = f"{frame.f_code.co_name}:{frame.f_lineno}: {line}"
            if self.then is not None:
                sys.setprofile(self._call)  # an error ends tracing
            raise KeyboardInterrupt
        return self._step

    def _call(self, frame: FrameType, event: str, argument: object) -> None:
        assert self.then is not None
        if event == "c_call" and getattr(argument, "__name__", "") == "__exit__":
            return  # the interpreter takes no interrupt between a block and its end
        self.then -= frame.f_code.co_filename in BOOKKEEPING and event != "c_return"
        if self.then < 0:
            raise KeyboardInterrupt


def interrupt_leader(at: int, *, has_pool: bool = True, then: int | None = None) -> str | None:
    """Interrupt the leader of others' requests at a line; see that these are told how they ended,
    and that the line goes on. Return which line it was; None: it came to the end before."""
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
    """Interrupt at one line after the other, until one has come to the end."""
    places, at = set[str](), 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while None not in (found := list(pool.map(interrupt, range(at, at + AT_ONCE)))):
            places.update(place for place in found if place)
            at += AT_ONCE
    assert len(places) >= 10


def interrupt_alone(at: int) -> str | None:
    """The same of a thread that commits at once, and of others that come meanwhile."""
    engine = World().engine
    group_commit = backend_of(engine)._group_commit
    interrupt = Interrupt(at)
    with interrupt:
        commit(engine, put("x"))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(commit, engine, put("x")).result(PATIENCE_S).complete
    assert not group_commit._queue and not group_commit._in_progress, interrupt.place
    engine.close()
    return interrupt.place


def test_a_thread_that_is_interrupted_alone_keeps_no_key_from_others() -> None:
    try_all(interrupt_alone)


def interrupt_submit(at: int) -> str | None:
    """The same of a thread that submits, and of the end of its engine."""
    engine = World().engine
    group_commit = backend_of(engine)._group_commit
    interrupt = Interrupt(at)
    with interrupt:
        engine.submit(put("x")).result(PATIENCE_S)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(commit, engine, put("x")).result(PATIENCE_S).complete
        pool.submit(engine.close).result(PATIENCE_S)
    assert not group_commit._queue and not group_commit._in_progress, interrupt.place
    return interrupt.place


def test_a_future_that_nobody_got_keeps_no_engine_open() -> None:
    try_all(interrupt_submit)
