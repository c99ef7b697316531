"""What lock managers and leases are given: what is taken, and what is refused by name, with nothing
done. Which database leases are opened in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path as File
from typing import Any

import pytest

from txn import Engine
from txn.errors import InvalidRequestError
from txn.leases import InvalidArgumentsError, open_leases, opening
from txn.leases.opening import default_url
from txn.leases.service import LeaseService
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

TABLE = [exclusive("d/t")]
WRONG_TIMES = [None, "60", b"60", True, [60], Decimal(60), timedelta(seconds=60), float("nan")]
WRONG_OBJECTS = [None, 5, 1.5, True, b"", b"d/t", [None], [5], [b"d/t"], ["d/t", 5]]
NOT_CLAIMED = ["d/t", ["d/t"], path("d/t"), [path("d/t")], [("d/t", "X")]]
SECONDS = r"{}.*least_s=.*longest_s="
AN_ID, AN_OBJECT, A_CLAIM = r"lease_id=.*limit=", r"object", r"say how to claim it.* object="


def given(value: object) -> Any:
    """A value of a type that the checker would refuse."""
    return value


@pytest.fixture
def manager() -> Iterator[LockManager]:
    with Engine(open_store("memory://")) as engine, open_stored(engine, name="me") as manager:
        yield manager


@pytest.fixture
def leases(tmp_path: File) -> Iterator[LeaseService]:
    with open_leases(f"sqlite:///{tmp_path}/leases", max_lease_s=9_000) as leases:
        leases.grab_lease([shared("d/t"), shared("d/u")], 3_600)
        yield leases


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: path(given(None)), "None"),
        (lambda: Path(given("ab")), "'ab'"),
        (lambda: Path(("d", "\ud800")), "ud800"),
        (lambda: LockRequest(given("d/t"), Mode.SHARED), "'d/t'"),
        (lambda: LockRequest(path("d/t"), given("S")), "'S'"),
        (lambda: Waiting(retries=given("3")), "retries"),
        (lambda: Waiting(pause_ms=0), "pause_ms"),
        (lambda: Waiting(deadline_ms=given("30s")), "deadline_ms"),
        (lambda: Waiting(fairness=given("foo")), "'fair', 'hive' fairness='foo'"),
        (lambda: from_hive({"hive.lock.numretries": given(3)}), "3"),
        (lambda: open_manager(given(None)), "None"),
        (lambda: open_manager("memory://", session_ms=1), "session_ms"),
        (lambda: open_manager("zookeeper://127.0.0.1:1", lease_ms=1), "lease_ms"),
        (lambda: open_manager("zookeeper:///base"), "zookeeper://host:port"),
        (lambda: open_manager("zookeeper://h:1/base?colour=red"), "unknown option.*colour"),
        (lambda: open_manager("zookeeper://h:1/base#part"), "write zookeeper://host:port"),
        (lambda: open_manager("zookeeper://ann@h:1"), "write zookeeper://user:password"),
        (lambda: open_manager(f"zookeeper://h:1?key={__file__}"), "a key is for its certificate"),
        (lambda: open_manager(f"zookeeper://h:1?tls=off&ca={__file__}"), "files are for tls=on"),
        (lambda: open_manager("zookeeper://h:1/a//b"), "not a base path base='a//b'"),
        (lambda: open_manager("zookeeper://h:1/a", base="/b"), "base"),
        (lambda: open_manager("zookeeper://h:0"), "not a port.*'0'"),
        (lambda: open_manager(" zookeeper://h:1"), "not a URI"),
        (lambda: open_manager("memory://", waiting=given("30s")), "30s"),
        (lambda: hive.requests(given(None)), "None"),
        (lambda: statements.parse_statements(given(b"SHOW LOCKS")), "SHOW LOCKS"),
        (lambda: hive.requests("SELECT 1", {"hive.current.database": given(7)}), "7"),
    ],
)
def test_what_is_of_no_use_is_refused_and_named(call: Callable[[], object], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        call()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda manager: manager.hold(["d/t"]), "shared.*exclusive.*'d/t'"),
        (lambda manager: manager.hold([shared("d/t")], waiting=30), "waiting=30"),
        (lambda manager: manager.hold([shared("d/t")], query=b"SELECT"), "SELECT"),
        (lambda manager: manager.release(shared("d/t")), "LockRequest"),
    ],
)
def test_a_manager_refuses_what_it_cannot_do(
    manager: LockManager, call: Callable[[Any], object], named: str
) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        call(manager)
    assert manager.locks() == []


def test_one_request_and_paths_as_text_are_taken_as_they_are_meant(manager: LockManager) -> None:
    with manager.hold(shared("D/t")):
        assert [str(lock.request) for lock in manager.locks("d/T")] == ["S d/t"]
    now = Waiting(deadline_ms=0)  # time for one try
    manager.hold([exclusive("d/t")], explicit=True, waiting=now)
    with pytest.raises(LockDenied):
        manager.hold([exclusive("d/t")], waiting=now)
    assert manager.release("D/T") == 1
    assert manager.locks() == []
    known = Tables({path("D/T"): Table((Column("Day", "string"),))})  # a catalogue's own spelling
    found = hive.requests("INSERT INTO d.t PARTITION (DAY='Mon') SELECT 1", catalog=known)
    assert [str(each) for each in found] == ["S d/t", "X d/t/day=Mon"]


@pytest.mark.parametrize(
    ("call", "wrong", "said"),
    [
        (lambda it, wrong: it.grab_lease(TABLE, wrong), WRONG_TIMES, SECONDS.format("duration_s")),
        (lambda it, wrong: it.grab_lease(TABLE, 1, wrong), WRONG_TIMES, SECONDS.format("wait_s")),
        (lambda it, wrong: it.hold(TABLE, wrong), WRONG_TIMES, SECONDS.format("duration_s")),
        (
            lambda it, wrong: it.extend_lease(1, duration_s=wrong or "0"),
            WRONG_TIMES,
            SECONDS.format("duration_s"),
        ),
        (
            lambda it, wrong: open_leases(it.connections.url, max_lease_s=wrong),
            WRONG_TIMES,
            SECONDS.format("max_lea"),
        ),
        (lambda it, wrong: it.extend_lease(wrong), [None, "1", 1.0, True, -1, 2**63], AN_ID),
        (lambda it, wrong: it.drop_lease(wrong), [None, "1", 1.0, True, -1, 2**63], AN_ID),
        (lambda it, wrong: it.list_lease(wrong), [*WRONG_OBJECTS, "", [""]], AN_OBJECT),
        (lambda it, wrong: it.extend_lease(1, wrong), [*WRONG_OBJECTS, "", [""]], AN_OBJECT),
        (lambda it, wrong: it.drop_lease(1, wrong), [*WRONG_OBJECTS, "", [""]], AN_OBJECT),
        (lambda it, wrong: it.force_drop_lease(wrong), [*WRONG_OBJECTS, "", [""]], AN_OBJECT),
        (lambda it, wrong: it.grab_lease(wrong, 60), [*WRONG_OBJECTS, *NOT_CLAIMED], A_CLAIM),
        (lambda it, wrong: it.hold(wrong, 60), [*WRONG_OBJECTS, *NOT_CLAIMED], A_CLAIM),
        (
            lambda it, wrong: it.grab_lease([exclusive("d/v")], 60, user=wrong),
            [5, b"ann", ["ann"], "", "x" * 256],
            r"user=.*limit=255",
        ),
    ],
)
def test_leases_refuse_what_they_cannot_do(
    call: Callable[[LeaseService, Any], object], wrong: list[Any], said: str, leases: LeaseService
) -> None:
    """Above all where no object means all: what nobody named must not be dropped by force."""
    for each in wrong:
        with pytest.raises(InvalidArgumentsError, match=said):
            call(leases, each)
    assert len(leases.list_lease()) == 2


def test_a_lease_stands_for_its_object_where_one_is_named_and_nowhere_else(
    leases: LeaseService,
) -> None:
    table, other = leases.list_lease()
    with pytest.raises(InvalidArgumentsError, match=AN_ID):
        leases.drop_lease(given(table))
    for claim in (table, [table]):
        with pytest.raises(InvalidArgumentsError, match=A_CLAIM):
            leases.grab_lease(given(claim), 60)
    assert leases.extend_lease(table.lease_id, table) == leases.list_lease(table)[0].end_utc
    assert leases.list_lease([table, other]) == leases.list_lease()
    assert leases.drop_lease(other.lease_id, other) == 1
    assert leases.force_drop_lease([table]) == 1
    assert leases.list_lease() == []


def test_what_denies_an_object_is_listed_with_it(leases: LeaseService) -> None:
    """Who only reads a table denies nobody its partition; nor is more dropped than was named."""
    leases.grab_lease([exclusive("d/w")], 3_600)
    leases.grab_lease([shared("d/v"), exclusive("d/v/p=1/q=1")], 3_600)
    leases.grab_lease([exclusive("d/v/p=2")], 3_600)

    def listed(*objects: str) -> list[str]:
        return [str(each.request) for each in leases.list_lease(objects)]

    assert listed("d/w/p=1/q=2") == ["X d/w"]
    assert listed("d/v/p=1") == ["X d/v/p=1/q=1"]
    assert listed("d/v/p=2/q=1", "d/w/p=1") == ["X d/v/p=2", "X d/w"]
    assert listed("d/w2", "d/w2/p=1", "e/w/p=1") == []
    assert leases.force_drop_lease("d/w/p=1") == 0
    assert listed("d/w") == ["X d/w"]


def test_where_leases_are_kept_unless_it_is_said(
    tmp_path: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file of the user, or where an administrator has made a place for all of the machine."""
    monkeypatch.setattr(opening, "MACHINE", tmp_path / "none")
    home = {"HOME": "/h"}
    assert default_url(home) == "sqlite:////h/.local/share/hbase-txn/leases.sqlite"
    of_data = default_url(home | {"XDG_DATA_HOME": "/d"})
    assert of_data == "sqlite:////d/hbase-txn/leases.sqlite"
    assert default_url(home | {"TXN_LEASES": "sqlite:////x"}) == "sqlite:////x"
    monkeypatch.setattr(opening, "MACHINE", tmp_path)
    assert default_url(home) == f"sqlite:///{tmp_path}/leases.sqlite"
    assert default_url({"TXN_LEASES": "sqlite:////x"}) == "sqlite:////x"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (b"sqlite:////x", "not the URL of a database"),
        ("mysql+pymysql://host/name", "leases are kept in one of these"),
        ("sqlite://", "name a file"),
        ("sqlite:////tmp/x?mode=ro", "a file has no host, user or options"),
        ("postgresql://host:abc/name", "not the URL of a database"),
        ("postgresql://host/name?port=abc", "not the URL of a PostgreSQL"),
        ("postgresql://host/name?autocommit=1", r"unknown options of PostgreSQL.*autocommit"),
        ("postgresql://host/name?prepare_threshold=x", "prepare_threshold is a whole number"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused(url: Any, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        open_leases(url)
