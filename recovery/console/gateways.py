"""What servers tell of themselves at `/metrics`: conflicts that their clients met, and transactions
of the dead that they ended. A store does not keep these."""

from __future__ import annotations

import math
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from itertools import pairwise

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
"""What was counted, by the name of the metric and the label that divides it."""


@dataclass(frozen=True, slots=True)
class Told:
    """What servers have told of the last hour, or since the console looks. conflicts: by table;
    helped: by what was done. silent: those that did not answer, and why."""

    since_ms: int | None = None
    conflicts: Mapping[str, int] = field(default_factory=dict)
    helped: Mapping[str, int] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)


class Gateways:
    """Asks servers now and then, and keeps what they said for an hour."""

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
        """Ask each server, if the last time is long enough ago."""
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

    def tell(self) -> Told | None:
        """Return what was told; None where no server is to be asked."""
        if not self._addresses:
            return None
        totals: dict[str, Counter[str]] = {CONFLICTS: Counter(), HELPED: Counter()}
        found = [tuple(said) for said in self._said.values()]  # the background changes them
        for said in found:
            for (_, before), (_, after) in pairwise(said):
                for (name, label), count in after.items():
                    grown = count - before.get((name, label), 0)
                    totals[name][label] += int(grown if grown >= 0 else count)  # it began again
        firsts = [said[0][0] for said in found if said]
        conflicts, helped = ({**each} for each in (totals[CONFLICTS], totals[HELPED]))
        return Told(min(firsts, default=None), conflicts, helped, dict(self._silent))


def fetch_counts(address: str) -> Counts:
    """Return what a server counts, or raise OSError, ValueError or HTTPException."""
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
    """Read in pieces: the timeout is for each, and a byte a second would never be given up."""
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
