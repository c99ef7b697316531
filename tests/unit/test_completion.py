"""What a shell completes, through the script that `txn --install-completion` installs."""

from __future__ import annotations

import logging
import re
import socket
import sys
import uuid
from collections.abc import Callable, Iterator

import pytest

from recovery.commands import completion, main
from txn import Key, Mutation, connect
from txn.clock import SystemClock
from txn.locks import exclusive
from txn.locks.opening import open_manager

Complete = Callable[[str], list[str]]


@pytest.fixture
def complete(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Complete]:
    """Return what zsh gets for the beginning of a command; nothing may reach the error output."""

    def call(line: str) -> list[str]:
        monkeypatch.setenv("_TXN_COMPLETE", "complete_zsh")
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setattr(sys, "argv", ["txn"])
        with pytest.raises(SystemExit):
            main()
        out, error = capsys.readouterr()
        assert error == ""
        return [each.replace("\\\\", "") for each in re.findall(r'"(.*)"', out)]

    yield call
    logging.disable(logging.NOTSET)


def test_values_of_the_store_are_completed(
    complete: Complete, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    monkeypatch.setenv("TXN_STORE", uri)
    monkeypatch.setenv("TXN_LOCKS", uri)
    with connect(uri) as engine:
        engine.ensure_table("orders", ["d"])
        ids = [
            engine.commit([Mutation(Key("r", "d", "c", "orders"), "1")]).transaction[-12:-4]
            for _ in range(3)
        ]
    assert sorted(complete("txn show ")) == sorted(each.decode() for each in ids)
    assert complete(f"txn purge {ids[0].decode()[:5]}") == [ids[0].decode()]
    assert complete("txn doctor o") == complete("txn fsck --scan o") == ["orders"]
    assert complete("txn ls --status 1") == ["1-LOCKED"]
    assert "embedded:///" in complete("txn ls --store ")
    with open_manager(uri) as manager:
        manager.hold([exclusive("d/t")], query="", explicit=True)
        assert complete("txn locks ls d/") == complete("txn locks release d/") == ["d/t"]


def test_a_store_that_is_absent_or_silent_completes_nothing(
    complete: Complete, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "PATIENCE_S", 0.3)
    clock = SystemClock()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began_ms = clock.monotonic_ms()
        for store in ("embedded:///nix", f"txn://127.0.0.1:{silent.getsockname()[1]}", "nix"):
            assert complete(f"txn show --store {store} ") == []
    assert clock.monotonic_ms() - began_ms < 5_000
