"""The writer on executors that are processes of their own: killed, failing, and run twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from recovery import check
from recovery.findings import Severity
from tests.integration.spark_cluster import HOSTS, Application, run_application, wait_until
from tests.integration.spark_jobs import SMALL_BATCHES
from tests.integration.spark_requests import statuses
from txn import connect
from txn.protocol.attempt import ProtocolName

ROWS = 400
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.5",
}
WRITE = "tests.integration.spark_jobs:write_range"


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """Two executors, and a copy of each task that takes longer than others."""
    settings = {**SPECULATION, **SMALL_BATCHES}
    with run_application(tmp_path_factory.mktemp("spark"), HOSTS, settings=settings) as application:
        yield application


@pytest.fixture(params=get_args(ProtocolName))
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    uri = f"embedded://{tmp_path}/store?sync=off"
    with connect(uri, protocol=request.param) as engine:
        engine.ensure_table("rows", ["f"])
    return uri


def arguments(uri: str, **trouble: Any) -> dict[str, Any]:
    """Return those of a write of ROWS in two partitions, the first of which is in trouble."""
    options = {"uri": uri, "table": "rows", "row": "id as text", "family": "f"}
    details = {"batch": "20", "lease_ms": "300"}
    return {"rows": ROWS, "parts": 2, "options": {**options, **details}, "trouble": trouble}


def assert_each_row_once(uri: str, counted: dict[str, int], repeats: bool = True) -> None:
    """The store has each row, from one transaction, and the counts agree with the source."""
    assert counted["committed"] + counted["repeated"] == ROWS
    assert (counted["repeated"] > 0) is repeats, "the trouble did not come when it was to"
    with connect(uri, table="rows") as engine:
        found = {
            int(row.row): [int(cell.value) for cell in row.cells.values()] for row in engine.scan()
        }
        assert found == {row: [row] for row in range(ROWS)}
        severities = {each.kind.severity for each in check(engine.context, grace_ms=0)}
    assert Severity.REPORT_ONLY not in severities
    assert statuses(uri)["5-COMPLETE"] == ROWS


def test_a_straggler_and_its_copy_commit_each_row_once(application: Application, uri: str) -> None:
    """Both write at the same time, and Spark takes what the first of them to end has told."""
    counted = application.run(WRITE, **arguments(uri, pause_ms=25))
    assert_each_row_once(uri, counted)


def test_an_executor_that_is_killed_changes_nothing(application: Application, uri: str) -> None:
    """A machine that stops takes running tasks with it, between a commit and its report."""
    application.start(WRITE, **arguments(uri, pause_ms=15, attempts=4))
    wait_until(lambda: statuses(uri)["5-COMPLETE"] >= ROWS / 2 + 40)
    application.kill_executor()
    application.kill_executor()
    assert_each_row_once(uri, application.wait())


@pytest.mark.parametrize("trouble", ["fails_at", "dies_at"])
def test_tasks_that_fail_three_times_change_nothing(
    application: Application, uri: str, trouble: str
) -> None:
    """Each attempt begins with the rows that the ones before it had committed."""
    counted = application.run(WRITE, **arguments(uri, attempts=3, **{trouble: 150}))
    assert_each_row_once(uri, counted)
