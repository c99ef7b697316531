"""A watch that counts for Prometheus: `connect(uri, watch=Metrics())`. Needs the extra `metrics`.

Its names follow Prometheus' conventions: a prefix, the unit last, `_total` for counters.
"""

from __future__ import annotations

from typing import assert_never

from txn.host.extras import import_extra
from txn.watch import Conflict, Event, Helped, Phase

with import_extra("metrics"):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

# From a batch in memory to one that waited for a lease.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counts phases, the transactions that left in them, conflicts, and help given."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._seconds = Histogram(
            "hbase_txn_phase_seconds",
            "Time that a batch of transactions spent in a phase",
            ["phase", "outcome"],
            buckets=SECONDS,
            registry=registry,
        )
        self._transactions = Counter(
            "hbase_txn_phase_transactions_total",
            "Transactions that passed a phase, or left the commit path in it",
            ["phase", "outcome"],
            registry=registry,
        )
        self._conflicts = Counter(
            "hbase_txn_conflicts_total", "Locks that somebody else held", registry=registry
        )
        self._helped = Counter(
            "hbase_txn_helped_total",
            "Transactions of others that were ended, or whose locks were freed",
            ["action"],
            registry=registry,
        )

    def __call__(self, event: Event) -> None:
        match event:
            case Phase(name, outcome, transactions, failed, elapsed_ms):
                if elapsed_ms is not None:
                    self._seconds.labels(name, outcome).observe(elapsed_ms / 1000)
                    self._transactions.labels(name, "done").inc(transactions - failed)
                    self._transactions.labels(name, "failed").inc(failed)
            case Conflict():
                self._conflicts.inc()
            case Helped(_, action):
                self._helped.labels(action).inc()
            case _:
                assert_never(event)
