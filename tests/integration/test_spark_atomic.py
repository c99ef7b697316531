"""A data frame written as one transaction: all of it is there, or nothing, whoever dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, get_args

import pytest
from pyspark.sql import SparkSession

from recovery import check, repair_all
from tests.integration.spark_cluster import HOSTS, JobFailedError, run_application, wait_until
from tests.integration.spark_jobs import SMALL_BATCHES, write_atomically
from tests.integration.test_spark_writer_apart import SPECULATION
from txn import Engine, Key, Mutation, connect
from txn.protocol.row import decode_row, is_row_key, parent_of
from txn.protocol.statuses import ProtocolName, Status

ROWS = 400
JOB = "tests.integration.spark_jobs:write_atomically"
every_protocol = pytest.mark.parametrize("protocol", get_args(ProtocolName))


def make_store(folder: Path, protocol: ProtocolName) -> str:
    uri = f"embedded://{folder}/store?sync=off"
    with connect(uri, protocol=protocol) as engine:
        engine.ensure_table("rows", ["f"])
    return uri


def arguments(uri: str, rows: int = ROWS, **options: Any) -> dict[str, Any]:
    details = {"table": "rows", "row": "id as text", "family": "f", "part_keys": "40"}
    return {"rows": rows, "parts": 3, "options": {"uri": uri, **details, **options}}


def list_statuses(uri: str) -> tuple[list[Status | None], Counter[Status | None]]:
    """Return those of transactions, and of parts."""
    with connect(uri) as engine:
        rows = [decode_row(row) for row in engine.context.store.scan(b"txn") if is_row_key(row.row)]
    wholes = [row.status for row in rows if parent_of(row.row_key) is None]
    return wholes, Counter(row.status for row in rows if parent_of(row.row_key))


def count_rows(engine: Engine) -> int:
    return sum(1 for _ in engine.scan("rows"))


def mend(uri: str) -> None:
    """Repair what is there as if everybody had long been silent; then nothing is left."""
    with connect(uri) as engine:
        for _ in range(2):
            for _, _ in repair_all(
                engine.context, check(engine.context, grace_ms=0, scan=[b"rows"])
            ):
                pass
        assert not list(check(engine.context, grace_ms=0, scan=[b"rows"]))


@contextmanager
def watching(uri: str) -> Iterator[list[int]]:
    """Read all rows at one instant again and again while the block runs; yield how many there
    were."""
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
def test_readers_see_all_of_it_or_nothing(
    spark: SparkSession, tmp_path: Path, protocol: ProtocolName
) -> None:
    """What nobody else who writes to HBase from Spark can promise."""
    uri = make_store(tmp_path, protocol)
    with watching(uri) as seen:
        write_atomically(spark, **arguments(uri))
    assert set(seen) == {0, len(range(0, ROWS, 7))}
    wholes, parts = list_statuses(uri)
    assert wholes == [Status.COMPLETE]
    assert parts.keys() == {Status.COMPLETE} and parts.total() >= 9
    mend(uri)
    with connect(uri) as engine:
        assert count_rows(engine) == ROWS
        assert len({c.timestamp for row in engine.scan("rows") for c in row.cells.values()}) == 1


@every_protocol
def test_a_job_that_fails_leaves_nothing(
    spark: SparkSession, tmp_path: Path, protocol: ProtocolName
) -> None:
    """A task fails for good, others have locked and written all of theirs."""
    uri = make_store(tmp_path, protocol)
    with pytest.raises(Exception, match="trouble"):
        write_atomically(
            spark, **arguments(uri), trouble={"partition": 2, "attempts": 9, "fails_at": ROWS - 1}
        )
    wholes, parts = list_statuses(uri)
    assert wholes == [Status.ABORTED] and parts.keys() <= {Status.ABORTED}
    with connect(uri, table="rows") as engine:
        assert count_rows(engine) == 0
        engine.commit([Mutation(Key("1", "f", "v"), "free")])
    mend(uri)


def test_a_false_assertion_of_one_row_keeps_all_from_happening(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Conditions are those of other writes: here each row must be new."""
    uri = make_store(tmp_path, "six-phase")
    with connect(uri, table="rows") as engine:
        engine.commit([Mutation(Key("399", "f", "v"), "there")])
        with pytest.raises(Exception, match="AssertionFailedError"):
            write_atomically(spark, **arguments(uri, if_absent="true"))
        assert [row.row for row in engine.scan()] == [b"399"]
    mend(uri)


