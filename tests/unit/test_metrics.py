"""Metrics: what a dashboard is told of requests, phases, the store and queues."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest
from prometheus_client import CollectorRegistry

from recovery.series import watch_series
from tests.unit.test_search import Rows
from tests.unit.worlds import World, X, Y, Z, after_status, stopped_at
from txn import AssertionFailedError, DeadlineError, Exact, Key, Mutation
from txn.client.engine import Engine
from txn.events import (
    Action,
    CallName,
    CallOutcome,
    CommitOutcome,
    Conflict,
    Ended,
    Event,
    Phase,
    PhaseName,
    Queued,
    QueueName,
    Retried,
    StoreCall,
)
from txn.metrics import MOST_TABLES, OTHER, Metrics, make_metrics_app, render_metrics
from txn.protocol.row import new_row_key
from txn.protocol.statuses import Status
from txn.stores import open_store
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


def test_no_phase_has_another_name() -> None:
    world = World()
    stopped_at(world, Status.ASSERTED)
    with world.client(seed=2).transaction() as t:
        t.scan()
        t.put(X, b"3")
    told = {event.name for event in world.events if isinstance(event, Phase)}
    assert told == set(get_args(PhaseName)) - {"read", "roll forward", "roll back"}


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


@pytest.mark.parametrize(
    ("last", "assertions", "phase"),
    [("decide", [], "roll forward"), ("assert", [Exact(X, b"-")], "roll back")],
)
def test_what_is_left_to_others_is_counted(last: str, assertions: list[Exact], phase: str) -> None:
    registry = CollectorRegistry()
    metrics, world = Metrics(registry), World()

    def on_event(event: Event) -> None:
        metrics(event)
        if isinstance(event, Phase) and event.name == last and event.outcome != "started":
            world.faults.plan = lambda call: Fault(frozenset(), Reply.NOT_APPLIED)

    world.on_event = on_event  # type: ignore[method-assign]
    engine = world.client(world.faults, seed=2)
    with suppress(AssertionFailedError):
        assert not engine.commit([Mutation(X, b"1")], assertions).complete
    assert sample(registry, "phase_transactions_total", phase=phase, outcome="failed") == 1
    assert sample(registry, "phase_transactions_total", phase=phase, outcome="done") == 0
    assert sample(registry, "phase_seconds_count", phase=phase, outcome="failed") is None


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


@pytest.mark.parametrize("call", ["commit", "commit_many", "submit"])
def test_a_request_that_is_late_at_once_was_not_begun(call: str) -> None:
    world = World()
    world.events.clear()
    request = ([Mutation(X, b"1")], [])
    match call:
        case "commit":
            with pytest.raises(DeadlineError):
                world.engine.commit(*request, deadline_ms=0)
        case "commit_many":
            (result,) = world.engine.commit_many([request], deadline_ms=[0])
            assert isinstance(result, DeadlineError)
        case _:
            assert isinstance(
                world.engine.submit(request, deadline_ms=0).exception(60), DeadlineError
            )
    world.engine.close()
    ended = [event for event in world.events if isinstance(event, Ended)]
    assert [(event.outcome, event.tries) for event in ended] == [("deadline", 0)]
    assert not any(isinstance(event, Phase) and event.transactions for event in world.events)


def test_queues_are_empty_when_all_is_done() -> None:
    registry = CollectorRegistry()
    run(registry)
    assert sample(registry, "queue_length", queue="line") == 0
    assert sample(registry, "queue_length", queue="decided") == 0


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


def test_phases_are_measured_below_a_millisecond() -> None:
    events: list[Event] = []
    with Engine(open_store("memory://"), table="t", on_event=events.append) as engine:
        engine.ensure_table("t", ["d"])
        engine.commit([Mutation(Key("x", "d", "c"), "1")])
    times = [event.elapsed_ms for event in events if isinstance(event, Phase)]
    assert any(time % 1 for time in times if time is not None)


def test_more_tables_than_there_may_be_labels_are_one() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for number in range(MOST_TABLES + 2):
        for _ in range(2):
            metrics(Conflict(b"t", Key("x", "d", "c", f"table{number}"), b"h"))
    assert sample(registry, "conflicts_total", table="table0") == 2
    assert sample(registry, "conflicts_total", table=OTHER) == 4


def test_a_page_for_prometheus_is_rendered() -> None:
    registry = CollectorRegistry()
    run(registry)
    page, kind = render_metrics(registry)
    assert kind.startswith("text/plain")
    assert b'hbase_txn_conflicts_total{table="data"} 1.0\n' in page
    started: list[str] = []
    (body,) = make_metrics_app()(
        {"REQUEST_METHOD": "GET", "PATH_INFO": "/metrics", "QUERY_STRING": ""},
        lambda status, headers: started.append(status),
    )
    assert started == ["200 OK"]
    assert b"python_info" in body


def list_panels() -> list[Mapping[str, Any]]:
    panels: list[Mapping[str, Any]] = json.loads((DOCS / "grafana.json").read_text())["panels"]
    return panels


PANELS = [pytest.param(panel, id=panel["title"]) for panel in list_panels()]


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_asks_for_what_there_is(panel: Mapping[str, Any]) -> None:
    registry = CollectorRegistry()
    run(registry)
    rows = Rows()
    rows.put([new_row_key(1, 1)], Status.LOCKED)
    registry.register(watch_series(rows.context))
    labels = list_labels(registry)
    values = {
        "outcome": {*get_args(CommitOutcome), *get_args(CallOutcome), "done", "failed"},
        "job": None,  # Prometheus' own
    }
    for target in panel["targets"]:
        expression = target["expr"]
        asked = re.findall(r"(hbase_txn_\w+)\{([^}]*)\}", expression)
        assert len(asked) == expression.count("hbase_txn_") > 0
        own: set[str] = set()
        for name, selected in asked:
            assert name in labels
            own |= labels[name]
            for label, wanted in re.findall(r'(\w+)=~?"([^"]*)"', selected):
                assert label in labels[name] | {"job"}
                known = values[label]
                assert known is None or set(wanted.split("|")) <= known
        for grouped in re.findall(r"by \(([^)]*)\)", expression):
            assert set(grouped.split(", ")) <= own
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= own


def test_every_metric_has_a_panel() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    asked = " ".join(target["expr"] for panel in list_panels() for target in panel["targets"])
    assert [metric.name for metric in registry.collect() if metric.name not in asked] == []
