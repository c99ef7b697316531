"""`txn leases` and `txn sql`, first in processes of their own; the statements."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path as Folder
from subprocess import CompletedProcess
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from recovery.commands import app
from tests.integration.commands import run_apart, run_here
from tests.integration.postgresql import PostgreSQL
from txn import connect
from txn.errors import InvalidRequestError
from txn.leases import exclusive, open_leases, opening, path, shared
from txn.leases.service import LeaseService
from txn.locks.hive.model import Column, Table, Tables
from txn.locks.statements import DropLeases, ShowLeases, ShowLocks, parse_statements

Run = Callable[..., CompletedProcess[str]]
CATALOG = Tables({path("d/t"): Table((Column("p", "int"), Column("q", "string")))})


@pytest.fixture
def leases(tmp_path: Folder) -> Iterator[LeaseService]:
    with open_leases(f"sqlite:///{tmp_path}/leases.sqlite") as leases:
        yield leases


def leases_in(folder: Folder) -> dict[str, str]:
    """The variables that name leases in a folder, and no locks."""
    return {"TXN_LEASES": f"sqlite:///{folder}/leases.sqlite", "TXN_LOCKS": ""}


@pytest.fixture
def call(tmp_path: Folder) -> Run:
    """Run the command."""

    def called(*arguments: str, **variables: str) -> CompletedProcess[str]:
        return run_here(*arguments, **leases_in(tmp_path) | variables)

    return called


def lines(done: CompletedProcess[str]) -> list[dict[str, object]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def moment(document: dict[str, object], name: str) -> datetime:
    return datetime.fromisoformat(str(document[name]))


def test_a_lease_by_hand_from_first_to_last(call: Run, tmp_path: Folder) -> None:
    """Grab it, see it, be refused, extend it, drop it, in several processes."""
    apart = partial(run_apart, **leases_in(tmp_path))
    day = "sales/orders/day=1"
    assert apart("leases", "grab", day, "-x", "--for", "1h", "--user", "ann").stdout == "1\n"
    (lease,) = lines(call("leases", "ls", "sales/orders", "--json"))
    assert lease["path"] == day
    assert (lease["user"], lease["lease_id"], lease["lease_type"]) == ("ann", 1, "x")
    names = [lease[name] for name in ("db_name", "table_name", "partition_name")]
    assert names == ["sales", "orders", "day=1"]
    assert moment(lease, "end_utc") - moment(lease, "start_utc") == timedelta(hours=1)

    refused = apart("leases", "grab", "sales/orders", "-x", "--for", "1h")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"X {day} by ann until" in refused.stderr
    (extended,) = lines(call("leases", "extend", "1", "--for", "2h", "--json"))
    assert moment(extended, "end_utc") > moment(lease, "end_utc")
    shown = call("leases", "ls").stdout
    assert shown.splitlines()[1].split()[:4] == [day, "exclusive", "1", "ann"]

    assert apart("leases", "drop", "1").stdout == "dropped 1 claim of lease 1\n"
    assert call("leases", "drop", "1").returncode == 1
    gone = call("leases", "extend", "1")
    assert (gone.returncode, "ended" in gone.stderr) == (1, True)
    assert lines(call("leases", "ls", "--json")) == []


def test_leases_are_dropped_by_force_only_where_that_is_said(
    call: Run, leases: LeaseService
) -> None:
    """A forgotten argument must not end the work of everybody."""
    for table in ("d/t/p=1", "d/t", "d/u"):
        leases.grab_lease([shared(table)], 3600)
    assert call("leases", "force-drop").returncode == 2
    assert call("leases", "force-drop", "d/t", "--all").returncode == 2
    assert lines(call("leases", "force-drop", "d/t", "--json")) == [{"dropped": 2}]
    assert lines(call("leases", "force-drop", "--all", "--json")) == [{"dropped": 1}]
    assert call("leases", "force-drop", "--all").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["grab", "sales", "--for", "1h"], "name a table"),
        (["grab", "d/t", "--for", "800d"], "too long"),
        (["grab", "d/t", "--for", "0s"], "must be a number of seconds"),
        (["grab", "d//t", "--for", "1h"], "not a part of a path"),
        (["drop", "0"], "not an id of a lease"),
        (["ls", "--leases", "oracle://h/d"], "kept in one of these"),
    ],
)
def test_what_cannot_be_is_an_error_of_one_line(
    arguments: list[str], said: str, call: Run, leases: LeaseService
) -> None:
    """A person reads it, and a script goes by the code."""
    done = call("leases", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert leases.list_lease() == []


def test_looking_makes_no_file(call: Run, tmp_path: Folder) -> None:
    """A mistyped path is an error, not an empty answer."""
    done = call("leases", "ls", "--leases", f"sqlite:///{tmp_path}/typo")
    assert (done.returncode, "no such file" in done.stderr) == (2, True)
    assert not (tmp_path / "typo").exists()


def called_here(*arguments: str) -> Result:
    """Run the command in this process, where the machine's folder can be another one."""
    return CliRunner().invoke(app, ["leases", *arguments])


