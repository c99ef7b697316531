"""`txn table ls`: what a store has, whose it is, and what transactions must not write to."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from recovery.commands import main
from txn import connect
from txn.clock import SystemClock
from txn.model import Family
from txn.stores import open_store

pytestmark = pytest.mark.fast


def test_tables_are_listed_with_their_databases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"embedded://{tmp_path}/store"
    with connect(uri) as engine:
        engine.ensure_table("accounts", ["d", "e"])
    with connect(uri, transactions="other", protocol="fenced") as engine:
        engine.ensure_table("stock", ["d"])
    store = open_store(uri, SystemClock())
    store.ensure_table(b"cache", {b"d": Family(ttl_ms=60_000)})
    store.close()
    monkeypatch.setenv("TXN_STORE", uri)

    def run(*options: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["txn", "table", "ls", *options])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        return capsys.readouterr().out.splitlines()

    rows = [line.split()[:5] for line in run()]
    assert rows[0] == ["table", "families", "database", "protocol", "safe"]
    assert ["accounts", "d", "e", "txn", "six-phase"] in rows
    assert ["stock", "d", "other", "fenced", "yes"] in rows
    assert ["cache", "d", "none", "no:", "family"] in rows
    documents = {told["table"]: told for told in map(json.loads, run("--json"))}
    assert list(documents) == ["accounts", "cache", "other", "stock", "txn"]
    assert documents["accounts"] == {
        "table": "accounts",
        "families": ["d", "e"],
        "databases": ["txn"],
        "protocol": "six-phase",
        "refusals": [],
    }
    assert "TTL" in documents["cache"]["refusals"][0]
