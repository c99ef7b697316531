"""Metrics: what a dashboard is told of requests, phases, the store and queues; and the series that
alerts are made of: the same numbers wherever they are asked for, in bounded time."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from prometheus_client import CollectorRegistry

from recovery import series
from recovery.fsck import note_repair
from recovery.series import make_series_app, watch_health, watch_series, write_series
from tests.integration.commands import run_here
from tests.unit.test_search import NOW_MS, Rows
from tests.unit.worlds import World, X, Y, Z, after_status, stopped_at
from txn import AssertionFailedError, Exact, Key, Mutation
from txn.errors import NotApplied
from txn.events import (
    Action,
    CallName,
    CallOutcome,
    CommitOutcome,
    Conflict,
    PhaseName,
    Queued,
    QueueName,
    Retried,
    StoreCall,
)
from txn.metrics import MOST_TABLES, OTHER, Metrics, render_metrics
from txn.model import Cell
from txn.protocol.row import new_row_key
from txn.protocol.statuses import Status
from txn.stores.base import Store
from txn.testing.counting import CountingStore
from txn.testing.faulty import Fault, Reply

DOCS = Path(__file__).parents[2] / "docs"
ENDINGS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}


def documented() -> str:
    """The page's section on metrics."""
    return (DOCS / "observing.md").read_text().split("## Metrics\n")[1].split("\n## ")[0]


def run(registry: CollectorRegistry) -> World:
    """Let a client meet, and tell of, everything that is counted."""
    metrics = Metrics(registry)
    world = World()
    stopped_at(world, Status.ASSERTED)
    world.events.clear()
    after_status(world, Status.COMPLETE, Fault(frozenset(), Reply.NOT_APPLIED))
    world.engine.commit([Mutation(X, b"3")])
    with pytest.raises(AssertionFailedError):
        world.engine.commit([], [Exact(X, b"-")])
    world.engine.commit([Mutation(Y, b"1")], ack="decided")
    assert world.engine.submit(([Mutation(Z, b"1")], [])).result(60).complete
    world.engine.close()
    for event in world.events:
        metrics(event)
    return world


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"hbase_txn_{name}", labels)


def list_labels(registry: CollectorRegistry) -> dict[str, set[str]]:
    """The labels of each sample that there is."""
    found: dict[str, set[str]] = {}
    for metric in registry.collect():
        for each in metric.samples:
            found.setdefault(each.name, set()).update(each.labels)
    return found


def test_every_metric_label_and_phase_is_documented_and_no_other() -> None:
    registry = CollectorRegistry()
    run(registry)
    labels = list_labels(registry)
    rows = re.findall(r"^\| `(hbase_\w+)` \| ([^|]*)\|", documented(), re.MULTILINE)
    told = {name: set(re.findall(r"`(\w+)`", given)) for name, given in rows}
    metrics = {
        metric.name + ("_total" if metric.type == "counter" else ""): labels[
            metric.name + ENDINGS[metric.type][-1]
        ]
        for metric in registry.collect()
    }
    assert told == metrics
    words = re.findall(r"^\| `([a-z ]+)` \|", documented(), re.MULTILINE)
    assert words == [*get_args(CommitOutcome), *get_args(PhaseName)]
    for word in (*get_args(Action), *get_args(CallOutcome), *get_args(QueueName), OTHER):
        assert f"`{word}`" in documented()


def test_what_a_client_meets_shows_in_the_counters() -> None:
    registry = CollectorRegistry()
    world = run(registry)
    assert sample(registry, "commit_seconds_count", outcome="committed") == 3
    assert sample(registry, "commit_seconds_count", outcome="assertion") == 1
    assert sample(registry, "tries_total") == 5
    assert sample(registry, "phase_transactions_total", phase="lock", outcome="failed") == 1
    assert sample(registry, "conflicts_total", table="data") == 1
    assert sample(registry, "helped_total", action="rolled forward") == 1
    calls = [event for event in world.events if isinstance(event, StoreCall)]
    reads = [event for event in calls if event.call == "read"]
    assert sample(registry, "store_seconds_count", call="read", outcome="done") == len(reads)
    assert sample(registry, "store_items_total", call="read") == sum(each.items for each in reads)
    failed = {"call": "check_and_put", "outcome": "not applied"}
    assert sample(registry, "store_seconds_count", **failed) == 1
    assert sample(registry, "store_retries_total", call="check_and_put") == 1
    assert Retried("check_and_put") in world.events
    assert sample(registry, "gathered_transactions_sum") == 4
    for queue in ("line", "decided"):
        assert sample(registry, "queue_length", queue=queue) == 0


