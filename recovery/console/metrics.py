"""Metrics of servers: conflicts of clients, and help for dead owners, which no store keeps; and how
long the phases of batches took, to a part of a millisecond."""

from __future__ import annotations

import math
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from itertools import chain, pairwise
from typing import NamedTuple, get_args

from prometheus_client.parser import text_string_to_metric_families

from recovery.console.statistics import Latency
from txn.clock import Clock
from txn.errors import InvalidRequestError
from txn.events import PhaseName

EVERY_MS = 10_000
KEPT_MS = 3_600_000
TIMEOUT_S = 2.0
LONGEST = 4_000_000
CONFLICTS, HELPED = "hbase_txn_conflicts_total", "hbase_txn_helped_total"
PHASES = "hbase_txn_phase_seconds_bucket"
LABELS = {CONFLICTS: ("table",), HELPED: ("action",), PHASES: ("phase", "le")}

Counts = Mapping[tuple[str, ...], float]  # counts by the name of the metric and its dividing labels


class ServerCounts(NamedTuple):
    """The counts of servers in the last hour, or since the console asks them. conflicts: by table;
    helped: by action. phases: how long batches were in each. silent: the errors of silent ones."""

    since_ms: int | None
    conflicts: Mapping[str, int]
    helped: Mapping[str, int]
    phases: Sequence[Latency]
    silent: Mapping[str, str]


class ServerMetrics:
    """Ask servers, if any, at intervals, and keep their counts for an hour. last: their sums."""

    def __init__(self, addresses: Sequence[str], clock: Clock) -> None:
        for address in addresses:
            if not address.startswith(("http://", "https://")):
                words = "a metrics address begins with http:// or https://"
                raise InvalidRequestError(words, given=address)
        self._clock = clock
        self._answers: dict[str, deque[tuple[int, Counts]]] = {each: deque() for each in addresses}
        self._silent: dict[str, str] = {}
        self._asked_ms: int | None = None
        self.last: ServerCounts | None = None

    def refresh(self) -> None:
        now = self._clock.monotonic_ms()
        if self._asked_ms is not None and now - self._asked_ms < EVERY_MS:
            return
        self._asked_ms = now
        for address, answers in self._answers.items():
            try:
                answers.append((self._clock.wall_ms(), fetch_counts(address)))
                self._silent.pop(address, None)
            except (OSError, ValueError, HTTPException) as error:
                self._silent[address] = str(error) or type(error).__name__
            while answers and answers[0][0] < self._clock.wall_ms() - KEPT_MS:
                answers.popleft()
        self.last = self._sum_up() if self._answers else None

    def _sum_up(self) -> ServerCounts:
        grown: Counter[tuple[str, ...]] = Counter()
        for (_, before), (_, after) in chain.from_iterable(map(pairwise, self._answers.values())):
            for labels, count in after.items():
                growth = count - before.get(labels, 0)
                grown[labels] += int(growth if growth >= 0 else count)  # server restarted
        by_name: dict[str, dict[str, int]] = {CONFLICTS: {}, HELPED: {}}
        phases: dict[str, dict[float, int]] = {}
        for (name, label, *bounds), number in grown.items():
            if bounds:
                phases.setdefault(label, {})[float(bounds[0])] = number
            else:
                by_name[name][label] = number
        return ServerCounts(
            min((each[0][0] for each in self._answers.values() if each), default=None),
            by_name[CONFLICTS],
            by_name[HELPED],
            [
                read_histogram(phase, phases[phase])
                for phase in get_args(PhaseName)
                if phases.get(phase, {}).get(math.inf)
            ],
            dict(self._silent),
        )


def read_histogram(phase: str, numbers: Mapping[float, int]) -> Latency:
    """Return the percentiles of a histogram in seconds: the number up to each bound. Within a
    bucket times are assumed to lie evenly; those beyond the last bound are infinite."""
    bounds = sorted(numbers)
    total = numbers[bounds[-1]]

    def find_quantile(share: float) -> float:
        low, below = 0.0, 0
        for bound in bounds:
            number = numbers[bound]
            if number >= share * total and bound < math.inf:
                return 1000 * (low + (bound - low) * (share * total - below) / (number - below))
            low, below = bound, number
        return math.inf

    return Latency(phase, total, *map(find_quantile, (0.5, 0.95, 0.99)))


def fetch_counts(address: str) -> Counts:
    """Return the counts of a server, or raise OSError, ValueError or HTTPException."""
    counts: dict[tuple[str, ...], float] = {}
    families = text_string_to_metric_families(_fetch(address).decode())
    for sample in chain.from_iterable(each.samples for each in families):
        if sample.name in LABELS:
            labels = (sample.labels.get(label, "") for label in LABELS[sample.name])
            key = (sample.name, *labels)
            float(key[2] if key[2:] else 0)  # of a bucket: the bound
            counts[key] = counts.get(key, 0.0) + sample.value
    if not all(map(math.isfinite, counts.values())):
        raise ValueError("a count is not a finite number")
    return counts


def _fetch(address: str) -> bytes:
    """Read in pieces with a deadline: the timeout is per piece, and a slow drip would never end."""
    due_s = time.monotonic() + TIMEOUT_S
    text = bytearray()
    with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
        while piece := answer.read1(65_536):
            text += piece
            if time.monotonic() > due_s or len(text) > LONGEST:
                raise ValueError(f"no complete answer within {TIMEOUT_S:g} s and {LONGEST:,} bytes")
        if answer.length:
            raise ValueError("the answer was cut off")
    return bytes(text)
