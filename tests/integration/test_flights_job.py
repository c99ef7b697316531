"""The flights job as a user runs it, and the killing that it rests on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from txn.demo.processes import Job, JobError


def processes_of(marker: str) -> list[str]:
    """The commands of the living processes that name the marker."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if marker in command and int(folder.name) != os.getpid():
            found.append(command)
    return found


@pytest.mark.slow
def test_a_killed_job_is_mended_and_ends_with_every_flight_once(tmp_path: Path) -> None:
    """The promise of the whole library, on real data: SIGKILL anywhere, then fsck, then again."""
    store = tmp_path / "store"
    command = [sys.executable, "-c", "import recovery.commands as c; c.main()", "demo", "flights"]
    options = ["--store", f"embedded://{store}", "--days", "2", "--json"]
    said = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    report = json.loads(said.stdout)
    assert report["holds"]
    assert report["flights"] == 842 + 943
    assert report["crash"]["workers"] >= 1
    assert report["crash"]["processes"] >= 4, "driver, JVM, daemon and workers"
    assert report["loaded"]["repeated"] >= report["crash"]["flights"]
    assert report["left"] == {}
    assert processes_of(str(store)) == []


def test_killing_a_job_leaves_none_of_its_processes(tmp_path: Path) -> None:
    """A grandchild that lost its parent would go on writing after the crash."""
    script = (
        "import subprocess, sys\n"
        "orphan = [sys.executable, '-c', 'import signal; signal.pause()', sys.argv[1]]\n"
        "subprocess.Popen(['sh', '-c', '\"$@\" & exit', 'sh', *orphan]).wait()\n"
        "print('{}', flush=True)\n"
        "subprocess.run(orphan)\n"
    )
    (tmp_path / "forking.py").write_text(script)
    with Job("forking", [str(tmp_path / "mark")], tmp_path) as job:
        next(job.lines())
        assert job.kill() >= 2
        assert processes_of(str(tmp_path / "mark")) == []


def test_a_job_that_fails_says_so_with_its_log(tmp_path: Path) -> None:
    """Spark writes hundreds of lines; what went wrong is in the last ones."""
    (tmp_path / "failing.py").write_text("print('{}')\nraise SystemExit('no such luck')\n")
    with Job("failing", [], tmp_path) as job, pytest.raises(JobError, match="code=1") as caught:
        list(job.lines())
    assert caught.value.log == "no such luck"
