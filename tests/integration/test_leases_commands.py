"""`txn leases` and `txn sql`, first in processes of their own; the statements."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path as Folder
from subprocess import CompletedProcess

import pytest
from typer.testing import CliRunner, Result

from recovery.commands import app
from tests.integration.commands import run_apart, run_here
from tests.integration.postgresql import PostgreSQL
from txn import connect
from txn.leases import exclusive, open_leases, opening, shared
from txn.leases.service import LeaseService

Run = Callable[..., CompletedProcess[str]]


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
    done = call("leases", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert leases.list_lease() == []


def test_looking_makes_no_file(call: Run, tmp_path: Folder) -> None:
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


def test_where_leases_are_is_told_without_a_password(call: Run) -> None:
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
    url = postgresql.new_database()
    assert call("leases", "grab", "d/t", "--for", "1h", TXN_LEASES=url).stdout == "1\n"
    assert "d/t" in call("sql", "SHOW LEASE d.t", TXN_LEASES=url).stdout


def test_statements_about_leases_need_no_lock_manager_and_the_other_way_round(
    call: Run, leases: LeaseService, tmp_path: Folder
) -> None:
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


def test_nothing_is_done_where_something_is_missing(call: Run, leases: LeaseService) -> None:
    leases.grab_lease([shared("d/t")], 3600)
    for sql in ("DROP FORCE LEASE *; SHOW LOCKS", "DROP FORCE LEASE *; SELECT 1"):
        done = call("sql", sql)
        assert (done.returncode, done.stdout) == (2, "")
    assert len(leases.list_lease()) == 1
