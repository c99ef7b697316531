"""Waiting: for keys in demand and turns at them, for stores that fail, and for silent servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import get_args

import greenlet
import pytest

from tests.unit.fake_gateway import fake_gateway
from tests.unit.fake_region_server import Silence, fake_region_server
from tests.unit.worlds import (
    DOWN,
    LOST,
    POLICY,
    World,
    X,
    Y,
    always,
    before,
    list_values,
    record_calls,
    stopped_at,
)
from txn import Engine
from txn import clock as clock_module
from txn.assertions import Exact, Version, is_outdated
from txn.client import hot_keys
from txn.client.hot_keys import HotKeyQueues, HotKeyTicket, Place
from txn.clock import SystemClock, call_until, limit_due
from txn.errors import (
    AssertionFailedError,
    CommitOutcomeUnknown,
    ConflictError,
    DeadlineError,
    NotApplied,
    StoreError,
)
from txn.model import Cell, Check, Edit, Key, Mutation
from txn.protocol.context import call_store
from txn.protocol.locks import Contention
from txn.protocol.prepare import write_rows
from txn.protocol.six_phase import lock_at_once
from txn.protocol.statuses import ProtocolName, Status
from txn.stores import open_store
from txn.stores.base import Store
from txn.testing.faulty import Call, Fault, Reply

OTHER = b"transaction.1700000000000." + b"1" * 32


def locked(world: World, key: Key, holder: bytes = OTHER) -> None:
    assert world.store.check_and_put([Check(key.lock, b"", ((key.lock, holder),))]) == [True]


@pytest.mark.parametrize(
    ("assertion", "cell", "expected"),
    [
        (Version(X, 5), Cell(b"v", 6), True),
        (Version(X, 5), Cell(b"v", 5), False),
        (Version(X, 5), Cell(b"v", 4), False),  # a stale read tells nothing
        (Version(X, 5), None, False),  # nor does a delete, of unknown age
        (Version(X, None), Cell(b"v", 6), False),  # it may be deleted again
        (Exact(X, b"w"), Cell(b"v", 6), False),  # it may become true again
        (~Version(X, 5), Cell(b"v", 6), False),
    ],
)
def test_only_a_greater_version_can_never_hold_again(
    assertion: Exact | Version, cell: Cell | None, expected: bool
) -> None:
    assert is_outdated(assertion, {X: cell}) is expected


@pytest.mark.parametrize("status", [Status.PUT, Status.CLEANING])
def test_an_overtaken_version_fails_while_the_key_is_locked(status: Status) -> None:
    world = World()
    first = world.engine.commit([Mutation(X, b"1")]).timestamp
    holder = stopped_at(world, status)
    other, began = world.client(seed=2), world.clock.monotonic_ms()
    with pytest.raises(AssertionFailedError, match="Version"):
        other.commit([Mutation(X, b"3")], [Version(X, first)])
    assert world.clock.monotonic_ms() == began
    assert world.holder(X) == holder


def in_demand(world: World, *keys: Key) -> Contention:
    hot = Contention(world.engine.context, lambda holders: set())
    for key in keys:
        t = world.begun(Mutation(key, b"1"))
        t.failure = ConflictError("key is locked", key=key, holder=OTHER)
        hot.record_results([t])
    return hot


def test_who_waits_for_a_key_in_demand_has_written_nothing_and_goes_in_at_last() -> None:
    world = World()
    hot, t = in_demand(world, X), world.begun(Mutation(X, b"3"), Mutation(Y, b"3"))
    locked(world, X)
    seen, began = record_calls(world), world.clock.monotonic_ms()
    hot.wait_for_hot_keys([t])
    assert hot.list_hot_keys(t.keys) == [X]
    assert t.failure is None
    assert {call.method for call in seen} == {"read"} and 2 < len(seen) < 20
    assert world.clock.monotonic_ms() - began < POLICY.deadline_ms
    world.clock.advance(10_000)  # a key is in demand for a while only
    seen = record_calls(world)
    hot.wait_for_hot_keys([t])
    assert seen == []


def test_what_is_remembered_of_keys_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txn.protocol.locks.REMEMBERED", 1)
    world = World()
    contention = world.engine._backend._contention  # type: ignore[attr-defined]
    contention.note_hot([X.lock, Y.lock])
    for key in (X, Y):
        world.engine.commit([Mutation(key, b"1")])
    assert contention._written.keys() == {Y} and contention._since_ms.keys() <= {Y.lock}


def test_keys_in_demand_are_asked_for_first_and_alone() -> None:
    """Whoever loses the race for one has then kept nobody from its other keys."""
    world = World()
    t = world.begun(Mutation(X, b"3"), Mutation(Y, b"3"))
    hot = in_demand(world, Y)
    write_rows(world.engine.context, [t])
    locked(world, Y)
    seen = record_calls(world)
    assert lock_at_once(world.engine.context, [t], hot) == []
    assert isinstance(t.failure, ConflictError)
    asked = [item.key for call in seen for item in call.items if isinstance(item, Check)]
    assert asked == [Y.lock]


READS: dict[str, Callable[[Engine], object]] = {
    "read": lambda e: e.read([X, Y], deadline_ms=500),
    "scan": lambda e: list(e.scan(deadline_ms=500)),
    "snapshot": lambda e: list(e.scan(snapshot=True, deadline_ms=500)),
    "block": lambda e: e.run(lambda t: t.get(X), deadline_ms=500),
    "scanning block": lambda e: e.run(lambda t: t.scan(), deadline_ms=500),
}
WRITES: dict[str, Callable[[Engine], object]] = {
    "one row": lambda e: e.commit([Mutation(X, b"2")], deadline_ms=500),
    "two rows": lambda e: e.commit([Mutation(X, b"2"), Mutation(Y, b"2")], deadline_ms=500),
    "block": lambda e: e.run(lambda t: t.put(X, t.get(Y) or b"2"), deadline_ms=500),
}


@pytest.mark.parametrize("fault", [DOWN, LOST])
@pytest.mark.parametrize("call", [*READS.values(), *WRITES.values()], ids=[*READS, *WRITES])
@pytest.mark.parametrize("protocol", get_args(ProtocolName))
def test_from_whichever_call_a_store_is_down_all_ends_in_time_and_is_denied(
    protocol: ProtocolName, call: Callable[[Engine], object], fault: Fault
) -> None:
    for last in range(20):
        world = World(replace(POLICY, store_patience_ms=15_000, deadline_ms=30_000), protocol)
        world.faults.features |= {"remote_calls"}
        first, began_ms = world.faults.calls + last, world.clock.monotonic_ms()

        def is_down(call: Call, first: int = first) -> bool:
            return call.number > first

        always(world, is_down, fault)
        try:
            call(world.engine)
        except (NotApplied, DeadlineError):
            assert world.clock.monotonic_ms() - began_ms <= 510
            assert world.store.read([X])[X] is None
        except CommitOutcomeUnknown:
            assert fault is LOST


@pytest.mark.parametrize("keys", [(X,), (X, Y)])
@pytest.mark.parametrize("protocol", get_args(ProtocolName))
def test_a_decision_that_may_have_been_sent_is_looked_for_after_its_deadline(
    protocol: ProtocolName, keys: tuple[Key, ...]
) -> None:
    world = World(replace(POLICY, store_patience_ms=15_000, deadline_ms=30_000), protocol)
    world.engine.commit([Mutation(key, b"1") for key in keys])
    back_ms = world.clock.monotonic_ms() + 2_000

    def decides(call: Call) -> bool:
        values = [value for item in call.items for value in list_values(item)]
        return b"2-ASSERTED" in values or (len(keys) == 1 and b"2" in values)

    def go_down() -> None:
        always(world, lambda call: world.clock.monotonic_ms() < back_ms, DOWN)

    before(world, decides, go_down, Fault(reply=Reply.MAYBE_APPLIED))
    assert world.engine.commit([Mutation(key, b"2") for key in keys], deadline_ms=500)
    assert [world.value(key) for key in keys] == [b"2"] * len(keys)


KEY = Key("a", "d", "x", "t")


@contextmanager
def silent_gateway() -> Iterator[Store]:
    """A store whose gateway takes calls, and answers none of them meanwhile."""
    over = threading.Event()

    def hang(number: int, name: str) -> None:
        over.wait()

    with fake_gateway() as gateway:
        gateway.before = hang
        store = open_store(f"{gateway.uri}?timeout_ms=60000")
        try:
            yield store
        finally:
            over.set()
            store.close()


@contextmanager
def silent_region_server() -> Iterator[Store]:
    def say_nothing(number: int, method: str) -> None:
        raise Silence

    with fake_region_server() as server:
        server.before = say_nothing
        store = open_store(f"{server.uri}&timeout_ms=60000")
        yield store
        store.close()


CALLS: dict[str, Callable[[Store], object]] = {
    "read": lambda store: store.read([KEY]),
    "write": lambda store: store.write([Edit(KEY, b"1", None)]),
    "check_and_put": lambda store: store.check_and_put([Check(KEY, b"", ((KEY, b"1"),))]),
    "scan": lambda store: list(store.scan(b"t")),
    "describe": lambda store: store.describe(b"t"),
}


@pytest.mark.parametrize("silent", [silent_gateway, silent_region_server])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_not_answered_ends_soon_after_the_deadline_of_its_caller(
    silent: Callable[[], Iterator[Store]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_module, "MOMENT_MS", 20)
    clock = SystemClock()
    context = replace(World().engine.context, clock=clock, until_ms=clock.monotonic_ms() + 30)
    began = time.monotonic()
    with silent() as store, pytest.raises(StoreError):  # type: ignore[attr-defined]
        call_store(context, lambda: CALLS[name](store))
    assert time.monotonic() - began < 10


def test_a_caller_has_a_moment_after_its_deadline_and_at_least_that() -> None:
    assert call_until(5_000, lambda: limit_due(1_000, 31_000)) == 6_000
    assert call_until(5_000, lambda: limit_due(9_000, 39_000)) == 10_000
    assert call_until(5_000, lambda: limit_due(1_000, 2_000)) == 2_000
    assert call_until(None, lambda: limit_due(1_000, 31_000)) == 31_000


def test_the_limit_of_a_call_ends_with_it_and_is_its_threads_alone() -> None:
    def fail() -> None:
        raise StoreError("away")

    def look_beside() -> None:
        thread = threading.Thread(target=lambda: found.append(limit_due(0, 31_000)))
        thread.start()
        thread.join()

    found: list[int] = []
    call_until(5_000, look_beside)
    with pytest.raises(StoreError):
        call_until(5_000, fail)
    assert [*found, limit_due(0, 31_000)] == [31_000, 31_000]


def test_a_limit_is_left_behind_by_no_greenlet() -> None:
    """Greenlets of a thread take turns in the middle of their calls, and one may never end."""
    hub = greenlet.getcurrent()
    actors = [
        greenlet.greenlet(partial(call_until, until_ms, hub.switch)) for until_ms in (5_000, 6_000)
    ]
    found = []
    for actor in [*actors, actors[0]]:
        actor.switch()
        found.append(limit_due(0, 31_000))
    actors.clear()
    del actor  # the second ends here, in the middle of its call
    assert [*found, limit_due(0, 31_000)] == [31_000] * 4


SHORT_S = 0.05


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_keys, "LONGEST_S", SHORT_S)


def had(lines: HotKeyQueues, *keys: object) -> HotKeyTicket:
    ticket = HotKeyTicket()
    assert lines.wait(ticket, keys) == []  # type: ignore[arg-type]
    return ticket


def lines_of(engine: Engine) -> HotKeyQueues:
    lines = engine._backend._queues  # type: ignore[attr-defined]
    assert isinstance(lines, HotKeyQueues)
    return lines


def make_hot(world: World) -> None:
    locks = {world.engine.context.rules.lock_of(key) for key in (X, Y)}
    world.engine._backend._contention.note_hot(locks)  # type: ignore[attr-defined]


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


@pytest.mark.parametrize(("rounds", "got"), [(9, [X]), (1, [])])
def test_who_waits_in_a_line_that_moves_on_keeps_a_place(rounds: int, got: list[Key]) -> None:
    """All that waited for long would go on at once, and conflict. But there is an end to it."""
    lines, tickets = HotKeyQueues(), [HotKeyTicket() for _ in range(3)]
    places = [Place(ticket, X, rounds) for ticket in tickets]
    for number, ticket in enumerate(tickets):
        ticket.queues, ticket.thread = lines, number  # of three threads
    assert [lines._is_behind(place) for place in places] == [False, True, True]
    first, second, late = tickets
    assert lines.must_wait(places[2])
    first.end()
    assert not lines.must_wait(places[1])
    assert lines.must_wait(places[2]) is bool(got)
    second.end()
    assert not lines.must_wait(places[2]) and late.got == got
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
