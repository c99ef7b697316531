"""What alerts are made of: the same series and health for `txn console`, `txn serve --metrics` and
`txn fsck --metrics-file`. Needs the extra `metrics`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from recovery.bounds import Cached
from recovery.console.search import UnfinishedScan
from recovery.findings import RETENTION_MS
from recovery.fsck import find_last_repair_ms
from recovery.scan import list_old
from txn.errors import TxnError
from txn.metrics import make_metrics_app
from txn.protocol.context import Context
from txn.protocol.protocols import find_named

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication

LIMIT_S = 3.0
STEP_MS, WHOLE_MS = 300, 10**9
MOST_OLD = 10_000
PREFIX = "hbase_txn_"


class SeriesCollector(Collector):
    """The series that a function lists; none if it fails."""

    def __init__(self, read: Callable[[], Iterable[GaugeMetricFamily]]) -> None:
        self._read = read

    def collect(self) -> Iterable[GaugeMetricFamily]:
        with suppress(TxnError, TimeoutError):
            yield from self._read()


def watch_series(context: Context) -> Collector:
    """Return a collector that reads on in the table each time that Prometheus asks."""
    scan = UnfinishedScan(context)
    return SeriesCollector(Cached(lambda: list_series(context, scan, STEP_MS), LIMIT_S).read)


def write_series(context: Context, path: str) -> None:
    """Write the present series to a file for Prometheus' textfile collector, atomically."""
    registry, series = CollectorRegistry(), list_series(context, UnfinishedScan(context), WHOLE_MS)
    registry.register(SeriesCollector(lambda: series))
    write_to_textfile(path, registry)


def list_series(context: Context, scan: UnfinishedScan, ms: int) -> list[GaugeMetricFamily]:
    """Scan on for about this time; return the series as of the last whole round, none before."""
    scan.advance(ms)
    found = scan.latest
    if found is None:
        return []
    about = "Transaction rows that are not finished, in all of the table"
    statuses = GaugeMetricFamily(PREFIX + "unfinished_transactions", about, labels=["status"])
    for name, rows in found.statuses.items():
        statuses.add_metric([name], rows)
    since_ms = min((head.since for head in found.oldest), default=found.read_ms)
    expired = list_old(context, RETENTION_MS, MOST_OLD)
    oldest_s = max(0, found.read_ms - since_ms) / 1000
    row_s = (context.clock.wall_ms() - expired[0]) / 1000 if expired else 0.0
    repair_s = find_last_repair_ms(context) / 1000
    gauges = (
        ("oldest_unfinished_seconds", "For how long one has had its status, at most", oldest_s),
        ("expired_rows", f"Rows older than fsck keeps them, up to {MOST_OLD}", len(expired)),
        ("oldest_expired_seconds", "Age of the first of them; 0: there is none", row_s),
        ("last_repair_timestamp_seconds", "End of the last `fsck --repair`; 0: none", repair_s),
    )
    return [statuses, *(GaugeMetricFamily(PREFIX + n, about, value) for n, about, value in gauges)]


def make_series_app(context: Context) -> WSGIApplication:
    """Return what `txn serve --metrics` serves: the metrics of this process and the series, and at
    /healthz whether the store answers."""
    metrics, find_trouble = make_metrics_app(watch_series(context)), watch_health(context)

    def answer(environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/healthz":
            reason = find_trouble()
            status = "503 Service Unavailable" if reason else "200 OK"
            start(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{reason or 'ok'}\n".encode()]
        page: Iterable[bytes] = metrics(environ, start)
        return page

    return answer


def watch_health(context: Context) -> Callable[[], str | None]:
    """Return a function that reads the database's own row: None if that took no longer than
    LIMIT_S, otherwise what is wrong, without names of hosts and files."""
    cached = Cached(lambda: find_named(context.store, context.table), LIMIT_S)

    def find_trouble() -> str | None:
        try:
            cached.read()
        except TimeoutError:
            return f"the store has not answered for {LIMIT_S:g} s"
        except Exception as error:  # noqa: BLE001  (any failure is trouble)
            return re.split(r" \w+=", str(error))[0] or type(error).__name__
        return None

    return find_trouble
