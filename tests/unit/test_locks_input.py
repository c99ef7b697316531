"""What lock managers are given in a wrong type or form: an error that names it, and nothing done.

Most of it was a TypeError or an AttributeError from somewhere inside, or taken for something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from txn import Engine
from txn.clock import ManualClock
from txn.errors import InvalidRequestError
from txn.locks import (
    LockDenied,
    LockManager,
    LockRequest,
    Mode,
    Path,
    Waiting,
    exclusive,
    from_hive,
    open_manager,
    path,
    shared,
    statements,
)
from txn.locks.hive import sql as hive
from txn.locks.hive.model import Column, Table, Tables
from txn.locks.opening import open_stored
from txn.stores import open_store


def given(value: object) -> Any:
    """A value of a type that the checker would refuse."""
    return value


@pytest.fixture
def manager() -> Iterator[LockManager]:
    with Engine(open_store("memory://")) as engine, open_stored(engine, name="me") as manager:
        yield manager


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: path(given(None)), "None"),
        (lambda: path(given(b"d/t")), "b'd/t'"),
        (lambda: Path(given("ab")), "'ab'"),
        (lambda: Path(given(["d", "t"])), r"\['d', 't'\]"),
        (lambda: Path(given(("d", 1))), "1"),
        (lambda: Path(("d", "\ud800")), "ud800"),
        (lambda: shared(given(7)), "7"),
        (lambda: exclusive(given(shared("d/t"))), "LockRequest"),
        (lambda: LockRequest(given("d/t"), Mode.SHARED), "'d/t'"),
        (lambda: LockRequest(path("d/t"), given("S")), "'S'"),
        (lambda: Waiting(retries=given("3")), "retries"),
        (lambda: Waiting(retries=given(None)), "retries"),
        (lambda: Waiting(pause_ms=given(0.5)), "pause_ms"),
        (lambda: Waiting(pause_ms=0), "pause_ms"),
        (lambda: Waiting(unlock_retries=-1), "unlock_retries"),
        (lambda: Waiting(deadline_ms=given("30s")), "deadline_ms"),
        (lambda: Waiting(enabled=given("false")), "'false'"),
        (lambda: Waiting(fairness=given("foo")), "'fair', 'hive' fairness='foo'"),
        (lambda: from_hive(given(None)), "None"),
        (lambda: from_hive(given(["a"])), "'a'"),
        (lambda: from_hive({"hive.lock.numretries": given(3)}), "3"),
        (lambda: open_manager(given(None)), "None"),
        (lambda: open_manager("memory://", session_ms=1), "session_ms"),
        (lambda: open_manager("zookeeper://127.0.0.1:1", lease_ms=1), "lease_ms"),
        (lambda: open_manager("zookeeper://127.0.0.1:1", session_ms="1s"), "session_ms"),
        (lambda: open_manager("zookeeper://host:port/base"), "host:port"),
        (lambda: open_manager("zookeeper://[host/base"), "host"),
        (lambda: open_manager("zookeeper://h:1/base?colour=red"), "unknown option.*colour"),
        (lambda: open_manager("zookeeper://h:1/base#part"), "write zookeeper://host:port"),
        (lambda: open_manager("zookeeper://ann@h:1"), "write zookeeper://user:password"),
        (lambda: open_manager("zookeeper://a:b@h:1,a:b@g:1"), "with %40 for an @"),
        (lambda: open_manager(f"zookeeper://h:1?key={__file__}"), "a key is for its certificate"),
        (lambda: open_manager(f"zookeeper://h:1?tls=off&ca={__file__}"), "files are for tls=on"),
        (lambda: open_manager("zookeeper://h:1/a//b"), "not a base path base='a//b'"),
        (lambda: open_manager("zookeeper://h:1/a", base="/b"), "base"),
        (lambda: open_manager("zookeeper://h:0"), "not a port.*'0'"),
        (lambda: open_manager("zookeeper://h1, h2:1"), "not an address.*' h2:1'"),
        (lambda: open_manager(" zookeeper://h:1"), "not a URI"),
        (lambda: open_manager("memory://", lease_ms="10s"), "lease_ms"),
        (lambda: open_manager("memory://", lease_ms=0), "lease_ms"),
        (lambda: open_manager("memory://", name=given(7)), "7"),
        (lambda: open_manager("memory://", waiting=given("30s")), "30s"),
        (lambda: hive.requests(given(None)), "None"),
        (lambda: statements.parse_statements(given(b"SHOW LOCKS")), "SHOW LOCKS"),
        (lambda: hive.requests("SELECT 1", {"hive.current.database": given(7)}), "7"),
        (lambda: hive.requests("SELECT 1", given("d")), "'d'"),
    ],
)
def test_what_is_of_no_use_is_refused_and_named(call: Callable[[], object], named: str) -> None:
    """Whoever wrote it must see which argument it was."""
    with pytest.raises(InvalidRequestError, match=named):
        call()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda manager: manager.hold(["d/t"]), "shared.*exclusive.*'d/t'"),
        (lambda manager: manager.hold("d/t"), "'d"),
        (lambda manager: manager.hold(None), "None"),
        (lambda manager: manager.hold([None]), "None"),
        (lambda manager: manager.hold([path("d/t")]), "shared.*exclusive.*Path"),
        (lambda manager: manager.hold([shared("d/t")], waiting=30), "waiting=30"),
        (lambda manager: manager.hold([shared("d/t")], waiting=0), "waiting=0"),
        (lambda manager: manager.hold([shared("d/t")], query=b"SELECT"), "SELECT"),
        (lambda manager: manager.release(None), "None"),
        (lambda manager: manager.release(shared("d/t")), "LockRequest"),
        (lambda manager: manager.locks(7), "7"),
    ],
)
def test_a_manager_refuses_what_it_cannot_do(
    manager: LockManager, call: Callable[[Any], object], named: str
) -> None:
    """Nothing may be held then, nor stand in a line."""
    with pytest.raises(InvalidRequestError, match=named):
        call(manager)
    assert manager.locks() == []


def test_one_request_and_paths_as_text_are_taken_as_they_are_meant(manager: LockManager) -> None:
    """As leases take them: there is one thing only that they can mean."""
    with manager.hold(shared("D/t")):
        assert [str(lock.request) for lock in manager.locks("d/T")] == ["S d/t"]
    manager.hold([exclusive("d/t")], explicit=True)
    assert manager.release("D/T") == 1
    assert manager.locks() == []


def test_no_time_at_all_is_time_for_one_try(manager: LockManager) -> None:
    """`--wait 0s` asks for an answer now, not for none."""
    now = Waiting(deadline_ms=0)
    with manager.hold([exclusive("d/t")], waiting=now), pytest.raises(LockDenied):
        manager.hold([exclusive("d/t")], waiting=now)


def test_a_catalogue_may_write_its_names_in_any_case() -> None:
    """It is asked for the names in lower case."""
    known = Tables({path("D/T"): Table((Column("Day", "string"),))})
    found = hive.requests("INSERT INTO d.t PARTITION (DAY='Mon') SELECT 1", catalog=known)
    assert [str(each) for each in found] == ["S d/t", "X d/t/day=Mon"]


def test_a_manager_takes_each_detail_that_it_names() -> None:
    """Names in a list of texts are easily missed when a parameter is renamed."""
    options: tuple[dict[str, Any], ...] = (
        {"rng": Random(1), "clock": ManualClock()},
        {"lease_ms": 1, "table": "held"},
    )
    for details in options:
        with open_manager("memory://details", name="one", **details) as manager:
            assert manager.locks() == []
