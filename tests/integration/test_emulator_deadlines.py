"""Deadlines, where a server answers nothing or too slowly: each call ends soon after its own."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.integration.serving import served, unasked
from txn import CommitOutcomeUnknown, DeadlineError, Engine, Key, Mutation, StoreError, TxnError
from txn.client.tasks import AsyncEngine
from txn.errors import NotApplied
from txn.service import client as remote

X = Key("x", "d", "v", "data")
PUT = [Mutation(X, "1")]
PUT_Y = [Mutation(Key("y", "d", "v", "data"), "1")]
TIME_MS = 500
LATE_S = (TIME_MS + remote.ANSWER_MS + remote.OUTCOME_MS) / 1000 + 5.0  # of this machine


def in_block(act: Callable[[Any], object]) -> Callable[[Engine], None]:
    def run(engine: Engine) -> None:
        with engine.transaction(deadline_ms=TIME_MS) as t:
            act(t)

    return run


def in_run(act: Callable[[Any], object]) -> Callable[[Any], Any]:
    return lambda engine: engine.run(act, deadline_ms=TIME_MS)


def commit_many(engine: Engine) -> None:
    raise engine.commit_many([(PUT, [])] * 3, deadline_ms=[TIME_MS] * 3)[0]  # type: ignore[misc]


async def list_async(engine: Any) -> list[Any]:
    return [row async for row in engine.scan(deadline_ms=TIME_MS)]


async def put_async(t: Any) -> None:
    t.put(X, "1")


async def get_async(t: Any) -> None:
    await t.get(X)


READS: dict[str, Callable[[Engine], object]] = {
    "read": lambda e: e.read([X], deadline_ms=TIME_MS),
    "scan": lambda e: list(e.scan(deadline_ms=TIME_MS)),
    "snapshot": lambda e: list(e.scan(snapshot=True, deadline_ms=TIME_MS)),
    "block that gets": in_block(lambda t: t.get(X)),
    "block that scans": in_block(lambda t: t.scan()),
    "run that gets": in_run(lambda t: t.get(X)),
    "run that scans": in_run(lambda t: t.scan()),
}
COMMITS: dict[str, Callable[[Engine], object]] = {
    "commit": lambda e: e.commit(PUT, deadline_ms=TIME_MS),
    "commit once": lambda e: e.commit(PUT, once="token", deadline_ms=TIME_MS),
    "commit_many": commit_many,
    "submit": lambda e: e.submit((PUT, []), deadline_ms=TIME_MS).result(),
    "block that puts": in_block(lambda t: t.put(X, "1")),
    "run that puts": in_run(lambda t: t.put(X, "1")),
}
ASYNC: dict[str, tuple[Callable[[Any], Any], type[TxnError]]] = {
    "commit": (lambda e: e.commit(PUT, deadline_ms=TIME_MS), CommitOutcomeUnknown),
    "read": (lambda e: e.read([X], deadline_ms=TIME_MS), DeadlineError),
    "scan": (list_async, DeadlineError),
    "run that puts": (in_run(put_async), CommitOutcomeUnknown),
    "run that gets": (in_run(get_async), DeadlineError),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URI of a server that stands still."""
    log = tmp_path_factory.mktemp("stopped") / "log"
    with served("memory://", log, "--transactional", "0") as server:
        server.process.send_signal(signal.SIGSTOP)
        yield server.uris["transactional"]


@contextmanager
def soon() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < LATE_S


async def do_async(uri: str, act: Callable[[Any], Any]) -> object:
    async with AsyncEngine(unasked(uri)) as engine:
        return await act(engine)


def test_each_call_to_a_stopped_server_ends_soon_after_its_deadline(stopped: str) -> None:
    """A call that could wait for the connection's own time would do so for a minute. What wrote
    nothing says so; a commit that was sent may have happened."""

    def fail(act: Callable[[Any], Any], error: type[TxnError], is_async: bool) -> None:
        with soon(), pytest.raises(error):
            if is_async:
                asyncio.run(do_async(stopped, act))
            else:
                with unasked(stopped) as engine:  # which is closed in time as well
                    act(engine)

    calls = [(act, DeadlineError, False) for act in READS.values()]
    calls += [(act, CommitOutcomeUnknown, False) for act in COMMITS.values()]  # type: ignore[misc]
    calls += [(act, error, True) for act, error in ASYNC.values()]  # type: ignore[misc]
    with ThreadPoolExecutor(len(calls)) as pool:
        for each in [pool.submit(fail, *call) for call in calls]:
            each.result()


def test_a_future_does_not_wait_for_those_that_have_more_time(
    stopped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PATIENCE_MS", 100)
    with unasked(f"{stopped}?timeout_ms=8000") as engine:
        patient = engine.submit((PUT, []))
        hurried = engine.submit((PUT_Y, []), deadline_ms=500)
        behind = engine.submit((PUT, []), deadline_ms=500)  # of a key that is under way
        with soon():
            assert isinstance(hurried.exception(60), CommitOutcomeUnknown)
            assert isinstance(behind.exception(60), DeadlineError | CommitOutcomeUnknown)
            assert not patient.done()


def test_what_has_no_time_is_not_sent_alone_or_with_others(stopped: str) -> None:
    with unasked("txn://127.0.0.1:1") as engine:
        late = engine.submit((PUT, []), deadline_ms=0)
        assert isinstance(late.exception(60), DeadlineError)
        (result,) = engine.commit_many([(PUT, [])], deadline_ms=[-1])
        assert isinstance(result, DeadlineError)
    with unasked(stopped) as engine:
        result, sent = engine.commit_many([(PUT, []), (PUT_Y, [])], deadline_ms=[0, TIME_MS])
        assert isinstance(result, DeadlineError) and isinstance(sent, CommitOutcomeUnknown)


def test_connecting_takes_no_longer_than_the_call_may() -> None:
    """A host that answers nothing at all, as one behind a firewall: `connect_ms` is for calls that
    have more time. Nothing was sent."""
    with socket.socket() as listening, ExitStack() as taken:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):  # more than it lets in: those after them get no answer
            each = taken.enter_context(socket.socket())
            each.setblocking(False)
            each.connect_ex(listening.getsockname())
        uri = f"txn://127.0.0.1:{listening.getsockname()[1]}?connect_ms=30000"
        with unasked(uri) as engine:
            with soon(), pytest.raises(DeadlineError):
                engine.read([X], deadline_ms=TIME_MS)
            with soon(), pytest.raises(StoreError):
                engine.commit(PUT, deadline_ms=TIME_MS)


def test_without_a_deadline_the_connections_own_time_counts(stopped: str) -> None:
    with unasked(f"{stopped}?timeout_ms=300") as engine:
        for act in (
            lambda: engine.read([X]),
            engine.scan,
            lambda: engine.outcome(b"transaction.1.a"),
            lambda: engine.outcome(b"request.1.a"),
        ):
            with pytest.raises(NotApplied):
                act()
