"""Rows as HBase's own clients see them, on the same stored bytes as `txn.tables.tables.Tables`.

Each call is one local transaction; a scan is one for each page. Refused says what HBase refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from txn.clock import Clock
from txn.tables.operations import Condition, Operation, Range, Result, Selection
from txn.tables.ordered import OrderedStore


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a scan goes on, and what its filter has seen so far; opaque."""

    at: bytes


class Page(NamedTuple):
    """Some results of a scan; resume None: there are no more.

    A page may hold no result and have more after it, where much was looked at in vain.
    """

    results: list[Result]
    resume: Resume | None


class Rows:
    """HBase's rows; safe for threads and processes as far as the ordered store is."""

    __slots__ = ("_clock", "_store")

    def __init__(self, store: OrderedStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def get(self, table: bytes, rows: Sequence[bytes], selection: Selection) -> list[Result]:
        """Return what is selected of each row, in the order given, in one instant."""
        raise NotImplementedError

    def mutate(
        self,
        table: bytes,
        mutations: Sequence[tuple[bytes, Sequence[Operation]]],
        *,
        durable: bool = True,
    ) -> list[Result]:
        """Carry out the operations of each row, all or none, all at one server time.

        Return for each the new versions of its Adds and Appends, in order of family and column.
        """
        raise NotImplementedError

    def check_and_mutate(
        self,
        table: bytes,
        row: bytes,
        condition: Condition,
        operations: Sequence[Operation],
        *,
        durable: bool = True,
    ) -> bool:
        """Carry out the operations if the condition holds; return whether it does."""
        raise NotImplementedError

    def scan(
        self,
        table: bytes,
        rows: Range,
        selection: Selection,
        *,
        limit_rows: int,
        resume: Resume | None = None,
    ) -> Page:
        """Return the next rows of a scan, at most so many (with a batch, of whole rows still)."""
        raise NotImplementedError
