"""Local transactions of LMDB, with keys longer than LMDB accepts.

A trie of layers, as in Masstree (Mao, Kohler, Morris, EuroSys 2012). A key of up to 490 bytes is
stored as it is. A longer key is cut: its first 490 bytes and a byte 00 are the key of a pointer.
The pointer's value is the number of another layer. The rest is stored there in the same way, after
FF and that number. A pointer is one byte longer than any whole key, so the two are never confused.
It sorts right after the whole key of its 490 bytes, before all greater ones. Layer 0 has no prefix,
so no key of a caller may begin with FF.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import lmdb

SLICE = 490

_LAYER = b"\xff"
_LAST_NUMBER = _LAYER + bytes(8)
_DISORDER = "keys are not in order"  # damage that would lead a scan round and round


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
        _, layer, rest = self._descend(key)
        return self.get_short(layer + rest) if len(rest) <= SLICE else None

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        last = start
        for key in self._walk(b"", b"", start):
            if key >= stop:
                return
            if key >= last:
                last = key
                yield key
            elif last is not start:
                raise ValueError(_DISORDER)

    def items(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor = self._transaction.cursor()
        if len(start) <= SLICE and cursor.set_range(start):
            last = start
            for key, value in cursor.iternext():
                if key >= stop:
                    return
                if key < last:
                    raise ValueError(_DISORDER)
                last = key
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
            if key < start:
                raise ValueError(_DISORDER)
            if len(key) <= SLICE:
                return key if key < stop else None
        return next(self.keys(start, stop), None)

    def before(self, key: bytes) -> bytes | None:
        found = self._before(b"", key)
        if found is not None and found >= key:
            raise ValueError(_DISORDER)
        return found

    def _descend(self, key: bytes) -> tuple[list[tuple[bytes, bytes]], bytes, bytes]:
        """Return the existing pointers on the way to a key with the prefixes of their layers, the
        last prefix, and the rest of the key, which is longer than a slice if a layer is missing."""
        pointers: list[tuple[bytes, bytes]] = []
        layer = b""
        while len(key) > SLICE:
            pointer = layer + key[:SLICE] + b"\0"
            number = self.get_short(pointer)
            if number is None:
                break
            layer, key = _LAYER + number, key[SLICE:]
            pointers.append((pointer, layer))
        return pointers, layer, key

    def _walk(self, layer: bytes, before: bytes, start: bytes) -> Iterator[bytes]:
        """Yield the keys of a layer and its sublayers. before: the common prefix of its keys. The
        first key may be below a start that is longer than a slice."""
        for stored in self._seek(layer + start[:SLICE]):
            if not stored.startswith(layer):
                return
            rest = stored[len(layer) :]
            if len(rest) <= SLICE:
                yield before + rest
            else:
                part = rest[:SLICE]
                below = start[SLICE:] if start[:SLICE] == part else b""
                number = self.get_short(stored) or b""
                yield from self._walk(_LAYER + number, before + part, below)

    def _before(self, layer: bytes, key: bytes) -> bytes | None:
        """Return the greatest key below this one in a layer and its sublayers, without prefix."""
        stop = layer + key
        if len(key) > SLICE:
            stop = layer + key[:SLICE] + b"\0"
            number = self.get_short(stop)
            if number is not None:
                found = self._before(_LAYER + number, key[SLICE:])
                if found is not None:
                    return key[:SLICE] + found
        return self._last(layer, stop)

    def _last(self, layer: bytes, stop: bytes) -> bytes | None:
        """Return the greatest key stored below the stop in a layer and its sublayers."""
        cursor = self._transaction.cursor()
        is_found = cursor.prev() if cursor.set_range(stop) else cursor.last()
        stored = cursor.key()
        if not (is_found and stored.startswith(layer)):
            return None
        rest = stored[len(layer) :]
        if len(rest) <= SLICE:
            return rest
        number = self.get_short(stored) or b""
        next_layer = _LAYER + (int.from_bytes(number) + 1).to_bytes(8)
        below = self._last(_LAYER + number, next_layer)
        return None if below is None else rest[:SLICE] + below

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
            key = self._make_layers(key)
        self._put_short(key, value)

    def put_all(self, items: Mapping[bytes, bytes]) -> None:
        """Put values, the short ones in one call of the driver."""
        pairs = sorted(items.items())
        if max(map(len, items), default=0) > SLICE:
            for key, value in pairs:
                if len(key) > SLICE:
                    self.put(key, value)
            pairs = [item for item in pairs if len(item[0]) <= SLICE]
        self._transaction.cursor().putmulti(pairs)

    def delete(self, key: bytes) -> None:
        """Remove a key, and each layer that becomes empty."""
        pointers, layer, rest = self._descend(key)
        if len(rest) > SLICE:
            return
        self._transaction.delete(layer + rest)
        for pointer, layer in reversed(pointers):
            if next(self._seek(layer), b"").startswith(layer):
                return
            self._transaction.delete(pointer)

    def _make_layers(self, key: bytes) -> bytes:
        """Return the stored form of a key, after adding missing layers."""
        _, layer, rest = self._descend(key)
        while len(rest) > SLICE:
            last = self.get_short(_LAST_NUMBER) or bytes(8)
            number = (int.from_bytes(last) + 1).to_bytes(8)
            self._put_short(_LAST_NUMBER, number)
            self._put_short(layer + rest[:SLICE] + b"\0", number)
            layer, rest = _LAYER + number, rest[SLICE:]
        return layer + rest


def rewrite_number(writer: LmdbWriter) -> None:
    """Write what is there again: LMDB does not commit a transaction without writes."""
    writer.put(_LAST_NUMBER, writer.get(_LAST_NUMBER) or bytes(8))


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
        return self.flush().keys(start, stop)

    def items(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.flush().items(start, stop)

    def first(self, start: bytes, stop: bytes) -> bytes | None:
        return self.flush().first(start, stop)

    def before(self, key: bytes) -> bytes | None:
        return self.flush().before(key)

    def put(self, key: bytes, value: bytes) -> None:
        self._known[key] = self._changed[key] = value

    def put_all(self, items: Mapping[bytes, bytes]) -> None:
        self._known.update(items)
        self._changed.update(items)

    def delete(self, key: bytes) -> None:
        self.flush().delete(key)
        self._known[key] = None

    def flush(self) -> LmdbWriter:
        """Put what was gathered; return the writer that now has it."""
        self._writer.put_all(self._changed)
        self._changed.clear()
        return self._writer
