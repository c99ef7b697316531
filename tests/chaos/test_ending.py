"""Nothing outlives a run, however it ends, and nobody falls unnoticed while it goes on."""

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.chaos.guard import ROOT
from tests.chaos.history import load
from txn.cluster.cluster import open_cluster

ENDS_WITHIN_S = 120
pytestmark = pytest.mark.long

# What `make chaos` is to its servers, with a server that only waits, and a sudden end.
RUN = """
import os, signal, sys
from dataclasses import asdict
from pathlib import Path
import json
from tests.chaos.guard import guarded
from txn.cluster.cluster import RECORD
from txn.cluster.processes import MARK_PROPERTY, launch
from txn.cluster.settings import Settings

folder = Path(sys.argv[1])
with guarded(folder):
    command = [sys.executable, "-c", "import signal; signal.pause()", f"-D{MARK_PROPERTY}=0815"]
    server = launch("region1", command, port=1, mark="0815", logs=folder, env=dict(os.environ))
    record = {"settings": Settings(folder).document(), "processes": [asdict(server)]}
    (folder / RECORD).write_text(json.dumps(record))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_servers_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    """kill -9 of the run itself leaves it no chance to clean up; the guard does."""
    done = subprocess.run([sys.executable, "-c", RUN, str(tmp_path)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    server = open_cluster(tmp_path).processes["region1"]
    with suppress(psutil.NoSuchProcess):
        psutil.Process(server.pid).wait(ENDS_WITHIN_S)
    assert not server.is_alive


def test_clients_end_with_their_input(tmp_path: Path) -> None:
    """Their input ends with the run, whatever ended it. Until then they go on trying."""
    log = tmp_path / "w0.1.jsonl"
    arguments = ("writer", "hbase+thrift2://127.0.0.1:1", "w0.1", "0", str(log))
    client = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.client", *arguments], cwd=ROOT, stdin=subprocess.PIPE
    )
    while not (log.exists() and log.read_bytes().count(b"\n") > 1):
        assert client.poll() is None
    assert client.stdin is not None
    client.stdin.close()
    assert client.wait(ENDS_WITHIN_S) == 3
    assert "cannot connect" in json.dumps(load(tmp_path).others["failed"])
