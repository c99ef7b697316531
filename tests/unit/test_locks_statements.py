"""SHOW LOCKS, EXPLAIN LOCKS, LOCK and UNLOCK, on locks that are kept in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from txn import Engine
from txn.errors import InvalidRequestError
from txn.locks import LockDenied, LockManager, exclusive, from_hive, path, shared
from txn.locks.hive.model import Column, Table, Tables
from txn.locks.hive.sql import requests
from txn.locks.opening import open_stored
from txn.locks.statements import (
    ExplainLocks,
    ReleaseLocks,
    ShowLocks,
    TakeLock,
    explain_statements,
    parse_statements,
)
from txn.stores import open_store

CATALOG = Tables({path("default/t"): Table((Column("p", "int"), Column("q", "string")))})
NO_RETRIES = {"hive.lock.numretries": "0"}


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(open_store("memory://")) as engine:
        yield engine


@pytest.fixture
def manager(engine: Engine) -> Iterator[LockManager]:
    with open_stored(engine, name="me") as manager:
        yield manager


def execute(
    sql: str,
    manager: LockManager,
    settings: Mapping[str, str] | None = None,
    catalog: Tables | None = None,
    *,
    force: bool = False,
) -> Iterator[Any]:
    waiting = from_hive(settings or {})
    for statement in parse_statements(sql, settings, catalog):
        match statement:
            case ShowLocks():
                yield statement.run(manager)
            case TakeLock():
                yield statement.run(manager, waiting)
            case ReleaseLocks(at):
                yield manager.release(at, force=force)
            case ExplainLocks(needed):
                yield needed


def run(sql: str, manager: LockManager) -> list[Any]:
    return list(execute(sql, manager, NO_RETRIES, CATALOG))


def shown(sql: str, manager: LockManager) -> list[str]:
    (locks,) = run(sql, manager)
    return [f"{'' if lock.granted else '? '}{lock.request}" for lock in locks]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SHOW LOCKS", ShowLocks(None, False)),
        ("SHOW LOCKS EXTENDED", ShowLocks(None, True)),
        ("SHOW LOCKS t", ShowLocks(path("default/t"), False)),
        ("SHOW LOCKS `t` EXTENDED", ShowLocks(path("default/t"), True)),
        ("SHOW LOCKS `Extended`", ShowLocks(path("default/extended"), False)),
        ("SHOW LOCKS d.t PARTITION (p=1) EXTENDED", ShowLocks(path("d/t/p=1"), True)),
        ("SHOW LOCKS t PARTITION (q='x', p=1)", ShowLocks(path("default/t/p=1/q=x"), False)),
        ("SHOW LOCKS DATABASE d", ShowLocks(path("d"), False)),
        ("SHOW LOCKS SCHEMA d EXTENDED", ShowLocks(path("d"), True)),
        ("USE d; SHOW LOCKS t", ShowLocks(path("d/t"), False)),
        ("EXPLAIN LOCKS DROP TABLE u", ExplainLocks((shared("default"), exclusive("default/u")))),
        ("USE d; EXPLAIN LOCKS SELECT * FROM u", ExplainLocks((shared("d"), shared("d/u")))),
        ("UNLOCK TABLE t PARTITION (p=1)", ReleaseLocks(path("default/t/p=1"))),
        ("UNLOCK DATABASE d", ReleaseLocks(path("d"))),
        ("\ufeffSHOW LOCKS d.t", ShowLocks(path("d/t"), False)),  # from an editor's file
    ],
)
def test_each_form_is_understood(sql: str, expected: object) -> None:
    """These are Hive's."""
    assert parse_statements(sql, None, CATALOG) == [expected]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("LOCK TABLE t EXCLUSIVE", exclusive("default/t")),
        ("LOCK TABLE d.u SHARED", shared("d/u")),
        ("LOCK TABLE t PARTITION (q='x', p=1) EXCLUSIVE", exclusive("default/t/p=1/q=x")),
        ("LOCK TABLE t PARTITION (p=1) SHARED", shared("default/t/p=1")),
        ("LOCK DATABASE d SHARED", shared("d")),
    ],
)
def test_a_lock_is_on_the_object_that_is_named(sql: str, expected: object) -> None:
    """Its parents follow from it."""
    assert parse_statements(sql, None, CATALOG) == [TakeLock(expected, sql)]  # type: ignore[arg-type]


def test_explained_is_all_that_is_taken(manager: LockManager) -> None:
    """Who asks why somebody else waits must see the lock on the database as well; and may paste
    EXPLAIN LOCKS where the statement alone is expected."""
    sql = "INSERT INTO t PARTITION (p=1) SELECT * FROM d.u"
    found = explain_statements(sql, None, CATALOG)
    assert [str(each) for each in found] == [
        "S d",
        "S d/u",
        "S default",
        "S default/t",
        "X default/t/p=1",
    ]
    assert found == explain_statements(f"EXPLAIN LOCKS {sql}", None, CATALOG)
    assert run(f"EXPLAIN LOCKS {sql}", manager) == [found]
    with manager.hold(requests(sql, None, CATALOG)) as held:
        assert held.requests == found
    assert explain_statements("USE d; SHOW TABLES; SELECT * FROM t")[0] == shared("d")


