"""Keys that divide a range into parts with about as many keys each, found by some seeks.

How many keys a part has is not known, but how dense they are at its beginning is. The part that
seems to have the most is halved in the middle between its first key and its last, again and again.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import accumulate, islice

from txn.tables.kv.ordered import Reader

SAMPLE = 64
PARTS_EACH = 16
"""So many small parts are made for each wanted part, which then consists of neighbours."""

_BYTES = 16  # of keys, from where they differ


def divide_keys(reader: Reader, start: bytes, stop: bytes, count: int) -> list[bytes]:
    """Return keys, at most so many, from start (excluded) to stop (excluded), in order."""
    first, last = next(reader.keys(start, stop), None), reader.before(stop)
    if first is None or last is None:
        return []
    large: list[tuple[float, bytes, bytes]] = []
    small: list[tuple[float, bytes, bytes]] = []

    def add(low: bytes, high: bytes) -> None:
        number, is_counted = _count_keys(reader, low, high)
        if is_counted:
            small.append((-number, low, high))
        else:
            heappush(large, (-number, low, high))

    add(first, last)
    while large and len(large) + len(small) < PARTS_EACH * (count + 1):
        _, low, high = heappop(large)
        middle = _halve(low, high)
        below, above = reader.before(middle), next(reader.keys(middle, stop))
        add(low, below or low)
        add(above, high)
    return _choose([(low, -number) for number, low, _ in (*large, *small)], count)


def _count_keys(reader: Reader, low: bytes, high: bytes) -> tuple[float, bool]:
    """Return how many keys there seem to be from low to high, and whether they were counted."""
    some = list(islice(reader.keys(low, high), SAMPLE))
    if len(some) < SAMPLE:
        return len(some) + 1, True
    at = _find_difference(low, high)
    begin = _number(low, at)
    covered, whole = _number(some[-1], at) - begin, _number(high, at) - begin
    return (SAMPLE * whole / covered if covered else SAMPLE), False


def _choose(parts: list[tuple[bytes, float]], count: int) -> list[bytes]:
    """Return where parts begin that have their share of the keys before them."""
    parts.sort()
    before = [0.0, *accumulate(number for _, number in parts)]
    share = before[-1] / (count + 1)
    places = (
        min(range(len(parts)), key=lambda place: abs(before[place] - share * number))
        for number in range(1, count + 1)
    )
    return sorted({parts[place][0] for place in places if place})


def _halve(low: bytes, high: bytes) -> bytes:
    """Return the middle between two keys: above the low one, not above the high one."""
    at = _find_difference(low, high)
    middle = low[:at] + ((_number(low, at) + _number(high, at) + 1) // 2).to_bytes(_BYTES)
    middle = middle.rstrip(b"\0")
    return middle if low < middle <= high else high


def _find_difference(low: bytes, high: bytes) -> int:
    pairs = enumerate(zip(low, high, strict=False))
    return next((at for at, (one, other) in pairs if one != other), len(low))


def _number(key: bytes, at: int) -> int:
    return int.from_bytes(key[at : at + _BYTES].ljust(_BYTES, b"\0"))
