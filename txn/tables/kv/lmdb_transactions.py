"""Local transactions of LMDB, with keys longer than LMDB accepts.

A trie of layers, as in Masstree (Mao, Kohler, Morris, EuroSys 2012). A key of up to 490 bytes is
stored as it is. A longer key is cut: its first 490 bytes and a byte 00 are the key of a pointer.
The pointer's value is the number of another layer. The rest is stored there in the same way, after
FF and that number. A pointer is one byte longer than any whole key, so the two are never confused.
It sorts right after the whole key of its 490 bytes, before all greater ones. Layer 0 has no prefix,
so no key of a caller may begin with FF.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import lmdb

SLICE = 490

_LAYER = b"\xff"
_LAST_NUMBER = _LAYER + bytes(8)

Get = Callable[[bytes], bytes | None]
Put = Callable[[bytes, bytes], object]
Seek = Callable[[bytes], Iterator[bytes]]
SeekBack = Callable[[bytes], bytes | None]


class LmdbReader:
    """A local transaction of LMDB; short keys are read directly, longer ones through layers."""

    __slots__ = ("_leaping", "_transaction", "get_short")

    def __init__(self, transaction: lmdb.Transaction[bytes]) -> None:
        self._transaction = transaction
        self._leaping: lmdb.Cursor[bytes] | None = None
        self.get_short: Callable[[bytes], bytes | None] = transaction.get

    def get(self, key: bytes) -> bytes | None:
        if len(key) <= SLICE:
            return self.get_short(key)
        stored = find_value(self.get_short, key)
        return None if stored is None else self.get_short(stored)

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        return merge_keys(self.get_short, self._seek, start, stop)

    def items(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor = self._transaction.cursor()
        if len(start) <= SLICE and cursor.set_range(start):
            for key, value in cursor.iternext():
                if key >= stop:
                    return
                if len(key) > SLICE:
                    start = key  # continue through the layers from here
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
        return find_before(self.get_short, self._seek_back, key)

    def _seek_back(self, stop: bytes) -> bytes | None:
        cursor = self._transaction.cursor()
        found = cursor.prev() if cursor.set_range(stop) else cursor.last()
        return cursor.key() if found else None

    def _seek(self, start: bytes) -> Iterator[bytes]:
        cursor = self._transaction.cursor()
        return cursor.iternext(keys=True, values=False) if cursor.set_range(start) else iter(())


class LmdbWriter(LmdbReader):
    __slots__ = ("_put_short",)

    def __init__(self, transaction: lmdb.Transaction[bytes]) -> None:
        super().__init__(transaction)
        self._put_short = transaction.put

    def put(self, key: bytes, value: bytes) -> None:
        if len(key) > SLICE:
            key = make_layers(self.get_short, self._put_short, key)
        self._put_short(key, value)

    def put_all(self, items: list[tuple[bytes, bytes]]) -> None:
        """Put values, the short keys in this order."""
        if max(map(len, dict(items)), default=0) > SLICE:
            for key, value in items:
                if len(key) > SLICE:
                    self.put(key, value)
            items = [item for item in items if len(item[0]) <= SLICE]
        self._transaction.cursor().putmulti(items)

    def delete(self, key: bytes) -> None:
        remove_key(self.get_short, self._transaction.delete, self._seek, key)


class GatheringWriter:
    """A writer for a group of transactions: each key is looked up once and `flush` puts it once."""

    __slots__ = ("_changed", "_get_short", "_known", "_writer")

    def __init__(self, writer: LmdbWriter) -> None:
        self._writer = writer
        self._get_short = writer.get_short
        self._known: dict[bytes, bytes | None] = {}
        self._changed: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        known = self._known
        if key not in known:
            # a slice of nothing: `len` would be one more call for each cell
            known[key] = self._writer.get(key) if key[SLICE:] else self._get_short(key)
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
        self._writer.put_all(sorted(self._changed.items()))
        self._changed.clear()


def find_value(get: Get, key: bytes) -> bytes | None:
    """Return the stored form of a key, or None if a layer of it is missing."""
    _, layer, rest = _descend(get, key)
    return layer + rest if len(rest) <= SLICE else None


def make_layers(get: Get, put: Put, key: bytes) -> bytes:
    """Return the stored form of a key, after adding missing layers."""
    _, layer, rest = _descend(get, key)
    while len(rest) > SLICE:
        last = get(_LAST_NUMBER) or bytes(8)
        number = (int.from_bytes(last) + 1).to_bytes(8)
        put(_LAST_NUMBER, number)
        put(layer + rest[:SLICE] + b"\0", number)
        layer, rest = _LAYER + number, rest[SLICE:]
    return layer + rest


def remove_key(get: Get, delete: Callable[[bytes], object], seek: Seek, key: bytes) -> None:
    """Remove a key, and each layer that becomes empty."""
    pointers, layer, rest = _descend(get, key)
    if len(rest) > SLICE:
        return
    delete(layer + rest)
    for pointer, layer in reversed(pointers):
        if next(seek(layer), b"").startswith(layer):
            return
        delete(pointer)


def _descend(get: Get, key: bytes) -> tuple[list[tuple[bytes, bytes]], bytes, bytes]:
    """Return the existing pointers on the way to a key with the prefixes of their layers, the last
    prefix, and the rest of the key, which is longer than a slice if a layer is missing."""
    pointers: list[tuple[bytes, bytes]] = []
    layer = b""
    while len(key) > SLICE:
        pointer = layer + key[:SLICE] + b"\0"
        number = get(pointer)
        if number is None:
            break
        layer, key = _LAYER + number, key[SLICE:]
        pointers.append((pointer, layer))
    return pointers, layer, key


def merge_keys(get: Get, seek: Seek, start: bytes, stop: bytes) -> Iterator[bytes]:
    """Yield the whole keys from start (included) to stop (excluded) in byte order."""
    for key in _walk(get, seek, (b"", b""), start):
        if key >= stop:
            return
        if key >= start:
            yield key


def find_before(get: Get, seek_back: SeekBack, key: bytes) -> bytes | None:
    return _before(get, seek_back, b"", key)


def _before(get: Get, seek_back: SeekBack, layer: bytes, key: bytes) -> bytes | None:
    """Return the greatest key below this one in a layer and its sublayers, without prefix."""
    stop = layer + key
    if len(key) > SLICE:
        pointer = layer + key[:SLICE] + b"\0"
        number = get(pointer)
        if number is not None:
            found = _before(get, seek_back, _LAYER + number, key[SLICE:])
            if found is not None:
                return key[:SLICE] + found
        stop = pointer
    return _last(get, seek_back, layer, stop)


def _last(get: Get, seek_back: SeekBack, layer: bytes, stop: bytes) -> bytes | None:
    """Return the greatest key stored below the stop in a layer and its sublayers."""
    stored = seek_back(stop)
    if stored is None or not stored.startswith(layer):
        return None
    rest = stored[len(layer) :]
    if len(rest) <= SLICE:
        return rest
    number = get(stored) or b""
    next_layer = _LAYER + (int.from_bytes(number) + 1).to_bytes(8)
    below = _last(get, seek_back, _LAYER + number, next_layer)
    return None if below is None else rest[:SLICE] + below


def _walk(get: Get, seek: Seek, where: tuple[bytes, bytes], start: bytes) -> Iterator[bytes]:
    """Yield the keys of a layer and its sublayers. where: the layer's prefix and the common prefix
    of its keys. The first key may be below a start that is longer than a slice."""
    layer, before = where
    for stored in seek(layer + start[:SLICE]):
        if not stored.startswith(layer):
            return
        rest = stored[len(layer) :]
        if len(rest) <= SLICE:
            yield before + rest
        else:
            part = rest[:SLICE]
            below = (_LAYER + (get(stored) or b""), before + part)
            yield from _walk(get, seek, below, start[SLICE:] if start[:SLICE] == part else b"")
