"""The engine beside committing and reading: outcomes, acknowledgements, opening and closing."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.worlds import POLICY, World, X, Y, stopped_at
from txn.assertions import Some
from txn.client.block import OptimisticTransaction
from txn.client.connect import connect
from txn.client.engine import Engine
from txn.errors import AssertionFailedError, InvalidRequestError, NotApplied
from txn.model import Cell, Key, Mutation
from txn.policy import Policy
from txn.protocol.statuses import Status
from txn.request import Outcome, Request
from txn.service.client import connect_server


def test_outcomes() -> None:
    world = World()
    undecided = stopped_at(world, Status.LOCKED, key=X)
    decided = stopped_at(world, Status.ASSERTED, key=Y)
    with pytest.raises(AssertionFailedError) as caught:
        world.engine.commit([Mutation(Key("q", "d", "x"), b"1")], [Some(Key("z", "d", "x"))])
    aborted = caught.value.transaction
    assert aborted is not None
    assert world.engine.outcome(undecided) is Outcome.UNDECIDED
    assert world.engine.outcome(decided.decode()) is Outcome.COMMITTED
    assert world.engine.outcome(aborted) is Outcome.ABORTED
    assert world.engine.outcome(aborted.replace(b".17", b".18")) is Outcome.UNKNOWN


def test_too_many_unfinished_are_waited_for() -> None:
    world = World(policy=Policy(background_commits=1))
    requests = [Request((Mutation(key, b"1"),)) for key in (X, Y)]
    world.engine.commit_many(requests, ack="decided")
    assert world.statuses() == [Status.COMPLETE] * 2


def test_without_a_thread_to_spare_the_caller_finishes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    world = World()
    world.engine.commit([Mutation(X, b"1")], ack="decided")
    assert world.statuses() == [Status.COMPLETE]


def test_an_engine_that_cannot_be_opened_leaves_no_store_open(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with pytest.raises(InvalidRequestError):
        connect(f"embedded://{path}", salt_buckets=0)
    connect(f"embedded://{path}?sync=off").close()  # refused while it is open with another sync


PUT = [Mutation(X, b"1")]
NO_ACK = "ack is none of 'complete', 'decided'"
WRONG: list[tuple[Callable[[Any], object], str]] = [
    (lambda e: e.commit(PUT, ack="done"), NO_ACK),
    (lambda e: e.commit_many([(PUT, [])], ack="done"), NO_ACK),
    (lambda e: e.transaction(ack="done"), NO_ACK),
    (lambda e: e.run(len, ack="done"), NO_ACK),
    (lambda e: e.commit(PUT, deadline_ms=10**12 + 1), "deadline_ms must be at most"),
    (lambda e: e.run(len, deadline_ms=-(2**63)), "deadline_ms must be at most"),
    (lambda e: e.transaction(deadline_ms="60"), "deadline_ms must be a whole number"),
    (lambda e: e.run(len, deadline_ms=1.5), "deadline_ms must be a whole number"),
    (lambda e: Policy(deadline_ms=True), "deadline_ms must be a whole number"),
    (lambda e: e.commit_many([(PUT, [])], deadline_ms=1_000), "must be a list.* given=1000"),
    (lambda e: connect("memory://", salt_buckets=0), "salt_buckets must be 1 to 100"),
    (lambda e: connect("memory://", salt_buckets=101), "salt_buckets must be 1 to 100"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_what_makes_no_sense_is_refused_before_anything_is_written_or_sent(
    call: Callable[[Any], object], message: str
) -> None:
    world = World()
    before = world.keys_kept()
    with Engine.over(connect_server("txn://127.0.0.1:1"), "t") as served:
        for engine in (world.engine, served):
            with pytest.raises(InvalidRequestError, match=message):
                call(engine)
    assert world.keys_kept() == before


def test_sightings_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txn.protocol.recovery.REMEMBERED", 1)
    world = World()
    first = stopped_at(world, Status.LOCKED, key=X)
    second = stopped_at(world, Status.LOCKED, key=Y)
    resolver = world.engine._backend._resolver  # type: ignore[attr-defined]
    of_first, of_second = {first: {X.lock: Cell(first, 1)}}, {second: {Y.lock: Cell(second, 1)}}
    assert resolver.resolve(of_first) == set()
    assert resolver.resolve(of_second) == set()
    world.clock.advance(POLICY.lock_ttl_ms)
    assert resolver.resolve(of_second) == {second}
    assert resolver.resolve(of_first) == set()  # seen anew


async def write_later(t: OptimisticTransaction) -> None:
    t.put(X, "1")


async def list_later(t: OptimisticTransaction) -> AsyncIterator[None]:
    t.put(X, "1")
    yield


def write_bit_by_bit(t: OptimisticTransaction) -> Iterator[None]:
    t.put(X, "1")
    yield


class Later:
    def __await__(self) -> Iterator[None]:
        yield


BLOCKS: list[Callable[[Any], object]] = [
    *(write_later, list_later, write_bit_by_bit, lambda t: write_later(t=t), lambda t: Later()),
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_that_would_run_later_is_refused(block: Callable[[Any], object]) -> None:
    world = World()

    def both(t: OptimisticTransaction) -> object:
        t.put(Y, "1")
        return block(t)

    for given in (block, both) if block is not write_bit_by_bit else (block,):
        with pytest.raises(InvalidRequestError, match="a block runs a plain function"):
            world.engine.run(given)
    assert world.rows() == [] and world.value(Y) is None


@pytest.mark.parametrize("scheme", ["txn", "hbase", "hbase+thrift2"])
def test_connecting_without_a_server_ends_by_the_deadline(scheme: str) -> None:
    policy = None if scheme == "txn" else Policy(deadline_ms=100)
    began = time.monotonic()
    with pytest.raises(NotApplied, match=r"127\.0\.0\.1:1"):
        connect(f"{scheme}://127.0.0.1:1", policy=policy)
    assert time.monotonic() - began < 5
