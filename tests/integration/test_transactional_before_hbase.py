"""`txn serve --transactional` before a real HBase: for clients of any language, and at any end of
the server or of the client."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from recovery import check
from tests.docs.blocks import ROOT, list_blocks
from tests.integration.hbase import HBase
from tests.integration.serving import Served, served
from tests.packages import fetch_package, library_path
from txn import AssertionFailedError, ConflictError, Exact, Key, Mutation, connect
from txn.cluster import jars
from txn.host.java import cache_folder, find_java_home

PACKAGE = "thrift-compiler"
JARS = Path(__file__).with_name("java") / "jars.lock"
IDL = ROOT / "txn" / "service" / "transactional.thrift"
GUIDE = ROOT / "docs" / "howto" / "service.md"


def run(*command: str | Path, environ: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def generate_java(folder: Path) -> str:
    """Let Thrift's own compiler make the Java classes of the interface; return its version."""
    program, environ = shutil.which("thrift"), {}
    if program is None:
        root = cache_folder() / PACKAGE
        if not root.exists():
            fetch_package(PACKAGE, root, lambda unpacked: list(unpacked.glob("usr/bin/thrift")))
        program, environ = str(root / "usr/bin/thrift"), library_path(root)
    options = "java:generated_annotations=suppress"
    run(program, "--gen", options, "-out", folder, IDL, environ=environ or None)
    return run(program, "--version", environ=environ or None).split()[-1]


def list_jars(version: str) -> list[jars.Jar]:
    """Return what a client is compiled and run with, the compiler last: of Thrift's libraries the
    one for what its compiler of that version makes."""
    locked = jars.parse_lock(JARS.read_text())
    wanted = [jar for jar in locked if "libthrift" not in jar.name or f"-{version}." in jar.name]
    assert len(wanted) == 4, f"no library is locked for Thrift {version}"
    return wanted


TRANSACTIONS = f"txn-{uuid4().hex}"


@pytest.fixture(scope="module")
def transfer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The program of the guide, compiled; its Java, its class path, and the table that it has."""
    folder, table = tmp_path_factory.mktemp("java"), f"accounts-{uuid4().hex}"
    locked = list_jars(generate_java(folder))
    (program,) = (block.code for block in list_blocks(GUIDE) if block.language == "java")
    (folder / "Transfer.java").write_text(program.replace('"accounts"', f'"{table}"'))
    class_path = ":".join([str(folder), *map(str, jars.fetch(jars=locked))])
    java = find_java_home() / "bin" / "java"
    compiler = ("-jar", jars.fetch(jars=locked[-1:])[0], "-17", "-nowarn")
    run(java, *compiler, "-cp", class_path, "-d", folder, *folder.rglob("*.java"))
    return java, class_path, table


@pytest.fixture
def before_hbase(hbase: HBase, tmp_path: Path) -> Iterator[Served]:
    """A server before the HBase of the run, with the transaction table of these tests; each of its
    workers opens the store for itself."""
    options = ("--transactional", "0", "--transactions", TRANSACTIONS, "--workers", "2")
    with served(hbase.native, tmp_path / "log", *options, "--protocol", "fenced") as server:
        yield server


@pytest.mark.slow
def test_a_java_program_commits_with_assertions_before_hbase(
    transfer: tuple[Path, str, str], before_hbase: Served, hbase: HBase
) -> None:
    """The guide's own: what it read is what it wrote, and a failed assertion is an exception of its
    type, with what was there instead. A server that has stopped leaves nothing unfinished."""
    java, class_path, table = transfer
    port = str(before_hbase.ports["transactional"])
    said = run(java, "-cp", class_path, "Transfer", "127.0.0.1", port)
    assert said.splitlines() == ["ann has 90", "bob has 10", "not again: ann has 90"]
    with connect(before_hbase.uris["transactional"], table=table) as engine:
        rows = {row.row: [cell.value for cell in row.cells.values()] for row in engine.scan()}
        assert rows == {b"ann": [b"90"], b"bob": [b"10"]}
    assert before_hbase.stop() == 0
    with connect(hbase.native, table=table, transactions=TRANSACTIONS, protocol="fenced") as engine:
        assert list(check(engine.context, grace_ms=0, scan=[table.encode()])) == []


def test_a_server_before_hbase_does_what_an_engine_on_hbase_does(before_hbase: Served) -> None:
    table = f"data-{uuid4().hex}"
    keys = [Key(f"{number}", "d", "v") for number in range(8)]
    with connect(before_hbase.uris["transactional"], table=table) as engine:
        engine.ensure_table(table, ["d"])
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: engine.commit([Mutation(key, "1")]), keys))
        with pytest.raises(AssertionFailedError):
            engine.commit([Mutation(keys[0], "2")], [Exact(keys[1], "2")])
        for snapshot in (False, True):
            assert [row.row for row in engine.scan(snapshot=snapshot)] == [key.row for key in keys]
        with pytest.raises(ConflictError), engine.transaction() as t:
            t.scan(prefix="0")
            engine.commit([Mutation(Key("01", "d", "v"), "1")])
            t.put(keys[0], "sum")
        engine.run(lambda t: t.put(keys[0], str(len(t.scan()))))
        assert (cell := engine.read(keys[:1])[keys[0]]) is not None and cell.value == b"9"
