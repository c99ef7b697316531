"""`commit_partition` without Spark: it takes any rows, and promises the same in one process."""

from __future__ import annotations

import gc
import pickle
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.integration.serving import served
from tests.integration.spark_requests import absent_request, statuses, token
from txn import (
    AssertionFailedError,
    Delete,
    InvalidRequestError,
    Key,
    Mutation,
    Request,
    Some,
    connect,
)
from txn.protocol.codec import decode_marker
from txn.protocol.row import marker_key
from txn.protocol.statuses import ProtocolName
from txn.spark import PartitionError, Summary, commit_partition, partitions, run_partition
from txn.spark.options import SourceOptions
from txn.spark.partitions import Access, open_worker
from txn.spark.writer import make_writer

pytestmark = pytest.mark.fast
V = Key("v", "f", "value", "rows")


@pytest.fixture(params=get_args(ProtocolName))
def uri(request: pytest.FixtureRequest) -> Iterator[str]:
    """A store of each protocol; whoever opens it again finds which."""
    uri = f"memory://{uuid.uuid4().hex}"
    engine = connect(uri, table="rows", protocol=request.param)
    engine.ensure_table("rows", ["f"])
    yield uri
    engine.close()


def stored(uri: str, rows: range) -> list[int]:
    cells = connect(uri, table="rows").read([Key(f"{row:05}", "f", "value") for row in rows])
    return [int(cell.value) for cell in cells.values() if cell is not None]


def test_every_row_of_a_partition_is_committed_across_batches(uri: str) -> None:
    """A last batch that is not full is where rows get lost."""
    summary = commit_partition(uri, range(25), absent_request, table="rows", batch=10)
    assert summary == Summary(committed=25)
    assert stored(uri, range(25)) == list(range(25))


