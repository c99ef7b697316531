"""A data frame written as one transaction: all of it is there, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, get_args

import pytest
from pyspark.sql import SparkSession

from recovery import check, repair_all
from tests.integration.spark_jobs import list_statuses, write_range
from txn import Engine, Key, Mutation, connect
from txn.protocol.statuses import ProtocolName, Status

ROWS = 100
every_protocol = pytest.mark.parametrize("protocol", get_args(ProtocolName))


def make_store(folder: Path, protocol: ProtocolName) -> str:
    uri = f"embedded://{folder}/store?sync=off"
    with connect(uri, protocol=protocol) as engine:
        engine.ensure_table("rows", ["f"])
    return uri


def arguments(uri: str, rows: int = ROWS, **options: Any) -> dict[str, Any]:
    details = {"table": "rows", "row": "id as text", "family": "f", "part_keys": "10"}
    return {
        "rows": rows,
        "parts": 2,
        "options": {"uri": uri, "atomic": "true", **details, **options},
    }


def count_rows(engine: Engine) -> int:
    return sum(1 for _ in engine.scan("rows"))


def mend(uri: str) -> None:
    """Repair what is there as if everybody had long been silent; then nothing is left."""
    with connect(uri) as engine:
        for _ in range(2):
            list(repair_all(engine.context, check(engine.context, grace_ms=0, scan=[b"rows"])))
        assert not list(check(engine.context, grace_ms=0, scan=[b"rows"]))


@contextmanager
def watching(uri: str) -> Iterator[list[int]]:
    """Read all rows at one instant again and again; yield how many there were."""
    seen: list[int] = []
    over = Event()

    def watch() -> None:
        with connect(uri, table="rows") as engine:
            keys = [Key(str(row), "f", "v") for row in range(0, ROWS, 7)]
            while not over.is_set():
                seen.append(sum(cell is not None for cell in engine.read(keys).values()))
            seen.append(sum(cell is not None for cell in engine.read(keys).values()))

    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


@every_protocol
def test_readers_see_all_or_nothing(
    spark: SparkSession, tmp_path: Path, protocol: ProtocolName
) -> None:
    uri = make_store(tmp_path, protocol)
    with watching(uri) as seen:
        write_range(spark, **arguments(uri))
    assert set(seen) == {0, len(range(0, ROWS, 7))}
    wholes, parts = list_statuses(uri)
    assert wholes == [Status.COMPLETE]
    assert parts.keys() == {Status.COMPLETE} and parts.total() == 10
    mend(uri)
    with connect(uri) as engine:
        assert count_rows(engine) == ROWS
        assert len({c.timestamp for row in engine.scan("rows") for c in row.cells.values()}) == 1


@every_protocol
def test_a_failed_job_leaves_nothing(
    spark: SparkSession, tmp_path: Path, protocol: ProtocolName
) -> None:
    """A task fails for good, others have locked and written all of theirs."""
    uri = make_store(tmp_path, protocol)
    trouble = {"partition": 1, "attempts": 9, "fails_at": ROWS - 1}
    with pytest.raises(Exception, match="trouble"):
        write_range(spark, **arguments(uri), trouble=trouble)
    wholes, parts = list_statuses(uri)
    assert wholes == [Status.ABORTED] and parts.keys() <= {Status.ABORTED}
    with connect(uri, table="rows") as engine:
        assert count_rows(engine) == 0
        engine.commit([Mutation(Key("1", "f", "v"), "free")])
    mend(uri)


def test_a_false_assertion_of_one_row_refuses_the_frame(
    spark: SparkSession, tmp_path: Path
) -> None:
    uri = make_store(tmp_path, "six-phase")
    with connect(uri, table="rows") as engine:
        engine.commit([Mutation(Key("99", "f", "v"), "there")])
        with pytest.raises(Exception, match="AssertionFailedError"):
            write_range(spark, **arguments(uri, if_absent="true"))
        assert [row.row for row in engine.scan()] == [b"99"]
    mend(uri)


def test_a_job_of_one_name_happens_once_for_each_table(spark: SparkSession, tmp_path: Path) -> None:
    """Rows must be new, and are not. A frame for another table is not taken for a repeat."""
    uri = make_store(tmp_path, "fenced")
    with connect(uri) as engine:
        engine.ensure_table("others", ["f"])
        for table in ("rows", "others", "rows"):
            options = {"job_id": "january", "if_absent": "true", "table": table}
            write_range(spark, **arguments(uri, rows=5, **options))
        assert [sum(1 for _ in engine.scan(table)) for table in ("rows", "others")] == [5, 5]
    assert list_statuses(uri)[0] == [Status.COMPLETE] * 2
