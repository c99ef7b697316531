"""fsck on executors: it finds and repairs what fsck does here, whatever happens to its tasks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from pyspark.sql import DataFrame, SparkSession

from recovery import InGrace, Kind, Severity, check
from recovery.findings import Tally
from recovery.fsck import Ages
from recovery.opening import open_store_of
from recovery.spark import (
    COLUMNS,
    Inspection,
    fsck,
    inspect_shares,
    list_lines,
    plan_shares,
    repair_shares,
)
from tests.integration.crashes import TABLE, leave_crashes
from txn import connect
from txn.errors import InvalidRequestError
from txn.model import Edit, Key, Mutation
from txn.protocol.statuses import ProtocolName
from txn.spark import register

AT_ONCE = {"grace_ms": 0, "scan": [TABLE]}
REPORTED = {kind.value for kind in Kind if kind.severity is Severity.REPORT_ONLY}


@pytest.fixture(params=get_args(ProtocolName))
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    uri = f"embedded://{tmp_path}/store?sync=off"
    leave_crashes(uri, request.param)
    return uri


def drop_ages(text: str) -> str:
    """Drop what differs between two looks: for how long owners have been silent by then."""
    return re.sub(r', "(silent|oldest)_ms": \d+', "", text)


def find_here(uri: str, **ages: Any) -> list[tuple[str | None, ...]]:
    """What fsck finds in one process."""
    with open_store_of(uri, "txn") as context:
        found = check(context, grace_ms=0, scan=[TABLE.encode()], **ages)
        rows = [row for finding in found for row in list_lines((finding, None))]
        return sorted(tuple(cell and drop_ages(cell) for cell in row) for row in rows)


def collect(found: DataFrame) -> list[tuple[str | None, ...]]:
    return sorted(tuple(cell and drop_ages(cell) for cell in row) for row in found.collect())


def test_executors_find_what_one_process_finds(spark: SparkSession, uri: str) -> None:
    """Parts of a table must miss nothing at their ends, and tell nothing twice."""
    expected = find_here(uri, retention_ms=0)
    kinds = {row[0] for row in expected}
    assert {"undecided", "decided", "expired", "unreadable"} <= kinds
    assert {"orphan-lock", "foreign-version"} <= kinds
    found = fsck(spark, uri, **AT_ONCE, retention_ms=0, partitions=3)  # type: ignore[arg-type]
    assert found.columns == list(COLUMNS)
    assert collect(found) == collect(found) == expected  # it looks anew, and has changed nothing


def test_executors_find_counts_that_went_back(tmp_path: Path) -> None:
    """One of them does, with the rows of all transactions."""
    uri = f"embedded://{tmp_path}/store?sync=off"
    first, second = (Key(row, "d", "x", TABLE) for row in ("1", "2"))
    with connect(uri, protocol="fenced") as engine:
        engine.ensure_table(TABLE, ["d"])
        for value in (b"1", b"2"):
            engine.commit([Mutation(first, value), Mutation(second, value)])
        at = engine.context.store.read([first.row_lock])[first.row_lock]
        assert at is not None
        engine.context.store.write([Edit(first.row_lock, b"1", at.timestamp)])
    shares = plan_shares(Inspection(uri, "txn", Ages(0)), [TABLE], 2, cores=2)
    told = [each for each in inspect_shares(Inspection(uri, "txn", Ages(0)), shares)]
    (found,) = (row for each in told for row in list_lines(each))
    assert [found] == find_here(uri) and found[0] == Kind.FOREIGN_CELL.value


def test_executors_repair_what_they_find(spark: SparkSession, uri: str) -> None:
    """Afterwards there is nothing left but what a person must look at."""
    expected = find_here(uri)
    done = fsck(spark, uri, **AT_ONCE, repair=True, partitions=2)  # type: ignore[arg-type]
    told = collect(done)
    assert [row[:8] for row in told] == [row[:8] for row in expected]
    results = {(row[0], row[8]) for row in told}
    assert {result for kind, result in results if kind in REPORTED} == {"left-alone"}
    assert {result for kind, result in results if kind not in REPORTED} == {"repaired"}
    assert {row[0] for row in find_here(uri)} <= REPORTED
    assert collect(done) == told  # and the data frame still tells what was done


def test_findings_are_a_source_of_spark(spark: SparkSession, uri: str) -> None:
    register(spark)
    options: dict[str, Any] = {
        "uri": uri,
        "view": "findings",
        "grace_ms": 0,
        "scan": TABLE,
        "numPartitions": 2,
    }
    found = spark.read.format("txn").options(**options).load()
    assert collect(found) == find_here(uri)
    kinds = sorted(row[0] for row in found.select("kind").collect())
    assert kinds == sorted(str(row[0]) for row in find_here(uri))


def test_what_is_young_and_how_much_was_seen_is_told(spark: SparkSession, uri: str) -> None:
    wanted = Inspection(uri, "txn", Ages())
    young, rows, done = InGrace(), 0, list[int]()
    found = repair_shares(spark, wanted, plan_shares(wanted, [TABLE], 3, 1), done.append).collect()
    for told in found:
        if isinstance(told, Tally):
            rows += told.rows
            young.merge(told.young)
    with open_store_of(uri, "txn") as context:
        here, on_row = InGrace(), list[bytes]()
        assert list(check(context, scan=[TABLE.encode()], young=here, on_row=on_row.append))
    assert (young.counts, rows) == (here.counts, len(on_row))
    assert young.counts[Kind.DECIDED] and young.oldest_ms > 0
    assert done[-1] == len(plan_shares(wanted, [TABLE], 3, 1))


def test_what_is_absent_is_told_before_a_task_runs(spark: SparkSession, uri: str) -> None:
    """A mistyped table would be reported clean."""
    with pytest.raises(InvalidRequestError, match="no such table"):
        fsck(spark, uri, scan=["nowhere"])
    with pytest.raises(InvalidRequestError, match="no such store"):
        fsck(spark, f"{uri.partition('?')[0]}-nowhere")


def test_the_command_finds_the_same_with_spark(tmp_path: Path) -> None:
    uri = f"embedded://{tmp_path}/store?sync=off"
    leave_crashes(uri, "six-phase")
    here, repaired = run_fsck(uri), run_fsck(uri, "--spark", "local[2]", "--repair")
    assert len(repaired) == len(here)
    *told, summary = repaired
    assert len(told) == summary["found"]
    results = {each.pop("repair")["result"] == "repaired": each["kind"] for each in told}
    assert results.keys() == {True, False} and results[False] in REPORTED
    assert sorted(map(str, told)) == sorted(map(str, here[:-1]))
    assert {row[0] for row in find_here(uri)} <= REPORTED


def run_fsck(uri: str, *options: str) -> list[dict[str, Any]]:
    script = [sys.executable, "-c", "from recovery.commands import main; main()", "fsck", "--json"]
    given = ["--store", uri, "--grace", "0s", "--scan", TABLE, *options]
    done = subprocess.run([*script, *given], capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stderr
    return [json.loads(drop_ages(line)) for line in done.stdout.splitlines()]
