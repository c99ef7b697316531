"""A thread that is interrupted at any step of a call through a gateway takes nothing from others:
neither an answer nor a connection."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from tests.unit.fake_gateway import fake_gateway
from tests.unit.interrupting import PATIENCE_S, interrupt_each
from txn.clock import poll
from txn.host import holds, lending
from txn.model import Check, Key
from txn.stores import gateway as gateway_module
from txn.stores import open_store, wire
from txn.stores.hbase.store import HBaseStore

pytestmark = [
    pytest.mark.fast,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

KEYS = [Key(f"r{number}", "d", "x", "t") for number in range(4)]
CHECKS = [Check(key, b"", ((key, b"1"),)) for key in KEYS]
MODULES = (gateway_module, lending, holds, wire)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("pool", [1, 3])
def test_an_interrupted_call_leaves_its_connection_and_no_answer(pool: int, twice: bool) -> None:
    """The only connection was gone for good; an answer that is left behind is the next caller's."""
    with fake_gateway() as gateway:
        store = open_store(f"{gateway.uri}?pool={pool}")
        asked: list[bytes] = []

        def act() -> None:
            store.check_and_put(CHECKS)
            store.read(KEYS[:1])

        def check() -> None:
            gateway.value = value = b"%d" % len(asked)
            asked.append(value)
            found = store.read(KEYS[:1])[KEYS[0]]
            assert found is not None and found.value == value
            assert store.check_and_put(CHECKS) == [True] * 4
            assert poll(lambda: gateway.count_open() <= pool, 20_000)

        interrupt_each(MODULES, act, check, twice=twice)
        store.close()
        assert poll(lambda: gateway.count_open() == 0, 20_000)


def test_a_thread_that_is_interrupted_while_it_waits_leaves_the_line() -> None:
    """Those behind it would wait for it."""
    with fake_gateway() as gateway:
        store = open_store(f"{gateway.uri}?pool=1&timeout_ms=60000")
        line = cast(HBaseStore, store)._pool._lender._line

        def act() -> None:
            go_on = threading.Event()
            gateway.before = lambda number, name: go_on.wait(PATIENCE_S) and None
            first = threading.Thread(target=store.read, args=(KEYS[:1],))
            first.start()
            assert poll(lambda: gateway.at_once == 1, 20_000)
            freeing = threading.Timer(0.002, go_on.set)
            freeing.start()
            try:
                store.read(KEYS[:2])
            finally:
                go_on.set()
                first.join()

        def check() -> None:
            gateway.before = lambda number, name: None
            assert store.read(KEYS[:1]) == {KEYS[0]: None}
            assert not line.list_held()

        interrupt_each([lending], act, check)
        store.close()
