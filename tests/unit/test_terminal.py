"""Commands on terminals of 80 and 60 columns: lines fit, and what is printed is taken."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest

from recovery.commands import main
from tests.integration.test_commands import crashed
from txn import AbortedError, Key, Mutation, Some, connect
from txn.client.parts import PartsClient
from txn.host.owner import name_owner
from txn.protocol.statuses import Status

KEY = Key("carol", "d", "balance", "data")
LABELS = {"job": "payroll of the month", "user": "carol.with.a.long.name@example.org"}
HIDDEN = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")

Screen = Callable[..., list[str]]


class Terminal(StringIO):
    """Takes what a command prints, as a terminal does."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A store with a refused transaction, and two whose clients died."""
    uri = f"embedded://{tmp_path}/store"
    crashed(uri, Status.LOCKED)
    crashed(uri, Status.CLEANING, x=Key("a", "d", "v", "data"), y=Key("b", "d", "v", "data"))
    with connect(uri) as engine, pytest.raises(AbortedError):
        engine.commit([Mutation(KEY, "1")], [Some(KEY)], labels=LABELS)
    return uri


@pytest.fixture(params=[80, 60])
def width(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def screen(uri: str, width: int, monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Run a command, and return the lines that stay on the screen."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TXN_STORE", uri)
    monkeypatch.setenv("TERM", "xterm")

    def call(*arguments: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["txn", *arguments])
        monkeypatch.setattr(sys, "stdout", terminal := Terminal())
        with pytest.raises(SystemExit):
            main()
        shown: list[str] = []
        for line in terminal.getvalue().split("\n"):
            for _ in range(line.count("\x1b[1A")):  # a progress bar goes
                shown.pop()
            shown.append(HIDDEN.sub("", line.rpartition("\x1b[2K")[2]).rstrip("\r"))
        return shown

    return call


def test_ls_fits_and_its_columns_are_aligned(screen: Screen, width: int) -> None:
    heading, *rows = screen("ls")[:4]
    assert heading.split()[:6] == ["id", "status", "age", "keys", "labels", "reason;"]
    assert all(len(line) <= width for line in (heading, *rows))
    at = [heading.index(name) for name in ("status", "labels", "reason")]
    assert {row[at[0] - 1] + row[at[1] - 1] for row in rows} == {"  "}
    assert [row[at[0] :].split()[0] for row in rows] == ["1-LOCKED", "4-CLEANING", "7-ABORTED"]
    assert all(row[at[2] :].startswith(name_owner()[:9]) for row in rows[:2])
    assert len(rows[2]) == width and rows[2].endswith("…")
    assert rows[2][at[2] - 2] == "…" and rows[2][at[2] :].startswith("assertion")


def test_show_takes_what_ls_and_fsck_print(screen: Screen, uri: str) -> None:
    ids = [row.split()[0] for row in screen("ls")[1:4]]
    found = [line.split()[1] for line in screen("fsck", "--grace", "0s") if line.startswith("und")]
    assert found == ids[:1]
    for each, status in zip(ids, ["1-LOCKED", "4-CLEANING", "7-ABORTED"], strict=True):
        assert status in "".join(screen("show", each)[:3])
    with connect(uri) as engine:
        client = PartsClient(engine)
        client.write(client.begin(), 0, 0, [Mutation(KEY, "1")])
        (row,) = [line for line in screen("ls", "--parts") if "0-PART" in line]
        assert re.fullmatch(r"[0-9a-f]{8}\.part-00000-00000", row.split()[0])
        assert "part of" in "".join(screen("show", row.split()[0]))


@pytest.mark.parametrize(
    "command", ["locks ls", "locks ls --extended", "leases ls --leases sqlite:///{folder}/leases"]
)
def test_tables_of_locks_and_leases_lose_nothing(
    screen: Screen, width: int, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXN_LOCKS", f"embedded://{tmp_path}/store")
    parts = ["sales", "orders-of-the-whole-year", "day=2026-11-26", "hour=12"]
    if command.startswith("locks"):
        screen("locks", "acquire", "/".join(parts), "--exclusive")
    else:
        leases = f"sqlite:///{tmp_path}/leases"
        screen("leases", "grab", "/".join(parts), "--for", "2h", "--leases", leases)
    lines = screen(*command.format(folder=tmp_path).split())
    assert max(map(len, lines)) <= width
    column = "".join(line.partition("  ")[0] for line in lines)
    assert column.startswith("object") and column.endswith("/".join(parts))


def test_ls_counts(screen: Screen) -> None:
    rows = [line.split() for line in screen("ls", "--count") if line]
    assert rows == [["1-LOCKED", "1"], ["4-CLEANING", "1"], ["7-ABORTED", "1"], ["total", "3"]]
    assert screen("ls", "--count", "--status", "4", "--json")[0] == (
        '{"statuses": {"4-CLEANING": 1}, "total": 1}'
    )
    assert screen("ls", "--count", "--older-than", "1h")[0].split() == ["total", "0"]