def test_without_any_setting_leases_are_in_a_file_of_the_user_and_that_is_said(
    tmp_path: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one machine nothing need be set up; but whoever has a lease must not believe that another
    user is kept out, nor whoever sees none that nobody has any."""
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


def test_the_leases_of_the_machine_are_found_by_commands_and_programs(
    tmp_path: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both must look in one place, or they would not exclude each other."""
    monkeypatch.setattr(opening, "MACHINE", tmp_path)
    monkeypatch.delenv(opening.VARIABLE, raising=False)
    assert called_here("where").output == f"sqlite:///{tmp_path}/leases.sqlite\n"
    assert called_here("grab", "d/t", "-x", "--for", "1h").output == "1\n"
    with open_leases() as machine:
        assert [lease.lease_id for lease in machine.list_lease()] == [1]
    monkeypatch.setenv(opening.VARIABLE, f"sqlite:///{tmp_path}/other")
    with open_leases() as other:
        assert other.list_lease() == []
        assert other.connections.url.database == f"{tmp_path}/other"
    assert called_here("ls", "--json").output == ""


def test_where_leases_are_is_told_without_a_password(call: Run) -> None:
    """It is copied into mails."""
    url = "postgresql+psycopg://ann:secret@127.0.0.1:1/leases"
    (found,) = lines(call("leases", "where", "--json", TXN_LEASES=url))
    assert found == {"url": url.replace("secret", "***")}
    done = call("leases", "where", "--leases", "ann:secret")
    assert (done.returncode, "not the URL" in done.stderr, "secret" in done.stderr) == (
        2,
        True,
        False,
    )


def test_the_commands_work_on_postgresql(call: Run, postgresql: PostgreSQL) -> None:
    """Its URL is in the environment, where a password can be kept."""
    url = postgresql.new_database()
    assert call("leases", "grab", "d/t", "--for", "1h", TXN_LEASES=url).stdout == "1\n"
    assert "d/t" in call("sql", "SHOW LEASE d.t", TXN_LEASES=url).stdout


def test_statements_about_leases_need_no_lock_manager_and_the_other_way_round(
    call: Run, leases: LeaseService, tmp_path: Folder
) -> None:
    """Many have only one of the two; a text may ask both."""
    leases.grab_lease([exclusive("d/t/p=1")], 3600)
    (shown,) = lines(call("sql", "SHOW LEASE d.t PARTITION (p=1)", "--json"))
    assert (shown["path"], shown["lease_type"]) == ("d/t/p=1", "x")
    locks = f"embedded://{tmp_path}/locks"
    connect(locks).close()
    elsewhere = {"TXN_LEASES": f"sqlite:///{tmp_path}/none", "TXN_LOCKS": locks}
    assert call("sql", "LOCK TABLE d.t SHARED", **elsewhere).returncode == 0
    both = call("sql", "USE d; SHOW LOCKS t; SHOW LEASE t; DROP FORCE LEASE *", TXN_LOCKS=locks)
    assert both.returncode == 0, both.stderr
    assert ["d/t", "shared", "held"] in [line.split()[:3] for line in both.stdout.splitlines()]
    assert both.stdout.splitlines()[-1] == "dropped 1 claim"
    again = call("leases", "force-drop", "--all")
    assert (again.returncode, again.stdout) == (1, "dropped no claim\n")


def test_a_statement_drops_the_table_that_it_names_in_any_case(
    call: Run, leases: LeaseService
) -> None:
    """`sales.Orders` is one table, whoever has leased it by which spelling; no other is touched."""
    for name in ("Sales/ORDERS/day=Mon", "sales/orders_old"):
        leases.grab_lease([exclusive(name)], 3600)
    dropped = call("sql", "DROP FORCE LEASE sales.Orders")
    assert dropped.stdout == "dropped 1 claim of sales/orders\n"
    assert [str(lease.path) for lease in leases.list_lease()] == ["sales/orders_old"]


def test_nothing_is_done_where_something_is_missing(call: Run, leases: LeaseService) -> None:
    """Half of a script that was done is worse than none."""
    leases.grab_lease([shared("d/t")], 3600)
    for sql in ("DROP FORCE LEASE *; SHOW LOCKS", "DROP FORCE LEASE *; SELECT 1"):
        done = call("sql", sql)
        assert (done.returncode, done.stdout) == (2, "")
    assert len(leases.list_lease()) == 1


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SHOW LEASE *", ShowLeases(None)),
        ("show lease T", ShowLeases(path("d/t"))),
        ("SHOW LEASE e.`t`", ShowLeases(path("e/t"))),
        ("SHOW LEASE t PARTITION (q='x', p=1)", ShowLeases(path("d/t/p=1/q=x"))),
        ("SHOW LEASE t PARTITION (p=1)", ShowLeases(path("d/t/p=1"))),
        ("USE e; SHOW LEASE t", ShowLeases(path("e/t"))),
        ("DROP FORCE LEASE *", DropLeases(None)),
        ("DROP FORCE LEASE t", DropLeases(path("d/t"))),
        ("DROP FORCE LEASE u PARTITION (a=1, b='2')", DropLeases(path("d/u/a=1/b=2"))),
        ("SHOW LOCKS t", ShowLocks(path("d/t"), extended=False)),
    ],
)
def test_each_form_is_understood(sql: str, expected: object) -> None:
    """Names are as in Hive's own statements."""
    assert parse_statements(sql, {"hive.current.database": "d"}, CATALOG) == [expected]


