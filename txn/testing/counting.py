"""Any store with a count per method and a trace, because cost is a fact with a test.

Each call is passed on as it was made, so that what is counted is what runs: by its own name, also
where it fails. A store that makes one call of several can have a counter below it as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from txn.stores.base import Feature, Store, wrap_call


class Counted(NamedTuple):
    """One call: the method, and the keys, edits, checks or the table that it was given."""

    method: str
    items: tuple[object, ...]


class CountingStore:
    """A store that keeps the books: `trace` has every call since the last `reset`; those that are
    made `together`, or beside a read, come behind that one."""

    def __init__(self, inner: Store) -> None:
        self.features: frozenset[Feature] = inner.features
        self.trace: list[Counted] = []
        self._inner = inner

    @property
    def calls(self) -> Counter[str]:
        """How often each method was called."""
        return Counter(call.method for call in self.trace)

    @property
    def items(self) -> Counter[str]:
        """How many items each method was given, over all its calls."""
        found: Counter[str] = Counter()
        for call in self.trace:
            found[call.method] += len(call.items)
        return found

    def reset(self) -> None:
        """Forget what was counted."""
        self.trace.clear()

    read = wrap_call(Store.read)
    read_versions = wrap_call(Store.read_versions)
    write = wrap_call(Store.write)
    check_and_put = wrap_call(Store.check_and_put)
    scan = wrap_call(Store.scan)
    atomically = wrap_call(Store.atomically)
    list_tables = wrap_call(Store.list_tables)
    describe = wrap_call(Store.describe)
    ensure_table = wrap_call(Store.ensure_table)
    find_splits = wrap_call(Store.find_splits)
    compact = wrap_call(Store.compact)

    def _around(self, name: str, items: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        self.trace.append(Counted(name, items))
        return call()

    def close(self) -> None:
        self._inner.close()
