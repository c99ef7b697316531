"""A wrapper that counts and traces the calls of any store, because cost is a fact with a test.

Each call is passed on unchanged under its own name, also if it fails, so the counts are the calls
that really run. A store that combines calls may have another counter below it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from txn.arguments import check_calls
from txn.stores.base import Feature, Store, StoreWrapper


class Counted(NamedTuple):
    """One call: the method, and its keys, edits, checks or table."""

    method: str
    items: tuple[object, ...]


class CountingStore(StoreWrapper):
    """A store that records its calls: `trace` has every call since the last `reset`. Calls made
    inside `atomically` follow the call that contains them."""

    @check_calls
    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.features: frozenset[Feature] = inner.features
        self.trace: list[Counted] = []

    @property
    def calls(self) -> Counter[str]:
        """The number of calls of each method."""
        return Counter(call.method for call in self.trace)

    @property
    def items(self) -> Counter[str]:
        """The number of items in all calls of each method."""
        found: Counter[str] = Counter()
        for call in self.trace:
            found[call.method] += len(call.items)
        return found

    def reset(self) -> None:
        self.trace.clear()

    def _around(self, name: str, items: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        self.trace.append(Counted(name, items))
        return call()
