"""Turns at keys in demand, among the threads of one engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.unit.worlds import World, X, Y
from txn import Engine
from txn.client import hot_keys
from txn.client.block import OptimisticTransaction
from txn.client.hot_keys import HotKeyQueues, HotKeyTicket
from txn.clock import poll
from txn.model import Key
from txn.protocol.statuses import ProtocolName

SHORT_S = 0.05


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_keys, "LONGEST_S", SHORT_S)


def in_line(lines: HotKeyQueues, count: int) -> Callable[[], bool]:
    return lambda: len(lines._queues.get(X, ())) == count


def had(lines: HotKeyQueues, *keys: object) -> HotKeyTicket:
    ticket = HotKeyTicket()
    assert lines.wait(ticket, keys) == []  # type: ignore[arg-type]
    return ticket


def lines_of(engine: Engine) -> HotKeyQueues:
    lines = engine._backend._queues  # type: ignore[attr-defined]
    assert isinstance(lines, HotKeyQueues)
    return lines


def make_hot(world: World) -> None:
    """Let keys be in demand for as long as nobody moves the clock."""
    locks = {world.engine.context.rules.lock_of(key) for key in (X, Y)}
    world.engine._backend._contention.note_hot(locks)  # type: ignore[attr-defined]


def test_turns_are_had_in_the_order_of_coming() -> None:
    lines, order = HotKeyQueues(), []
    first = had(lines, X)

    def take(number: int) -> None:
        ticket = HotKeyTicket()
        assert lines.wait(ticket, [X]) == [X]
        order.append(number)
        ticket.end()

    with ThreadPoolExecutor(8) as pool:
        for number in range(8):
            pool.submit(take, number)
            assert poll(in_line(lines, number + 2), within_ms=5_000)
        assert order == []
        first.end()
    assert order == list(range(8))
    assert lines._queues == {}


@pytest.mark.usefixtures("impatient")
def test_who_keeps_a_turn_for_long_loses_it() -> None:
    lines, ticket = HotKeyQueues(), HotKeyTicket()
    slow = had(lines, X)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lines.wait, ticket, [X]).result() == [X]
    slow.end()
    assert [waiter.ticket for waiter in lines._queues[X]] == [ticket]
    ticket.end()
    assert lines._queues == {}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("rounds", "got"), [(9, [X]), (1, [])])
def test_who_waits_in_a_line_that_moves_on_keeps_a_place(rounds: int, got: list[Key]) -> None:
    """All that waited for long would go on at once, and conflict."""
    lines, late = HotKeyQueues(), HotKeyTicket()
    first, second = had(lines, X), HotKeyTicket()
    with ThreadPoolExecutor(2) as pool:
        second_got = pool.submit(lines.wait, second, [X])
        assert poll(in_line(lines, 2), within_ms=5_000)
        waited = pool.submit(lines.wait, late, [X], rounds)
        assert poll(in_line(lines, 3), within_ms=5_000)
        first.end()
        assert second_got.result() == [X]
        assert waited.result() == got
    assert [place.ticket for place in lines._queues[X]] == [late if got else second]
    second.end()
    late.end()
    assert lines._queues == {}


def test_a_read_that_outlives_its_block_takes_no_place() -> None:
    lines, ticket = HotKeyQueues(), HotKeyTicket()
    ticket.end()
    assert lines.wait(ticket, [X]) == []
    assert lines._queues == {}


def test_nobody_waits_in_a_circle() -> None:
    lines, ticket = HotKeyQueues(), HotKeyTicket()
    lesser = had(lines, X)

    def take_both() -> list[list[object]]:
        return [list(lines.wait(ticket, [key])) for key in (Y, X)]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(take_both).result() == [[], []]
    assert ticket.locks == {Y}
    ticket.end()
    lesser.end()


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_block_has_its_turn_until_its_end(protocol: ProtocolName, *, fails: bool) -> None:
    world = World(protocol=protocol)
    lines = lines_of(world.engine)
    with world.engine.transaction() as t:
        t.get(X)
        assert lines._queues == {}  # nothing is in demand
    make_hot(world)
    try:
        with world.engine.transaction() as t:
            t.get(X)
            assert len(lines._queues) == 1
            t.put(X, b"1")
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert lines._queues == {}


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_threads_of_one_engine_wait_and_do_not_conflict(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    make_hot(world)
    clients, times, tries = 8, 10, []
    ready = threading.Barrier(clients)

    def count(t: OptimisticTransaction) -> None:
        tries.append(1)
        t.increment(X)

    def one_client() -> None:
        ready.wait()
        for _ in range(times):
            world.engine.run(count)

    with ThreadPoolExecutor(clients) as pool:
        for done in [pool.submit(one_client) for _ in range(clients)]:
            done.result()
    assert len(tries) == clients * times
    assert int.from_bytes(world.value(X) or b"") == clients * times
