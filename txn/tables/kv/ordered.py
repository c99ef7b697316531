"""The ordered key-value store under the tables: bytes to bytes, in byte order.

All work happens in local transactions: functions that get a reader or a writer. A function may run
again from its start, so it changes nothing else. Writers are serialised; a reader sees one instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import accumulate, islice
from typing import Protocol, TypeVar

R = TypeVar("R")

SAMPLE = 64
PARTS_EACH = 16  # each wanted part consists of so many small neighbouring parts
_BYTES = 16  # of keys, after their common prefix


class Reader(Protocol):
    """A consistent view, valid inside the function that gets it."""

    def get(self, key: bytes) -> bytes | None: ...

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Yield the keys from start to stop (excluded) in order; meanwhile change nothing."""

    def items(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]: ...

    def first(self, start: bytes, stop: bytes) -> bytes | None:
        """Return the first of `keys`, or None: a faster way to leap between keys."""

    def before(self, key: bytes) -> bytes | None:
        """Return the greatest key below this one, or None."""


class Writer(Reader, Protocol):
    """A reader that sees its own changes, which are applied all or none."""

    def put(self, key: bytes, value: bytes) -> None: ...

    def put_all(self, items: Mapping[bytes, bytes]) -> None: ...

    def delete(self, key: bytes) -> None: ...


class OrderedStore(Protocol):
    def read(self, body: Callable[[Reader], R]) -> R: ...

    def write(
        self, body: Callable[[Writer], R], *, durable: bool = True, shared: bool = False
    ) -> R:
        """Run the function in a write transaction and commit it, unless it raises.
        durable: if False, a power failure may undo it and everything after it, never a part of it.
        shared: it may share a commit with other threads' shared writes. Then any of these threads
        may run the function, and its changes may be undone after others saw them, and redone."""

    def atomically(self, work: Callable[[], None]) -> None:
        """Run a function and make all its transactions in this thread one, which is undone if the
        function raises and durable if one of them is. The function may run again if nothing of it
        took effect. A nested call just runs its function."""

    def is_inside(self) -> bool:
        """Return True if this thread is inside `atomically`."""

    def unmap(self) -> None:
        """Give back the memory that reading has used, unless a thread is using it."""

    def close(self) -> None:
        """Release all resources; the store cannot be used afterwards."""


def divide_keys(reader: Reader, start: bytes, stop: bytes, count: int) -> list[bytes]:
    """Return up to `count` keys that divide a range into parts of similar numbers of keys.

    They lie strictly between start and stop, in order. The number of keys in a part is estimated
    from their density at its beginning. The part with the largest estimate is repeatedly halved
    midway between its first and last key.
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
    """Return the estimated number of keys from low to high, and whether they were counted."""
    some = list(islice(reader.keys(low, high), SAMPLE))
    if len(some) < SAMPLE:
        return len(some) + 1, True
    at = find_difference(low, high)
    begin = _number(low, at)
    covered, whole = _number(some[-1], at) - begin, _number(high, at) - begin
    return (SAMPLE * whole / covered if covered else SAMPLE), False


def _choose(parts: list[tuple[bytes, float]], count: int) -> list[bytes]:
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
    at = find_difference(low, high)
    middle = low[:at] + ((_number(low, at) + _number(high, at) + 1) // 2).to_bytes(_BYTES)
    middle = middle.rstrip(b"\0")
    return middle if low < middle <= high else high


def find_difference(low: bytes, high: bytes) -> int:
    pairs = enumerate(zip(low, high, strict=False))
    return next((at for at, (one, other) in pairs if one != other), len(low))


def _number(key: bytes, at: int) -> int:
    return int.from_bytes(key[at : at + _BYTES].ljust(_BYTES, b"\0"))
