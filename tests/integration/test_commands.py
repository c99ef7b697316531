"""The console script on an embedded store; in a process of its own where that matters."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.console.crashing import crash_client
from tests.integration.commands import run_here
from txn import Delete, Key, Mutation, connect
from txn.client.parts import PartsClient
from txn.model import Edit
from txn.protocol.statuses import Status
from txn.request import Request
from txn.stores import open_store

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
X, Y = Key("x", "d", "v", "data"), Key("y/z", "d", "v", "data")
OTHERS = Key("a", "d", "v", "data"), Key("b", "d", "v", "data")

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"embedded://{tmp_path}/store"


@pytest.fixture
def run(uri: str) -> Run:
    """Run the command on the store."""

    def call(*arguments: str, given: str = "", **variables: str) -> CompletedProcess[str]:
        return run_here(*arguments, given=given, **{"TXN_STORE": uri, "COLUMNS": "100"} | variables)

    return call


def lines(done: CompletedProcess[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def crashed(uri: str, status: Status, value: str = "new", x: Key = X, y: Key = Y) -> bytes:
    """Leave what a client leaves that dies once its row has this status; return the row key."""
    request = Request((Mutation(x, value), Delete(y)), labels={"status": str(status)})
    return crash_client(uri, status, request)


def test_the_first_look_of_the_operators_page_works(tmp_path: Path, run: Run) -> None:
    (block,) = re.findall(r"## A first look\n\n```\n(.*?)```", OPERATIONS.read_text(), re.S)
    assert block.count("txn ") >= 5
    script = block.replace("embedded:///tmp/shop", f"embedded://{tmp_path}/shop")
    folder = Path(sys.executable).parent
    done = subprocess.run(
        ["sh", "-ec", script],
        env=os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"stock/apple/d:count  \d{13}  7\n", done.stdout)
    assert "5-COMPLETE" in done.stdout
    assert "clean" in done.stdout


def test_a_database_is_made_with_a_protocol_used_and_converted(uri: str, run: Run) -> None:
    made = run("init", "--protocol", "fenced", "--rows", "always")
    shown = "transaction table txn has the protocol fenced (rows: always)\n"
    assert (made.returncode, made.stdout) == (0, shown)
    facts = {"transactions": "txn", "protocol": "fenced", "rows": "always"}
    assert lines(run("init", "--json")) == [facts]
    other = run("init", "--rows", "needed")
    assert (other.returncode, "txn convert fenced --rows needed" in other.stderr) == (2, True)
    unsure = run("convert", "fenced", "--rows", "needed")
    assert (unsure.returncode, "--yes" in unsure.stderr) == (2, True)
    for was in ("always", "needed"):
        now = run("convert", "fenced", "--rows", "needed", "--yes")
        assert (now.returncode, f"is fenced, rows: needed (was {was})" in now.stdout) == (0, True)
    assert "protocol: fenced (rows: needed)" in run("doctor").stdout
    assert "found=fenced" in run("init", "--protocol", "six-phase").stderr
    assert run("init", "--protocol", "seventh").returncode == 2
    run("table", "create", "data", "d")
    request = {"mutations": [{"put": "data/x/d:v", "value": "1"}], "once": "token"}
    assert run("commit", "-", given=json.dumps(request)).returncode == 0
    assert "repeated" in run("commit", "-", "--json", given=json.dumps(request)).stdout
    assert run("get", "data/x/d:v").stdout.endswith("  1\n")
    left = crashed(uri, Status.ASSERTED)
    shown = json.loads(run("show", left.decode(), "--json").stdout)
    assert (shown["status"], len(shown["locks_held"])) == ("2-ASSERTED", 2)
    assert [each["status"] for each in shown["statuses"]] == ["0-WRITTEN", "2-ASSERTED"]
    found, _ = lines(run("fsck", "--json", "--grace", "0s", "--scan", "data"))
    assert (found["kind"], found["transaction"]) == ("decided", left.decode())
    assert run("fsck", "--repair", "--grace", "0s", "--scan", "data").returncode == 0
    assert run("ls").stdout.count("5-COMPLETE") == 2
    assert "protocol: fenced" in run("doctor", "data").stdout
    assert run("purge", "--once", "token", "--yes").returncode == 0
    convert = ("convert", "six-phase", "--scan", "data")
    refused = run(*convert, "--yes")
    assert (refused.returncode, "2 transactions have rows" in refused.stderr) == (1, True)
    run("fsck", "--repair", "--retention", "0s", "--yes")
    young = run(*convert, "--yes")
    assert (young.returncode, "younger than the retention" in young.stderr) == (1, True)
    unsure = run(*convert, "--retention", "0s")
    assert (unsure.returncode, "--yes" in unsure.stderr) == (2, True)
    done = run(*convert, "--retention", "0s", "--yes")
    assert (done.returncode, "txn is six-phase (was fenced)" in done.stdout) == (0, True)
    assert run("fsck", "--scan", "data", "--grace", "0s").returncode == 0


def test_a_retention_that_requests_may_outlive_asks_for_a_word(uri: str, run: Run) -> None:
    run("table", "create", "data", "d")
    assert run("fsck", "--retention", "59m").returncode == 0
    refused = run("fsck", "--repair", "--retention", "59m")
    assert refused.returncode == 2
    assert "1 h" in refused.stderr and "--yes" in refused.stderr
    assert run("fsck", "--repair", "--retention", "59m", "--yes").returncode == 0
    assert run("fsck", "--repair", "--retention", "1h").returncode == 0


def test_fsck_finds_mends_and_is_clean(uri: str, run: Run) -> None:
    decided = crashed(uri, Status.ASSERTED)
    options = ("--scan", "data", "--grace", "0s")

    found = run("fsck", *options, "--json")
    assert found.returncode == 1
    finding, summary = lines(found)
    assert (finding["kind"], finding["transaction"]) == ("decided", decided.decode())
    assert (summary["kind"], summary["found"], summary["left"]) == ("summary", 1, 1)
    again = run("fsck", *options)
    assert again.returncode == 1
    assert "1 finding" in again.stdout and decided.decode() in again.stdout

    repaired = run("fsck", *options, "--repair")
    assert repaired.returncode == 0
    assert repaired.stdout.splitlines()[-1].startswith("1 finding: 1 rolled forward;")
    clean = run("fsck", *options)
    assert (clean.returncode, clean.stdout[:5]) == (0, "clean")
    (summary,) = lines(run("fsck", *options, "--json"))
    assert (summary["found"], summary["kinds"], summary["left"]) == (0, {}, 0)
    assert run("get", "data/x/d:v").stdout.endswith("  new\n")


def test_a_quiet_fsck_prints_findings_and_nothing_else(uri: str, run: Run) -> None:
    decided = crashed(uri, Status.ASSERTED)
    for options in ((), ("--json",)):
        young = run("fsck", "--quiet", *options)
        assert (young.returncode, young.stdout, young.stderr) == (0, "", "")
    found = run("fsck", "--quiet", "--grace", "0s")
    assert (found.returncode, "1 finding" in found.stdout) == (1, False)
    assert decided.decode() in found.stdout
    (finding,) = lines(run("fsck", "--quiet", "--grace", "0s", "--json"))
    assert finding["kind"] == "decided"


def test_ls_lists_and_selects(uri: str, run: Run) -> None:
    undecided = crashed(uri, Status.WRITTEN)
    decided = crashed(uri, Status.CLEANING, "new", *OTHERS)
    every = run("ls")
    assert every.returncode == 0
    assert undecided.decode() in every.stdout and "status=4-CLEANING" in every.stdout
    assert [row["transaction"] for row in lines(run("ls", "--json", "--status", "4"))] == [
        decided.decode()
    ]
    both = ("--status", "written", "--status", "4-CLEANING")
    assert len(lines(run("ls", "--json", *both))) == 2
    assert lines(run("ls", "--json", "--older-than", "1h")) == []
    newest = run("ls", "--json", "--limit", "1")
    assert [row["transaction"] for row in lines(newest)] == [decided.decode()]
    assert "only the newest 1 transaction: --limit 0 shows all" in newest.stderr
    all_of_them = run("ls", "--limit", "0", "--json")
    found = [row["transaction"] for row in lines(all_of_them)]
    assert (found, all_of_them.stderr) == ([undecided.decode(), decided.decode()], "")


def test_a_foreign_row_is_told_by_ls_show_and_fsck(uri: str, run: Run) -> None:
    crashed(uri, Status.CLEANING)
    store = open_store(uri)
    cells = {"mine": ("x", b"1"), "other": ("status", b"1"), "third": ("status", b"5-COMPLETE")}
    store.write([Edit(Key(row, "t", at, "txn"), cell, 5) for row, (at, cell) in cells.items()])
    store.close()
    told = "3 foreign rows, see txn fsck; the first is mine"
    for option in (("--limit", "0"), ("--count",)):
        assert run("ls", *option).stdout.splitlines()[-1] == told
        last = lines(run("ls", *option, "--json"))[-1]
        assert last == {"transaction": None, "state": "foreign", "rows": 3, "row": "mine"}
    assert "foreign" not in run("ls").stdout  # it reads the newest transactions and nothing else
    shown = run("show", "mine")
    assert shown.returncode == 2 and "the row is foreign, a row of the trans" in shown.stderr
    assert "the database keeps it row=protocol" in run("show", "protocol").stderr
    assert run("fsck").stdout.count("foreign-row     txn/") == 3


def test_show_explains_a_transaction(uri: str, run: Run) -> None:
    row_key = crashed(uri, Status.LOCKED).decode()
    text = run("show", row_key[-8:]).stdout
    for part in (row_key, "1-LOCKED", "data/y/z/d:v", "deleted", "2 of 2", "abort it"):
        assert part in text
    document = json.loads(run("show", row_key, "--json").stdout)
    assert document["status"] == "1-LOCKED"
    assert document["locks_held"] == ["data/x/d:v", "data/y/z/d:v"]
    assert [change["new"] for change in document["mutations"]] == ["new", None]

    other = crashed(uri, Status.WRITTEN).decode()
    ambiguous = run("show", "transaction")
    assert ambiguous.returncode == 2
    assert row_key in ambiguous.stderr and other in ambiguous.stderr
    absent = run("show", "nothing")
    assert (absent.returncode, absent.stdout) == (2, "")


def test_get_and_commit_take_what_they_print(uri: str, run: Run) -> None:
    assert run("table", "create", "data", "d", "e").returncode == 0
    key = r"data/a/b\x00\\é/d:c\x2fd:e"
    document = {"mutations": [{"put": key, "value": {"base64": "AP/DqQ=="}}], "once": "me"}
    first = json.loads(run("commit", "-", "--json", given=json.dumps(document)).stdout)
    second = json.loads(run("commit", "-", "--json", given=json.dumps(document)).stdout)
    assert (first["repeated"], second["repeated"]) == (False, True)
    assert first["transaction"] == second["transaction"]
    cells = lines(run("get", key, "data/nobody/e:x", "--json"))
    free = {"locked_by": None}
    assert cells[0] == free | {"key": key, "value": r"\x00\xffé", "timestamp": first["timestamp"]}
    assert cells[1] == free | {"key": "data/nobody/e:x", "value": None, "timestamp": None}
    assert "absent" in run("get", "data/nobody/e:x").stdout


def test_looking_at_a_store_that_is_not_there_does_not_make_it(tmp_path: Path, run: Run) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    tried = [("ls",), ("show", "x"), ("fsck", "--repair"), ("get", "t/r/f:c"), ("commit", "-")]
    for folder, command in [*((tmp_path / "nowhere", each) for each in tried), (empty, ("ls",))]:
        done = run(*command, "--store", f"embedded://{folder}", given='{"assertions": []}')
        assert done.returncode == 2
        assert done.stderr.startswith("error: no such store")
    assert list(tmp_path.iterdir()) == [empty] and not list(empty.iterdir())


def test_mistakes_are_errors_in_a_line_and_exit_code_2(uri: str, run: Run, tmp_path: Path) -> None:
    connect(uri).close()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    for arguments, message in (
        (("ls", "--store", "ftp://host"), "unknown kind of store"),
        (("ls", "--store", f"embedded://{tmp_path}/mine"), "no such store"),
        (("ls", "--store", "embedded://mine"), "write embedded:///path, with three slashes"),
        (("ls", "--transactions", "tnx"), "no such transaction table"),
        (("fsck", "--scan", "dta"), "no such table"),
        (("get", "t/r/f:c"), "no such table"),
        (("get", "t/r"), "table/row/family:column"),
        (("commit", f"{tmp_path}/none.json"), "No such file"),
        (("commit", "-"), "not a JSON document"),
        (("table", "create", "data", "d/"), "not a legal family name"),
    ):
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert re.fullmatch(r"error: .*\n", done.stderr), done.stderr
        assert message in done.stderr
    assert "TXN_STORE" in run("ls", TXN_STORE="").stderr
    assert run("ls", "--status", "9").returncode == 2


def test_ls_leaves_out_parts_unless_they_are_asked_for(uri: str, run: Run) -> None:
    """Those of one data frame would be in the place of all other transactions."""
    with connect(uri) as engine:
        engine.ensure_table("data", ["d"])
        older = engine.commit([Mutation(X, "0"), Mutation(Y, "0")]).transaction.decode()
        client = PartsClient(engine)
        name = (whole := client.begin()).decode()
        for n in range(3):
            newest = client.write(whole, 0, n, [Mutation(Key(f"{n}", "d", "v", "data"), "1")])
        client.commit(whole, [3], newest, ack="decided")
    parts = [f"{name}.part-00000-{n:05}" for n in range(3)]
    for options, found in {
        "": [older, name],
        "--parts": [older, name, *parts],
        "--status 5": [older],
        "--status 0-PART": parts,
        "--limit 1": [name],
    }.items():
        listed = lines(run("ls", "--json", *options.split()))
        assert [row["transaction"] for row in listed] == found, options
    _, row, part, *_ = lines(run("ls", "--json", "--parts"))
    assert (row["parts"], row["part_of"], part["parts"], part["part_of"]) == ([3], None, None, name)
    assert (row["state"], part["state"]) == ("decided", "decided")
    assert "3 parts" in run("ls").stdout


def test_show_means_the_transaction_and_tells_of_its_parts(uri: str, run: Run) -> None:
    with connect(uri) as engine:
        engine.ensure_table("data", ["d"])
        client = PartsClient(engine)
        whole = client.begin()
        for n, key in enumerate((X, Y)):
            client.write(whole, 0, n, [Mutation(key, "1")])
        first = f"{whole.decode()}.part-00000-00000"
        piece = whole.decode().removeprefix("transaction.")
        before = run("show", piece).stdout
        assert f"not counted before the decision, 2 rows: txn show {first}" in before
        client.commit(whole, [2], 0)
    assert f"2 of 1 task, 2 rows: txn show {first}" in run("show", piece).stdout
    document = json.loads(run("show", piece, "--json").stdout)
    assert (document["transaction"], document["parts"]) == (whole.decode(), [2])
    assert (document["part_rows"], document["first_part"]) == (2, first)
    part = json.loads(run("show", f"{piece}.part-00000-00001", "--json").stdout)
    assert (part["part_of"], part["first_part"]) == (whole.decode(), None)
