"""Whatever Spark does to its processes, each row is committed once; on a real HBase too."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from pyspark.sql import SparkSession

from recovery import check, repair_all
from tests.integration.hbase import HBase
from tests.integration.spark_cluster import (
    HOSTS,
    Application,
    JobFailedError,
    run_application,
    wait_until,
)
from tests.integration.spark_jobs import (
    SMALL_BATCHES,
    add_file,
    list_statuses,
    write_range,
    write_stream,
)
from txn import Engine, connect
from txn.protocol.statuses import ProtocolName, Status

pytestmark = pytest.mark.long
ROWS = 400
PARTS = 10
KILLS = 10
WRITE = "tests.integration.spark_jobs:write_range"
STREAM = "tests.integration.spark_jobs:write_stream"
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.5",
}
Options = dict[str, Any]
every_protocol = pytest.mark.parametrize("protocol", get_args(ProtocolName))


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """Two executors, and a copy of each task that takes longer than others."""
    settings = {**SPECULATION, **SMALL_BATCHES}
    with run_application(tmp_path_factory.mktemp("spark"), HOSTS, settings) as application:
        yield application


@pytest.fixture(params=["embedded", "hbase"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "embedded":
        return f"embedded://{tmp_path}/store?sync=off"
    hbase: HBase = request.getfixturevalue("hbase")
    return hbase.native


def make_table(uri: str, protocol: ProtocolName) -> Options:
    """Make a table and a transaction table of its own; return the options of its writes."""
    name = f"k{uuid.uuid4().hex[:8]}"
    with connect(uri, transactions=f"{name}-txn", protocol=protocol) as engine:
        engine.ensure_table(name, ["f"])
    where = {"uri": uri, "transactions": f"{name}-txn", "table": name}
    return {**where, "row": "id as text", "family": "f", "lock_ttl_ms": "300"}


def open_engine(options: Options) -> Engine:
    return connect(options["uri"], transactions=options["transactions"], create=False)


def find_rows(options: Options) -> dict[int, list[int]]:
    with open_engine(options) as engine:
        return {
            int(row.row): [int(cell.value) for cell in row.cells.values()]
            for row in engine.scan(options["table"])
        }


def list_all(options: Options) -> tuple[list[Status | None], Counter[Status | None]]:
    return list_statuses(options["uri"], options["transactions"])


def mend(options: Options) -> None:
    """Repair what is there as if everybody had long been silent; then nothing is left."""
    scan = [options["table"].encode()]
    with open_engine(options) as engine:
        for _ in range(2):
            list(repair_all(engine.context, check(engine.context, grace_ms=0, scan=scan)))
        assert not list(check(engine.context, grace_ms=0, scan=scan))


def list_arguments(options: Options, **trouble: Any) -> dict[str, Any]:
    """Return those of a job that writes ROWS in two partitions, the first in trouble."""
    return {"rows": ROWS, "parts": 2, "options": {**options, "batchSize": "20"}, "trouble": trouble}


def assert_each_row_once(options: Options, counted: dict[str, int]) -> None:
    assert counted["committed"] + counted["repeated"] == ROWS
    assert counted["repeated"] > 0, "the trouble did not come when it was to"
    mend(options)
    assert find_rows(options) == {row: [row] for row in range(ROWS)}


@every_protocol
@pytest.mark.parametrize("trouble", ["straggles", "fails", "exits", "executor", "driver"])
def test_each_row_is_committed_once(
    request: pytest.FixtureRequest, uri: str, tmp_path: Path, protocol: ProtocolName, trouble: str
) -> None:
    """A straggler gets a copy, without which the job would not end; a task fails, or its worker
    ends itself; an executor is killed; a driver is, with all it has, and another one does the job
    again."""
    options, gate = make_table(uri, protocol), tmp_path / "gate"
    if trouble == "driver":
        spark: SparkSession = request.getfixturevalue("spark")
        options["jobId"] = "kills"
        given = list_arguments(options, pause_ms=10, hangs_at=150, gate=str(gate))
        with run_application(tmp_path / "spark", "local[2]", SMALL_BATCHES) as mortal:
            mortal.start(WRITE, **given)
            wait_until(gate.exists)
            mortal.kill()
            with pytest.raises(JobFailedError):
                mortal.wait()
        assert_each_row_once(options, write_range(spark, **{**given, "trouble": {}}))
        return
    application: Application = request.getfixturevalue("application")
    ends_early = {"fails": "fails_at", "exits": "dies_at"}.get(trouble)
    met = {"attempts": 2, ends_early: 150} if ends_early else {"hangs_at": 150}
    application.start(WRITE, **list_arguments(options, gate=str(gate), pause_ms=10, **met))
    if ends_early:
        wait_until(lambda: 0 in find_rows(options))
        gate.touch()
    if trouble == "executor":
        wait_until(gate.exists)
        application.kill_executors()
    assert_each_row_once(options, application.wait())


@every_protocol
def test_an_atomic_frame_outlives_executors_and_has_copies_of_tasks(
    application: Application, uri: str, protocol: ProtocolName
) -> None:
    """Attempts of a task write the same parts, one after the other and beside each other."""
    options = {**make_table(uri, protocol), "part_keys": "40", "atomic": "true"}
    trouble = {"pause_ms": 25, "attempts": 2}
    application.start(WRITE, rows=ROWS, parts=3, options=options, trouble=trouble)
    wait_until(lambda: list_all(options)[1].total() >= 4)
    application.kill_executors()
    application.wait()
    wholes, parts = list_all(options)
    assert wholes == [Status.COMPLETE] and parts.keys() == {Status.COMPLETE}
    mend(options)
    assert len(find_rows(options)) == ROWS


@every_protocol
def test_an_atomic_frame_is_whole_or_absent(
    uri: str, tmp_path: Path, protocol: ProtocolName
) -> None:
    """All that runs is killed, in turns while parts are written and after the decision."""
    seed = Random()
    found = []
    for kill in range(KILLS):
        options = {**make_table(uri, protocol), "part_keys": "40", "atomic": "true"}
        with run_application(tmp_path / f"spark-{kill}", "local[2]") as application:
            application.start(WRITE, rows=ROWS, parts=3, options=options)
            least = seed.randint(1, PARTS)
            if kill % 2:
                wait_until(lambda: bool(find_rows(options)))  # noqa: B023
            else:
                wait_until(lambda: list_all(options)[1].total() >= least)  # noqa: B023
                time.sleep(seed.uniform(0, 0.5))
            application.kill()
        mend(options)
        found.append(len(find_rows(options)))
    print(f"rows after each kill: {found}")
    assert set(found) == {0, ROWS}


def test_a_stream_outlives_its_driver(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    """The next driver runs the batch again, by the same names."""
    options = {**make_table(uri, "six-phase"), "batchSize": "20"}
    add_file(tmp_path / "source", "a", range(ROWS))
    given: Options = {"source": f"{tmp_path}/source", "checkpoint": f"{tmp_path}/checkpoint"}
    with run_application(tmp_path / "spark", "local[2]", SMALL_BATCHES) as application:
        trouble = {"pause_ms": 30}
        application.start(STREAM, **given, options=options, trouble=trouble)
        wait_until(lambda: len(find_rows(options)) >= 60)
        application.kill()
    assert_each_row_once(options, write_stream(spark, **given, options=options))