def test_large_rows_are_committed_a_few_at_a_time(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker has no memory for a batch of 500 rows of a megabyte each."""
    monkeypatch.setattr(partitions, "BATCH_BYTES", 1_000)
    ahead = []

    def request(row: int) -> Request:
        ahead.append(row - len(stored(uri, range(row))))
        large = Mutation(Key(f"{row:05}", "f", "large"), "x" * 400)
        return Request((*absent_request(row).mutations, Delete(Key("-", "f", "-")), large))

    assert commit_partition(uri, range(8), request, table="rows") == Summary(committed=8)
    assert ahead == [0, 1, 2, 0, 1, 2, 0, 1]


def test_a_request_without_a_list_of_mutations_is_refused_by_name(uri: str) -> None:
    """It is weighed before it is looked at, which must not be its error."""
    with pytest.raises(PartitionError, match=r"mutations must be a list.* row=1"):
        commit_partition(uri, [1], lambda row: Request(None), table="rows")  # type: ignore[arg-type]


def test_a_partition_that_runs_again_changes_nothing(uri: str) -> None:
    """Spark runs a task again whose result was lost, though all that it did is there."""
    first = commit_partition(
        uri, range(7), absent_request, table="rows", once=token, job="rows", batch=3
    )
    again = commit_partition(
        uri, range(7), absent_request, table="rows", once=token, job="rows", batch=3
    )
    assert (first, again) == (Summary(committed=7), Summary(repeated=7))
    refused = {"7-ABORTED": 7}  # a fenced database reads before it writes
    assert statuses(uri) in ({"5-COMPLETE": 7} | refused, {"5-COMPLETE": 7})


def test_rows_with_one_token_in_one_batch_commit_once(uri: str) -> None:
    """A source may hold a row twice, and both may come to one task."""
    summary = commit_partition(uri, [1, 2, 1], absent_request, table="rows", once=token, job="rows")
    assert summary == Summary(committed=2, repeated=1)


def test_a_token_in_the_request_counts_where_once_is_not_given(uri: str) -> None:
    """A program that already builds requests with tokens needs no second function."""

    def request(row: int) -> Request:
        return Request((Mutation(Key("a", "f", "value"), str(row)),), (), b"the token")

    summary = commit_partition(uri, [3, 3, 3], request, table="rows")
    assert summary == Summary(committed=1, repeated=2)


@pytest.mark.parametrize("given", [{}, {"once": lambda row: "x", "job": "rows"}])
def test_a_token_of_two_rows_is_an_error(uri: str, given: dict[str, Any]) -> None:
    """The second one counted as repeated, and was lost. A refusal that is counted must not hide
    it."""

    def request(row: int) -> Request:
        return replace(absent_request(row), once=b"x")

    for rows in ([1, 2], [2]):
        with pytest.raises(PartitionError, match=r"TokenReused.*token=b'(/rows//)?x'.*row=2"):
            commit_partition(uri, rows, request, table="rows", on_assertion="count", **given)
    assert stored(uri, range(3)) == [1]


def test_a_request_that_differs_by_the_time_may_be_repeated(uri: str) -> None:
    """A retried task reads another clock. Its rows are the same."""
    times = iter(range(9))

    def request(row: int) -> tuple[list[Mutation], list[Any]]:
        return [Mutation(Key("a", "f", "value"), str(next(times)))], []

    given = {"once": token, "job": "rows", "table": "rows"}
    found = [commit_partition(uri, range(3), request, **given) for _ in range(2)]  # type: ignore[arg-type]
    assert found == [Summary(committed=3), Summary(repeated=3)]


@pytest.mark.parametrize("attempt", [0, 1])
def test_repeats_of_a_first_attempt_are_worth_a_warning(
    uri: str, attempt: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A second job of the same name finds all its rows committed, and seems to have done well."""
    schema = StructType([StructField("id", LongType()), StructField("v", StringType())])
    where = {"uri": uri, "table": "rows", "row": "id as text", "family": "f", "jobId": "rows"}
    writer = make_writer(SourceOptions(where), schema)
    context = object.__new__(TaskContext)
    context._attemptNumber, context._partitionId = attempt, 0
    for access in (Access(uri, "rows"), Access(uri), writer.plan.access):
        open_worker(access)  # before this process seems to be a worker of Spark
    monkeypatch.setattr(TaskContext, "_taskContext", context)

    def write() -> None:
        batch = pa.record_batch([[7, 8], ["a", "b"]], schema.names)
        writer.write(iter([batch]))
        commit_partition(uri, [1], absent_request, once=token, job="rows", table="rows")
        run_partition(uri, [1], lambda block, row: block.put(V, "1"), once=token, job="runs")

    write()
    assert caplog.messages == []
    write()
    counts = [2, 1, 1] if attempt == 0 else []
    assert [int(text.split()[0]) for text in caplog.messages] == counts
    assert all("by another of its name" in text for text in caplog.messages)


@pytest.mark.parametrize("of_each", [True, False])
def test_a_promise_about_tokens_is_kept_with_each(uri: str, of_each: bool) -> None:
    """A job leaves a marker for each row; with the promise they go again."""

    def request(row: int) -> Request:
        return replace(absent_request(row), once=token(row).encode())

    way = (
        {"to_request": absent_request, "once": token, "job": "rows"}
        if of_each
        else {"to_request": request}
    )
    commit_partition(uri, range(3), **way, table="rows", once_retention_ms=5)  # type: ignore[arg-type]
    scope = "/rows//" if of_each else ""
    markers = [marker_key(b"txn", f"{scope}{token(row)}".encode()) for row in range(3)]
    with connect(uri) as engine:
        found = [cell.value for cell in engine.read(markers).values() if cell]
    assert [decode_marker(value).retention_ms for value in found] == [5, 5, 5]


def test_a_token_that_is_no_text_is_refused_clearly(uri: str) -> None:
    """A number of a row is the likeliest token, and two tokens of one row would be no token."""
    with pytest.raises(PartitionError, match=r"once must be bytes or str given=0.* row=0"):
        commit_partition(uri, [0], absent_request, table="rows", once=int, job="x")  # type: ignore[arg-type]


def test_batches_of_nothing_are_refused(uri: str) -> None:
    """They would commit no row, and the task would succeed."""
    with pytest.raises(InvalidRequestError, match="batch=0"):
        commit_partition(uri, [0], absent_request, table="rows", batch=0)


def test_the_first_failed_request_is_named_by_its_row(uri: str) -> None:
    """Who reads the error of a task with a million rows must find the one that is wrong."""
    commit_partition(uri, [13, 17], absent_request, table="rows")
    with pytest.raises(PartitionError, match=r"AssertionFailedError.*row=13$") as caught:
        commit_partition(uri, range(25), absent_request, table="rows", batch=10)
    assert isinstance(caught.value.__cause__, AssertionFailedError)
    assert stored(uri, range(25)) == [*range(18), 18, 19], "its batch is done, no later one begun"


def test_a_false_assertion_is_only_counted_where_that_is_asked(uri: str) -> None:
    """For an import, "it is there already" is an answer and not a failure."""
    commit_partition(uri, [3, 5], absent_request, table="rows")
    summary = commit_partition(
        uri, range(10), absent_request, table="rows", on_assertion="count", batch=4
    )
    assert summary == Summary(committed=8, refused=2)


def test_an_invalid_request_is_named_and_does_not_spoil_its_batch(uri: str) -> None:
    """A batch with an invalid request writes nothing: the task finds which one it is."""

    def request(row: int) -> tuple[list[Mutation], list[Some]]:
        return [Mutation(Key(f"{row:05}", "f", "value"), str(row) if row != 2 else "")], []

    with pytest.raises(PartitionError, match=r"InvalidRequestError: value is empty.*row=2$"):
        commit_partition(uri, range(5), request, table="rows")
    assert stored(uri, range(5)) == [0, 1, 3, 4]


def test_everything_is_complete_when_a_partition_returns(uri: str) -> None:
    """The worker may be gone the moment after, with whatever it did in the background."""
    commit_partition(uri, range(50), absent_request, table="rows", ack="decided", batch=10)
    assert statuses(uri) == {"5-COMPLETE": 50}


def test_everything_is_complete_when_a_partition_fails(uri: str) -> None:
    """A failed task may be the last of its worker as well."""
    with pytest.raises(PartitionError):
        commit_partition(uri, [1, 2, 3, 1], absent_request, table="rows", ack="decided", batch=3)
    assert statuses(uri)["5-COMPLETE"] == 3
    assert statuses(uri).keys() <= {"5-COMPLETE", "7-ABORTED"}


def test_the_error_of_a_task_can_be_sent_between_processes() -> None:
    """Spark's workers pickle what a task raises."""
    error = PartitionError("request failed: row=7")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("made", [[[], []], None, ([], None), ("x", [])])
def test_a_row_that_makes_no_request_is_named(uri: str, made: object) -> None:
    """A list in the place of a tuple was a ValueError without a row, after other batches."""

    def request(row: int) -> Any:
        return made if row == 4 else absent_request(row)

    with pytest.raises(PartitionError, match="row=4") as caught:
        commit_partition(uri, range(9), request, table="rows", batch=3)
    assert isinstance(caught.value.__cause__, InvalidRequestError)
    assert stored(uri, range(9)) == [0, 1, 2]


@pytest.mark.parametrize(
    "wrong", [{"on_assertion": "ignore"}, {"ack": "done"}, {"batch": 0}, {"batch": "3"}]
)
def test_a_word_or_number_that_means_nothing_is_refused_at_once(
    uri: str, wrong: dict[str, Any]
) -> None:
    """`ignore` was taken for `fail`, by the first assertion that was false."""
    (name,) = wrong
    with pytest.raises(InvalidRequestError, match=f"^{name} "):
        commit_partition(uri, range(3), absent_request, table="rows", **wrong)
    assert stored(uri, range(3)) == []


def test_a_partition_commits_through_a_server(tmp_path: Path) -> None:
    """Executors that cannot reach the store may reach a server that can."""
    with served("memory://", tmp_path / "log", "--transactional", "0") as server:
        uri = server.uris["transactional"]
        with connect(uri, table="rows") as engine:
            engine.ensure_table("rows", ["f"])
        assert commit_partition(uri, range(7), absent_request, table="rows") == Summary(committed=7)
        with connect(uri, table="rows") as engine:
            cells = engine.read([Key(f"{row:05}", "f", "value") for row in range(7)])
            assert all(cells.values())
        open_worker(Access(uri, "rows")).engine.close()


def test_record_batches_and_frames_are_committed_row_by_row(uri: str) -> None:
    """`mapInArrow` and `mapInPandas` hand the rows over in batches of their own."""
    batches = [pa.RecordBatch.from_pylist([{"n": n} for n in part]) for part in ([1, 2], [3])]
    frames = [pd.DataFrame({"n": part}) for part in ([4, 5], [], [6])]
    for given in (batches, frames):
        summary = commit_partition(
            uri,
            iter(given),
            lambda row: absent_request(row["n"]),
            once=lambda row: token(row["n"]),
            job="rows",
            table="rows",
        )
        assert summary == Summary(committed=3)
    assert stored(uri, range(8)) == [1, 2, 3, 4, 5, 6]


def test_outside_of_spark_the_collector_of_garbage_stays_as_it_is(uri: str) -> None:
    """It is the whole process's, which here is the caller's own."""
    before = gc.get_threshold(), gc.get_freeze_count()
    commit_partition(uri, range(3), absent_request, table="rows")
    assert (gc.get_threshold(), gc.get_freeze_count()) == before
