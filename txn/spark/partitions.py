"""Transactions from Spark tasks: `commit_partition` for `foreachPartition`, and for data frames,
whose rows come by Arrow, `commit_frame`.

Spark may run a task again, and may run it twice at once. With a `once` token for each row this
changes nothing: the second one is told what the first one committed. A Python worker opens
one engine for each store, after Spark has forked it, and keeps it for all its tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, Unpack

from pyspark.sql import DataFrame

from txn.assertions import Assertion
from txn.errors import AssertionFailedError, InvalidRequestError
from txn.model import Delete, Mutation, as_bytes, check_choice, check_whole
from txn.policy import Policy
from txn.request import Ack, Request, as_request
from txn.spark.committing import Counts, Refused, Summary, commit_requests, make_error
from txn.spark.workers import Access, open_worker
from txn.tracing import Headers, capture_trace

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
Given = Request | tuple[Iterable[Mutation | Delete], Iterable[Assertion]]
OnAssertion = Literal["fail", "count"]
FrameRow = dict[str, Any]
"""A row of a data frame as Arrow tells it: the values of its columns by name."""

BATCH = 250
"""Rows of a batch, as a rule: about as many small requests as an engine commits together."""

SUMMARY_SCHEMA = ", ".join(f"{field.name} long" for field in fields(Summary))
"""The schema of what `commit_arrow` tells of each task."""


class HowToCommit(TypedDict, Generic[T], total=False):
    """What `commit_partition` takes by name, and `commit_frame` and `commit_arrow` as well."""

    once: Callable[[T], str | bytes] | None
    once_retention_ms: int | None
    batch: int
    counts: Counts | None
    on_assertion: OnAssertion
    ack: Ack
    table: str | bytes | None
    transactions: str | bytes
    policy: Policy | None
    trace: Headers | None


def commit_partition(
    uri: str,
    rows: Iterable[T],
    to_request: Callable[[T], Given],
    *,
    once: Callable[[T], str | bytes] | None = None,
    once_retention_ms: int | None = None,
    batch: int = BATCH,
    counts: Counts | None = None,
    on_assertion: OnAssertion = "fail",
    ack: Ack = "complete",
    table: str | bytes | None = None,
    transactions: str | bytes = "txn",
    policy: Policy | None = None,
    trace: Headers | None = None,
) -> Summary:
    """Commit a transaction for each row of a Spark partition, a batch at a time, which is of fewer
    rows where they are large.

    to_request: what a row's transaction is, a Request or (mutations, assertions).
    once: a row's token, the same whenever the row is seen; without it a task that Spark runs again
    commits again, and fails on assertions that its first run made false. It takes the place of a
    token in the Request.
    once_retention_ms: the promise that Spark runs no task of the job again later than that after
    its commits, with which fsck may forget the tokens then; see `Engine.commit`.
    on_assertion: whether a false assertion fails the task, or is only counted as refused.
    table, transactions, policy: as `txn.connect` takes them.
    trace: what `txn.tracing.capture_trace` has returned in the driver: the span that is the parent
    of the transactions'.
    When it returns, or raises, everything that it committed is complete. Raises PartitionError for
    a batch with a request that failed; the batches before it, and the rest of that one, stay
    committed, and later ones were not begun. Where a row makes no request, nor was its own batch.
    """
    _check_words(batch, on_assertion, ack)
    wanted = ((row, _request(row, to_request, once, once_retention_ms)) for row in rows)

    def refuse(refused: Refused[T]) -> int:
        for row, _, why in refused:
            if on_assertion == "fail" or not isinstance(why, AssertionFailedError):
                raise make_error(row, why) from why
        return 0

    worker = open_worker(Access(uri, table, transactions, policy))
    summary = commit_requests(worker, wanted, refuse, batch=batch, ack=ack, trace=trace)
    if counts is not None:
        counts.add(summary)
    return summary


def commit_frame(
    frame: DataFrame,
    uri: str,
    to_request: Callable[[FrameRow], Given],
    **how: Unpack[HowToCommit[FrameRow]],
) -> Summary:
    """Commit a transaction for each row of a data frame, and return what became of them all.

    Spark hands the rows over by Arrow; to_request and once get each as a dictionary. It is no
    quicker than `foreachPartition` that way, but it is one call and tells what became of the rows.
    Everything else is as in `commit_partition`, of which each task is a call; the context of the
    caller's span goes with it.
    """
    told = frame.mapInArrow(commit_arrow(uri, to_request, **how), SUMMARY_SCHEMA).groupBy().sum()
    return Summary(*(number or 0 for number in told.collect()[0]))


def commit_arrow(
    uri: str,
    to_request: Callable[[FrameRow], Given],
    **how: Unpack[HowToCommit[FrameRow]],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow` with SUMMARY_SCHEMA, which commits the rows of a task and
    tells in one row what became of them. `mapInArrow` does nothing until somebody asks for these
    rows, and all of it again when asked again."""
    _check_words(
        how.get("batch", BATCH), how.get("on_assertion", "fail"), how.get("ack", "complete")
    )
    how.setdefault("trace", capture_trace())

    def commit_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415  (workers of `foreachPartition` do without it)

        rows: Iterator[FrameRow] = (row for some in batches for row in some.to_pylist())
        yield pa.RecordBatch.from_pylist([asdict(commit_partition(uri, rows, to_request, **how))])

    return commit_batches


def _check_words(batch: int, on_assertion: OnAssertion, ack: Ack) -> None:
    check_whole("batch", batch, 1)
    check_choice("on_assertion", on_assertion, OnAssertion)
    check_choice("ack", ack, Ack)


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
        raise make_error(row, error) from error
    return (
        given if once_retention_ms is None else replace(given, once_retention_ms=once_retention_ms)
    )
