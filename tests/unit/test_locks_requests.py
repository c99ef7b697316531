"""Paths, requests and their schedule, Hive's settings, and statements about locks and leases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txn import Engine
from txn.clock import ManualClock
from txn.errors import InvalidRequestError
from txn.locks import (
    LockDenied,
    LockManager,
    Mode,
    Path,
    Waiting,
    exclusive,
    from_hive,
    path,
    shared,
)
from txn.locks.hive.model import Column, Table, Tables
from txn.locks.hive.sql import requests
from txn.locks.model import LockRequest, in_order
from txn.locks.opening import open_stored
from txn.locks.queue import RetrySchedule, find_denial
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
from txn.locks.zookeeper.queues import Node
from txn.stores import open_store

PARTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda part: part not in {".", ".."}
)
PATHS = st.lists(PARTS, min_size=1, max_size=5).map(lambda parts: Path(tuple(parts)))
REQUESTS = st.lists(st.builds(LockRequest, PATHS, st.sampled_from(Mode)), max_size=8)


@given(PATHS)
def test_a_path_survives_its_text(at: Path) -> None:
    assert path(str(at)) == at
    assert str(at).count("/") == len(at.parts) - 1


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("Sales", "sales"),
        ("SALES/Orders", "sales/orders"),
        ("Sales/Orders/Day=Mon/Place=A=B", "sales/orders/day=Mon/place=A=B"),
        ("d/t/Mon", "d/t/Mon"),  # a value, as there is no column
        ("%C3%84/T%2F", "%C3%A4/t%2F"),
    ],
)
def test_names_are_kept_in_lower_case_and_values_as_they_are(given: str, meant: str) -> None:
    assert str(path(given)) == meant
    assert path(given) == path(meant)
    assert path(given).parents == path(meant).parents


@pytest.mark.parametrize(
    "text", ["", "a//b", "/a", "a/", "a/../b", ".", "x" * 256, "/".join("a" * 33)]
)
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        path(text)


@given(REQUESTS)
def test_requests_are_taken_in_one_order_with_their_parents(wanted: list[LockRequest]) -> None:
    found = in_order(wanted)
    objects = [request.path for request in found]
    assert objects == sorted(set(objects))
    modes = {request.path: request.mode for request in found}
    assert all(parent in modes for at in objects for parent in at.parents)
    exclusives = {request.path for request in wanted if request.mode is Mode.EXCLUSIVE}
    assert {at for at, mode in modes.items() if mode is Mode.EXCLUSIVE} == exclusives


def pauses(
    waiting: Waiting,
    clock: ManualClock,
    *,
    woken: bool = False,
    first_poll_ms: int | None = None,
    moves: int = 0,
) -> list[int]:
    schedule = RetrySchedule(waiting, clock, Random(1), first_poll_ms)
    found = []
    while (pause_ms := schedule.next_pause_ms()) is not None:
        found.append(pause_ms)
        if len(found) <= moves:
            schedule.note_move()
        clock.advance(1 if woken else pause_ms)
        if woken:
            schedule.note_wake()
    return found


def test_pauses_are_between_half_and_all_of_the_interval() -> None:
    found = pauses(Waiting(retries=50, pause_ms=1_000), ManualClock())
    assert len(found) == 50
    assert all(500 <= pause_ms <= 1_000 for pause_ms in found)
    assert len(set(found)) > 25
    timed = Waiting(retries=50, pause_ms=1_000, deadline_ms=2_500)
    assert sum(pauses(timed, ManualClock())) == 2_500


def test_a_pause_that_was_cut_short_is_no_retry() -> None:
    found = pauses(Waiting(retries=3, pause_ms=100), ManualClock(), woken=True)
    assert 300 <= len(found) <= 304


def test_whoever_is_not_told_looks_soon_and_then_less_often() -> None:
    waiting = Waiting(retries=3, pause_ms=1_000)
    found = pauses(waiting, ManualClock(), first_poll_ms=5)
    most_ms = (5, 10, 20, 40, 80)
    assert all(most / 2 <= pause_ms <= most for most, pause_ms in zip(most_ms, found, strict=False))
    assert len(found) < 15
    assert all(pause_ms >= 500 for pause_ms in found[-2:])
    assert 1_500 <= sum(found) <= 3_000


def test_settings_of_hive_are_understood() -> None:
    settings = {
        "hive.support.concurrency": "true",
        "hive.lock.numretries": "7",
        "hive.lock.sleep.between.retries": "2min",
        "hive.unlock.numretries": "3",
    }
    expected = Waiting(retries=7, pause_ms=120_000, unlock_retries=3, fairness="hive")
    assert from_hive(settings, Waiting(fairness="hive")) == expected
    assert not from_hive({"hive.support.concurrency": "FALSE"}).enabled
    assert from_hive({}) == Waiting()
    times = {"60s": 60_000, "500ms": 500, "60": 60_000, "1 h": 3_600_000, "5 SEC": 5_000}
    for text, pause_ms in times.items():
        assert from_hive({"hive.lock.sleep.between.retries": text}).pause_ms == pause_ms


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("hive.support.concurrency", "yes"),
        ("hive.lock.numretries", "-1"),
        ("hive.lock.sleep.between.retries", "soon"),
        ("hive.lock.sleep.between.retries", "0 parsecs"),
        ("hive.unlock.numretries", ""),
        ("hive.unlock.numretries", "9" * 5_000),
        ("hive.lock.retries", "7"),
        ("hive.lock.numretries", 7),
    ],
)
def test_a_setting_that_means_nothing_is_refused(setting: str, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"setting.*'{setting}'"):
        from_hive({setting: text})


def test_those_before_deny_and_those_behind_do_not() -> None:
    """The recipe: a lower exclusive node denies all, a lower shared one denies exclusive."""
    assert {(one, two) for one in Mode for two in Mode if one.allows(two)} == {(Mode.SHARED,) * 2}
    at = path("d")
    line = [Node(i, mode, f"{i}", f"{i}") for i, mode in enumerate([Mode.SHARED] * 2)]
    line += [Node(2, Mode.EXCLUSIVE, "2", "2"), Node(3, Mode.SHARED, "3", "3")]
    assert find_denial({at: line}, "1", [shared(at)]) is None
    for_writer = find_denial({at: line}, "2", [exclusive(at)])
    assert for_writer is not None
    assert for_writer.blockers == tuple(line[:2])
    for_reader = find_denial({at: line}, "3", [shared(at)])
    assert for_reader is not None
    assert for_reader.blockers == (line[2],)


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
        ("SHOW LOCKS d.t PARTITION (p=1) EXTENDED", ShowLocks(path("d/t/p=1"), True)),
        ("SHOW LOCKS t PARTITION (q='x', p=1)", ShowLocks(path("default/t/p=1/q=x"), False)),
        ("SHOW LOCKS DATABASE d", ShowLocks(path("d"), False)),
        ("EXPLAIN LOCKS DROP TABLE u", ExplainLocks((shared("default"), exclusive("default/u")))),
        ("USE d; EXPLAIN LOCKS SELECT * FROM u", ExplainLocks((shared("d"), shared("d/u")))),
        ("UNLOCK TABLE t PARTITION (p=1)", ReleaseLocks(path("default/t/p=1"))),
        ("LOCK TABLE t EXCLUSIVE", TakeLock(exclusive("default/t"), "LOCK TABLE t EXCLUSIVE")),
        ("LOCK DATABASE d SHARED", TakeLock(shared("d"), "LOCK DATABASE d SHARED")),
        ("SHOW LEASE *", ShowLeases(None)),
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
        "SHOW LOCKS t EXTENDED t",
        "SHOW LOCKS t PARTITION (nope=1)",
        "EXPLAIN LOCKS",
        "LOCK TABLE t",
        "LOCK TABLE t EXCLUSIVE NOWAIT",
        "UNLOCK TABLE t SHARED",
        "SHOW LEASE",
        "SHOW LEASE * t",
        "DROP FORCE LEASE",
        "DROP FORCE LEASE t PARTITION (q='x')",
        "DROP FORCE LEASE t PARTITION (p > 1)",
        "DROP FORCE LEASE t PARTITION (p=1) CASCADE",
        "SHOW LOCKS; SELECT 1",
        "SET",
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