def test_a_setting_applies_to_what_comes_after_it(manager: LockManager) -> None:
    """A script for Hive's console sets things on its way."""
    first, second, third = parse_statements(
        "LOCK TABLE t SHARED; SET hive.lock.numretries = 7; LOCK TABLE t SHARED;"
        "SET hive.current.database=D; SHOW LOCKS t"
    )
    assert isinstance(first, TakeLock)
    assert isinstance(second, TakeLock)
    assert (dict(first.settings), dict(second.settings)) == ({}, {"hive.lock.numretries": "7"})
    assert third == ShowLocks(path("d/t"), False)
    with manager.hold([shared("default/t")]), pytest.raises(LockDenied):
        list(execute("SET hive.lock.numretries=0; LOCK TABLE t EXCLUSIVE", manager))
    with pytest.raises(InvalidRequestError, match="turned off"):
        run("SET hive.support.concurrency=false; LOCK TABLE t SHARED", manager)
    assert run("SET hive.support.concurrency=false; SHOW LOCKS", manager) == [[]]


@pytest.mark.parametrize(
    "sql",
    ["SET", "SET hive.lock.numretries", "SET hive.lock.numretries=soon", "SET hive.lock.retries=1"],
)
def test_a_setting_that_nobody_knows_is_refused(sql: str) -> None:
    """It would else be ignored without a word."""
    with pytest.raises(InvalidRequestError):
        parse_statements(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "SHOW TABLES",
        "SHOW LOCKS t EXTENDED t",
        "SHOW LOCKS t PARTITION (nope=1)",
        "SHOW LOCKS 'x'",
        "EXPLAIN LOCKS",
        "EXPLAIN LOCKS FROBNICATE",
        "LOCK TABLE t",
        "LOCK TABLE t EXCLUSIVE NOWAIT",
        "UNLOCK TABLE t SHARED",
        "UNLOCK",
        "SHOW LOCKS; SELECT 1",
    ],
)
def test_anything_else_is_refused_before_anything_is_done(sql: str, manager: LockManager) -> None:
    """Half of a script that was done is worse than none."""
    with pytest.raises(InvalidRequestError):
        run(f"LOCK TABLE t EXCLUSIVE; {sql}", manager)
    assert manager.locks() == []


def test_what_is_locked_by_statement_stays_until_it_is_unlocked(engine: Engine) -> None:
    """Whoever locks from a console ends the console's session with every command."""
    with open_stored(engine, name="me") as manager:
        (taken,) = run("LOCK TABLE t PARTITION (p=1) EXCLUSIVE", manager)
        assert taken == (shared("default"), shared("default/t"), exclusive("default/t/p=1"))
    with open_stored(engine, name="me") as manager:
        assert shown("SHOW LOCKS t", manager) == ["S default/t", "X default/t/p=1"]
        (lock,) = manager.locks(path("default/t/p=1"))
        assert (lock.owner.query, lock.explicit) == ("LOCK TABLE t PARTITION (p=1) EXCLUSIVE", True)
        back = run("UNLOCK TABLE t PARTITION (p=1); UNLOCK TABLE t PARTITION (p=1)", manager)
        assert back == [1, 0]
        assert shown("SHOW LOCKS", manager) == []


def test_a_lock_that_others_hold_is_denied_and_they_are_named(manager: LockManager) -> None:
    """Whoever is refused goes and asks them."""
    held = manager.hold([shared("default/t/p=1")], query="SELECT 7")
    with pytest.raises(LockDenied, match=r"S default/t/p=1 by me@.*SELECT 7"):
        run("LOCK TABLE t PARTITION (p=1) EXCLUSIVE", manager)
    held.release()
    run("LOCK TABLE t PARTITION (p=1) EXCLUSIVE", manager)


def test_only_force_unlocks_what_others_have_locked(engine: Engine) -> None:
    """An operator may have to; a script by mistake must not."""
    with open_stored(engine, name="other") as other:
        run("LOCK TABLE t SHARED", other)
    with open_stored(engine, name="me") as manager:
        (refused,) = execute("UNLOCK TABLE t", manager)
        (forced,) = execute("UNLOCK TABLE t", manager, force=True)
    assert (refused, forced) == (0, 1)


def test_where_locking_is_turned_off_a_lock_is_an_error(manager: LockManager) -> None:
    """Whoever asks for one by name believes to have it."""
    with pytest.raises(InvalidRequestError, match="turned off"):
        list(execute("LOCK TABLE t SHARED", manager, {"hive.support.concurrency": "false"}))
    assert manager.locks() == []
