"""Metrics: those for Prometheus at `/metrics` (the console's store calls, and what it found), and
those read from servers (conflicts of clients, and help for dead owners), which no store keeps."""

from __future__ import annotations

import math
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from itertools import pairwise

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from recovery.console.statistics import Hour, find_last_minute
from recovery.console.unfinished import Unfinished
from txn.client.measured import MeasuredStore
from txn.clock import Clock
from txn.errors import InvalidRequestError
from txn.metrics import Metrics
from txn.protocol.context import Context

EVERY_MS = 10_000
KEPT_MS = 3_600_000
TIMEOUT_S = 2.0
LONGEST = 4_000_000
CONFLICTS, HELPED = "hbase_txn_conflicts_total", "hbase_txn_helped_total"
LABELS = {CONFLICTS: "table", HELPED: "action"}

OUTCOMES = ("committed", "aborted", "undecided")

Counts = Mapping[tuple[str, str], float]
"""Counts by the name of the metric and its dividing label."""


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """The counts of servers in the last hour, or since the console asks them. conflicts: by table;
    helped: by action. silent: the errors of servers that did not answer."""

    since_ms: int | None = None
    conflicts: Mapping[str, int] = field(default_factory=dict)
    helped: Mapping[str, int] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)


class ServerMetrics:
    """Ask servers for their counts at intervals, and keep these for an hour."""

    def __init__(self, addresses: Sequence[str], clock: Clock) -> None:
        for address in addresses:
            if not address.startswith(("http://", "https://")):
                raise InvalidRequestError("an address of metrics is http://..", given=address)
        self._addresses = tuple(addresses)
        self._clock = clock
        self._said: dict[str, deque[tuple[int, Counts]]] = {each: deque() for each in addresses}
        self._silent: dict[str, str] = {}
        self._asked_ms: int | None = None

    def refresh(self) -> None:
        now = self._clock.monotonic_ms()
        if self._asked_ms is not None and now - self._asked_ms < EVERY_MS:
            return
        self._asked_ms = now
        for address, said in self._said.items():
            try:
                said.append((self._clock.wall_ms(), fetch_counts(address)))
                self._silent.pop(address, None)
            except (OSError, ValueError, HTTPException) as error:
                self._silent[address] = str(error) or type(error).__name__
            while said and said[0][0] < self._clock.wall_ms() - KEPT_MS:
                said.popleft()

    def read(self) -> ServerCounts | None:
        if not self._addresses:
            return None
        totals: dict[str, Counter[str]] = {CONFLICTS: Counter(), HELPED: Counter()}
        found = [tuple(said) for said in self._said.values()]  # a copy: the background changes them
        for said in found:
            for (_, before), (_, after) in pairwise(said):
                for (name, label), count in after.items():
                    grown = count - before.get((name, label), 0)
                    totals[name][label] += int(grown if grown >= 0 else count)  # server restarted
        firsts = [said[0][0] for said in found if said]
        conflicts, helped = ({**each} for each in (totals[CONFLICTS], totals[HELPED]))
        return ServerCounts(min(firsts, default=None), conflicts, helped, dict(self._silent))


def fetch_counts(address: str) -> Counts:
    """Return the counts of a server, or raise OSError, ValueError or HTTPException."""
    text = _fetch(address).decode()
    counts = {
        (sample.name, sample.labels.get(LABELS[sample.name], "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in LABELS
    }
    if not all(map(math.isfinite, counts.values())):
        raise ValueError("a count is no number")
    return counts


def _fetch(address: str) -> bytes:
    """Read in pieces with a deadline: the timeout is per piece, and a slow drip would never end."""
    due_s = time.monotonic() + TIMEOUT_S
    text = bytearray()
    with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
        while piece := answer.read1(65_536):
            text += piece
            if time.monotonic() > due_s or len(text) > LONGEST:
                raise ValueError(f"it told no end within {TIMEOUT_S:g} s and {LONGEST:,} bytes")
        if answer.length:
            raise ValueError("its answer was cut off")
    return bytes(text)


def measure(context: Context) -> tuple[Context, CollectorRegistry]:
    """Return a context that counts calls and repairs, and the registry of the counts."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    store = MeasuredStore(context.store, metrics)
    return replace(context, store=store, on_event=metrics), registry


class StoreCollector(Collector):
    """What the background has found in the store; nothing before its first result."""

    def __init__(
        self, find_unfinished: Callable[[], Unfinished | None], find_hour: Callable[[], Hour]
    ) -> None:
        self._find_unfinished = find_unfinished
        self._find_hour = find_hour

    def collect(self) -> Iterable[GaugeMetricFamily]:
        found, last = self._find_unfinished(), find_last_minute(self._find_hour())
        if found is not None:
            statuses = GaugeMetricFamily(
                "hbase_txn_unfinished_transactions",
                "Transaction rows that are not finished, in all of the table",
                labels=["status"],
            )
            for name, number in found.statuses.items():
                statuses.add_metric([name], number)
            yield statuses
            since = min((head.since for head in found.oldest), default=found.read_ms)
            yield GaugeMetricFamily(
                "hbase_txn_oldest_unfinished_seconds",
                "For how long the unfinished transaction with the oldest status has had it",
                value=max(0, found.read_ms - since) / 1000,
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
