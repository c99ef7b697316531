"""Metrics: what a dashboard is told of a commit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from prometheus_client import CollectorRegistry

from tests.unit.worlds import World, X, stopped_at
from txn.metrics import Metrics
from txn.model import Mutation
from txn.protocol.phases import Status
from txn.watch import Action, Phase, PhaseName

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def documented() -> str:
    """The page's section on metrics."""
    return OPERATIONS.read_text().split("## Metrics and the log\n")[1].split("\n## ")[0]


def test_every_metric_and_phase_is_documented_and_no_other() -> None:
    """A dashboard is built from the page, and its names are promises."""
    registry = CollectorRegistry()
    Metrics(registry)
    endings = {"counter": "_total", "histogram": ""}
    metrics = [metric.name + endings[metric.type] for metric in registry.collect()]
    named = re.findall(r"^\| `([^`]+)` \|", documented(), re.MULTILINE)
    assert named == [*metrics, *get_args(PhaseName)]
    assert all(f"`{action}`" in documented() for action in get_args(Action))


def test_no_phase_has_another_name() -> None:
    """A commit, an abort and a commit of what scanned a range go through all of them."""
    world = World()
    stopped_at(world, Status.ASSERTED)
    with world.client(seed=2).transaction() as t:
        t.scan()
        t.put(X, b"3")
    told = {event.name for event in world.events if isinstance(event, Phase)}
    assert told == set(get_args(PhaseName)) - {"read", "roll forward", "roll back"}


def test_phases_conflicts_and_help_are_counted() -> None:
    """One commit that meets a dead holder shows in each of the counters."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    world = World()
    holder = stopped_at(world, Status.ASSERTED)
    world.events.clear()
    world.engine.commit([Mutation(X, b"3")])
    for event in world.events:
        metrics(event)

    def sample(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"hbase_txn_{name}", labels)

    assert sample("phase_transactions_total", phase="decide", outcome="done") == 1
    assert sample("phase_transactions_total", phase="lock", outcome="failed") == 1
    assert sample("phase_seconds_count", phase="write", outcome="done") == 2
    assert sample("conflicts_total") == 1
    assert sample("helped_total", action="rolled forward") == 1
    assert world.holder(X) != holder
