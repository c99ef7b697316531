"""What the console tells Prometheus at `/metrics`: what it has found in the store, and what its own
calls of the store took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from recovery.console.background import Background
from recovery.console.sampling import find_last_minute
from txn.client.measured import MeasuredStore
from txn.metrics import Metrics
from txn.protocol.context import Context

OUTCOMES = ("committed", "aborted", "undecided")


def measure(context: Context) -> tuple[Context, CollectorRegistry]:
    """Return a context whose calls and repairs are counted, and where."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    store = MeasuredStore(context.store, metrics)
    return replace(context, store=store, on_event=metrics), registry


class Findings(Collector):
    """What the background has found so far, and nothing before it has found anything."""

    def __init__(self, background: Background) -> None:
        self._background = background

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the metrics as they are now."""
        found, last = self._background.unfinished, find_last_minute(self._background.hour)
        if found is not None:
            statuses = GaugeMetricFamily(
                "hbase_txn_unfinished_transactions",
                "Transaction rows that are not finished, in all of the table",
                labels=["status"],
            )
            for name, number in found.statuses.items():
                statuses.add_metric([name], number)
            yield statuses
            since = min((head.since for head in found.oldest), default=found.looked_ms)
            yield GaugeMetricFamily(
                "hbase_txn_oldest_unfinished_seconds",
                "For how long the unfinished transaction with the oldest status has had it",
                value=max(0, found.looked_ms - since) / 1000,
            )
        if last is not None:
            minute = GaugeMetricFamily(
                "hbase_txn_minute_transactions",
                "Transactions that were begun in the last minute that is over, estimated",
                labels=["outcome"],
            )
            for name in OUTCOMES:
                minute.add_metric([name], getattr(last, name))
            yield minute
