"""`txn locks` and `txn sql` on one store, the first of them in processes of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from recovery.commands.locks import show_locks
from tests.integration.commands import run_apart, run_here
from txn import connect
from txn.locks import Lock, Owner, exclusive, open_manager, shared

Run = Callable[..., CompletedProcess[str]]
NOON = 1_700_000_000_000


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = f"embedded://{tmp_path}/store"
    connect(uri).close()
    return uri


@pytest.fixture
def run(uri: str) -> Run:
    """Run the command on the store."""

    def call(*arguments: str, **variables: str) -> CompletedProcess[str]:
        return run_here(*arguments, **{"TXN_LOCKS": uri} | variables)

    return call


def lines(done: CompletedProcess[str]) -> list[dict[str, object]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_locks_by_hand_from_first_to_last(run: Run, uri: str) -> None:
    apart = partial(run_apart, TXN_LOCKS=uri)
    taken = lines(apart("locks", "acquire", "-x", "sales/orders/day=1", "--json"))
    assert taken[-1] == {"path": "sales/orders/day=1", "mode": "exclusive"}
    (lock,) = lines(run("locks", "ls", "sales/orders/day=1", "--json"))
    assert (lock["held"], lock["explicit"], lock["place"]) == (True, True, 0)
    refused = apart("sql", "LOCK TABLE sales.orders EXCLUSIVE")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "S sales/orders by" in refused.stderr
    assert apart("locks", "release", "sales/orders/day=1").stdout.startswith("released 1 lock")
    assert run("locks", "release", "sales/orders/day=1").returncode == 1
    assert lines(run("locks", "ls", "--json")) == []


def test_statements_about_locks(run: Run) -> None:
    script = "USE sales; LOCK TABLE orders PARTITION (day='1', hour=2) EXCLUSIVE; SHOW LOCKS"
    done = run("sql", script, "--partitioned", "sales.orders=hour,day")
    assert done.returncode == 0, done.stderr
    assert "exclusive sales/orders/hour=2/day=1" in done.stdout
    table = done.stdout.partition("object")[2]
    assert "sales/orders/hour=2/day=1  exclusive  held" in table
    denied = run("sql", "LOCK DATABASE sales EXCLUSIVE", "--set", "hive.lock.numretries=0")
    assert denied.returncode == 1
    unknown = run("sql", "SHOW LOCKS", "--set", "hive.lock.retries=1")
    assert (unknown.returncode, "hive.lock.retries" in unknown.stderr) == (2, True)
    assert run("sql", "SELECT 1").returncode == 2
    assert run("sql", "").returncode == 2


def test_what_a_statement_needs_is_told_without_a_manager(run: Run) -> None:
    sql = "INSERT INTO t PARTITION (p=1) SELECT * FROM u"
    done = run("locks", "explain", sql, "--database", "d", TXN_LOCKS="")
    needed = ["shared    d", "shared    d/t", "exclusive d/t/p=1", "shared    d/u"]
    assert done.stdout.splitlines() == needed
    assert done.stderr == "note: keeps nobody out of the partitions of d/u, if it has any\n"
    in_sql = run("sql", f"EXPLAIN LOCKS {sql}", "--database", "d", TXN_LOCKS="")
    assert (in_sql.stdout, in_sql.stderr) == (done.stdout, done.stderr)
    assert run("locks", "explain", "SHOW TABLES").stdout == "no locks are needed\n"


def test_looking_makes_no_store(run: Run, tmp_path: Path) -> None:
    done = run("locks", "ls", "--locks", f"embedded://{tmp_path}/typo")
    assert done.returncode == 2
    assert not (tmp_path / "typo").exists()


def test_the_queue_is_shown_with_all_that_is_known_of_who_is_in_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reader, writer = Owner("ann", "alpha", "SELECT [1]"), Owner("bob", "beta", "DROP\n TABLE t")
    locks = [
        Lock(shared("d/t"), reader, NOON, granted=True, token=5),
        Lock(exclusive("d/t"), writer, NOON, granted=False),
        Lock(shared("d/t"), writer, NOON, granted=False, explicit=True),
    ]
    show_locks(locks, extended=True, as_json=False)
    heading, first, second, third = capsys.readouterr().out.splitlines()
    words = ["object", "mode", "state", "holder", "host", "since", "for", "kind", "token", "query"]
    assert heading.split() == words
    assert first.split()[:5] == ["d/t", "shared", "held", "ann", "alpha"]
    assert "2023-11-14 22:13:20.000Z" in first
    assert first.rstrip().endswith("5      SELECT [1]")
    assert second.split()[:6] == ["d/t", "exclusive", "waits,", "1", "bob", "beta"]
    assert second.rstrip().endswith("DROP TABLE t")
    assert third.split()[2:4] == ["waits,", "2"]


def test_what_a_running_job_holds_is_in_the_list(run: Run, uri: str) -> None:
    with open_manager(uri) as manager:
        manager.hold([shared("d/t")], query="SELECT * FROM t")
        listed = lines(run("locks", "ls", "--extended", "--json"))
    assert [(lock["path"], lock["query"], lock["explicit"]) for lock in listed] == [
        ("d", "SELECT * FROM t", False),
        ("d/t", "SELECT * FROM t", False),
    ]
