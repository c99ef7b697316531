"""The ordered key-value store that tables are built on: bytes to bytes, in byte order.

All work happens in local transactions: a function that is handed a reader or a writer and may be
called again from the start, so it must not change anything else. Writers are serialised; a reader
sees one instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

R = TypeVar("R")


class Reader(Protocol):
    """One consistent view; valid inside the function that it was handed to."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None for an absent key."""

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Yield the keys from start (included) to stop (excluded) in byte order, lazily.
        A writer changes nothing while it iterates."""

    def items(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield what `keys` does, each key with its value."""

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
    """Where the keys and values are kept."""

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
