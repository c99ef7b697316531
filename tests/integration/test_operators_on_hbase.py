"""The operator's commands, and the console without a browser, on a real HBase."""

from __future__ import annotations

import json
import re
import time
import uuid
from contextlib import closing
from html import unescape
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.console.served import ServedConsole, serve_store
from tests.console.visits import ask, post
from tests.integration.commands import run_here
from tests.integration.hbase import HBase
from txn import Engine, Key, Mutation, connect
from txn.protocol.statuses import Status
from txn.stores import open_store
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Reply

PATIENCE_S = 60


def make_names() -> tuple[str, str]:
    """Return names for a table and for that of its transactions."""
    data, transactions = (f"operated-{part}-{uuid.uuid4().hex[:8]}" for part in ("data", "txn"))
    return data, transactions


def crash_once_decided(call: Call) -> Fault:
    decided = any(
        getattr(item, "puts", ((None, b""),))[-1][1] == Status.ASSERTED.value for item in call.items
    )
    return Fault(reply=Reply.CRASH) if decided else Fault()


def leave_decided(uri: str, transactions: str, key: Key) -> None:
    """Let a client die right after its decision to put a 2."""
    with closing(open_store(uri)) as store, pytest.raises(Crash):
        dying = Engine(FaultyStore(store, crash_once_decided), transactions=transactions)
        dying.commit([Mutation(key, "2")], labels={"job": "second"})


def test_every_command_works_on_hbase(hbase: HBase) -> None:
    data, transactions = make_names()

    def run(*arguments: str, given: str = "") -> CompletedProcess[str]:
        options = ("--store", hbase.native, "--transactions", transactions)
        return run_here(*arguments, *options, given=given, COLUMNS="100")

    assert run("table", "create", data, "d").returncode == 0
    given = json.dumps({"mutations": [{"put": f"{data}/x/d:v", "value": "1"}]})
    done = json.loads(run("commit", "-", "--json", given=given).stdout)
    leave_decided(hbase.native, transactions, Key("x", "d", "v", data))

    listed = [json.loads(line) for line in run("ls", "--json").stdout.splitlines()]
    (left,) = [row["transaction"] for row in listed if row["transaction"] != done["transaction"]]
    assert json.loads(run("show", left, "--json").stdout)["status"] == "2-ASSERTED"
    options = ("--scan", data, "--grace", "0s")
    assert run("fsck", *options).returncode == 1
    assert run("fsck", *options, "--repair").returncode == 0
    assert run("fsck", *options).stdout.startswith("clean")
    assert run("get", f"{data}/x/d:v").stdout.endswith("  2\n")
    with closing(open_store(hbase.native)) as store:
        before = [list(store.scan(table.encode())) for table in (transactions, data)]
        examined = run("doctor", data)
        assert examined.returncode == 0, examined.stdout
        assert [list(store.scan(table.encode())) for table in (transactions, data)] == before


def wait_for(served: ServedConsole, path: str, pattern: str) -> None:
    """Ask for a page until it has what is looked for."""
    deadline = time.monotonic() + PATIENCE_S
    while not re.search(pattern, page := unescape(ask(served.url + path).body), re.DOTALL):
        assert time.monotonic() < deadline, page
        time.sleep(0.3)


def test_what_a_dead_client_left_is_shown_and_mended(hbase: HBase, tmp_path: Path) -> None:
    uri = hbase.native
    data, transactions = make_names()
    key = Key("x", "d", "v", data)
    with connect(uri, transactions=transactions) as engine:
        engine.ensure_table(data, ["d"])
        engine.commit([Mutation(key, "1")], labels={"job": "first"})
    leave_decided(uri, transactions, key)
    with serve_store(uri, tmp_path / "log", "--transactions", transactions) as served:
        wait_for(served, "/", ">2-ASSERTED</span>")
        found = unescape(ask(f"{served.url}/transactions?label=second").body)
        (link,) = set(re.findall(r'href="(/transaction\?id=[^"]+)"', found))
        assert "roll it forward" in unescape(ask(served.url + link).body)
        shown = unescape(ask(f"{served.url}/key?key={data}/x/d:v").body)
        assert shown.count("/transaction?id=") == 3  # its holder, and the two that named it
        assert "job=first" in shown
        assert ">1<" in shown
        in_row = "(?:(?!</tr>).)*"  # the table's size comes once a region server has reported it
        wait_for(served, "/key", f">{data}</a>{in_row}>1</td>{in_row} MB</td>")
        assert post(f"{served.url}/fsck", {"grace": "0s", "tables": data}).status == 303
        wait_for(served, "/fsck", "Repair all")
        token = {"Authorization": f"Bearer {served.token}"}
        assert ask(f"{served.url}/fsck/repair", "POST", {"check": "1"}, token).status == 303
        wait_for(served, f"/key?key={data}/x/d:v", ">2<")
    with connect(uri, transactions=transactions) as engine:
        assert [cell and cell.value for cell in engine.read([key]).values()] == [b"2"]
