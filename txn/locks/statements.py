"""Statements about locks: SHOW LOCKS, EXPLAIN LOCKS, LOCK and UNLOCK.

All of a text is understood before the first of its statements is run. Locks that are taken by
statement are explicit: they stay until they are given back, whatever becomes of their owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

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
    """Lists the locks on an object and on what lies in it; extended: also those that wait."""

    within: Path | None
    extended: bool


@dataclass(frozen=True, slots=True)
class ExplainLocks:
    """The locks that a statement needs, with all of their parents: its own result."""

    requests: tuple[LockRequest, ...]


@dataclass(frozen=True, slots=True)
class TakeLock:
    """Takes an explicit lock. settings: Hive's, as they are where the statement stands."""

    request: LockRequest
    statement: str
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Gives back the explicit locks on an object."""

    path: Path


Statement = ShowLocks | ExplainLocks | TakeLock | GiveBack


@dataclass(frozen=True, slots=True)
class ShownLocks:
    """The result of SHOW LOCKS."""

    locks: tuple[Lock, ...]
    extended: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of LOCK: locks that stay."""

    requests: tuple[LockRequest, ...]


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The result of UNLOCK: the number of explicit locks that were given back."""

    path: Path
    count: int


Result = ShownLocks | ExplainLocks | Taken | GivenBack


def parse_lock_statement(
    sql: str, settings: Mapping[str, str] | None = None, catalog: Catalog | None = None
) -> list[Statement]:
    """Return the statements of a text, or raise InvalidRequestError; USE and SET apply to the rest,
    and are not among them."""
    return [parse_words(words, catalog) for words in read_statements(sql, settings)]


def run_lock_statement(
    statement: Statement,
    manager: LockManager,
    *,
    waiting: Waiting | None = None,
    force: bool = False,
) -> Result:
    """Do what a statement asks. waiting: for LOCK. force: UNLOCK gives back others' locks too."""
    match statement:
        case ShowLocks(within, extended):
            there = manager.locks(within)
            return ShownLocks(tuple(lock for lock in there if extended or lock.granted), extended)
        case ExplainLocks():
            return statement
        case TakeLock(request, text, settings):
            waiting = from_hive(dict(settings), waiting) if settings else waiting
            if waiting is not None and not waiting.enabled:
                raise InvalidRequestError("locking is turned off", statement=text)
            held = manager.hold([request], query=text, explicit=True, waiting=waiting)
            return Taken(tuple(held.requests))
        case GiveBack(path):
            return GivenBack(path, manager.release(path, force=force))
        case _:
            assert_never(statement)


def explain_statements(
    sql: str, settings: Mapping[str, str] | None = None, catalog: Catalog | None = None
) -> tuple[LockRequest, ...]:
    """Return all that is taken for the statements of a text, in order: what `requests` returns,
    with every parent. EXPLAIN LOCKS before a statement changes nothing."""
    found: list[LockRequest] = []
    for words in read_statements(sql, settings):
        while words.accept("EXPLAIN", "LOCKS"):
            pass
        database = {DATABASE_SETTING: words.database}
        found += requests(words.read_rest() or words.refuse(), database, catalog)
    return in_order(found)


def parse_words(words: WordReader, catalog: Catalog | None) -> Statement:
    """Return the statement that these words are, or raise InvalidRequestError."""
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
        return GiveBack(path)
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