def test_what_is_rare_is_there_from_the_start() -> None:
    """Prometheus sees no increase in a series whose first value is 1: the first would be missed."""
    registry = CollectorRegistry()
    Metrics(registry)
    for outcome in get_args(CommitOutcome):
        assert sample(registry, "commit_seconds_count", outcome=outcome) == 0
    for phase in get_args(PhaseName):
        for end in ("done", "failed"):
            assert sample(registry, "phase_transactions_total", phase=phase, outcome=end) == 0
    for action in get_args(Action):
        assert sample(registry, "helped_total", action=action) == 0
    for call in get_args(CallName):
        assert sample(registry, "store_retries_total", call=call) == 0
    for queue in get_args(QueueName):
        assert sample(registry, "queue_length", queue=queue) == 0
    assert len(render_metrics(registry)[0].splitlines()) < 400


def test_more_tables_than_there_may_be_labels_are_one() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for number in range(MOST_TABLES + 2):
        for _ in range(2):
            metrics(Conflict(b"t", Key("x", "d", "c", f"table{number}"), b"h"))
    assert sample(registry, "conflicts_total", table="table0") == 2
    assert sample(registry, "conflicts_total", table=OTHER) == 4


HOUR_MS = 3_600_000


class Away(CountingStore):
    """A store whose reads fail, or wait until the test ends."""

    def __init__(self, inner: Store, go_on: threading.Event | None = None) -> None:
        super().__init__(inner)
        self._go_on = go_on

    def read(self, *groups: Any) -> dict[Key, Cell | None]:
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
    unwell = ("503 Service Unavailable", "cannot connect to the gateway\n")
    assert ask(away, "/healthz") == unwell
    assert watch_health(replace(rows.context, table=b"gone"))() == "no such table"
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


def list_expressions() -> list[tuple[str, str, list[str]]]:
    """Who asks, for what, and by which labels it names what it draws: panels and rules."""
    panels = json.loads((DOCS / "grafana.json").read_text())["panels"]
    drawn = [(panel["title"], target) for panel in panels for target in panel["targets"]]
    found = [
        (title, target["expr"], re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        for title, target in drawn
    ]
    (group,) = yaml.safe_load((DOCS / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert set(rule["annotations"]) == {"summary", "action"}
        found.append((rule["alert"], rule["expr"], []))
    return found


def test_panels_and_rules_ask_for_what_there_is(rows: Rows) -> None:
    """A name that is not there draws an empty panel, which looks like a quiet night."""
    registry = CollectorRegistry()
    run(registry)
    registry.register(watch_series(rows.context))
    labels = list_labels(registry)
    outcomes = {*get_args(CommitOutcome), *get_args(CallOutcome), "done", "failed"}
    known = {"outcome": outcomes, "phase": {*get_args(PhaseName)}}
    known["queue"] = {*get_args(QueueName)}
    for who, expression, drawn in list_expressions():
        asked = re.findall(r"(hbase_txn_\w+)(?:\{([^}]*)\})?", expression)
        assert len(asked) == expression.count("hbase_txn_") > 0, who
        own: set[str] = set()
        for name, selected in asked:
            own |= labels[name]
            for label, wanted in re.findall(r'(\w+)=~?"([^"]*)"', selected):
                assert label in labels[name] | {"job"}, who  # which is Prometheus' own
                assert label == "job" or set(wanted.split("|")) <= known[label], who
        for grouped in re.findall(r"by \(([^)]*)\)", expression):
            assert set(grouped.split(", ")) <= own, who
        assert set(drawn) <= own, who
    asked_for = " ".join(expression for _, expression, _ in list_expressions())
    assert [metric.name for metric in registry.collect() if metric.name not in asked_for] == []
    rules = (DOCS / "alerts.yaml").read_text()
    for name in ("oldest_unfinished", "oldest_expired", "last_repair_timestamp"):
        assert f"hbase_txn_{name}_seconds" in rules


def test_a_child_of_a_fork_has_empty_queues_and_its_parent_keeps_its_own() -> None:
    """What waits is its parent's, and never leaves the queues of the child, which would be too long
    for ever."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics(Queued("line", 3))
    metrics(Queued("decided", 2))
    child = os.fork()
    if not child:
        metrics(Queued("line", 1))
        lengths = [sample(registry, "queue_length", queue=each) for each in get_args(QueueName)]
        os._exit(0 if lengths == [1, 0, 0] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert sample(registry, "queue_length", queue="line") == 3
