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
from txn.model import DATABASE_ENTRY
from txn.protocol.statuses import Status
from txn.stores import open_store
from txn.stores.hbase.native.messages import PB
from txn.stores.hbase.native.store import NativeStore
from txn.stores.hbase.schema import ENDPOINT, PURGE
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Reply

PATIENCE_S = 60
CONSTRAINTS = b"|org.apache.hadoop.hbase.constraint.ConstraintProcessor|1073741823|"


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


def make_old_table(store: NativeStore, table: bytes) -> None:
    """Create a table as another program may have done, without the endpoint."""
    settings = {b"BLOOMFILTER": b"NONE", b"COMPRESSION": b"GZ", b"VERSIONS": b"7"}
    schema = PB.TableSchema(table_name=PB.TableName(namespace=b"default", qualifier=table))
    schema.attributes.add(first=b"coprocessor$1", second=CONSTRAINTS)
    schema.attributes.add(first=b"MAX_FILESIZE", second=b"77000000")
    for name in (b"d", b"e"):
        family = schema.column_families.add(name=name)
        family.configuration.add(name="some.setting", value="kept")
        family.configuration.add(name=PURGE, value="90000000")
        for first, second in settings.items():
            family.attributes.add(first=first, second=second)
    store._tables._carry_out(table, "CreateTable", PB.CreateTableRequest(table_schema=schema))


def read_settings(store: NativeStore, table: bytes) -> set[tuple[object, ...]]:
    """Return the settings of a table and, with its name, of each family."""
    schema = store._tables._find_schema(table)
    found: set[tuple[object, ...]] = {(pair.first, pair.second) for pair in schema.attributes}
    for family in schema.column_families:
        found |= {(family.name, pair.first, pair.second) for pair in family.attributes}
        found |= {(family.name, pair.name, pair.value) for pair in family.configuration}
    return found


def test_an_old_table_gets_the_endpoint_and_keeps_all_else(hbase: HBase) -> None:
    data, transactions = make_names()
    table, key = data.encode(), Key("x", "d", "v", data)

    def run(*words: str, store: str = hbase.native) -> CompletedProcess[str]:
        return run_here(*words, "--store", store, COLUMNS="300")

    def list_endpoints() -> dict[str, bool | None]:
        lines = run("table", "ls", "--json").stdout.splitlines()
        found = {told["table"]: told["endpoint"] for told in map(json.loads, lines)}
        return {name: found[name] for name in (transactions, data)}

    with connect(hbase.native, transactions=transactions) as engine:
        store = engine.context.store
        assert isinstance(store, NativeStore)
        make_old_table(store, table)
        engine.commit([Mutation(key, "1")])
        before = read_settings(store, table)
        assert list_endpoints() == {transactions: True, data: False}
        examined = run("doctor", data, "--transactions", transactions)
        assert examined.returncode == 0
        assert f"txn table endpoint {data}; txn table ls" in examined.stdout

        by_gateway = run("table", "endpoint", data, store=hbase.thrift2)
        assert (by_gateway.returncode, by_gateway.stdout) == (
            1,
            f"alter '{data}', METHOD => 'table_att', 'coprocessor' => '|{ENDPOINT}||'\n",
        )
        assert read_settings(store, table) == before

        document = {"table": data, "endpoint": True, "command": None}
        for _ in range(2):  # the second changes nothing
            assert json.loads(run("table", "endpoint", data, "--json").stdout) == document
            named = (b"coprocessor$2", b"|%b|1073741823|" % ENDPOINT.encode())
            assert read_settings(store, table) == before | {named}
        assert list_endpoints() == {transactions: True, data: True}
        assert "endpoint" not in run("doctor", data, "--transactions", transactions).stdout
        assert [cell and cell.value for cell in engine.read([key]).values()] == [b"1"]
        assert engine.commit([Mutation(key, "2")]).complete

        store.assign_table(table, transactions.encode())
        owned = {(name, DATABASE_ENTRY, transactions) for name in (b"d", b"e")}
        assert read_settings(store, table) == before | {named} | owned


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
