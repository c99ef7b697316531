"""Statements about leases: SHOW LEASE and DROP FORCE LEASE.

They may stand beside statements about locks, and like those are understood, all of a text, before
the first of them is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txn.locks import statements as locks
from txn.locks.hive.model import Catalog
from txn.locks.hive.sql import make_object_path
from txn.locks.hive.words import WordReader, read_statements
from txn.locks.requests import Path

if TYPE_CHECKING:
    from txn.leases.model import Lease
    from txn.leases.service import LeaseService


@dataclass(frozen=True, slots=True)
class ShowLeases:
    """Lists the leases on a table or a partition and what lies in it, and the exclusive ones on
    what it lies in; None: all."""

    within: Path | None

    def run(self, leases: LeaseService) -> list[Lease]:
        """Return the leases."""
        return leases.list_lease([] if self.within is None else self.within)


@dataclass(frozen=True, slots=True)
class DropLeases:
    """Drops anybody's leases on a table or a partition and what lies in it; None: all."""

    within: Path | None

    def run(self, leases: LeaseService) -> int:
        """Drop them, and return how many there were."""
        return leases.force_drop_lease([] if self.within is None else self.within)


Statement = ShowLeases | DropLeases


def parse_lease_statement(
    sql: str, settings: Mapping[str, str] | None = None, catalog: Catalog | None = None
) -> list[Statement | locks.Statement]:
    """Return the statements of a text, about leases and about locks, or raise InvalidRequestError;
    USE applies to the rest."""
    return [
        _parse(words, catalog) or locks.parse_words(words, catalog)
        for words in read_statements(sql, settings)
    ]


def _parse(words: WordReader, catalog: Catalog | None) -> Statement | None:
    if words.accept("SHOW", "LEASE"):
        return ShowLeases(_within(words, catalog))
    if words.accept("DROP", "FORCE", "LEASE"):
        return DropLeases(_within(words, catalog))
    return None


def _within(words: WordReader, catalog: Catalog | None) -> Path | None:
    if words.accept("*"):
        words.expect_end()
        return None
    table, spec = words.read_table(), words.read_partition()
    words.expect_end()
    found = make_object_path(table, spec, catalog.table(table) if catalog is not None else None)
    if len(found.parts) < len(table.parts) + len(spec):
        words.refuse("not every part of the partition is certain")
    return found
