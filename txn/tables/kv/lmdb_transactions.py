"""What a local transaction of LMDB reads and writes, with keys longer than LMDB takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import lmdb

from txn.tables.kv import layers
from txn.tables.kv.layers import SLICE


class LmdbReader:
    """A local transaction of LMDB; keys that fit are its own, longer ones go through layers."""

    __slots__ = ("_transaction", "get_short")

    def __init__(self, transaction: lmdb.Transaction[bytes]) -> None:
        self._transaction = transaction
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
        self._put_short(self._make_room(key), value)

    def put_all(self, items: Mapping[bytes, bytes]) -> None:
        """Put values in the order of their keys."""
        cursor = self._transaction.cursor()
        cursor.putmulti([(self._make_room(key), items[key]) for key in sorted(items)])

    def delete(self, key: bytes) -> None:
        layers.remove(self.get_short, self._transaction.delete, self._seek, key)

    def _make_room(self, key: bytes) -> bytes:
        """Return the stored form of a key, whose layers are there then."""
        return key if len(key) <= SLICE else layers.make(self.get_short, self._put_short, key)


class _Known(dict[bytes, bytes | None]):
    """The values of keys, which are looked for when they are first asked for."""

    __slots__ = ("_find", "found")

    def __init__(self, find: Callable[[bytes], bytes | None]) -> None:
        self._find = find
        self.found: dict[bytes, bytes | None] = {}

    def __missing__(self, key: bytes) -> bytes | None:
        value = self[key] = self.found[key] = self._find(key)
        return value


class GatheringWriter:
    """A writer of a local transaction that is made of several: each key is looked for once, and put
    once, in order, by `flush`. What was found stays beside what is known by now."""

    __slots__ = ("_known", "_writer", "get", "put")

    def __init__(self, writer: LmdbWriter) -> None:
        self._writer = writer
        self._known = _Known(writer.get)
        # Of the dictionary itself: nothing else is called as often in a commit.
        self.get: Callable[[bytes], bytes | None] = self._known.__getitem__
        self.put: Callable[[bytes, bytes], None] = self._known.__setitem__

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        self.flush()
        return self._writer.keys(start, stop)

    def items(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        self.flush()
        return self._writer.items(start, stop)

    def before(self, key: bytes) -> bytes | None:
        self.flush()
        return self._writer.before(key)

    def delete(self, key: bytes) -> None:
        self.flush()
        self._writer.delete(key)
        self._known[key] = self._known.found[key] = None

    def flush(self) -> None:
        """Put what was changed since the last time."""
        known, found = self._known, self._known.found
        changed = {
            key: value
            for key, value in known.items()
            if value is not None and value is not found.get(key)
        }
        self._writer.put_all(changed)
        found.update(changed)
