"""An ordered key-value store in memory, for one process: the reference for the others.

One lock serialises all local transactions, readers too, so each of them sees one instant.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from sortedcontainers import SortedDict

from txn.errors import StoreClosedError
from txn.tables.kv.ordered import Reader, Writer

R = TypeVar("R")


class _Shared:
    """The state of all handles on the same data. joined: the lock owner's transaction, if any."""

    __slots__ = ("data", "joined", "lock")

    def __init__(self) -> None:
        self.data: Any = SortedDict()
        self.lock = threading.RLock()
        self.joined: _Transaction | None = None


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
        with self._shared.lock:
            self._check_open()
            return body(self._shared.joined or _Transaction(self._shared.data))

    def write(
        self, body: Callable[[Writer], R], *, durable: bool = True, shared: bool = False
    ) -> R:
        with self._shared.lock:
            self._check_open()
            if self._shared.joined is not None:
                return body(self._shared.joined)
            transaction = _Transaction(self._shared.data)
            try:
                return body(transaction)
            except BaseException:
                transaction.undo()
                raise

    def atomically(self, work: Callable[[], None]) -> None:
        def body(writer: Writer) -> None:
            assert isinstance(writer, _Transaction)
            self._shared.joined = writer
            try:
                work()
            finally:
                self._shared.joined = None

        with self._shared.lock:
            if self._shared.joined is not None:
                work()
            else:
                self.write(body)

    def unmap(self) -> None:
        """Do nothing: the data is in memory."""

    def close(self) -> None:
        """Release the handle; other handles stay usable."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed")


class _Transaction:
    """Changes are made in place; the first old value of each key is kept to undo them."""

    __slots__ = ("_before", "_data", "get")

    def __init__(self, data: Any) -> None:
        self._data = data
        self._before: dict[bytes, bytes | None] = {}
        self.get: Callable[[bytes], bytes | None] = data.get

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
        self._data[key] = value

    def put_all(self, items: Mapping[bytes, bytes]) -> None:
        for key, value in items.items():
            self.put(key, value)

    def delete(self, key: bytes) -> None:
        if key not in self._before:
            self._before[key] = self._data.get(key)
        self._data.pop(key, None)

    def undo(self) -> None:
        for key, value in self._before.items():
            if value is None:
                self._data.pop(key, None)
            else:
                self._data[key] = value
