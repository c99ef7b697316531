"""What alerts are made of: the same numbers wherever they are asked for, in bounded time."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from recovery import series
from recovery.fsck import note_repair
from recovery.series import make_series_app, watch_health, watch_series, write_series
from tests.integration.commands import run_here
from tests.unit.test_search import NOW_MS, Rows
from txn.errors import NotApplied
from txn.metrics import Metrics
from txn.model import Cell, Key
from txn.protocol.row import new_row_key
from txn.protocol.statuses import Status
from txn.stores.base import Store
from txn.testing.counting import CountingStore

DOCS = Path(__file__).parents[2] / "docs"
HOUR_MS = 3_600_000


class Away(CountingStore):
    """A store whose reads fail, or wait until the test ends."""

    def __init__(self, inner: Store, go_on: threading.Event | None = None) -> None:
        super().__init__(inner)
        self._go_on = go_on

    def read(self, *groups: Any) -> dict[Key, Cell | None]:  # type: ignore[override]
        if self._go_on is None:
            raise NotApplied("cannot connect to the gateway", gateway="secret:9090")
        self._go_on.wait()
        return super().read(*groups)


@pytest.fixture
def rows() -> Rows:
    rows = Rows()
    rows.put([new_row_key(NOW_MS - 30 * HOUR_MS + at, at) for at in range(7)])
    rows.put([new_row_key(NOW_MS - 90_000, 1)], Status.ASSERTED, at_ms=NOW_MS - 80_000)
    rows.put([new_row_key(NOW_MS - 10, 2)], Status.LOCKED)
    note_repair(rows.context)
    return rows


def read_values(registry: CollectorRegistry) -> dict[str, float]:
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


VALUES = {
    "hbase_txn_unfinished_transactions1-LOCKED": 1,
    "hbase_txn_unfinished_transactions2-ASSERTED": 1,
    "hbase_txn_oldest_unfinished_seconds": 80,
    "hbase_txn_expired_rows": 7,
    "hbase_txn_oldest_expired_seconds": 30 * 3_600,
    "hbase_txn_last_repair_timestamp_seconds": NOW_MS / 1000,
}


def test_the_series_say_what_piles_up(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    registry.register(watch_series(rows.context))
    assert read_values(registry) == VALUES
    monkeypatch.setattr(series, "MOST_OLD", 5)
    again = CollectorRegistry()
    again.register(watch_series(rows.context))
    assert read_values(again) == VALUES | {"hbase_txn_expired_rows": 5}


def test_an_empty_database_has_all_series() -> None:
    registry = CollectorRegistry()
    registry.register(watch_series(Rows().context))
    names = {name for name in VALUES if "unfinished_transactions" not in name}
    assert read_values(registry) == dict.fromkeys(names, 0)


def test_a_file_is_replaced_as_a_whole_or_not_at_all(rows: Rows, tmp_path: Path) -> None:
    path = tmp_path / "txn.prom"
    write_series(rows.context, str(path))
    written = path.read_text()
    assert "\nhbase_txn_oldest_unfinished_seconds 80.0\n" in written
    with pytest.raises(NotApplied):
        write_series(replace(rows.context, store=Away(rows.store)), str(path))
    assert [each.read_text() for each in tmp_path.iterdir()] == [written]


def test_fsck_writes_the_series(tmp_path: Path) -> None:
    store, file = f"embedded://{tmp_path}/store", tmp_path / "txn.prom"
    assert run_here("init", "--store", store).returncode == 0
    found = []
    for options in ((), ("--repair",)):
        arguments = ("fsck", "--store", store, "--metrics-file", str(file), *options)
        assert run_here(*arguments).returncode == 0
        name = "hbase_txn_last_repair_timestamp_seconds"
        found += re.findall(rf"^{name} (\S+)$", file.read_text(), re.MULTILINE)
    assert (float(found[0]), time.time() - float(found[1]) < 60) == (0, True)
    lost = run_here("fsck", "--store", store, "--metrics-file", str(tmp_path / "no" / "x.prom"))
    assert (lost.returncode, "x.prom" in lost.stderr) == (2, True)


def ask(app: Any, path: str) -> tuple[str, str]:
    started: list[str] = []
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": ""}
    body = b"".join(app(environ, lambda status, headers: started.append(status)))
    return started[0], body.decode()


def test_a_server_answers_for_its_store(rows: Rows) -> None:
    app = make_series_app(rows.context)
    assert ask(app, "/healthz") == ("200 OK", "ok\n")
    status, page = ask(app, "/metrics")
    assert (status, "\nhbase_txn_expired_rows 7.0\n" in page) == ("200 OK", True)
    assert "python_info" in page
    away = make_series_app(replace(rows.context, store=Away(rows.store)))
    assert ask(away, "/healthz") == (
        "503 Service Unavailable",
        "cannot connect to the gateway\n",
    )
    status, page = ask(away, "/metrics")
    assert (status, "expired_rows" in page, "python_info" in page) == ("200 OK", False, True)


def test_a_store_that_hangs_is_not_well(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "LIMIT_S", 0.1)
    go_on = threading.Event()
    store = Away(rows.store, go_on)
    find_trouble = watch_health(replace(rows.context, store=store))
    began, threads = time.monotonic(), threading.active_count()
    try:
        assert [find_trouble() for _ in range(3)] == ["the store has not answered for 0.1 s"] * 3
        assert threading.active_count() == threads + 1
    finally:
        go_on.set()
    assert time.monotonic() - began < 3


def test_a_database_that_is_gone_is_not_well() -> None:
    rows = Rows()
    find_trouble = watch_health(replace(rows.context, table=b"gone"))
    assert find_trouble() == "no such table"


def list_rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DOCS / "alerts.yaml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


@pytest.mark.parametrize("rule", [pytest.param(r, id=r["alert"]) for r in list_rules()])
def test_a_rule_asks_for_what_there_is(rule: dict[str, Any], rows: Rows) -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    registry.register(watch_series(rows.context))
    known = {sample.name: sample for each in registry.collect() for sample in each.samples}
    asked = re.findall(r"(hbase_txn_\w+)(?:\{([^}]*)\})?", rule["expr"])
    assert asked
    for name, selected in asked:
        labels = set(re.findall(r'(\w+)=~?"', selected))
        assert labels <= set(known[name].labels)
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert set(rule["annotations"]) == {"summary", "action"}


def test_what_piles_up_alerts(rows: Rows) -> None:
    rules = " ".join(rule["expr"] for rule in list_rules())
    panels = (DOCS / "grafana.json").read_text()
    for name in (
        "oldest_unfinished_seconds",
        "oldest_expired_seconds",
        "last_repair_timestamp_seconds",
    ):
        assert f"hbase_txn_{name}" in rules
    for name in VALUES:
        assert name.partition("transactions")[0] in panels
