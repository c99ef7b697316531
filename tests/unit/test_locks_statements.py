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
    DropLeases,
    ExplainLocks,
    ReleaseLocks,
    ShowLeases,
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
) -> Iterator[Any]:
    waiting = from_hive(settings or {})
    for statement in parse_statements(sql, settings, catalog):
        match statement:
            case ShowLocks():
                yield statement.run(manager)
            case TakeLock():
                yield statement.run(manager, waiting)
            case ReleaseLocks(at):
                yield manager.release(at)
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
        ("SHOW LOCKS `Extended`", ShowLocks(path("default/extended"), False)),
        ("SHOW LOCKS d.t PARTITION (p=1) EXTENDED", ShowLocks(path("d/t/p=1"), True)),
        ("SHOW LOCKS t PARTITION (q='x', p=1)", ShowLocks(path("default/t/p=1/q=x"), False)),
        ("SHOW LOCKS DATABASE d", ShowLocks(path("d"), False)),
        ("USE d; SHOW LOCKS t", ShowLocks(path("d/t"), False)),
        ("EXPLAIN LOCKS DROP TABLE u", ExplainLocks((shared("default"), exclusive("default/u")))),
        ("USE d; EXPLAIN LOCKS SELECT * FROM u", ExplainLocks((shared("d"), shared("d/u")))),
        ("UNLOCK TABLE t PARTITION (p=1)", ReleaseLocks(path("default/t/p=1"))),
        ("UNLOCK DATABASE d", ReleaseLocks(path("d"))),
        ("LOCK TABLE t EXCLUSIVE", TakeLock(exclusive("default/t"), "LOCK TABLE t EXCLUSIVE")),
        ("LOCK DATABASE d SHARED", TakeLock(shared("d"), "LOCK DATABASE d SHARED")),
        ("SHOW LEASE *", ShowLeases(None)),
        ("show lease T", ShowLeases(path("default/t"))),
        ("SHOW LEASE e.`t`", ShowLeases(path("e/t"))),
        ("SHOW LEASE t PARTITION (q='x', p=1)", ShowLeases(path("default/t/p=1/q=x"))),
        ("USE e; SHOW LEASE t", ShowLeases(path("e/t"))),
        ("DROP FORCE LEASE *", DropLeases(None)),
        ("DROP FORCE LEASE u PARTITION (a=1, b='2')", DropLeases(path("default/u/a=1/b=2"))),
        ("\ufeffSHOW LOCKS d.t", ShowLocks(path("d/t"), False)),  # from an editor's file
    ],
)
def test_each_form_is_understood(sql: str, expected: object) -> None:
    assert parse_statements(sql, None, CATALOG) == [expected]


def test_explained_is_all_that_is_taken(manager: LockManager) -> None:
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
    first, second, third = parse_statements(
        "LOCK TABLE t SHARED; SET hive.lock.numretries = 7; LOCK TABLE t SHARED;"
        "SET hive.current.database=D; SHOW LOCKS t"
    )
    assert isinstance(first, TakeLock)
    assert isinstance(second, TakeLock)
    assert (dict(first.settings), dict(second.settings)) == ({}, {"hive.lock.numretries": "7"})
    assert third == ShowLocks(path("d/t"), False)
    denied = pytest.raises(LockDenied, match=r"S default/t by me@.*SELECT 7")
    with manager.hold([shared("default/t")], query="SELECT 7"), denied:
        list(execute("SET hive.lock.numretries=0; LOCK TABLE t EXCLUSIVE", manager))
    with pytest.raises(InvalidRequestError, match="turned off"):
        run("SET hive.support.concurrency=false; LOCK TABLE t SHARED", manager)
    assert run("SET hive.support.concurrency=false; SHOW LOCKS", manager) == [[]]


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
        "SHOW LEASE",
        "SHOW LEASES *",
        "SHOW LEASE * t",
        "DROP FORCE LEASE",
        "DROP LEASE t",
        "DROP FORCE LEASE t PARTITION (q='x')",
        "DROP FORCE LEASE t PARTITION (p > 1)",
        "DROP FORCE LEASE t PARTITION (nope=1)",
        "DROP FORCE LEASE t PARTITION (p=1) CASCADE",
        "SHOW LOCKS; SELECT 1",
        "SET",
        "SET hive.lock.numretries",
        "SET hive.lock.numretries=soon",
        "SET hive.lock.retries=1",
    ],
)
def test_anything_else_is_refused_before_anything_is_done(sql: str, manager: LockManager) -> None:
    with pytest.raises(InvalidRequestError):
        run(f"LOCK TABLE t EXCLUSIVE; {sql}", manager)
    assert manager.locks() == []


def test_what_is_locked_by_statement_stays_until_it_is_unlocked(engine: Engine) -> None:
    with open_stored(engine, name="me") as manager:
        (taken,) = run("LOCK TABLE t PARTITION (p=1) EXCLUSIVE", manager)
        assert taken == (shared("default"), shared("default/t"), exclusive("default/t/p=1"))
    with open_stored(engine, name="me") as manager:
        assert shown("SHOW LOCKS t", manager) == ["S default/t", "X default/t/p=1"]
        (lock,) = manager.locks(path("default/t/p=1"))
        assert (lock.owner.query, lock.explicit) == ("LOCK TABLE t PARTITION (p=1) EXCLUSIVE", True)
        with open_stored(engine, name="other") as other:
            (refused,) = execute("UNLOCK TABLE t PARTITION (p=1)", other, None, CATALOG)
        assert refused == 0
        back = run("UNLOCK TABLE t PARTITION (p=1); UNLOCK TABLE t PARTITION (p=1)", manager)
        assert back == [1, 0]
        assert shown("SHOW LOCKS", manager) == []
