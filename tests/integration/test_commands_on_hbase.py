"""The operator's commands on a real HBase, natively and through each of its gateways."""

from __future__ import annotations

import json
import uuid
from subprocess import CompletedProcess

import pytest

from tests.integration.commands import run_here
from tests.integration.hbase import HBase
from txn import Engine, Key, Mutation
from txn.protocol.statuses import Status
from txn.stores import open_store
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Reply


def crash_once_decided(call: Call) -> Fault:
    """Die right after the decision."""
    decided = any(
        getattr(item, "puts", ((None, b""),))[-1][1] == Status.ASSERTED.value for item in call.items
    )
    return Fault(reply=Reply.CRASH) if decided else Fault()


@pytest.mark.parametrize("kind", ["native", "thrift1", "thrift2"])
def test_every_command_works_on_hbase(hbase: HBase, kind: str) -> None:
    uri = getattr(hbase, kind)
    data, transactions = (f"commands-{part}-{uuid.uuid4().hex[:8]}" for part in ("data", "txn"))

    def run(*arguments: str, given: str = "", store: str = uri) -> CompletedProcess[str]:
        options = ("--store", store, "--transactions", transactions)
        return run_here(*arguments, *options, given=given, COLUMNS="100")

    maker = hbase.thrift2 if kind == "thrift1" else uri  # Thrift 1 makes no tables
    assert run("table", "create", data, "d", store=maker).returncode == 0
    given = json.dumps({"mutations": [{"put": f"{data}/x/d:v", "value": "1"}]})
    done = json.loads(run("commit", "-", "--json", given=given).stdout)

    store = open_store(uri)
    faulty = FaultyStore(store, crash_once_decided)
    dying = Engine(faulty, transactions=transactions)
    with pytest.raises(Crash):
        dying.commit([Mutation(Key("x", "d", "v", data), "2")])
    store.close()

    listed = [json.loads(line) for line in run("ls", "--json").stdout.splitlines()]
    (left,) = [row["transaction"] for row in listed if row["transaction"] != done["transaction"]]
    assert json.loads(run("show", left, "--json").stdout)["status"] == "2-ASSERTED"
    options = ("--scan", data, "--grace", "0s")
    assert run("fsck", *options).returncode == 1
    assert run("fsck", *options, "--repair").returncode == 0
    assert run("fsck", *options).stdout.startswith("clean")
    assert run("get", f"{data}/x/d:v").stdout.endswith("  2\n")
    store = open_store(uri)
    before = [list(store.scan(table.encode())) for table in (transactions, data)]
    examined = run("doctor", data)
    assert examined.returncode == 0, examined.stdout
    assert [list(store.scan(table.encode())) for table in (transactions, data)] == before
    store.close()
