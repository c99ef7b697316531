"""`txn ls` reads no more than it lists."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from recovery.commands import app
from tests.unit.test_search import NOW_MS, Fetching, Rows
from txn.protocol.context import Context
from txn.protocol.row import new_row_key
from txn.protocol.statuses import Status


class Opened:
    """A table of many transactions, opened by the command in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, salt_buckets: int) -> None:
        rows = Rows()
        self.keys = [new_row_key(NOW_MS - at, at, salt_buckets=salt_buckets) for at in range(5_000)]
        self.locked = self.keys[500::1_000]
        rows.put([key for key in self.keys if key not in self.locked])
        rows.put(self.locked, Status.LOCKED)
        self.store = Fetching(rows.store)
        context = replace(rows.context, store=self.store)

        @contextmanager
        def open_store_of(*_: Any) -> Iterator[Context]:
            yield context

        monkeypatch.setattr(sys.modules["recovery.commands.ls"], "open_store_of", open_store_of)

    def run(self, *options: str) -> list[str]:
        self.store.reset()
        self.store.rows = 0
        done = CliRunner().invoke(app, ["ls", "--store", "memory://", "--json", *options])
        assert done.exit_code == 0, done.output
        return [line for line in done.stdout.splitlines() if line.startswith("{")]


def test_the_newest_transaction_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch, 1)
    (line,) = opened.run("--limit", "1")
    assert opened.keys[0].decode() in line
    assert opened.store.rows == 1
    assert opened.store.calls == {"scan": 2}  # the other one asks for salt buckets


def test_what_is_not_listed_is_told_beside_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    Opened(monkeypatch, 1)
    done = CliRunner().invoke(app, ["ls", "--store", "memory://", "--limit", "2"])
    assert len(done.stdout.splitlines()) == 1 + 2
    assert done.stderr == "note: only the newest 2 transactions: --limit 0 shows all\n"


def test_the_newest_transaction_is_one_row_of_each_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch, 10)
    (line,) = opened.run("--limit", "1")
    assert opened.keys[0].decode() in line
    assert opened.store.rows == 2 * 10
    assert len(opened.run("--limit", "30")) == 30
    assert opened.store.rows == 2 * 10 + 29


def test_the_store_leaves_out_what_has_another_status(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch, 1)
    lines = opened.run("--limit", "3", "--status", "1")
    found = [json.loads(line)["transaction"] for line in lines]
    assert found == [key.decode() for key in opened.locked[2::-1]]
    assert opened.store.rows < 30
