"""The state that all requests share: the open store, and what the background has read of it.

The background reads the last hour, the unfinished transactions of the whole table with their
owners, and the metrics of servers. It reads only while there are visitors, and rests often.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily

from recovery.bounds import Cached, ReadLimits
from recovery.console.jobs import Doctor, Jobs
from recovery.console.keys import list_sizes
from recovery.console.locks import cache_leases, cache_locks
from recovery.console.metrics import ServerMetrics
from recovery.console.owners import Owners
from recovery.console.search import Searches, Unfinished, UnfinishedScan
from recovery.console.settings import ConsoleSettings
from recovery.console.statistics import OUTCOMES, Hour, Sampler
from recovery.opening import open_store_of
from recovery.scan import find_transaction
from recovery.series import PREFIX, SeriesCollector, watch_health, watch_series
from txn.client.measured import MeasuredStore
from txn.errors import TxnError
from txn.metrics import Metrics
from txn.policy import Policy
from txn.protocol.context import Context
from txn.protocol.row import TransactionRow
from txn.text import name_failure

LOG = logging.getLogger("txn.console")
STEP_MS = 300
SHORTEST_REST_S = 1.0
REST = 4  # the background rests this many times as long as it reads: it uses a fifth of a core
VISIT_MS = 60_000
STOP_S = 10
OLDEST = 10  # how many of the oldest unfinished are read completely; each may have some megabytes
PATIENT = Policy(store_patience_ms=1_000)  # pages; repairs are more patient


class Background:
    """What the background has read so far. trouble: why its last read failed."""

    def __init__(self, context: Context, servers: Sequence[str]) -> None:
        self.servers = ServerMetrics(servers, context.clock)
        self.unfinished: Unfinished | None = None
        self.oldest: Sequence[TransactionRow] = ()
        self.trouble: str | None = None
        self.hour = Hour(context.clock.wall_ms())
        self.owners = Owners(context)
        self._context = context
        self._sampler = Sampler(context)
        self._scan = UnfinishedScan(context)
        self._is_visited = threading.Event()
        self._visited_ms = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txn-console", daemon=True)
        self._thread.start()

    def visit(self) -> None:
        """Record a visit, so that the background reads."""
        self._visited_ms = self._context.clock.monotonic_ms()
        self._is_visited.set()

    def close(self) -> None:
        self._stopped.set()
        self._is_visited.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        while self._is_visited.wait() and not self._stopped.is_set():
            began_ms = self._context.clock.monotonic_ms()
            try:
                self.hour = self._sampler.refresh(STEP_MS)
                found = self._scan.advance(STEP_MS)
                # The first round is shown while it runs, later ones when they are complete.
                if found.is_complete or self._scan.latest is None:
                    oldest = (head.row_key for head in found.oldest[:OLDEST])
                    rows = [find_transaction(self._context, row_key) for row_key in oldest]
                    self.oldest = [row for row in rows if row is not None and not row.is_over]
                    self.unfinished = found
                if self.unfinished is not None:
                    self.owners.refresh(self.unfinished)
                self.servers.refresh()
                self.trouble = None
            except TxnError as error:
                LOG.warning("the store cannot be read: %s", name_failure(error))
                self.trouble = str(error)
            except Exception:  # go on, or the pages would grow old unnoticed
                LOG.exception("the background failed")
                self.trouble = "the background reading failed: see the log of the console"
            now_ms = self._context.clock.monotonic_ms()
            if now_ms - self._visited_ms > VISIT_MS:
                self._is_visited.clear()
            self._stopped.wait(max(SHORTEST_REST_S, (now_ms - began_ms) * REST / 1000))


class Console:
    def __init__(self, settings: ConsoleSettings, opened: Context) -> None:
        self.registry = CollectorRegistry()
        metrics = Metrics(self.registry)
        measured = replace(opened, store=MeasuredStore(opened.store, metrics), on_event=metrics)
        self.settings = settings
        self.context = replace(measured, policy=PATIENT)
        self.limits = ReadLimits()
        self.background = Background(self.context, settings.servers)
        self.registry.register(watch_series(self.context))
        self.registry.register(SeriesCollector(self._list_minute))
        self.find_trouble = watch_health(self.context)
        self.searches = Searches(self.context, self.limits, lambda: self.background.unfinished)
        self.jobs = Jobs(measured)
        self.doctor = Doctor(self.context, settings.store)
        self._ends = ExitStack()
        self.locks = cache_locks(settings, self.context, self._ends)
        self.leases = cache_leases(settings)
        self.tables = Cached(lambda: list_sizes(self.context))

    def _list_minute(self) -> Iterator[GaugeMetricFamily]:
        if (last := self.background.hour.last) is not None:
            about = "Transactions begun in the last minute that is over, as far as they are counted"
            minute = GaugeMetricFamily(PREFIX + "minute_transactions", about, labels=["outcome"])
            for name in OUTCOMES:
                minute.add_metric([name], last.outcomes[name])
            yield minute

    def close(self) -> None:
        for each in (self.background, self.jobs, self._ends):
            each.close()


@contextmanager
def open_console(settings: ConsoleSettings) -> Iterator[Console]:
    """Open the store, and read in the background until the block ends."""
    with (
        open_store_of(settings.store, settings.transactions) as context,
        closing(Console(settings, context)) as console,
    ):
        yield console