@pytest.mark.parametrize(
    "sql",
    [
        "SHOW LEASE",
        "SHOW LEASES *",
        "SHOW LEASE * t",
        "SHOW LEASE t u",
        "DROP FORCE LEASE",
        "DROP LEASE t",
        "DROP FORCE LEASE t PARTITION (q='x')",
        "DROP FORCE LEASE t PARTITION (p)",
        "DROP FORCE LEASE t PARTITION (p > 1)",
        "DROP FORCE LEASE t PARTITION (nope=1)",
        "DROP FORCE LEASE t PARTITION (p=1) CASCADE",
    ],
)
def test_anything_else_is_refused(sql: str) -> None:
    """A partition that is not certain must not stand for the whole table."""
    with pytest.raises(InvalidRequestError):
        parse_statements(sql, {"hive.current.database": "d"}, CATALOG)


def run(leases: LeaseService, sql: str) -> list[Any]:
    found: list[Any] = []
    for each in parse_statements(sql):
        assert isinstance(each, ShowLeases | DropLeases)
        call = leases.list_lease if isinstance(each, ShowLeases) else leases.force_drop_lease
        found.append(call([] if each.within is None else [each.within]))
    return found


def test_who_denies_a_partition_is_shown_with_it(leases: LeaseService) -> None:
    """Whoever has all of the table has its partitions, too."""
    leases.grab_lease([exclusive("d/t")], 3600)
    leases.grab_lease([shared("d/u")], 3600)
    (of_part,) = run(leases, "SHOW LEASE d.t PARTITION (p=1)")
    assert [str(each.request) for each in of_part] == ["X d/t"]


def test_statements_are_about_an_object_and_what_lies_in_it(leases: LeaseService) -> None:
    """Whoever wants a table free wants its partitions free."""
    leases.grab_lease([exclusive("d/t/p=1"), shared("d/u"), shared("e/t")], 3600)
    (of_table,) = run(leases, "SHOW LEASE d.t")
    assert [str(each.path) for each in of_table] == ["d/t/p=1"]
    assert run(leases, "DROP FORCE LEASE d.t; DROP FORCE LEASE *") == [1, 2]
    assert leases.list_lease() == []