def test_a_job_of_one_name_happens_once(spark: SparkSession, tmp_path: Path) -> None:
    """A scheduler runs it again, since it heard no answer; rows must be new, and are not."""
    uri = make_store(tmp_path, "fenced")
    for _ in range(2):
        write_atomically(spark, **arguments(uri, job_id="january", if_absent="true"))
    assert list_statuses(uri)[0] == [Status.COMPLETE]


def test_a_job_of_one_name_writes_several_tables(spark: SparkSession, tmp_path: Path) -> None:
    """The second frame would else be taken for a repeat of the first, and be lost."""
    uri = make_store(tmp_path, "fenced")
    with connect(uri) as engine:
        engine.ensure_table("others", ["f"])
        for table in ("rows", "others"):
            write_atomically(spark, **arguments(uri, rows=5, job_id="january", table=table))
        assert [sum(1 for _ in engine.scan(table)) for table in ("rows", "others")] == [5, 5]


def test_options_that_do_not_fit_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Rejects would make it part of a data frame."""
    uri = make_store(tmp_path, "six-phase")
    for wrong in ({"on_reject": "count"}, {"row": "nobody"}, {"uri": "txn://127.0.0.1:1"}):
        with pytest.raises(Exception, match="InvalidRequestError"):
            write_atomically(spark, **arguments(**{"uri": uri, **wrong}))
    assert list_statuses(uri) == ([], Counter())


@pytest.mark.slow
@every_protocol
def test_executors_that_die_and_copies_of_tasks_change_nothing(
    tmp_path: Path, protocol: ProtocolName
) -> None:
    """Attempts of a task write the same parts, one after the other and beside each other."""
    uri = make_store(tmp_path, protocol)
    settings = {**SPECULATION, **SMALL_BATCHES}
    with run_application(tmp_path / "spark", HOSTS, settings=settings) as application:
        application.start(JOB, **arguments(uri), trouble={"pause_ms": 25, "attempts": 2})
        wait_until(lambda: list_statuses(uri)[1].total() >= 4)
        application.kill_executor()
        application.wait()
    wholes, parts = list_statuses(uri)
    assert wholes == [Status.COMPLETE] and parts.keys() == {Status.COMPLETE}
    with connect(uri) as engine:
        assert count_rows(engine) == ROWS
    mend(uri)


@pytest.mark.slow
@pytest.mark.parametrize("protocol, decided", [("six-phase", False), ("fenced", True)])
def test_a_driver_that_dies_leaves_what_fsck_ends(
    tmp_path: Path, protocol: ProtocolName, decided: bool
) -> None:
    """It is killed with all its executors, before its decision, and between that and the puts:
    `ack=decided` stops there for certain."""
    uri = make_store(tmp_path, protocol)
    with run_application(tmp_path / "spark", "local[2]") as application:
        if decided:
            application.run(JOB, **arguments(uri, ack="decided"))
        else:
            application.start(JOB, **arguments(uri), trouble={"pause_ms": 100})
            wait_until(lambda: list_statuses(uri)[1].total() >= 4)
        application.kill()
        with pytest.raises(JobFailedError):
            application.wait()
    wholes, parts = list_statuses(uri)
    assert wholes == [Status.ASSERTED if decided else Status.WRITTEN]
    assert parts.keys() == {Status.PART}
    with connect(uri, table="rows") as engine:
        last = Key(str(ROWS - 1), "f", "v")
        assert (engine.read([last])[last] is not None) is decided
        mend(uri)
        assert count_rows(engine) == (ROWS if decided else 0)
