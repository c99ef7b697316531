"""The flights job as a user runs it, and the killing that it rests on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from txn import Key, Mutation, connect
from txn.demo.processes import Job, JobError

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
    """The promise of the library, on real data: SIGKILL anywhere, then fsck, then again."""
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
