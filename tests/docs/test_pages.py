"""What the pages for people show is done as it stands there, block by block.

A page is followed here, or tried by tests of its own, which ask for more than that it works.
"""

import os
import re
import socket
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import happybase
import pytest
from typer.testing import CliRunner

from recovery.commands import app
from tests.docs.blocks import ROOT, Reader, list_blocks, list_python, reader
from tests.integration.hbase import HBase
from tests.integration.installed import install_plugin
from txn import AssertionFailedError, Key, Mutation, connect
from txn.leases import open_leases
from txn.locks import exclusive, open_manager, path
from txn.locks.hive.sql import requests
from txn.locks.statements import parse_statements
from txn.protocol.statuses import Status
from txn.pytest_plugin import RunningEmulator, start_emulator
from txn.stores import open_store

DOCS = ROOT / "docs"
README, LOCKS, LEASES = ROOT / "README.md", DOCS / "locks.md", DOCS / "leases.md"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
(EXAMPLE,) = list_python(README)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
ELSEWHERE = {
    "README.md": "here, below",
    "howto/spark.md": "test_spark_pages.py",
    "observing.md": "here, in a process of its own, and test_spark_pages.py",
    "leases.md": "here, below, and test_spark_pages.py",
    "locks.md": "here, below, and test_locks_spark.py",
    "spark.md": "test_spark_pages.py",
}
"""Pages with code that are not followed, and who tries them."""

Here = Callable[..., Reader]


def find_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


