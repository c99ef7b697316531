"""Metrics of servers: conflicts of clients, and help for dead owners, which no store keeps."""

from __future__ import annotations

import math
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from itertools import chain, pairwise
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from txn.clock import Clock
from txn.errors import InvalidRequestError

EVERY_MS = 10_000
KEPT_MS = 3_600_000
TIMEOUT_S = 2.0
LONGEST = 4_000_000
CONFLICTS, HELPED = "hbase_txn_conflicts_total", "hbase_txn_helped_total"
LABELS = {CONFLICTS: "table", HELPED: "action"}

Counts = Mapping[tuple[str, str], float]
"""Counts by the name of the metric and its dividing label."""


class Answer(NamedTuple):
    at_ms: int
    counts: Counts


class ServerCounts(NamedTuple):
    """The counts of servers in the last hour, or since the console asks them. conflicts: by table;
    helped: by action. silent: the errors of servers that did not answer."""

    since_ms: int | None
    conflicts: Mapping[str, int]
    helped: Mapping[str, int]
    silent: Mapping[str, str]


class ServerMetrics:
    """Ask servers for their counts at intervals, and keep these for an hour."""

    def __init__(self, addresses: Sequence[str], clock: Clock) -> None:
        for address in addresses:
            if not address.startswith(("http://", "https://")):
                raise InvalidRequestError("an address of metrics is http://..", given=address)
        self._clock = clock
        self._answers: dict[str, deque[Answer]] = {each: deque() for each in addresses}
        self._silent: dict[str, str] = {}
        self._asked_ms: int | None = None

    def refresh(self) -> None:
        now = self._clock.monotonic_ms()
        if self._asked_ms is not None and now - self._asked_ms < EVERY_MS:
            return
        self._asked_ms = now
        for address, answers in self._answers.items():
            try:
                answers.append(Answer(self._clock.wall_ms(), fetch_counts(address)))
                self._silent.pop(address, None)
            except (OSError, ValueError, HTTPException) as error:
                self._silent[address] = str(error) or type(error).__name__
            while answers and answers[0].at_ms < self._clock.wall_ms() - KEPT_MS:
                answers.popleft()

    def read(self) -> ServerCounts | None:
        if not self._answers:
            return None
        grown: dict[str, Counter[str]] = {CONFLICTS: Counter(), HELPED: Counter()}
        answers = [tuple(each) for each in self._answers.values()]  # the background changes them
        for before, after in chain.from_iterable(map(pairwise, answers)):
            for (name, label), count in after.counts.items():
                growth = count - before.counts.get((name, label), 0)
                grown[name][label] += int(growth if growth >= 0 else count)  # server restarted
        since_ms = min((each[0].at_ms for each in answers if each), default=None)
        return ServerCounts(since_ms, grown[CONFLICTS], grown[HELPED], dict(self._silent))


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
                raise ValueError(f"it did not end within {TIMEOUT_S:g} s and {LONGEST:,} bytes")
        if answer.length:
            raise ValueError("its answer was cut off")
    return bytes(text)
