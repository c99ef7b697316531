"""Keys of any length over a map whose keys are short, in the same byte order.

A trie of layers, as in Masstree (Mao, Kohler, Morris, EuroSys 2012). A key of up to 490 bytes is
stored as it is. A longer one is cut: its first 490 bytes and a byte 00 are the key of a pointer,
whose value is the number of a further layer, where the rest is stored in the same way behind FF and
that number. A pointer is one byte longer than any whole key, so the two are never confused, and it
sorts right after the whole key of its 490 bytes: before all that are greater.
Layer 0 has no prefix, so no key of a caller may begin with FF.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

SLICE = 490

_LAYER = b"\xff"
_LAST_NUMBER = _LAYER + bytes(8)

Get = Callable[[bytes], bytes | None]
Put = Callable[[bytes, bytes], object]
Seek = Callable[[bytes], Iterator[bytes]]
SeekBack = Callable[[bytes], bytes | None]


def find_value(get: Get, key: bytes) -> bytes | None:
    """Return the stored form of a key; None if it cannot be there, for want of a layer."""
    layer = b""
    while len(key) > SLICE:
        number = get(layer + key[:SLICE] + b"\0")
        if number is None:
            return None
        layer, key = _LAYER + number, key[SLICE:]
    return layer + key


def make(get: Get, put: Put, key: bytes) -> bytes:
    """Return the stored form of a key, after adding the layers that it needs."""
    layer = b""
    while len(key) > SLICE:
        pointer = layer + key[:SLICE] + b"\0"
        number = get(pointer)
        if number is None:
            last = get(_LAST_NUMBER) or bytes(8)
            number = (int.from_bytes(last) + 1).to_bytes(8)
            put(_LAST_NUMBER, number)
            put(pointer, number)
        layer, key = _LAYER + number, key[SLICE:]
    return layer + key


def remove(get: Get, delete: Callable[[bytes], object], seek: Seek, key: bytes) -> None:
    """Remove a key, and each layer that is empty then."""
    pointers = []
    layer = b""
    while len(key) > SLICE:
        pointer = layer + key[:SLICE] + b"\0"
        number = get(pointer)
        if number is None:
            return
        pointers.append((pointer, number))
        layer, key = _LAYER + number, key[SLICE:]
    delete(layer + key)
    for pointer, number in reversed(pointers):
        layer = _LAYER + number
        if next(seek(layer), b"").startswith(layer):
            return
        delete(pointer)


def merge_keys(get: Get, seek: Seek, start: bytes, stop: bytes) -> Iterator[bytes]:
    """Yield the whole keys from start (included) to stop (excluded) in byte order."""
    for key in _walk(get, seek, (b"", b""), start):
        if key >= stop:
            return
        if key >= start:
            yield key


def before(get: Get, seek_back: SeekBack, key: bytes) -> bytes | None:
    """Return the greatest whole key below this one, or None."""
    return _before(get, seek_back, b"", key)


def _before(get: Get, seek_back: SeekBack, layer: bytes, key: bytes) -> bytes | None:
    """Return the greatest key of a layer and below that is below this one, without its start."""
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
    """Return the greatest key of a layer and below that is stored below the stop."""
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
    """Yield the keys of a layer and below; `where` is its prefix and what its keys stand behind.

    The first key may be one below the start, where that is longer than a slice.
    """
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
