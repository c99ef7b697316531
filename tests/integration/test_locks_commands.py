"""`txn locks`, `txn leases` and `txn sql`, the first of each in processes of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from typer.testing import CliRunner, Result

from recovery.commands import app
from tests.integration.commands import run_apart, run_here
from txn import connect
from txn.leases import open_leases, opening
from txn.leases.service import LeaseService
from txn.locks import exclusive, shared

Run = Callable[..., CompletedProcess[str]]


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
    assert run("locks", "ls", "--locks", f"{uri}/typo").returncode == 2
    assert not Path(f"{uri.partition('://')[2]}/typo").exists()


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


@pytest.fixture
def leases(tmp_path: Path) -> Iterator[LeaseService]:
    with open_leases(f"sqlite:///{tmp_path}/leases.sqlite") as leases:
        yield leases


def leases_in(folder: Path) -> dict[str, str]:
    """The variables that name leases in a folder, and no locks."""
    return {"TXN_LEASES": f"sqlite:///{folder}/leases.sqlite", "TXN_LOCKS": ""}


@pytest.fixture
def run_leases(tmp_path: Path) -> Run:
    """Run the command."""

    def called(*arguments: str, **variables: str) -> CompletedProcess[str]:
        return run_here(*arguments, **leases_in(tmp_path) | variables)

    return called


def moment(document: dict[str, object], name: str) -> datetime:
    return datetime.fromisoformat(str(document[name]))


def test_a_lease_by_hand_from_first_to_last(run_leases: Run, tmp_path: Path) -> None:
    """Grab it, see it, be refused, extend it, drop it, in several processes."""
    apart = partial(run_apart, **leases_in(tmp_path))
    day = "sales/orders/day=1"
    assert apart("leases", "grab", day, "-x", "--for", "1h", "--user", "ann").stdout == "1\n"
    (lease,) = lines(run_leases("leases", "ls", "sales/orders", "--json"))
    assert lease["path"] == day
    assert (lease["user"], lease["lease_id"], lease["lease_type"]) == ("ann", 1, "x")
    names = [lease[name] for name in ("db_name", "table_name", "partition_name")]
    assert names == ["sales", "orders", "day=1"]
    assert moment(lease, "end_utc") - moment(lease, "start_utc") == timedelta(hours=1)

    refused = apart("leases", "grab", "sales/orders", "-x", "--for", "1h")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"X {day} by ann until" in refused.stderr
    (extended,) = lines(run_leases("leases", "extend", "1", "--for", "2h", "--json"))
    assert moment(extended, "end_utc") > moment(lease, "end_utc")
    shown = run_leases("leases", "ls").stdout
    assert shown.splitlines()[1].split()[:4] == [day, "exclusive", "1", "ann"]

    assert apart("leases", "drop", "1").stdout == "dropped 1 claim of lease 1\n"
    assert run_leases("leases", "drop", "1").returncode == 1
    gone = run_leases("leases", "extend", "1")
    assert (gone.returncode, "ended" in gone.stderr) == (1, True)
    assert lines(run_leases("leases", "ls", "--json")) == []


def test_leases_are_dropped_by_force_only_where_that_is_said(
    run_leases: Run, leases: LeaseService
) -> None:
    for table in ("d/t/p=1", "d/t", "d/u"):
        leases.grab_lease([shared(table)], 3600)
    assert run_leases("leases", "force-drop").returncode == 2
    assert run_leases("leases", "force-drop", "d/t", "--all").returncode == 2
    assert lines(run_leases("leases", "force-drop", "d/t", "--json")) == [{"dropped": 2}]
    assert lines(run_leases("leases", "force-drop", "--all", "--json")) == [{"dropped": 1}]
    assert run_leases("leases", "force-drop", "--all").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["grab", "sales", "--for", "1h"], "name a table"),
        (["grab", "d/t", "--for", "800d"], "too long"),
        (["grab", "d/t", "--for", "0s"], "must be a number of seconds"),
        (["grab", "d//t", "--for", "1h"], "not a part of a path"),
        (["drop", "0"], "not an id of a lease"),
        (["ls", "--leases", "oracle://h/d"], "kept in one of these"),
        (["ls", "--leases", "sqlite:////nowhere/typo"], "no such file"),
    ],
)
def test_what_cannot_be_is_an_error_of_one_line(
    arguments: list[str], said: str, run_leases: Run, leases: LeaseService
) -> None:
    done = run_leases("leases", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert leases.list_lease() == []


def called_here(*arguments: str) -> Result:
    """Run the command in this process, where the machine's folder can be another one."""
    return CliRunner().invoke(app, ["leases", *arguments])


def test_without_any_setting_leases_are_in_a_file_of_the_user_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has a lease, or sees none, must not believe that it is so for other users."""
    monkeypatch.setattr(opening, "MACHINE", tmp_path / "none")
    monkeypatch.setenv(opening.VARIABLE, "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    file = tmp_path / "hbase-txn" / "leases.sqlite"
    for arguments, said in (
        (["where"], f"sqlite:///{file}\n"),
        (["ls", "--json"], ""),
        (["grab", "d/t", "--for", "1h"], "1\n"),
    ):
        done = called_here(*arguments)
        assert (done.exit_code, done.stdout) == (0, said)
        assert done.stderr == f"note: these leases keep out no other user: {file}\n"
    assert file.exists()
    assert called_here("ls", "--leases", f"sqlite:///{file}").stderr == ""


def test_statements_about_leases_need_no_lock_manager_and_the_other_way_round(
    run_leases: Run, leases: LeaseService, tmp_path: Path
) -> None:
    leases.grab_lease([exclusive("d/t/p=1")], 3600)
    (shown,) = lines(run_leases("sql", "SHOW LEASE d.t PARTITION (p=1)", "--json"))
    assert (shown["path"], shown["lease_type"]) == ("d/t/p=1", "x")
    locks = f"embedded://{tmp_path}/locks"
    connect(locks).close()
    elsewhere = {"TXN_LEASES": f"sqlite:///{tmp_path}/none", "TXN_LOCKS": locks}
    assert run_leases("sql", "LOCK TABLE d.t SHARED", **elsewhere).returncode == 0
    both = run_leases(
        "sql", "USE d; SHOW LOCKS t; SHOW LEASE t; DROP FORCE LEASE *", TXN_LOCKS=locks
    )
    assert both.returncode == 0, both.stderr
    assert ["d/t", "shared", "held"] in [line.split()[:3] for line in both.stdout.splitlines()]
    assert both.stdout.splitlines()[-1] == "dropped 1 claim"
    again = run_leases("leases", "force-drop", "--all")
    assert (again.returncode, again.stdout) == (1, "dropped no claim\n")
