"""What a local transaction of LMDB reads and writes, with keys longer than LMDB takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import lmdb

from txn.tables.kv import layers
from txn.tables.kv.layers import SLICE


class LmdbReader:
    """A local transaction of LMDB; keys that fit are its own, longer ones go through layers."""

    __slots__ = ("_leaping", "_transaction", "get_short")

    def __init__(self, transaction: lmdb.Transaction[bytes]) -> None:
        self._transaction = transaction
        self._leaping: lmdb.Cursor[bytes] | None = None
        self.get_short: Callable[[bytes], bytes | None] = transaction.get

    def get(self, key: bytes) -> bytes | None:
        if len(key) <= SLICE:
            return self.get_short(key)
        stored = layers.find_value(self.get_short, key)
        return None if stored is None else self.get_short(stored)

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        return layers.merge_keys(self.get_short, self._seek, start, stop)

    def items(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor = self._transaction.cursor()
        if len(start) <= SLICE and cursor.set_range(start):
            for key, value in cursor.iternext():
                if key >= stop:
                    return
                if len(key) > SLICE:
                    start = key  # what is behind it begins here, and goes on through the layers
                    break
                yield key, value
            else:
                return
        for key in self.keys(start, stop):
            yield key, self.get(key) or b""

    def first(self, start: bytes, stop: bytes) -> bytes | None:
        if len(start) <= SLICE:
            cursor = self._leaping
            if cursor is None:
                cursor = self._leaping = self._transaction.cursor()
            if not cursor.set_range(start):
                return None
            key: bytes = cursor.key()
            if len(key) <= SLICE:
                return key if key < stop else None
        return next(self.keys(start, stop), None)

    def before(self, key: bytes) -> bytes | None:
        return layers.before(self.get_short, self._seek_back, key)

    def _seek_back(self, stop: bytes) -> bytes | None:
        cursor = self._transaction.cursor()
        found = cursor.prev() if cursor.set_range(stop) else cursor.last()
        return cursor.key() if found else None

    def _seek(self, start: bytes) -> Iterator[bytes]:
        cursor = self._transaction.cursor()
        return cursor.iternext(keys=True, values=False) if cursor.set_range(start) else iter(())


class LmdbWriter(LmdbReader):
    """A reader that also writes."""

    __slots__ = ("_put_short",)

    def __init__(self, transaction: lmdb.Transaction[bytes]) -> None:
        super().__init__(transaction)
        self._put_short = transaction.put

    def put(self, key: bytes, value: bytes) -> None:
        if len(key) > SLICE:
            key = layers.make(self.get_short, self._put_short, key)
        self._put_short(key, value)

    def put_all(self, items: list[tuple[bytes, bytes]]) -> None:
        """Put values, in this order as far as the keys are short."""
        for key, value in items:
            if len(key) > SLICE:
                self.put(key, value)
        short = [item for item in items if len(item[0]) <= SLICE]
        self._transaction.cursor().putmulti(short)

    def delete(self, key: bytes) -> None:
        layers.remove(self.get_short, self._transaction.delete, self._seek, key)


class GatheringWriter:
    """A writer of a local transaction that is made of several: each key is looked for once, and put
    once, in order, by `flush`."""

    __slots__ = ("_changed", "_known", "_writer")

    def __init__(self, writer: LmdbWriter) -> None:
        self._writer = writer
        self._known: dict[bytes, bytes | None] = {}
        self._changed: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        known = self._known
        if key not in known:
            known[key] = self._writer.get(key)
        return known[key]

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        self.flush()
        return self._writer.keys(start, stop)

    def items(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        self.flush()
        return self._writer.items(start, stop)

    def first(self, start: bytes, stop: bytes) -> bytes | None:
        self.flush()
        return self._writer.first(start, stop)

    def before(self, key: bytes) -> bytes | None:
        self.flush()
        return self._writer.before(key)

    def put(self, key: bytes, value: bytes) -> None:
        self._known[key] = self._changed[key] = value

    def delete(self, key: bytes) -> None:
        self.flush()
        self._writer.delete(key)
        self._known[key] = None

    def flush(self) -> None:
        """Put what was changed since the last time."""
        self._writer.put_all(sorted(self._changed.items()))
        self._changed.clear()
