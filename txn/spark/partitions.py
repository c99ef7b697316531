"""Transactions from Spark tasks: `commit_partition`, for `foreachPartition`.

Spark may run a task again, and may run it twice at once. With a `once` token for each row this
changes nothing: the second one is told what the first one committed. A Python worker opens
one engine for each store, after Spark has forked it, and keeps it for all its tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Literal, TypeVar

from pyspark import Accumulator, SparkContext
from pyspark.sql import SparkSession

from txn.assertions import Assertion
from txn.client.engine import Engine
from txn.errors import AssertionFailedError, InvalidRequestError, TxnError
from txn.model import Delete, Mutation, as_bytes, check_choice, check_whole
from txn.policy import Policy
from txn.request import Ack, Committed, Request, as_request
from txn.spark.workers import Access, open_worker

T = TypeVar("T")
Given = Request | tuple[Iterable[Mutation | Delete], Iterable[Assertion]]
OnAssertion = Literal["fail", "count"]


@dataclass(frozen=True, slots=True)
class Summary:
    """What became of requests.

    repeated: their `once` token had been committed before. refused: an assertion was false.
    conflicts: locks met that another transaction held. helped: others' transactions finished.
    """

    committed: int = 0
    repeated: int = 0
    refused: int = 0
    conflicts: int = 0
    helped: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """A Summary that grows with each task that succeeds, for the driver to read.

    Spark adds what a task counted once, however often the task ran; so with `once`, committed and
    repeated together are exactly the rows.
    """

    committed: Accumulator[int]
    repeated: Accumulator[int]
    refused: Accumulator[int]
    conflicts: Accumulator[int]
    helped: Accumulator[int]

    @classmethod
    def of(cls, spark: SparkSession) -> Counts:
        """Return new counts, all zero, for a job of this session."""
        context: SparkContext = spark.sparkContext
        return cls(*(context.accumulator(0) for _ in fields(cls)))

    def add(self, summary: Summary) -> None:
        """Add what a task counted; called in the task."""
        for field in fields(Summary):
            getattr(self, field.name).add(getattr(summary, field.name))

    def summary(self) -> Summary:
        """Return the present values; called in the driver."""
        return Summary(**{field.name: getattr(self, field.name).value for field in fields(Summary)})


class PartitionError(TxnError):
    """A request of the task did not commit, or, where its cause is a CommitOutcomeUnknown, perhaps
    did: its message names the first one, its row and why."""


def commit_partition(
    uri: str,
    rows: Iterable[T],
    to_request: Callable[[T], Given],
    *,
    once: Callable[[T], str | bytes] | None = None,
    once_retention_ms: int | None = None,
    batch: int = 100,
    counts: Counts | None = None,
    on_assertion: OnAssertion = "fail",
    ack: Ack = "complete",
    table: str | bytes | None = None,
    transactions: str | bytes = "txn",
    policy: Policy | None = None,
) -> Summary:
    """Commit a transaction for each row of a Spark partition, a batch at a time.

    to_request: what a row's transaction is, a Request or (mutations, assertions).
    once: a row's token, the same whenever the row is seen; without it a task that Spark runs again
    commits again, and fails on assertions that its first run made false. It takes the place of a
    token in the Request.
    once_retention_ms: the promise that Spark runs no task of the job again later than that after
    its commits, with which fsck may forget the tokens then; see `Engine.commit`.
    on_assertion: whether a false assertion fails the task, or is only counted as refused.
    table, transactions, policy: as `txn.connect` takes them.
    When it returns, or raises, everything that it committed is complete. Raises PartitionError for
    a batch with a request that failed; the batches before it, and the rest of that one, stay
    committed, and later ones were not begun. Where a row makes no request, nor was its own batch.
    """
    check_whole("batch", batch, 1)
    check_choice("on_assertion", on_assertion, OnAssertion)
    check_choice("ack", ack, Ack)
    worker = open_worker(Access(uri, table, transactions, policy))
    seen: Counter[str] = Counter()
    before = worker.events.copy()
    try:
        for some in _batches(rows, batch):
            requests = [_request(row, to_request, once, once_retention_ms) for row in some]
            results = _results(worker.engine, requests, ack)
            seen.update(_kind(result) for result in results)
            _raise_first(some, results, on_assertion)
    finally:
        worker.engine.flush()
    seen.update(worker.events - before)
    summary = Summary(**{field.name: seen[field.name] for field in fields(Summary)})
    if counts is not None:
        counts.add(summary)
    return summary


def _batches(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(rows)
    while batch := list(islice(iterator, size)):
        yield batch


def _request(
    row: T,
    to_request: Callable[[T], Given],
    once: Callable[[T], str | bytes] | None,
    once_retention_ms: int | None,
) -> Request:
    try:
        given = as_request(to_request(row))
        if once is not None:
            given = replace(given, once=as_bytes("once", once(row)))
    except InvalidRequestError as error:
        raise _make_error(row, error) from error
    return (
        given if once_retention_ms is None else replace(given, once_retention_ms=once_retention_ms)
    )


def _results(
    engine: Engine, requests: Sequence[Request], ack: Ack
) -> Sequence[Committed | TxnError]:
    """A batch with an invalid request wrote nothing: then each is sent alone, to find that one."""
    try:
        return engine.commit_many(requests, ack=ack)
    except InvalidRequestError as error:
        if len(requests) == 1:
            return [error]
        return [result for request in requests for result in _results(engine, [request], ack)]


def _kind(result: Committed | TxnError) -> str:
    match result:
        case Committed(repeated=True):
            return "repeated"
        case Committed():
            return "committed"
        case AssertionFailedError():
            return "refused"
        case _:
            return "failed"


def _raise_first(
    rows: Sequence[object], results: Sequence[Committed | TxnError], on_assertion: OnAssertion
) -> None:
    for row, result in zip(rows, results, strict=True):
        if isinstance(result, Committed):
            continue
        if isinstance(result, AssertionFailedError) and on_assertion == "count":
            continue
        raise _make_error(row, result) from result


def _make_error(row: object, why: TxnError) -> PartitionError:
    message = f"request failed: {type(why).__name__}: {why}"
    return PartitionError(message, row=row)
