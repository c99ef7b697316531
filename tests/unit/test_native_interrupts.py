"""A thread that is interrupted at any step of a call to HBase's servers takes nothing from others:
neither an answer nor the connection that all share."""

from __future__ import annotations

import time
from types import ModuleType
from typing import cast

import pytest

from tests.unit.fake_region_server import TABLE, fake_region_server
from tests.unit.interrupting import interrupt_each
from txn.host import holds
from txn.model import Check, Key
from txn.stores import open_store, wire
from txn.stores.hbase.native import batch, connection, servers, sharing, store, tenure
from txn.stores.hbase.native.store import NativeStore

pytestmark = [
    pytest.mark.fast,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnhandledThreadExceptionWarning"
    ),  # no greeting
]

KEYS = [Key(f"r{number}", "d", "x", TABLE) for number in range(4)]
SOON_S = 4  # less than any wait of the client's that another thread could have to sit out


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize(
    "modules", [(connection, wire), (servers, tenure, holds), (sharing, batch, store)]
)
def test_an_interrupted_call_leaves_its_connection_and_no_answer(
    modules: tuple[ModuleType, ...], twice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads share it: they would wait for their deadlines, or read from the middle of an
    answer."""
    monkeypatch.setattr(sharing, "TOGETHER_MS", 30_000)
    with fake_region_server() as server:
        opened = cast(NativeStore, open_store(server.uri + "&timeout_ms=60000"))
        values = [0]

        def act() -> None:
            if servers in modules:  # these connect again
                for each in opened._servers._open.values():
                    each.end()
            opened.read(KEYS[:2])
            opened.check_and_put([Check(key, None, ((key, b"1"),)) for key in KEYS[1:]])

        def check() -> None:
            began = time.monotonic()
            values[0] += 1
            value = b"%d" % values[0]
            assert opened.check_and_put([Check(KEYS[0], None, ((KEYS[0], value),))]) == [True]
            found = opened.read(KEYS[:1])[KEYS[0]]
            assert found is not None and found.value == value
            assert time.monotonic() - began < SOON_S

        check()
        interrupt_each(modules, act, check, twice=twice, every=3 if wire in modules else 1)
        began = time.monotonic()
        opened.close()
        assert time.monotonic() - began < SOON_S
