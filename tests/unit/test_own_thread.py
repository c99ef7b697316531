"""A thread that would wait for itself is told so: a signal handler or a finalizer came while it was
writing, or it is inside `atomically`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.unit import test_store_interrupts as interrupts
from txn import Engine, InvalidRequestError, Key, Mutation, connect
from txn.client import group_commit, local
from txn.client.local import LocalBackend
from txn.events import BatchStarted, Event

pytestmark = pytest.mark.fast

X, Y = Key("x", "d", "c"), Key("y", "d", "c")
SOON_S = 2.0
FILES = {*interrupts.FILES, *interrupts.MEMORY_FILES, group_commit.__file__, local.__file__}


@pytest.fixture(params=["memory://", "embedded://"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    where = f"{tmp_path}/store?sync=off" if request.param == "embedded://" else ""
    with connect(request.param + where, table="t") as engine:
        engine.ensure_table("t", ["d"])
        engine.commit([Mutation(X, "0"), Mutation(Y, "0")])
        yield engine


CALLS: dict[str, Callable[[Engine], object]] = {
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
    """It waited for its batch, which waited for it."""
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
        if frame.f_code.co_filename not in FILES:
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
        handler = Handler(at, lambda value=value: engine.commit([Mutation(key, value)]))
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
