"""`commit_partition`, `run_partition` and `bind_partition` without Spark: they take any rows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.integration.serving import served
from tests.integration.spark_jobs import absent_request, statuses, token
from txn import (
    AssertionFailedError,
    Delete,
    Exact,
    InvalidRequestError,
    Key,
    Mutation,
    OptimisticTransaction,
    Request,
    connect,
)
from txn.protocol.codec import decode_marker
from txn.protocol.row import marker_key
from txn.protocol.statuses import ProtocolName
from txn.spark import (
    PartitionError,
    RowRefusedError,
    Summary,
    bind_partition,
    commit_partition,
    partitions,
    run_partition,
)
from txn.spark.options import SourceOptions
from txn.spark.partitions import Access, open_worker
from txn.spark.writer import make_writer

pytestmark = pytest.mark.fast
V = Key("v", "f", "value", "rows")
FILLED = 1  # transaction has filled the bank
NAMED: dict[str, Any] = {"once": token, "job": "rows"}
TRANSFERS: list[dict[str, Any]] = [
    {"id": n, "source": "a", "target": "b", "amount": 10} for n in range(7)
]


@pytest.fixture(params=get_args(ProtocolName))
def uri(request: pytest.FixtureRequest) -> Iterator[str]:
    """A store of each protocol, with rows and a bank; whoever opens it again finds which."""
    uri = f"memory://{uuid.uuid4().hex}"
    with connect(uri, protocol=request.param):
        make_tables(uri)
        yield uri


def make_tables(uri: str) -> None:
    """Make a table for rows, and a bank with two accounts of 50."""
    with connect(uri) as engine:
        for table in ("rows", "accounts"):
            engine.ensure_table(table, ["f"])
    fill_accounts(uri)


def fill_accounts(uri: str) -> None:
    with connect(uri, table="accounts") as engine:
        engine.commit([Mutation(balance(name), "50") for name in "ab"])


def stored(uri: str, rows: range) -> list[int]:
    return read_numbers(uri, [Key(f"{row:05}", "f", "value", "rows") for row in rows])


def read_numbers(uri: str, keys: list[Key]) -> list[int]:
    with connect(uri) as engine:
        return [int(cell.value) for cell in engine.read(keys).values() if cell]


def commit_rows(uri: str, rows: Any, to_request: Any = absent_request, **options: Any) -> Summary:
    return commit_partition(uri, rows, to_request, **{"table": "rows", **options})


def test_large_rows_are_committed_by_few(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "BATCH_BYTES", 1_000)
    ahead = []

    def request(row: int) -> Request:
        ahead.append(row - len(stored(uri, range(row))))
        large = Mutation(Key(f"{row:05}", "f", "large"), "x" * 400)
        return Request((*absent_request(row).mutations, Delete(Key("-", "f", "-")), large))

    assert commit_rows(uri, range(8), request) == Summary(committed=8)
    assert ahead == [0, 1, 2, 0, 1, 2, 0, 1]


def test_a_partition_that_runs_again_changes_nothing(uri: str) -> None:
    """A source may also hold a row twice, and both may come to one task."""
    first = commit_rows(uri, [*range(7), 1], **NAMED, batch=3)
    again = commit_rows(uri, range(7), **NAMED, batch=3)
    assert (first, again) == (Summary(committed=7, repeated=1), Summary(repeated=7))
    found = statuses(uri)  # a fenced database reads before it writes, another leaves refusals
    assert found["5-COMPLETE"] == 7 + FILLED and found.keys() <= {"5-COMPLETE", "7-ABORTED"}


@pytest.mark.parametrize("given", [{}, {"once": lambda row: "x", "job": "rows"}])
def test_a_token_of_two_rows_is_an_error(uri: str, given: dict[str, Any]) -> None:
    """The second one was lost. A refusal that is counted must not hide it."""

    def request(row: int) -> Request:
        return replace(absent_request(row), once=b"x")

    for rows in ([1, 1, 2], [2]):
        with pytest.raises(PartitionError, match=r"TokenReused.*token=b'(/rows//)?x'.*row=2"):
            commit_rows(uri, rows, request, on_assertion="count", **given)
    assert stored(uri, range(3)) == [1]


def test_a_request_that_differs_by_the_time_may_be_repeated(uri: str) -> None:
    """A retried task reads another clock. Its rows are the same."""
    times = iter(range(9))

    def request(row: int) -> tuple[list[Mutation], list[Any]]:
        return [Mutation(Key("a", "f", "value"), str(next(times)))], []

    found = [commit_rows(uri, range(3), request, **NAMED) for _ in range(2)]
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
        writer.write(iter([pa.record_batch([[7, 8], ["a", "b"]], schema.names)]))
        commit_rows(uri, [1], **NAMED)
        run_partition(uri, [1], lambda block, row: block.put(V, "1"), once=token, job="runs")

    write()
    assert caplog.messages == []
    write()
    counts = [2, 1, 1] if attempt == 0 else []
    assert [int(text.split()[0]) for text in caplog.messages] == counts
    assert all("by another of its name" in text for text in caplog.messages)


def test_a_promise_about_tokens_is_kept_with_each(uri: str) -> None:
    commit_rows(uri, range(3), **NAMED, once_retention_ms=5)
    markers = [marker_key(b"txn", f"/rows//{token(row)}".encode()) for row in range(3)]
    with connect(uri) as engine:
        found = [cell.value for cell in engine.read(markers).values() if cell]
    assert [decode_marker(value).retention_ms for value in found] == [5, 5, 5]


def test_the_first_failed_request_is_named_by_its_row(uri: str) -> None:
    """What its batch committed is complete, and no later one has begun."""
    commit_rows(uri, [13, 17])
    with pytest.raises(PartitionError, match=r"AssertionFailedError.*row=13$") as caught:
        commit_rows(uri, range(25), batch=10, ack="decided")
    assert isinstance(caught.value.__cause__, AssertionFailedError)
    assert stored(uri, range(25)) == [*range(18), 18, 19]
    assert statuses(uri)["5-COMPLETE"] == 20 + FILLED
    assert statuses(uri).keys() <= {"5-COMPLETE", "7-ABORTED"}
    summary = commit_rows(uri, range(25), on_assertion="count", batch=4)
    assert summary == Summary(committed=5, refused=20)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (Request((Mutation(V, ""),)), "InvalidRequestError: value is empty"),
        (Request(None), "mutations must be a list"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_request_does_not_spoil_its_batch(uri: str, wrong: Request, why: str) -> None:
    with pytest.raises(PartitionError, match=rf"{why}.*row=2$"):
        commit_rows(uri, range(5), lambda row: wrong if row == 2 else absent_request(row))
    assert stored(uri, range(5)) == [0, 1, 3, 4]


@pytest.mark.parametrize("made", [[[], []], None, ([], None), ("x", [])])
def test_a_bad_row_is_named(uri: str, made: object) -> None:
    """A list in the place of a tuple was a ValueError without a row, after other batches."""
    with pytest.raises(PartitionError, match="row=4") as caught:
        commit_rows(uri, range(9), lambda n: made if n == 4 else absent_request(n), batch=3)
    assert isinstance(caught.value.__cause__, InvalidRequestError)
    assert stored(uri, range(9)) == [0, 1, 2]


def test_record_batches_and_frames_are_committed_row_by_row(uri: str) -> None:
    batches = [pa.RecordBatch.from_pylist([{"n": n} for n in part]) for part in ([1, 2], [3])]
    frames = [pd.DataFrame({"n": part}) for part in ([4, 5], [], [6])]
    for given in (batches, frames):
        summary = commit_rows(
            uri, given, lambda row: absent_request(row["n"]), once="n", job="rows"
        )
        assert summary == Summary(committed=3)
    assert stored(uri, range(8)) == [1, 2, 3, 4, 5, 6]


def balance(name: str) -> Key:
    return Key(name, "f", "balance")


def balances(uri: str) -> list[int]:
    return read_numbers(uri, [Key(name, "f", "balance", "accounts") for name in "ab"])


def transfer(block: OptimisticTransaction, row: dict[str, Any]) -> None:
    source, target = balance(row["source"]), balance(row["target"])
    found = int(block.get(source) or b"0")
    if found < row["amount"]:
        raise RowRefusedError("insufficient funds", balance=found)
    block.put(source, str(found - row["amount"]))
    block.put(target, str(int(block.get(target) or b"0") + row["amount"]))


def transfer_all(block: OptimisticTransaction, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        transfer(block, row)


BY_ORDER = {"function": transfer_all, "group": "order", "once": "order"}


def run_transfers(uri: str, rows: Any = TRANSFERS, **options: Any) -> Summary:
    given = {"table": "accounts", "on_assertion": "count", "once": "id", "job": "bank", **options}
    return run_partition(uri, rows, given.pop("function", transfer), **given)


@pytest.mark.parametrize("threads", [1, 4])
def test_a_partition_of_transfers_that_runs_again_moves_nothing(uri: str, threads: int) -> None:
    """A committed transfer is not refused the second time, though its account is empty by then."""
    first, again = (run_transfers(uri, threads=threads) for _ in range(2))
    assert (first.committed, first.refused, first.repeated) == (5, 2, 0)
    assert (again.committed, again.refused, again.repeated) == (0, 2, 5)
    assert balances(uri) == [0, 100]


def test_a_transfer_that_another_attempt_makes_meanwhile_is_repeated(uri: str) -> None:
    """A speculative copy commits between the look at tokens and the block."""
    for others, row in [(5, TRANSFERS[0]), (2, TRANSFERS[1])]:
        left = iter([True])

        @wraps(transfer)  # as another attempt has the same function
        def overtaken(block: OptimisticTransaction, row: dict[str, Any]) -> None:
            if next(left, False):  # noqa: B023
                rest = [row, *({**row, "id": f"{others}-{n}"} for n in range(others - 1))]  # noqa: B023
                run_transfers(uri, rest)
            transfer(block, row)

        fill_accounts(uri)
        assert run_transfers(uri, [row], function=overtaken).repeated == 1
        assert sum(balances(uri)) == 100


def test_conflicts_run_the_function_again_and_are_counted(uri: str) -> None:
    left = iter(range(3))

    def disturbed(block: OptimisticTransaction, row: dict[str, Any]) -> None:
        transfer(block, row)
        if next(left, None) is not None:
            run_transfers(uri, [row], once=None)

    summary = run_transfers(uri, TRANSFERS[:1], function=disturbed, once=None)
    assert (summary.committed, summary.retries) == (1, 3)
    assert balances(uri) == [10, 90]
    with pytest.raises(PartitionError, match=r"ConflictError.*row=\{'id': 0"):
        left = iter(range(1))
        run_transfers(uri, TRANSFERS[:1], function=disturbed, once=None, attempts=1)


@pytest.mark.parametrize("threads", [1, 4])
def test_a_row_that_fails_is_named_and_earlier_ones_stay(uri: str, threads: int) -> None:
    def refuse(block: OptimisticTransaction, row: dict[str, Any]) -> None:
        transfer(block, row)
        if row["id"] == 2:
            block.require(Exact(balance("a"), "7"))
        if row["id"] == 3:
            raise KeyError("no such rate")

    for rows, error in ([TRANSFERS[:3], "AssertionFailed"], [TRANSFERS[3:4], "KeyError: 'no su"]):
        with pytest.raises(PartitionError, match=rf"failed: {error}.*row=\{{'id': {len(rows)}?"):
            run_transfers(uri, rows, function=refuse, on_assertion="fail", threads=threads)
    assert balances(uri) == [30, 70]
    summary = run_transfers(uri, TRANSFERS[2:3], function=refuse, threads=threads)
    assert summary.refused == 1, "a false assertion counts as well"


def test_a_group_of_rows_is_one_transaction(uri: str) -> None:
    """The second part of one that was split counted as repeated."""
    rows = [{**row, "order": row["id"] // 3} for row in TRANSFERS[:6]]
    assert run_transfers(uri, rows, **BY_ORDER) == Summary(committed=1, refused=1)
    assert balances(uri) == [20, 80]
    assert run_transfers(uri, rows[2::-1], **BY_ORDER) == Summary(repeated=1), "in any order"
    by_function = {
        "group": lambda row: row["order"],
        "once": lambda rows: f"order/{rows[0]['order']}",
    }
    assert run_transfers(uri, rows, **{**BY_ORDER, **by_function}) == Summary(repeated=1, refused=1)
    for some, options, message in (
        (rows, {"once": "id"}, "several tokens once='id'"),
        ([rows[0], rows[5], rows[2]], {}, r"do not stand together.* group=0 row=\{'id': 2"),
        (rows[1:3], {}, "'/bank//order/0'.*repartition by the group"),
    ):
        with pytest.raises(PartitionError, match=message):
            run_transfers(uri, some, **{**BY_ORDER, **options})


def test_a_second_job_over_the_same_ids_fills_its_own_table(uri: str) -> None:
    """It found the tokens of the first job, and its table stayed empty without an error."""
    with connect(uri) as engine:
        for name in ("copies", "sums"):
            engine.ensure_table(name, ["f"])

    def copy(block: OptimisticTransaction, row: dict[str, Any]) -> None:
        block.put(Key(str(row["id"]), "f", "v", "copies"), "1")

    def request(row: dict[str, Any]) -> Any:
        return [Mutation(Key(str(row["id"]), "f", "v", "sums"), "1")], []

    assert run_partition(uri, TRANSFERS, copy, once="id", job="copies") == Summary(committed=7)
    assert commit_partition(uri, TRANSFERS, request, once="id", job="x").committed == 7
    with connect(uri) as engine:
        assert [len(list(engine.scan(name))) for name in ("copies", "sums")] == [7, 7]
    wrong: list[Any] = [(run_partition, transfer, {}), (commit_partition, request, {})]
    wrong += [(run_partition, copy, {"table": "sums"})]
    for task, function, more in wrong:
        with pytest.raises(PartitionError, match=r"TokenReused.*'/copies//id/0'.*jobs other names"):
            task(uri, TRANSFERS, function, once="id", job="copies", **more)


@pytest.mark.parametrize("threads", [1, 4])
def test_a_repeated_token_of_another_row_is_an_error(uri: str, threads: int) -> None:
    rows = [TRANSFERS[0], {**TRANSFERS[0], "amount": 9}, TRANSFERS[2]]
    for _ in range(2):  # in one batch, and found before it
        with pytest.raises(PartitionError, match=r"TokenReused.*'/bank//id/0'.*row=\{'id': 0"):
            run_transfers(uri, rows, threads=threads)
    assert sum(balances(uri)) == 100


@pytest.mark.parametrize(
    "once, message",
    [("nope", "KeyError"), ("none", "once must be bytes or str"), (lambda row: 7, "given=7")],
)
def test_a_token_that_is_none_is_refused_by_row(uri: str, once: Any, message: str) -> None:
    """`None` as text would be the token of all rows that have none."""
    tasks: Any = ((run_partition, transfer), (commit_partition, lambda row: ([], [])))
    for task, function in tasks:
        with pytest.raises(PartitionError, match=rf"{message}.*row=.*'id': 0"):
            row = {**TRANSFERS[0], "none": None}
            task(uri, [row], function, once=once, job="bank", table="accounts")
    assert balances(uri) == [50, 50]


def test_partitions_commit_through_a_server(tmp_path: Path) -> None:
    """Executors that cannot reach the store may reach a server that can."""
    with served("memory://", tmp_path / "log", "--transactional", "0") as server:
        uri = server.uris["transactional"]
        make_tables(uri)
        assert commit_rows(uri, range(7)) == Summary(committed=7)
        assert stored(uri, range(7)) == list(range(7))
        assert run_transfers(uri).committed == 5
        assert run_transfers(uri).repeated == 5
        task = bind_partition(run_partition, uri, transfer, table="accounts", once="id", job="bank")
        assert task(TRANSFERS[:5]) == Summary(repeated=5)
        for table in ("rows", "accounts"):
            open_worker(Access(uri, table)).engine.close()


WRONG: list[dict[str, Any]] = [
    *({"on_assertion": "ignore"}, {"ack": "done"}, {"once": 7}, {"once_retention_ms": 0}),
    *({"once": "id"}, {"job": 7}, {"table": 7}, {"counts": 3}, {"trace": "no"}),
    *({"policy": {"lock_ttl_ms": 1}}, {"transactions": None}),
]
OF_BLOCKS: list[dict[str, Any]] = [
    *({"threads": 0}, {"attempts": "3"}, {"deadline_ms": "3"}, {"group": 7}, {"labels": "no"}),
    *({"function": None}, {"validate": 7}),
]


@pytest.mark.parametrize(
    "wrong", [*WRONG, *OF_BLOCKS, {"to_request": 7}, {"batch": 0}, {"batch": "3"}]
)
def test_a_wrong_argument_is_named_in_driver_and_task(uri: str, wrong: dict[str, Any]) -> None:
    """No row is read, and no store is opened, before that."""
    [(name, value)] = wrong.items()
    is_commit = name in ("to_request", "batch")
    task: Any = commit_partition if is_commit else run_partition
    given = {"to_request" if is_commit else "function": print, **wrong}
    for call in (lambda: task(uri, (), **given), lambda: bind_partition(task, uri, **given)):
        with pytest.raises(InvalidRequestError, match=rf"^{name} .*{value!r}"):
            call()


def test_the_driver_finds_names_that_mean_nothing(uri: str) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'onse'"):
        bind_partition(run_partition, uri, transfer, onse="id")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"missing .* argument: 'to_request'"):
        bind_partition(commit_partition, uri)  # type: ignore
    with pytest.raises(InvalidRequestError, match=r"no such table.* table=b'acounts'"):
        bind_partition(run_partition, uri, transfer, table="acounts")
    for wrong, absent in (("embeded:///x", "txn"), (uri, "absent")):
        with pytest.raises(InvalidRequestError):
            bind_partition(run_partition, wrong, transfer, transactions=absent)
