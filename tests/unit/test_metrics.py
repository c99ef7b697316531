"""Metrics: what a dashboard is told of a commit."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from tests.unit.worlds import World, X, stopped_at
from txn.metrics import Metrics
from txn.model import Mutation
from txn.phases import Status


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
    assert sample("phase_transactions_total", phase="lock_at_once", outcome="failed") == 1
    assert sample("phase_seconds_count", phase="write", outcome="done") == 2
    assert sample("conflicts_total") == 1
    assert sample("helped_total", action="rolled forward") == 1
    assert world.holder(X) != holder
