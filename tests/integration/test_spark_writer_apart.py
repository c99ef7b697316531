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
from txn import Key, connect
from txn.protocol.statuses import ProtocolName

ROWS = 400
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.5",
}
WRITE = "tests.integration.spark_jobs:write_range"
RUN = "tests.integration.spark_jobs:run_range"


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """Two executors, and a copy of each task that takes longer than others."""
    settings = {**SPECULATION, **SMALL_BATCHES}
    with run_application(tmp_path_factory.mktemp("spark"), HOSTS, settings=settings) as application:
        yield application


def make_store(folder: Path, protocol: ProtocolName) -> str:
    uri = f"embedded://{folder}/store?sync=off"
    with connect(uri, protocol=protocol) as engine:
        engine.ensure_table("rows", ["f"])
    return uri


def arguments(uri: str, **trouble: Any) -> dict[str, Any]:
    """Return those of a write of ROWS in two partitions, the first of which is in trouble."""
    options = {"uri": uri, "table": "rows", "row": "id as text", "family": "f"}
    details = {"batchSize": "20", "lock_ttl_ms": "300"}
    return {"rows": ROWS, "parts": 2, "options": {**options, **details}, "trouble": trouble}


def assert_each_row_once(uri: str, counted: dict[str, int]) -> None:
    """The store has each row, from one transaction, and the counts agree with the source."""
    assert counted["committed"] + counted["repeated"] == ROWS
    assert counted["repeated"] > 0, "the trouble did not come when it was to"
    with connect(uri, table="rows") as engine:
        found = {
            int(row.row): [int(cell.value) for cell in row.cells.values()] for row in engine.scan()
        }
        assert found == {row: [row] for row in range(ROWS)}
        severities = {each.kind.severity for each in check(engine.context, grace_ms=0)}
    assert Severity.REPORT_ONLY not in severities
    assert statuses(uri)["5-COMPLETE"] == ROWS


@pytest.mark.slow
@pytest.mark.parametrize("protocol", get_args(ProtocolName))
def test_a_straggler_and_its_copy_commit_each_row_once(
    application: Application, tmp_path: Path, protocol: ProtocolName
) -> None:
    """Without the copy the job would not end; it comes upon what the task itself has written."""
    uri = make_store(tmp_path, protocol)
    gate = str(tmp_path / "gate")
    counted = application.run(WRITE, **arguments(uri, pause_ms=10, hangs_at=150, gate=gate))
    assert_each_row_once(uri, counted)


@pytest.mark.parametrize("protocol, trouble", [("six-phase", "fails_at"), ("fenced", "dies_at")])
def test_tasks_that_fail_change_nothing(
    application: Application, tmp_path: Path, protocol: ProtocolName, trouble: str
) -> None:
    """Each attempt begins with the rows that the ones before it had committed: the first one comes
    into trouble when its first row is there."""
    uri = make_store(tmp_path, protocol)
    gate = tmp_path / "gate"
    application.start(WRITE, **arguments(uri, attempts=2, gate=str(gate), **{trouble: 150}))
    with connect(uri, table="rows") as engine:
        first = Key("0", "f", "v")
        wait_until(lambda: engine.read([first])[first] is not None)
    gate.touch()
    assert_each_row_once(uri, application.wait())


@pytest.mark.parametrize("way", ["write", "run"])
def test_executors_that_are_killed_change_nothing(
    application: Application, tmp_path: Path, way: str
) -> None:
    """Machines that stop take running tasks with them, between a commit and its report."""
    uri = make_store(tmp_path, "six-phase")
    gate = tmp_path / "gate"
    given = arguments(uri, pause_ms=10, hangs_at=150, gate=str(gate))
    if way == "run":
        application.start(RUN, way=way, **given)
    else:
        application.start(WRITE, **given)
    wait_until(gate.exists)
    for _ in application.list_executors():
        application.kill_executor()
    assert_each_row_once(uri, application.wait())
