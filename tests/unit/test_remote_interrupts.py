"""A thread that is interrupted at any step of a remote call takes nothing from others."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import cast

import pytest

from tests.unit.fake_gateway import fake_gateway
from tests.unit.fake_region_server import TABLE, fake_region_server
from tests.unit.interrupting import PATIENCE_S, interrupt_each
from txn.clock import poll
from txn.host import holds, lending
from txn.model import Check, Key
from txn.stores import gateway as gateway_module
from txn.stores import open_store, wire
from txn.stores.hbase.native import batch, connection, servers, sharing, store, tenure
from txn.stores.hbase.native.store import NativeStore
from txn.stores.hbase.store import HBaseStore

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]  # also of fakes that got no greeting

KEYS = [Key(f"r{number}", "d", "x", TABLE) for number in range(4)]
CHECKS = [Check(key, b"", ((key, b"1"),)) for key in KEYS]
LONG_MS = 1_000 * PATIENCE_S * 3  # what another thread must not have to sit out


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("pool", [1, 3])
def test_an_interrupted_call_leaves_its_connection_and_no_answer(pool: int, twice: bool) -> None:
    """The only connection was gone for good; an answer that is left behind is the next caller's."""
    with fake_gateway() as gateway:
        opened = open_store(f"{gateway.uri}?pool={pool}&timeout_ms={LONG_MS}")
        asked: list[bytes] = []

        def act() -> None:
            opened.check_and_put(CHECKS)
            opened.read(KEYS[:1])

        def check() -> None:
            gateway.value = value = b"%d" % len(asked)
            asked.append(value)
            found = opened.read(KEYS[:1])[KEYS[0]]
            assert found is not None and found.value == value
            assert opened.check_and_put(CHECKS) == [True] * 4
            assert poll(lambda: gateway.count_open() <= pool, 20_000)

        interrupt_each((gateway_module, lending, holds, wire), act, check, twice=twice)
        opened.close()
        assert poll(lambda: gateway.count_open() == 0, 20_000)


def test_a_thread_that_is_interrupted_while_it_waits_leaves_the_line() -> None:
    """Those behind it would wait for it."""
    with fake_gateway() as gateway:
        opened = open_store(f"{gateway.uri}?pool=1&timeout_ms={LONG_MS}")
        line = cast(HBaseStore, opened)._pool._lender._line

        def act() -> None:
            go_on = threading.Event()
            gateway.before = lambda number, name: go_on.wait(PATIENCE_S)
            first = threading.Thread(target=opened.read, args=(KEYS[:1],))
            first.start()
            assert poll(lambda: gateway.at_once == 1, 20_000)
            freeing = threading.Timer(0.002, go_on.set)
            freeing.start()
            try:
                opened.read(KEYS[:2])
            finally:
                go_on.set()
                first.join()

        def check() -> None:
            gateway.before = lambda number, name: None
            assert opened.read(KEYS[:1]) == {KEYS[0]: None}
            assert not line.list_held()

        interrupt_each([lending], act, check)
        opened.close()


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize(
    "modules", [(connection, wire), (servers, tenure, holds), (sharing, batch, store)]
)
def test_an_interrupted_call_leaves_what_all_share(
    modules: tuple[ModuleType, ...], twice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would wait for their deadlines, or read from the middle of an answer."""
    monkeypatch.setattr(sharing, "TOGETHER_MS", LONG_MS)
    with fake_region_server() as server:
        opened = cast(NativeStore, open_store(f"{server.uri}&timeout_ms={LONG_MS}"))
        values = [0]

        def act() -> None:
            if servers in modules:  # these connect again
                for each in opened._servers._open.values():
                    each.end()
            opened.read(KEYS[:2])
            opened.check_and_put([Check(key, None, ((key, b"1"),)) for key in KEYS[1:]])

        def check() -> None:
            values[0] += 1
            value = b"%d" % values[0]
            assert opened.check_and_put([Check(KEYS[0], None, ((KEYS[0], value),))]) == [True]
            found = opened.read(KEYS[:1])[KEYS[0]]
            assert found is not None and found.value == value

        check()
        interrupt_each(modules, act, check, twice=twice, every=3 if wire in modules else 1)
        opened.close()
