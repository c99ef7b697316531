"""Statements about locks: SHOW LOCKS, EXPLAIN LOCKS, LOCK and UNLOCK.

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
from txn.locks.model import Lock, Waiting
from txn.locks.requests import LockRequest, Path, in_order


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
        return manager.hold(
            [self.request], query=self.statement, explicit=True, waiting=waiting
        ).requests


@dataclass(frozen=True, slots=True)
class ReleaseLocks:
    path: Path


Statement = ShowLocks | ExplainLocks | TakeLock | ReleaseLocks


def parse_lock_statement(
    sql: str, settings: Mapping[str, str] | None = None, catalog: Catalog | None = None
) -> list[Statement]:
    """Return the statements of a text. USE and SET apply to the rest, and are left out."""
    return [parse_words(words, catalog) for words in read_statements(sql, settings)]


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


def parse_words(words: WordReader, catalog: Catalog | None) -> Statement:
    if words.accept("SHOW", "LOCKS"):
        return _show(words, catalog)
    if words.accept("EXPLAIN", "LOCKS"):
        settings = {DATABASE_SETTING: words.database}
        return ExplainLocks(
            explain_statements(words.read_rest() or words.refuse(), settings, catalog)
        )
    if words.accept("LOCK"):
        (*_, last) = requests(words.statement, {DATABASE_SETTING: words.database}, catalog)
        return TakeLock(last, words.statement, tuple(words.settings.items()))
    if words.accept("UNLOCK"):
        path = _object(words, catalog)
        words.expect_end()
        return ReleaseLocks(path)
    if words.accept("SET"):
        refuse_statement(words.statement, "write SET name=value", known=HIVE_SETTINGS)
    return refuse_statement(words.statement, "not a statement about locks")


def _show(words: WordReader, catalog: Catalog | None) -> Statement:
    within = None
    if not words.at_end and words.key != "EXTENDED":
        within = _object(words, catalog)
    extended = words.accept("EXTENDED")
    words.expect_end()
    return ShowLocks(within, extended)


def _object(words: WordReader, catalog: Catalog | None) -> Path:
    if words.accept_one(*DATABASE):
        return words.read_database()
    words.accept("TABLE")
    table = words.read_table()
    known = catalog.table(table) if catalog is not None else None
    return make_object_path(table, words.read_partition(), known)
