"""What holds for every test run: nothing is skipped on CI, and nothing is left running.

Unit tests are fast unless they are marked slow. The processes of a run are known by a variable that
they inherit, so that one which lost its parent is found as well. Generated examples may take any
time, and are the same in each run: a new one is a find, and not the fault of who met it. For new
ones set HBASE_TXN_TEST_RANDOM=1, which CI does not heed.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.integration.emulator import emulator, txn_server  # noqa: F401  (for all folders)
from tests.integration.hbase import QUICK_JAVA, hbase  # noqa: F401
from tests.integration.postgresql import database_url, postgresql  # noqa: F401

RUN_VARIABLE = "HBASE_TXN_TEST_RUN"
GRACE_S = float(os.environ.get("HBASE_TXN_TEST_GRACE_S", "60"))
HERE = Path(__file__).parent
OF_SPEED_AND_CHANCE = [
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
    HealthCheck.too_slow,
]

settings.register_profile(
    "tests",
    deadline=None,
    suppress_health_check=OF_SPEED_AND_CHANCE,
    derandomize=os.environ.get("CI") == "true" or "HBASE_TXN_TEST_RANDOM" not in os.environ,
)
settings.load_profile("tests")


@pytest.fixture
def rows_for_all() -> Iterator[None]:
    """Let fenced transactions of one row and family have a row like all others, for tests of what
    rows tell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("txn.protocol.fenced.needs_no_row", lambda t: False)
        yield


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        os.environ[RUN_VARIABLE] = uuid.uuid4().hex
        os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JAVA)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE / "unit") and not item.get_closest_marker("slow"):
            item.add_marker("fast")
    _put_long_files_first(items)


def _put_long_files_first(items: list[pytest.Item]) -> None:
    """Files with slow tests, then those with many: no worker is to have one alone at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in slow, -sizes[item.path], item.path))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, "wasxfail"):
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not accept: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    result = yield
    if not hasattr(session.config, "workerinput"):
        left = _left_running(os.environ[RUN_VARIABLE])
        for process, command in left.items():
            print(f"\nleft running by the tests: process={process} command={command!r}")
            with suppress(ProcessLookupError):  # it may have ended meanwhile
                os.kill(process, signal.SIGKILL)
        if left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return result


def _left_running(run: str) -> dict[int, str]:
    """The processes of this run that are still there after a moment to end by themselves."""
    deadline = time.monotonic() + GRACE_S
    while (left := _processes(run)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _processes(run: str) -> dict[int, str]:
    marker = f"{RUN_VARIABLE}={run}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            is_ours = marker in (folder / "environ").read_bytes().split(b"\0")
            command = (
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
        except OSError:
            continue
        is_child = int(status[1]) == os.getpid()
        if status[0] != "Z" and (is_ours or is_child) and int(folder.name) != os.getpid():
            found[int(folder.name)] = command.strip()[:200]
    return found
