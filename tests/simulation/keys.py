"""The keys, the times and the request of the safeguards' stories."""

from __future__ import annotations

from tests.simulation.world import key
from txn import Exact, Mutation

ITEM = "item"
A, B, X, Y, Z = (key(row) for row in ("item-a", "item-b", "x", "y", "z"))
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LONG_MS = 10 * DAY_MS
ADD = [Mutation(X, b"1")], [Exact(X, b"0")]
NONE: frozenset[int] = frozenset()
FIRST = frozenset({0})
