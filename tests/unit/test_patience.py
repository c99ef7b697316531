"""How long a call waits for a server that does not answer, where its caller has less time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import greenlet
import pytest

from tests.unit.fake_gateway import fake_gateway
from tests.unit.fake_region_server import Silence, fake_region_server
from tests.unit.worlds import World
from txn import clock as clock_module
from txn.clock import SystemClock, call_until, limit_due
from txn.errors import StoreError
from txn.model import Check, Edit, Key
from txn.protocol.context import call_store
from txn.stores import open_store
from txn.stores.base import Store

pytestmark = pytest.mark.fast

KEY = Key("a", "d", "x", "t")


@contextmanager
def silent_gateway() -> Iterator[Store]:
    """A store whose gateway takes calls, and answers none of them meanwhile."""
    over = threading.Event()
    with fake_gateway() as gateway:
        gateway.before = lambda number, name: over.wait() and None
        store = open_store(f"{gateway.uri}?timeout_ms=60000")
        try:
            yield store
        finally:
            over.set()
            store.close()


@contextmanager
def silent_region_server() -> Iterator[Store]:
    """The same of a region server."""

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
