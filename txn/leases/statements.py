"""Statements about leases: SHOW LEASE and DROP FORCE LEASE.

They may be mixed with statements about locks. The whole text is parsed before any statement runs.
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
    """Lists the leases on an object and all that it contains, and the exclusive leases on what
    contains it; None: all leases."""

    within: Path | None

    def run(self, leases: LeaseService) -> list[Lease]:
        return leases.list_lease([] if self.within is None else self.within)


@dataclass(frozen=True, slots=True)
class DropLeases:
    """Drops all users' leases on an object and on all that it contains; None: all leases."""

    within: Path | None

    def run(self, leases: LeaseService) -> int:
        return leases.force_drop_lease([] if self.within is None else self.within)


Statement = ShowLeases | DropLeases


def parse_lease_statement(
    sql: str, settings: Mapping[str, str] | None = None, catalog: Catalog | None = None
) -> list[Statement | locks.Statement]:
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
