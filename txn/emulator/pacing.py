"""Rows whose changes return only when the server's clock has come past what they wrote.

A delete of "now" hides what is put in the same millisecond, and a count in the millisecond of the
last one gets the next one's timestamp. HBase needs milliseconds for a request, so its clients never
find that out; here, one that puts after its own delete, or sets a counter that it has just counted,
would. So those changes, and no others, take up to a millisecond more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from txn.clock import Clock
from txn.tables.operations import Condition, Operation, Remove, Result
from txn.tables.rows import Rows

MOST_MS = 20
"""A cell from further in the future than this is not waited for."""


class PacedRows:
    """What the services read and change rows through."""

    __slots__ = ("_clock", "_rows", "get")

    def __init__(self, rows: Rows, clock: Clock) -> None:
        self._rows = rows
        self._clock = clock
        self.get = rows.get

    def mutate(
        self,
        table: bytes,
        mutations: Sequence[tuple[bytes, Sequence[Operation]]],
        *,
        durable: bool = True,
    ) -> list[Result]:
        """Do what `Rows.mutate` does."""
        results = self._rows.mutate(table, mutations, durable=durable)
        if any(_deletes_now(operations) for _, operations in mutations):
            self._wait_for(self._clock.wall_ms() + 1)
        written = [version.timestamp for result in results for version in result.versions]
        if written:
            self._wait_for(max(written))
        return results

    def check_and_mutate(
        self,
        table: bytes,
        row: bytes,
        condition: Condition,
        operations: Sequence[Operation],
        *,
        durable: bool = True,
    ) -> bool:
        """Do what `Rows.check_and_mutate` does."""
        done = self._rows.check_and_mutate(table, row, condition, operations, durable=durable)
        if done and _deletes_now(operations):
            self._wait_for(self._clock.wall_ms() + 1)
        return done

    def _wait_for(self, timestamp: int) -> None:
        missing_ms = timestamp - self._clock.wall_ms()
        if 0 < missing_ms <= MOST_MS:
            for _ in range(missing_ms):
                self._clock.sleep_ms(1)
                if self._clock.wall_ms() >= timestamp:
                    return


def _deletes_now(operations: Iterable[Operation]) -> bool:
    return any(isinstance(one, Remove) and one.timestamp is None for one in operations)
