"""The rules of a test run are themselves tried, on a run of its own."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
ENDS_WITHIN_S = 30


def run(folder: Path, code: str, *, ci: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(code)
    own = {"CI": ci, "PYTHONPATH": str(ROOT), "HBASE_TXN_TEST_GRACE_S": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--rootdir", folder, folder],
        env={**os.environ, **own},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "code", ["def test_a(): pytest.skip('no java')", "pytest.importorskip('no_such_module')"]
)
def test_on_ci_a_test_that_cannot_run_is_a_failure(tmp_path: Path, code: str) -> None:
    refused = run(tmp_path, f"import pytest\n{code}\n", ci="true")
    assert refused.returncode in (1, 2), refused.stdout
    assert "which CI does not accept" in refused.stdout
    assert run(tmp_path, f"import pytest\n{code}\n", ci="").returncode in (0, 5)


def test_a_run_that_leaves_a_process_behind_fails_and_ends_it(tmp_path: Path) -> None:
    left = "subprocess.Popen('sleep 600 & exit 0', shell=True).wait()"
    said = run(tmp_path, f"import subprocess\ndef test_a():\n    {left}\n", ci="")
    assert said.returncode == 1
    assert "left running by the tests" in said.stdout
    command = Path(f"/proc/{said.stdout.split('process=')[1].split()[0]}/cmdline")
    deadline = time.monotonic() + ENDS_WITHIN_S
    while command.exists() and command.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.01)  # what was killed is still to end
    assert not command.exists() or not command.read_bytes()
