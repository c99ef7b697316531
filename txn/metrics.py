"""A Prometheus listener: `connect(uri, on_event=Metrics())`. Needs the extra `metrics`.

Names follow Prometheus' conventions: a prefix, the unit last, `_total` for counters.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, assert_never, get_args

from txn import events
from txn.host.extras import import_extra
from txn.host.forks import start_in_each_process
from txn.text import escape

with import_extra("metrics"):
    import prometheus_client
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, multiprocess
    from prometheus_client.registry import Collector

# From a call in memory to a call that waited for a lock TTL.
SECONDS = (
    *(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
TRANSACTIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_TABLES = 100
OTHER = "other"  # all tables after the first ones, as a metric's labels must be bounded
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Names a folder in which several processes count. Set it before this module is imported."""


class _Children(dict[tuple[Any, ...], Any]):
    """The children of metrics, by metric and labels: to look one up costs more than to count."""

    def __missing__(self, key: tuple[Any, ...]) -> Any:
        metric, *labels = key
        child = self[key] = metric.labels(*labels)
        return child


class Metrics:
    """Counts requests, phases, conflicts, help for other clients, store calls, batches and queues.
    One instance per registry, shared by any number of engines."""

    def __init__(self, registry: CollectorRegistry = prometheus_client.REGISTRY) -> None:
        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"hbase_txn_{name}_total", about, labels, registry=registry)

        def histogram(
            name: str, about: str, *labels: str, buckets: Sequence[float] = SECONDS
        ) -> Histogram:
            name = f"hbase_txn_{name}"
            return Histogram(name, about, labels, buckets=buckets, registry=registry)

        self._commits = histogram("commit_seconds", "Time from a request to its result", "outcome")
        self._tries = counter("tries", "Transactions begun for requests")
        about = "Time that a batch spent in a phase"
        self._seconds = histogram("phase_seconds", about, "phase", "outcome")
        about = "Transactions that passed a phase, or left the commit path in it"
        self._transactions = counter("phase_transactions", about, "phase", "outcome")
        self._conflicts = counter("conflicts", "Locks that somebody else held", "table")
        about = "Transactions of others that were ended, or whose locks were freed"
        self._helped = counter("helped", about, "action")
        self._calls = histogram("store_seconds", "Time of a call of the store", "call", "outcome")
        about = "Keys, edits and checks given to the store, and rows found by its scans"
        self._items = counter("store_items", about, "call")
        self._retries = counter("store_retries", "Failed calls of the store, sent again", "call")
        self._failures = counter("background_failures", "Work of threads, done again", "work")
        about = "Requests that went together as one batch"
        self._gathered = histogram("gathered_transactions", about, buckets=TRANSACTIONS)
        name, about = "hbase_txn_queue_length", "Requests and transactions that wait"
        self._queues = Gauge(name, about, ["queue"], registry=registry, multiprocess_mode="livesum")
        self._tables: set[bytes] = set()
        self._children = _Children()
        # Start series of rare events at 0, because Prometheus sees no increase in a series that
        # begins with its first event. Calls by outcome are left out: they would fill the page.
        known: Sequence[tuple[Counter | Gauge | Histogram, Any]] = (
            (self._commits, events.CommitOutcome),
            (self._helped, events.Action),
            (self._retries, events.CallName),
            (self._failures, events.WorkName),
            (self._queues, events.QueueName),
        )
        for metric, names in known:
            for name in get_args(names):
                self._children[metric, name]
        for phase in get_args(events.PhaseName):
            self._children[self._transactions, phase, "done"]
            self._children[self._transactions, phase, "failed"]
        start_in_each_process(self._start)

    def _start(self) -> None:
        # A fork's child inherits its parent's queue counts. They are cleared at its first event,
        # because a thread that it lacks may hold the locks of the metrics.
        self._are_queues_foreign, self._lock = True, Lock()

    def __call__(self, event: events.Event) -> None:
        if self._are_queues_foreign:
            with self._lock:  # counting in a queue waits until all are cleared
                if self._are_queues_foreign:
                    for queue in get_args(events.QueueName):
                        self._children[self._queues, queue].set(0)
                    self._are_queues_foreign = False
        match event:  # the usual ones first; patterns of attributes would take longer
            case events.StoreCall():
                seconds = event.elapsed_ms / 1000
                self._children[self._calls, event.call, event.outcome].observe(seconds)
                self._children[self._items, event.call].inc(event.items)
            case events.Phase():
                if event.elapsed_ms is not None:
                    seconds = event.elapsed_ms / 1000
                    self._children[self._seconds, event.name, event.outcome].observe(seconds)
                if event.outcome != "started":
                    done = event.transactions - event.failed
                    self._children[self._transactions, event.name, "done"].inc(done)
                if event.failed:
                    self._children[self._transactions, event.name, "failed"].inc(event.failed)
            case events.Ended():
                self._children[self._commits, event.outcome].observe(event.elapsed_ms / 1000)
                self._tries.inc(event.tries)
            case events.BatchStarted():
                self._gathered.observe(event.transactions)
            case _:
                self._count_rare(event)

    def _count_rare(
        self,
        event: events.Conflict | events.Helped | events.Queued | events.Retried | events.WorkFailed,
    ) -> None:
        match event:
            case events.Conflict(_, key):
                self._children[self._conflicts, self._name_table(key.table or b"")].inc()
            case events.Helped(_, action):
                self._children[self._helped, action].inc()
            case events.Queued(queue, change):
                self._children[self._queues, queue].inc(change)
            case events.Retried(call):
                self._children[self._retries, call].inc()
            case events.WorkFailed(work):
                self._children[self._failures, work].inc()
            case _:
                assert_never(event)

    def _name_table(self, table: bytes) -> str:
        if table not in self._tables:
            if len(self._tables) >= MOST_TABLES:
                return OTHER
            self._tables.add(table)
        return escape(table)


def render_metrics(registry: CollectorRegistry | None = None) -> tuple[bytes, str]:
    """Return the page that Prometheus reads at `/metrics`, and its content type. None: the metrics
    of all processes that share a folder, or else of this one."""
    page = prometheus_client.generate_latest(registry or _choose_registry())
    return page, prometheus_client.CONTENT_TYPE_LATEST


def make_metrics_app(*collectors: Collector) -> Callable[..., Any]:
    """Return a WSGI application that serves `render_metrics`, and what these collect."""
    registry = CollectorRegistry()
    for each in (_choose_registry(), *collectors):
        registry.register(each)
    app: Callable[..., Any] = prometheus_client.make_wsgi_app(registry)
    return app


def forget_process(process: int) -> None:
    """Remove the queues of an ended process from the sums. Its counters stay."""
    multiprocess.mark_process_dead(process)  # type: ignore[no-untyped-call]


def _choose_registry() -> CollectorRegistry:
    if SHARED_FOLDER not in os.environ:
        return prometheus_client.REGISTRY
    shared = CollectorRegistry()
    multiprocess.MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
    return shared
