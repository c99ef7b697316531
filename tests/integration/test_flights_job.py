"""The flights job as a user runs it, and the killing that it rests on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import astuple
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import happybase
import pytest

from tests.integration.hbase import HBase
from tests.integration.readers import ALL, NOTHING, PART, watch_tables
from txn import Key, Mutation, connect
from txn.demo.data import FAMILY, tables_named, unpack
from txn.demo.processes import Job, JobError
from txn.model import Check
from txn.protocol.codec import encode_buffer
from txn.protocol.row import column, new_row_key, status_key
from txn.protocol.statuses import Status
from txn.request import Outcome, Request

SAYS_WITHIN_S = 60


def processes_of(marker: str) -> list[str]:
    """The commands of the living processes that name the marker."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        command = words.decode(errors="replace")  # others' arguments may be any bytes
        if marker in command and int(folder.name) != os.getpid():
            found.append(command)
    return found


def demo(*options: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the demonstration; folder: for its temporary files."""
    return subprocess.run(
        [sys.executable, "-m", "recovery", "demo", "flights", *options],
        env={**os.environ, **({"TMPDIR": str(folder)} if folder else {})},
        capture_output=True,
        text=True,
        check=False,
    )


def begin_transaction(uri: str) -> bytes:
    """Lock a cell as another program does that is at work, and return its transaction's row key."""
    key = Key("row", "d", "v", "another")
    with connect(uri) as engine:
        engine.ensure_table("another", ["d"])
        store, table = engine.context.store, engine.context.table
        row_key = new_row_key(engine.context.clock.wall_ms(), 1)
        buffer = encode_buffer(Request((Mutation(key, b"1"),)), 3_600_000)
        status = status_key(table, row_key)
        puts = ((status, Status.WRITTEN.value), (column(table, row_key, b"buffer"), buffer))
        store.check_and_put([Check(status, b"", puts)])
        store.check_and_put([Check(key.lock, b"", ((key.lock, row_key),))])
    return row_key


@pytest.fixture
def emptied(hbase: HBase) -> Iterator[str]:
    """A name for tables on HBase, which are dropped after the test."""
    name = f"flights-test-{uuid.uuid4().hex[:8]}"
    yield name
    address = urlsplit(hbase.thrift1)
    with closing(happybase.Connection(address.hostname, address.port)) as connection:
        for table in astuple(tables_named(name)):
            connection.delete_table(table, disable=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("store", "protocol", "way"),
    [
        ("embedded", "fenced", "stream"),
        ("hbase", "fenced", "stream"),
        ("hbase", "six-phase", "partition"),
    ],
)
def test_the_job_runs_on_other_stores_and_by_other_ways(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, protocol: str, way: str
) -> None:
    """What holds on a store of one machine has to hold where other programs write as well; and a
    stream that starts again is promised no less than a task."""
    where = ["--store", f"embedded://{tmp_path}/store"]
    if store == "hbase":
        hbase: HBase = request.getfixturevalue("hbase")
        where = ["--store", hbase.native, "--tables", request.getfixturevalue("emptied")]
    said = demo(*where, "--days", "1", "--protocol", protocol, "--by", way, "--json")
    assert said.returncode == 0, said.stderr
    report = json.loads(said.stdout)
    assert (report["holds"], report["flights"], report["left"]) == (True, 842, {})
    transactions = report["tables"]["transactions"]
    with connect(where[1], transactions=transactions) as engine:
        assert engine.context.rules.name == protocol


def test_tables_that_hold_something_are_refused(tmp_path: Path) -> None:
    uri = f"embedded://{tmp_path}/store"
    with connect(uri, transactions="mine-transactions") as engine:
        engine.ensure_table("mine-indexes", ["f"])
        engine.commit([Mutation(Key("row", "f", "flight", "mine-indexes"), b"1")])
    said = demo("--store", uri, "--tables", "mine", "--days", "1")
    assert said.returncode == 2
    assert "the tables must be empty: choose another name table=mine-indexes" in said.stderr


@pytest.mark.slow
def test_the_main_job_shows_transactions_of_both_kinds_and_their_repair(tmp_path: Path) -> None:
    """It is what a newcomer runs first: without anything to repair it would show nothing. The
    promise of the whole library, on real data: SIGKILL anywhere, then fsck, then again."""
    said = demo("--days", "1", "--json", folder=tmp_path)
    assert said.returncode == 0, said.stderr
    report = json.loads(said.stdout)
    found, repaired = report["found"], report["repaired"]
    assert (report["holds"], report["flights"], report["left"]) == (True, 842, {})
    assert report["crash"]["workers"] >= 1
    assert report["crash"]["processes"] >= 3, "driver, JVM, daemon, and workers if there are again"
    assert report["loaded"]["repeated"] >= report["crash"]["transactions"]
    assert found["undecided"] > 0
    assert found["decided"] > 0
    assert repaired["rolled_forward"] == found["decided"]
    assert repaired["rolled_back"] == found["undecided"] + found.get("aborting", 0)
    ended = repaired["rolled_forward"] + repaired["rolled_back"]
    assert report["before"]["unfinished_transactions"] == ended
    # Locks travel with their rows: those of a killed worker may have arrived without the row.
    assert repaired["cleaned_up"] == found.get("orphan-lock", 0)
    assert repaired["found"] == ended + repaired["cleaned_up"]
    assert report["before"]["locks"] > 0
    assert (report["after"]["locks"], report["after"]["unfinished_transactions"]) == (0, 0)
    assert report["victim"].startswith("transaction.")
    assert processes_of(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_job_that_is_atomic_shows_no_part_and_leaves_others_alone(tmp_path: Path) -> None:
    """Readers watch while it is killed before a decision or after it. The repairs take whatever is
    unfinished for a dead job's, and would abort who is at work in another transaction table."""
    tables = tables_named("flights")
    uri = f"embedded://{tmp_path}/store"
    another = begin_transaction(uri)
    with connect(uri, transactions=tables.transactions, protocol="fenced") as engine:
        for table in (tables.flights, tables.indexes):
            engine.ensure_table(table, [FAMILY])
    options = ["--tables", "flights", "--days", "1", "--protocol", "fenced", "--by", "atomic"]
    with watch_tables(uri, tables, unpack(tmp_path, 1)) as watched:
        said = demo("--store", uri, *options, "--json")
    assert said.returncode == 0, said.stderr
    report = json.loads(said.stdout)
    assert (report["holds"], report["flights"], report["left"]) == (True, 842, {})
    assert report["crash"]["parts"] >= 17 * 2 * 2 / 3, "each of 17 tasks writes one, twice"
    assert report["loaded"]["committed"] + report["loaded"]["repeated"] == 2
    assert len(watched) == 2
    for sights in watched.values():
        seen = sights.seen
        assert (seen[PART], seen[NOTHING] > 0, seen[ALL] > 0, sights.lost) == (0, True, True, 0)
    assert processes_of(f"{tmp_path}/store") == []
    with connect(uri) as engine:
        assert engine.outcome(another) is Outcome.UNDECIDED


def test_a_job_dies_with_its_starter(tmp_path: Path) -> None:
    (tmp_path / "resting.py").write_text("import signal\nprint('{}', flush=True)\nsignal.pause()\n")
    script = (
        "import sys; from pathlib import Path; from txn.demo.processes import Job\n"
        "with Job('resting', [sys.argv[1]], Path(sys.argv[2])) as job:\n"
        "    for line in job.lines():\n"
        "        print(flush=True)\n"
    )
    mark = str(tmp_path / "mark")
    with subprocess.Popen(
        [sys.executable, "-c", script, mark, tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
    ) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"\n"
        assert len(processes_of(mark)) == 2
        starter.kill()
    deadline = time.monotonic() + SAYS_WITHIN_S
    while processes_of(mark) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert processes_of(mark) == []


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_demonstration_told_to_end_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "recovery", "demo", "flights"],
        env={**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        preexec_fn=partial(signal.signal, number, signal.SIG_DFL),  # noqa: PLW1509  (nohup's)
    ) as running:
        assert running.stdout is not None
        assert any(line.startswith(b"tables ") for line in running.stdout)
        running.send_signal(number)
        assert running.wait(SAYS_WITHIN_S) == 128 + number
    assert list(tmp_path.iterdir()) == []
    assert processes_of(str(tmp_path)) == []


def test_a_job_that_fails_says_so_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text("print('{}')\nraise SystemExit('no such luck')\n")
    with Job("failing", [], tmp_path) as job, pytest.raises(JobError, match="code=1") as caught:
        list(job.lines())
    assert caught.value.log == "no such luck"
