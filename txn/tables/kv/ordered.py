"""The ordered key-value store that tables are built on: bytes to bytes, in byte order.

All work happens in local transactions: a function that is handed a reader or a writer and may be
called again from the start, so it must not change anything else. Writers are serialised; a reader
sees one instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import accumulate, islice
from typing import Protocol, TypeVar

R = TypeVar("R")

SAMPLE = 64
PARTS_EACH = 16
"""So many small parts are made for each wanted part, which then consists of neighbours."""

_BYTES = 16  # of keys, from where they differ


class Reader(Protocol):
    """One consistent view; valid inside the function that it was handed to."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None for an absent key."""

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Yield the keys from start (included) to stop (excluded) in byte order, lazily.
        A writer changes nothing while it iterates."""

    def items(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the same keys, each with its value."""

    def first(self, start: bytes, stop: bytes) -> bytes | None:
        """Return the first of `keys`, or None: the quicker way to leap from one to the next."""

    def before(self, key: bytes) -> bytes | None:
        """Return the greatest key below this one, or None."""


class Writer(Reader, Protocol):
    """A reader that sees and makes its own changes, all of them or none."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a key."""

    def delete(self, key: bytes) -> None:
        """Remove the key if it is there."""


class OrderedStore(Protocol):
    """A store of keys and values."""

    def read(self, body: Callable[[Reader], R]) -> R:
        """Run the function in a read transaction and return its result."""

    def write(
        self, body: Callable[[Writer], R], *, durable: bool = True, shared: bool = False
    ) -> R:
        """Run the function in a write transaction and commit it, unless it raises.
        With durable=False a power failure may undo it with everything after it, never a part.
        shared: one commit may do for this and what other threads write so; then any of them runs
        the function, and what it did may be undone after others have seen it, and run again."""

    def atomically(self, work: Callable[[], None]) -> None:
        """Run a function whose transactions here, in its thread, all become one, which is undone
        if it raises, and is durable if one of them is. The function may be run again if nothing of
        it took effect. Within it, `together` just runs what it is given."""

    def unmap(self) -> None:
        """Give back the memory that reading has taken up, if nobody is at it just now."""

    def close(self) -> None:
        """Release what is held; the store cannot be used afterwards."""


def divide_keys(reader: Reader, start: bytes, stop: bytes, count: int) -> list[bytes]:
    """Return keys, at most so many, that divide a range into parts of about as many keys each.

    They are between start and stop, both excluded, and in order. How many keys a part has is not
    known, but how dense they are at its beginning is. The part that seems to have the most is
    halved in the middle between its first key and its last, again and again.
    """
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
    indexes = (
        min(range(len(parts)), key=lambda index: abs(before[index] - share * number))
        for number in range(1, count + 1)
    )
    return sorted({parts[index][0] for index in indexes if index})


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