def run_python(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    """Have a reader in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    with ExitStack() as leaving:
        yield lambda **details: leaving.enter_context(reader(tmp_path, **details))


@pytest.fixture
def emulator_here() -> Iterator[RunningEmulator]:
    with ExitStack() as ends:
        yield start_emulator(ends)


def follow(here: Here, page: str, **details: Any) -> None:
    """Follow a page that has something to follow."""
    assert here(**details).follow(DOCS / page)


def test_the_tutorial_leads_through_a_real_crash_to_its_repair(here: Here) -> None:
    follow(here, "tutorial.md", instead={"9091": find_port()})


def test_a_service_is_run_as_its_page_says(here: Here, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    instead = {"/var/lib": str(tmp_path), "9092": find_port()}
    follow(here, "howto/service.md", instead=instead, names=names)
    names["engine"]().close()


def test_a_cluster_is_prepared_as_its_page_says(here: Here, hbase: HBase) -> None:
    own = uuid.uuid4().hex
    follow(
        here,
        "howto/hbase-cluster.md",
        instead={"hbase://zk1,zk2,zk3:2181": hbase.native, "orders": f"orders_{own}"},
        begin=f'txn() {{ command txn "$@" --transactions txn_{own}; }}',
    )


@pytest.mark.parametrize(
    ("page", "place"),
    [
        ("howto/locks.md", "/var/lib"),
        ("howto/leases.md", "/tmp"),
        ("howto/regions.md", "/tmp"),
        ("gathering.md", "/tmp"),
        ("operations.md", "/tmp"),
        ("testing.md", "/tmp"),
    ],
)
def test_a_page_does_what_its_own_assertions_say(
    page: str, place: str, here: Here, tmp_path: Path
) -> None:
    follow(here, page, instead={f"{place}/": f"{tmp_path}/"})


def test_own_code_is_tested_as_its_page_says(here: Here, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    found = install_plugin(tmp_path / "site")
    follow(here, "howto/testing.md", environment={"PYTHONPATH": found})


@pytest.mark.fast
def test_what_others_are_told_to_write_works(here: Here, emulator_here: RunningEmulator) -> None:
    old = happybase.Connection(emulator_here.host, emulator_here.thrift1_port)
    old.create_table("plain", {"d": {}})
    with connect(emulator_here.transactional_uri, table="accounts") as engine:
        engine.ensure_table("accounts", ["d"])
        engine.commit([Mutation(Key("alice", "d", "balance"), "100")])
        follow(here, "coming-from.md", names={"engine": engine, "table": old.table("plain")})
    old.close()


@pytest.mark.fast
def test_the_server_of_transactions_takes_what_its_page_shows(
    here: Here, emulator_here: RunningEmulator
) -> None:
    names: dict[str, Any] = {}
    port = str(emulator_here.transactional_port)
    follow(here, "emulator.md", instead={"9092": port}, names=names)
    names["engine"].close()


def test_programs_are_observed_as_the_page_says(tmp_path: Path) -> None:
    metrics, traces, _ = list_python(DOCS / "observing.md")
    rest = (
        "with engine, trace.get_tracer('page').start_as_current_span('request'):\n"
        "    engine.ensure_table('t', ['d'])\n"
        "    engine.commit([Mutation(Key('row', 'd', 'x', 't'), '1')])\n"
        "provider.shutdown()\n"
        "from txn.metrics import render_metrics\n"
        "print(render_metrics()[0].decode())\n"
    )
    program = "\n".join([metrics, traces, "from txn import Key, Mutation", rest])
    said = run_python(program.replace("/data", f"{tmp_path}/data"))
    assert said.returncode == 0, said.stderr
    assert re.search(r"^hbase_txn_commit_seconds_count.* 1.0$", said.stdout, re.MULTILINE)
    assert len(re.findall(r'"trace_id"', said.stdout)) >= 2  # the request's span, and the commit's


@pytest.mark.fast
def test_each_page_with_code_is_tried() -> None:
    with_code = {
        page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT).as_posix()
        for page in PAGES
        if any(block.language in {"python", "sh"} for block in list_blocks(page))
    }
    here = Path(__file__).read_text()
    assert [page for page in with_code - ELSEWHERE.keys() if f'"{page}"' not in here] == []
    assert ELSEWHERE.keys() <= with_code


@pytest.mark.fast
def test_extras_that_pages_tell_to_install_exist() -> None:
    """pip installs without one that it does not know, and says so in a line among many."""
    named = {
        extra
        for page in PAGES
        for extras in re.findall(r"pip install '(?:hbase-txn|\.)\[([^]]*)\]", page.read_text())
        for extra in extras.split(",")
    }
    assert named
    assert named - EXTRAS.keys() == set()


@pytest.mark.fast
def test_the_example_of_the_readme_and_its_commands_work(tmp_path: Path) -> None:
    done = run_python(EXAMPLE, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    bank = f"embedded://{tmp_path}/bank"
    store = open_store(bank)
    rows = list(store.scan(b"txn", b"transaction."))
    store.close()
    statuses = [cell.value for row in rows for cell in row.cells.values()]
    assert statuses.count(Status.COMPLETE.value) == 2
    assert statuses.count(Status.ABORTED.value) == 1
    commands = re.findall(r"^txn (.+?)(?:  .*)?$", README.read_text(), re.MULTILINE)
    assert commands
    for command in commands:
        words = [rows[0].row.decode()[-32:] if word == "ID" else word for word in command.split()]
        said = run_python("import recovery.commands as c; c.main()", *words, TXN_STORE=bank)
        assert said.returncode == 0, (command, said.stdout, said.stderr)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("module", "driver", "extra"),
    [
        ("txn.spark", "pyspark", "spark"),
        ("txn.locks.spark", "pyspark", "spark"),
        ("txn.locks.hive.sql", "sqlglot", "locks"),
        ("txn.metrics", "prometheus_client", "metrics"),
    ],
)
def test_a_module_that_lacks_its_extra_names_it(module: str, driver: str, extra: str) -> None:
    said = run_python(f"import sys; sys.modules[{driver!r}] = None; import {module}")
    error = f"install hbase-txn[{extra}], or in a checkout .[{extra}] missing={driver!r}"
    assert said.stderr.splitlines()[-1] == f"ModuleNotFoundError: {error}"


def find_example(word: str) -> str:
    """The example about locks that has this word."""
    (found,) = (code for code in list_python(LOCKS) if word in code)
    return found


@pytest.mark.fast
def test_the_examples_of_locks_take_them_and_say_what_is_locked(tmp_path: Path) -> None:
    code = find_example("with open_manager")
    assert "/var/lib/app" in code
    exec(code.replace("/var/lib/app", f"{tmp_path}/store"), {})
    with open_manager(f"embedded://{tmp_path}/store") as manager:
        assert manager.locks() == []
    for word in ("from txn.locks.hive.sql import requests", "import Column"):
        (said,) = re.findall(r"# (.*)", code := find_example(word))
        before, call = code.rstrip().rsplit("\n", 1)
        names = {"requests": requests}
        exec(before, names)
        assert ", ".join(map(str, eval(call, names))) == said


@pytest.mark.fast
def test_the_example_of_a_fencing_token_refuses_who_comes_late() -> None:
    key = Key("x", "d", "v")
    with connect("memory://", table="t") as engine, open_manager("memory://locks") as manager:
        engine.ensure_table("t", ["d"])
        late = manager.hold([exclusive("sales/orders/day=1")])
        late.release()
        with manager.hold([exclusive("sales/orders/day=1")]) as held:
            names = {"engine": engine, "path": path, "mutations": [Mutation(key, "new")]}
            code = find_example("GreaterThan")
            exec(code, names | {"held": held})
            with pytest.raises(AssertionFailedError):
                exec(code, names | {"held": late, "mutations": [Mutation(key, "old")]})
        cell = engine.read([key])[key]
        assert cell is not None and cell.value == b"new"


@pytest.mark.fast
def test_the_examples_and_commands_of_leases_run_in_their_order(tmp_path: Path) -> None:
    """The last command but one has nothing left to drop, and says so."""
    url, place = f"sqlite:///{tmp_path}/leases", "sqlite:////tmp/leases"
    for code in list_python(LEASES):
        if "open_leases(" in code:
            assert place in code
            exec(code.replace(place, url), {})
            with open_leases(url) as leases:
                assert leases.list_lease() == []
    text = LEASES.read_text()
    commands = re.findall(r"^txn (leases .+?)(?:  .*)?$", text, re.MULTILINE)
    environment = {"TXN_LEASES": f"sqlite:///{tmp_path}/others"}
    done = [CliRunner().invoke(app, command.split(), env=environment) for command in commands]
    assert [each.exit_code for each in done] == [0, 0, 0, 0, 1, 0], done
    forms = re.findall(r"^((?:SHOW|DROP FORCE) LEASE) \* \| table \[PARTITION", text, re.MULTILINE)
    assert len(forms) == 2
    for form in forms:
        for of_what in ("*", "t", "d.t PARTITION (day=1)"):
            assert len(parse_statements(f"{form} {of_what}")) == 1
