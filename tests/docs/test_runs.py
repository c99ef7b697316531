"""The rules of a test run are themselves tried, on a run of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENDS_WITHIN_S = 30


def run(folder: Path, code: str, *, ci: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(code)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--rootdir", folder, folder],
        env={
            **os.environ,
            "CI": ci,
            "PYTHONPATH": str(ROOT),
            "HBASE_TXN_TEST_GRACE_S": "1",
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "code",
    [
        "import pytest\ndef test_a(): pytest.skip('no java')\n",
        "import pytest\npytest.importorskip('no_such_module')\n",
    ],
)
def test_on_ci_a_test_that_cannot_run_is_a_failure(tmp_path: Path, code: str) -> None:
    refused = run(tmp_path, code, ci="true")
    assert refused.returncode in (1, 2), refused.stdout
    assert "which CI does not accept" in refused.stdout
    assert run(tmp_path, code, ci="").returncode in (0, 5)


def test_a_run_that_leaves_a_process_behind_fails_and_ends_it(tmp_path: Path) -> None:
    code = (
        "import subprocess\n"
        "def test_a():\n"
        "    subprocess.Popen('sleep 600 & exit 0', shell=True).wait()\n"
    )
    said = run(tmp_path, code, ci="")
    assert said.returncode == 1
    assert "left running by the tests" in said.stdout
    process = int(said.stdout.split("process=")[1].split()[0])
    deadline = time.monotonic() + ENDS_WITHIN_S
    while command_of(process) and time.monotonic() < deadline:  # what was killed is still to end
        time.sleep(0.01)
    assert command_of(process) == b""


def command_of(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""
