"""`run_partition` and `bind_partition` without Spark: they take any rows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import wraps
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.integration.serving import served
from txn import Exact, InvalidRequestError, Key, Mutation, OptimisticTransaction, Policy, connect
from txn.protocol.statuses import ProtocolName
from txn.spark import (
    PartitionError,
    RowRefusedError,
    Summary,
    bind_partition,
    commit_partition,
    run_partition,
)
from txn.spark.partitions import Access, open_worker

pytestmark = pytest.mark.fast
TRANSFERS: list[dict[str, Any]] = [
    {"id": n, "source": "a", "target": "b", "amount": 10} for n in range(7)
]


@pytest.fixture(params=get_args(ProtocolName))
def uri(request: pytest.FixtureRequest) -> Iterator[str]:
    """A bank with two accounts of 50, in a store of each protocol."""
    uri = f"memory://{uuid.uuid4().hex}"
    with connect(uri, table="accounts", protocol=request.param) as engine:
        found_bank(uri)
        yield uri
        assert engine


def found_bank(uri: str) -> None:
    with connect(uri, table="accounts") as engine:
        engine.ensure_table("accounts", ["f"])
        engine.commit([Mutation(balance(name), "50") for name in "ab"])


def balance(name: str) -> Key:
    return Key(name, "f", "balance")


def balances(uri: str) -> list[int]:
    cells = connect(uri, table="accounts").read([balance(name) for name in "ab"]).values()
    return [int(cell.value) for cell in cells if cell]


def transfer(block: OptimisticTransaction, row: dict[str, Any]) -> None:
    source, target = balance(row["source"]), balance(row["target"])
    found = int(block.get(source) or b"0")
    if found < row["amount"]:
        raise RowRefusedError("insufficient funds", balance=found)
    block.put(source, str(found - row["amount"]))
    block.put(target, str(int(block.get(target) or b"0") + row["amount"]))


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

        with connect(uri, table="accounts") as engine:
            engine.commit([Mutation(balance(name), "50") for name in "ab"])
        assert run_transfers(uri, [row], function=overtaken).repeated == 1
        assert sum(balances(uri)) == 100


def test_a_row_that_writes_nothing_is_repeated_if_its_token_is_committed(uri: str) -> None:
    """The function may find by itself that nothing is left to do."""

    @wraps(transfer)
    def idle(block: OptimisticTransaction, row: dict[str, Any]) -> None:
        if row["id"] == 1:
            run_transfers(uri, [row])
        block.get(balance("a"))

    summary = run_transfers(uri, TRANSFERS[:2], function=idle)
    assert (summary.committed, summary.repeated) == (1, 1)


def test_conflicts_run_the_function_again_and_are_counted(uri: str) -> None:
    """A balance that changed below the block is no reason to fail."""
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
    """The error of the job is all that is seen of a task with a million rows."""

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
    """Orders have lines. Groups that are torn would be taken for repeats of their first part."""
    rows = [{**row, "order": row["id"] // 3} for row in TRANSFERS[:6]]

    def transfer_all(block: OptimisticTransaction, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            transfer(block, row)

    given = {"function": transfer_all, "group": "order", "once": "order"}
    assert run_transfers(uri, rows, **given) == Summary(committed=1, refused=1)
    assert balances(uri) == [20, 80]
    by_function = {
        "group": lambda row: row["order"],
        "once": lambda rows: f"order/{rows[0]['order']}",
    }
    assert run_transfers(uri, rows, **{**given, **by_function}) == Summary(repeated=1, refused=1)
    with pytest.raises(PartitionError, match="several tokens once='id'"):
        run_transfers(uri, rows, **{**given, "once": "id"})
    with pytest.raises(PartitionError, match=r"do not stand together.* group=0 row=\{'id': 2"):
        run_transfers(uri, [rows[0], rows[5], rows[2]], **given)


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
    """The second row was taken for the first one again, and lost."""
    rows = [TRANSFERS[0], {**TRANSFERS[0], "amount": 9}, TRANSFERS[2]]
    for _ in range(2):  # in one batch, and found before it
        with pytest.raises(PartitionError, match=r"TokenReused.*'/bank//id/0'.*row=\{'id': 0"):
            run_transfers(uri, rows, threads=threads)
    assert sum(balances(uri)) == 100


def test_a_group_that_is_split_over_partitions_is_an_error(uri: str) -> None:
    """Its second part counted as repeated: three of ten rows were written, and all seemed well."""
    rows = [{**row, "order": 0} for row in TRANSFERS[:3]]

    def transfer_all(block: OptimisticTransaction, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            transfer(block, row)

    given = {"function": transfer_all, "group": "order", "once": "order"}
    run_transfers(uri, rows[:2], **given)
    with pytest.raises(PartitionError, match=r"'/bank//order/0'.*repartition by the group"):
        run_transfers(uri, rows[2:], **given)
    assert run_transfers(uri, rows[1::-1], **given) == Summary(repeated=1), "in any order"


@pytest.mark.parametrize(
    "once, message",
    [("nope", "KeyError"), ("none", "once must be bytes or str"), (lambda row: 7, "given=7")],
)
def test_a_token_that_is_none_is_refused_by_row(uri: str, once: Any, message: str) -> None:
    """`None` as text would be the token of all rows that have none."""
    tasks: Any = ((run_partition, transfer), (commit_partition, lambda row: ([], [])))
    for task, function in tasks:
        with pytest.raises(PartitionError, match=rf"{message}.*row=.*'id': 0"):
            task(
                uri,
                [{**TRANSFERS[0], "none": None}],
                function,
                once=once,
                job="bank",
                table="accounts",
            )
    assert balances(uri) == [50, 50]


def test_a_column_names_the_tokens_of_commits_as_well(uri: str) -> None:
    """The same word must mean the same in both."""

    @wraps(transfer)
    def request(row: dict[str, Any]) -> Any:
        return [Mutation(balance("c"), "1")], []

    given = {"once": "id", "job": "bank", "table": "accounts"}
    summary = commit_partition(uri, TRANSFERS[:2] * 2, request, **given)  # type: ignore[arg-type]
    assert (summary.committed, summary.repeated) == (2, 2)
    assert run_transfers(uri, TRANSFERS[:2]).repeated == 2


def test_blocks_run_through_a_server(tmp_path: Path) -> None:
    """Executors that cannot reach the store may reach a server that can."""
    with served("memory://", tmp_path / "log", "--transactional", "0") as server:
        uri = server.uris["transactional"]
        found_bank(uri)
        assert run_transfers(uri).committed == 5
        assert run_transfers(uri).repeated == 5
        task = bind_partition(run_partition, uri, transfer, table="accounts", once="id", job="bank")
        assert task(TRANSFERS[:5]) == Summary(repeated=5)
        open_worker(Access(uri, "accounts")).engine.close()


WRONG: list[dict[str, Any]] = [
    *({"on_assertion": "ignore"}, {"ack": "done"}, {"once": 7}, {"once_retention_ms": 0}),
    *({"once": "id"}, {"job": 7}),
    *({"policy": {"lock_ttl_ms": 1}}, {"counts": 3}, {"trace": "no"}, {"transactions": None}),
    {"table": 7},
]
OF_BLOCKS: list[dict[str, Any]] = [
    *({"threads": 0}, {"attempts": "3"}, {"deadline_ms": "3"}, {"group": 7}, {"labels": "no"}),
    *({"function": None}, {"validate": 7}),
]


@pytest.mark.parametrize("wrong", [*WRONG, *OF_BLOCKS, {"to_request": 7}, {"batch": 0}])
def test_a_wrong_argument_is_named_in_the_driver_and_in_the_task(
    uri: str, wrong: dict[str, Any]
) -> None:
    """No row is read, and no store is opened, before that."""
    [(name, value)] = wrong.items()
    is_commit = name in ("to_request", "batch")
    task: Any = commit_partition if is_commit else run_partition
    given = {"to_request" if is_commit else "function": print, **wrong}
    for call in (lambda: task(uri, (), **given), lambda: bind_partition(task, uri, **given)):
        with pytest.raises(InvalidRequestError, match=rf"^{name} .*{value!r}"):
            call()


def test_the_driver_finds_names_that_mean_nothing(uri: str) -> None:
    """An executor says so too, after the job has been planned, sent and tried four times."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'onse'"):
        bind_partition(run_partition, uri, transfer, onse="id")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"missing .* argument: 'to_request'"):
        bind_partition(commit_partition, uri)  # type: ignore
    with pytest.raises(InvalidRequestError, match=r"no such table.* table=b'acounts'"):
        bind_partition(run_partition, uri, transfer, table="acounts")
    for wrong, absent in (("embeded:///x", "txn"), (uri, "absent")):
        with pytest.raises(InvalidRequestError):
            bind_partition(run_partition, wrong, transfer, transactions=absent)


def test_a_bound_task_has_all_its_arguments(uri: str) -> None:
    """As `functools.partial` would give them."""
    task = bind_partition(
        run_partition,
        uri,
        transfer,
        once="id",
        job="bank",
        table="accounts",
        policy=Policy(attempts=3),
    )
    assert (task(iter(TRANSFERS[:3])), task(())) == (Summary(committed=3), Summary())
