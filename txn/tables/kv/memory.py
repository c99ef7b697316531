"""An ordered key-value store in memory, for one process: the reference for the others.

One lock serialises all local transactions, readers too, so each of them sees one instant. A thread
may be interrupted between any two steps: see `txn.host.holds`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from sortedcontainers import SortedDict

from txn.errors import StoreClosedError
from txn.host.holds import refuse_own_thread
from txn.tables.kv.ordered import Reader, Writer

R = TypeVar("R")


class _Shared:
    """The state of all handles on the same data; its lock is held by whoever uses it.

    begun: the transaction that was begun last, unless it has ended well. If its hold has ended, it
    failed or was interrupted, and the next user undoes it. number: of transactions begun.
    """

    __slots__ = ("begun", "data", "lock", "number")

    def __init__(self) -> None:
        self.data: Any = SortedDict()
        self.lock = threading.RLock()
        self.begun: _Transaction | None = None
        self.number = 0

    def begin(self, hold: threading.Lock, *, is_joined: bool) -> _Transaction:
        transaction = _Transaction(self.data)
        transaction.hold, transaction.is_joined = hold, is_joined
        transaction.thread = threading.get_ident()
        self.begun = transaction
        self.number += 1
        return transaction


class MemoryStore:
    """A handle on keys and values that live as long as any handle on them."""

    __slots__ = ("_closed", "_shared")

    def __init__(self) -> None:
        self._closed = False
        self._shared = _Shared()

    def share(self) -> MemoryStore:
        other = MemoryStore()
        other._shared = self._shared
        return other

    def read(self, body: Callable[[Reader], R]) -> R:
        state = self._shared
        with state.lock:
            joined = self._find_joined()
            while True:
                number = state.number
                result = body(joined or _Transaction(state.data))
                if state.number == number:  # otherwise a signal handler has written meanwhile
                    return result

    def write(
        self, body: Callable[[Writer], R], *, durable: bool = True, shared: bool = False
    ) -> R:
        state = self._shared
        with state.lock:
            joined = self._find_joined()
            if joined is not None:
                return body(joined)
            with (hold := threading.Lock()):
                result = body(state.begin(hold, is_joined=False))
                state.begun = None
                return result

    def atomically(self, work: Callable[[], None]) -> None:
        state = self._shared
        with state.lock:
            if self._find_joined() is not None:
                work()
                return
            with (hold := threading.Lock()):
                state.begin(hold, is_joined=True)
                work()
                state.begun = None

    def is_inside(self) -> bool:
        if (begun := self._shared.begun) is None:
            return False
        is_own = begun.thread == threading.get_ident()
        return is_own and begun.is_joined and begun.hold.locked()

    def unmap(self) -> None:
        """Do nothing: the data is in memory."""

    def close(self) -> None:
        """Release the handle; other handles stay usable."""
        self._closed = True

    def _find_joined(self) -> _Transaction | None:
        """Return the transaction that the lock's owner is in, if any. Undo one that has failed."""
        if self._closed:
            raise StoreClosedError("the store is closed")
        state = self._shared
        if (begun := state.begun) is None:
            return None
        if not begun.hold.locked():
            with (hold := threading.Lock()):
                begun.hold, begun.is_joined = hold, False
                state.data = begun.undo()
                state.begun = None
            return None
        if begun.is_torn or not begun.is_joined:
            raise refuse_own_thread()
        return begun


class _Transaction:
    """Changes are made in place; the first old value of each key is kept to undo them.

    hold: held by its thread while a write is in progress. is_joined: until then, all calls of that
    thread are part of it. is_torn: a change is in progress, or was interrupted.
    """

    __slots__ = ("_before", "_data", "get", "hold", "is_joined", "is_torn", "thread")

    hold: threading.Lock
    thread: int

    def __init__(self, data: Any) -> None:
        self._data = data
        self._before: dict[bytes, bytes | None] = {}
        self.get: Callable[[bytes], bytes | None] = data.get
        self.is_joined = self.is_torn = False

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        return iter(self._data.irange(start, stop, inclusive=(True, False)))

    def items(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return ((key, self._data[key]) for key in self.keys(start, stop))

    def first(self, start: bytes, stop: bytes) -> bytes | None:
        return next(self.keys(start, stop), None)

    def before(self, key: bytes) -> bytes | None:
        found = self._data.irange(maximum=key, inclusive=(True, False), reverse=True)
        return next(iter(found), None)

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self._before:
            self._before[key] = self._data.get(key)
        self.is_torn = True
        self._data[key] = value
        self.is_torn = False

    def put_all(self, items: Mapping[bytes, bytes]) -> None:
        for key, value in items.items():
            self.put(key, value)

    def delete(self, key: bytes) -> None:
        if key not in self._before:
            self._before[key] = self._data.get(key)
        self.is_torn = True
        self._data.pop(key, None)
        self.is_torn = False

    def undo(self) -> Any:
        """Return the data as it was. An interrupted call is repeated."""
        data = self._data
        if self.is_torn:  # an interrupt leaves the order of the keys incomplete, but not the dict
            data = SortedDict(dict.items(data))
        self.is_torn = True
        for key, value in self._before.items():
            if value is None:
                data.pop(key, None)
            else:
                data[key] = value
        return data
