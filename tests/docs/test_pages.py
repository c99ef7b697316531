"""What the pages for people show is done as it stands there, block by block.

A page is followed here, or tried by tests of its own, which ask for more than that it works.
"""

from __future__ import annotations

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

from tests.docs.blocks import ROOT, Reader, list_blocks, list_python, reader
from tests.integration.hbase import HBase
from tests.integration.installed import install_plugin
from txn import Key, Mutation, connect
from txn.pytest_plugin import RunningEmulator, start_emulator

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
ELSEWHERE = {
    "README.md": "test_readme.py",
    "howto/spark.md": "test_spark_pages.py",
    "observing.md": "here, in a process of its own, and test_spark_pages.py",
    "leases.md": "test_leases.py, test_spark_pages.py",
    "locks.md": "test_locks.py, test_locks_spark.py",
    "spark.md": "test_spark_pages.py",
}
"""Pages with code that are not followed here, and who tries them."""

Here = Callable[..., Reader]


def find_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


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


def test_locks_are_used_as_their_page_says(here: Here, tmp_path: Path) -> None:
    follow(here, "howto/locks.md", instead={"/var/lib": str(tmp_path)})


def test_leases_are_used_as_their_page_says(here: Here, tmp_path: Path) -> None:
    follow(here, "howto/leases.md", instead={"/tmp": str(tmp_path)})


def test_own_code_is_tested_as_its_page_says(here: Here, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    path = install_plugin(tmp_path / "site")
    follow(here, "howto/testing.md", environment={"PYTHONPATH": path})


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


@pytest.mark.parametrize("page", ["gathering.md", "operations.md", "testing.md"])
def test_a_page_does_what_its_own_assertions_say(page: str, here: Here, tmp_path: Path) -> None:
    follow(here, page, instead={"/tmp/": f"{tmp_path}/"})


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
    said = subprocess.run(
        [sys.executable, "-c", program.replace("/data", f"{tmp_path}/data")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
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
    named = {
        extra
        for page in PAGES
        for extras in re.findall(r"pip install '(?:hbase-txn|\.)\[([^]]*)\]", page.read_text())
        for extra in extras.split(",")
    }
    assert named
    assert named - EXTRAS.keys() == set()
