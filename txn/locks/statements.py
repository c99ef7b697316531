"""Statements about locks (SHOW LOCKS, EXPLAIN LOCKS, LOCK, UNLOCK) and leases (SHOW LEASE, DROP
FORCE LEASE).

The whole text is parsed before any statement runs. Locks taken by statement are explicit: they stay
until they are released, even after their owner has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from txn.errors import InvalidRequestError
from txn.locks.hive.definitions import DATABASE
from txn.locks.hive.model import DATABASE_SETTING, Catalog
from txn.locks.hive.settings import HIVE_SETTINGS, from_hive
from txn.locks.hive.sql import make_object_path, requests
from txn.locks.hive.words import WordReader, read_statements, refuse_statement
from txn.locks.manager import LockManager
from txn.locks.model import Lock, LockRequest, Path, Waiting, in_order


@dataclass(frozen=True, slots=True)
class ShowLocks:
    """Lists the locks on an object and on all that it contains. extended: also waiting requests."""

    within: Path | None
    extended: bool

    def run(self, manager: LockManager) -> list[Lock]:
        return [lock for lock in manager.locks(self.within) if self.extended or lock.granted]


@dataclass(frozen=True, slots=True)
class ExplainLocks:
    requests: tuple[LockRequest, ...]


@dataclass(frozen=True, slots=True)
class TakeLock:
    """Takes an explicit lock. settings: Hive's, as of this statement."""

    request: LockRequest
    statement: str
    settings: tuple[tuple[str, str], ...] = ()

    def run(self, manager: LockManager, waiting: Waiting) -> tuple[LockRequest, ...]:
        waiting = from_hive(dict(self.settings), waiting)
        if not waiting.enabled:
            raise InvalidRequestError("locking is turned off", statement=self.statement)
        held = manager.hold([self.request], query=self.statement, explicit=True, waiting=waiting)
        return held.requests


@dataclass(frozen=True, slots=True)
class ReleaseLocks:
    path: Path


@dataclass(frozen=True, slots=True)
class ShowLeases:
    """Lists the leases on an object and all that it contains, and the exclusive leases on what
    contains it; None: all leases."""

    within: Path | None


@dataclass(frozen=True, slots=True)
class DropLeases:
    """Drops all users' leases on an object and on all that it contains; None: all leases."""

    within: Path | None


Statement = ShowLocks | ExplainLocks | TakeLock | ReleaseLocks | ShowLeases | DropLeases


def parse_statements(
    sql: str, settings: Mapping[str, str] | None = None, catalog: Catalog | None = None
) -> list[Statement]:
    """Return the statements of a text. USE and SET apply to the rest, and are left out."""
    return [_parse(words, catalog) for words in read_statements(sql, settings)]


def explain_statements(
    sql: str, settings: Mapping[str, str] | None = None, catalog: Catalog | None = None
) -> tuple[LockRequest, ...]:
    """Return all locks for the statements of a text, in order: those of `requests`, with every
    parent. EXPLAIN LOCKS before a statement is ignored."""
    found: list[LockRequest] = []
    for words in read_statements(sql, settings):
        while words.accept("EXPLAIN", "LOCKS"):
            pass
        database = {DATABASE_SETTING: words.database}
        found += requests(words.read_rest() or words.refuse(), database, catalog)
    return in_order(found)


def _parse(words: WordReader, catalog: Catalog | None) -> Statement:
    database = {DATABASE_SETTING: words.database}
    statement: Statement
    if words.accept("SHOW", "LOCKS"):
        is_of_all = words.at_end or words.key == "EXTENDED"
        within = None if is_of_all else _read_locked(words, catalog)
        statement = ShowLocks(within, words.accept("EXTENDED"))
    elif words.accept("EXPLAIN", "LOCKS"):
        explained = words.read_rest() or words.refuse()
        statement = ExplainLocks(explain_statements(explained, database, catalog))
    elif words.accept("LOCK"):
        words.read_rest()
        (*_, last) = requests(words.statement, database, catalog)
        statement = TakeLock(last, words.statement, tuple(words.settings.items()))
    elif words.accept("UNLOCK"):
        statement = ReleaseLocks(_read_locked(words, catalog))
    elif words.accept("SHOW", "LEASE"):
        statement = ShowLeases(_read_leased(words, catalog))
    elif words.accept("DROP", "FORCE", "LEASE"):
        statement = DropLeases(_read_leased(words, catalog))
    elif words.accept("SET"):
        refuse_statement(words.statement, "write SET name=value", known=HIVE_SETTINGS)
    else:
        refuse_statement(words.statement, "not a statement about locks or leases")
    words.expect_end()
    return statement


def _read_locked(words: WordReader, catalog: Catalog | None) -> Path:
    if words.accept_one(*DATABASE):
        return words.read_database()
    words.accept("TABLE")
    at, _ = _read_table(words, catalog)
    return at


def _read_leased(words: WordReader, catalog: Catalog | None) -> Path | None:
    if words.accept("*"):
        return None
    at, is_certain = _read_table(words, catalog)
    return at if is_certain else words.refuse("not every part of the partition is certain")


def _read_table(words: WordReader, catalog: Catalog | None) -> tuple[Path, bool]:
    """Return a table or a partition up to its first uncertain part, and if it is the whole one."""
    table, spec = words.read_table(), words.read_partition()
    at = make_object_path(table, spec, catalog.table(table) if catalog is not None else None)
    return at, len(at.parts) == len(table.parts) + len(spec)
