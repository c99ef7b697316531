"""`commit_partition`: tasks commit requests, a batch at a time, and count them for the driver. The
writers of the data source stand on it as well.

Spark may run a task again, and may run it twice at once. With a `once` token for each row this
changes nothing: the second run gets the results of the first. A Python worker opens
one engine for each store, after Spark has forked it, and keeps it for all its tasks.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from operator import add
from typing import Any, Literal, TypeVar

from pyspark import Accumulator, AccumulatorParam
from pyspark.accumulators import _deserialize_accumulator
from pyspark.sql import SparkSession

from txn.assertions import Assertion
from txn.client.engine import Engine
from txn.errors import AssertionFailedError, InvalidRequestError, TxnError
from txn.model import Delete, Mutation, as_bytes, check_choice, check_whole
from txn.policy import Policy
from txn.request import Ack, Committed, Request, as_request
from txn.spark.workers import Access, Worker, divide_batches, open_worker
from txn.tracing import Headers, continue_trace, flush_traces

BATCH = 250
"""Rows of a batch, as a rule: about as many small requests as an engine commits together."""

BATCH_BYTES = 8_000_000
"""Of the values of a batch, about: a server refuses more."""

T = TypeVar("T")
RequestLike = Request | tuple[Iterable[Mutation | Delete], Iterable[Assertion]]
OnAssertion = Literal["fail", "count"]
Refused = Sequence[tuple[T, Request, TxnError]]
"""The requests of a batch that did not commit: the source, the request and the reason of each."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What became of requests.

    repeated: their `once` token had been committed before. refused: an assertion was false, or,
    where the writer of the data source keeps rejects, others were in the way.
    conflicts: locks met that another transaction held. helped: others' transactions finished.
    """

    committed: int = 0
    repeated: int = 0
    refused: int = 0
    conflicts: int = 0
    helped: int = 0

    def __add__(self, other: Summary) -> Summary:
        return Summary(*map(add, astuple(self), astuple(other)))


class _SummaryParam(AccumulatorParam[Summary]):
    def zero(self, value: Summary) -> Summary:
        return Summary()

    def addInPlace(self, value1: Summary, value2: Summary) -> Summary:
        return value1 + value2


@dataclass(frozen=True, slots=True)
class Counts:
    """A Summary that grows with each task that succeeds, for the driver to read.

    Spark adds what a task counted once, however often the task ran; so with `once`, committed and
    repeated together are exactly the rows.
    """

    accumulator: Accumulator[Summary]

    @classmethod
    def of(cls, spark: SparkSession) -> Counts:
        """Return new counts, all zero, for a job of this session."""
        return cls(spark.sparkContext.accumulator(Summary(), _SummaryParam()))

    def add(self, summary: Summary) -> None:
        """Add what a task counted; called in the task."""
        self.accumulator.add(summary)

    def name_accumulator(self) -> str:
        """Return the text for the option `counts` of a write, which carries no objects."""
        return str(self.accumulator.aid)

    @classmethod
    def find(cls, name: str) -> Counts:
        """Return the counts that the text names; called in the task."""
        return cls(_deserialize_accumulator(int(name), Summary(), _SummaryParam()))

    def summary(self) -> Summary:
        """Return the present values; called in the driver."""
        return self.accumulator.value


class PartitionError(TxnError):
    """A request of the task did not commit, or, where its cause is a CommitOutcomeUnknown, perhaps
    did: its message names the first one, its row and why."""


def commit_partition(
    uri: str,
    rows: Iterable[Any],
    to_request: Callable[[T], RequestLike],
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

    rows: as `foreachPartition` hands them over; or the record batches of `mapInArrow`, or the
    frames of `mapInPandas`, each row of which is a dictionary then.
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
    check_whole("batch", batch, 1)
    check_choice("on_assertion", on_assertion, OnAssertion)
    check_choice("ack", ack, Ack)
    requests = (
        (row, _make_request(row, to_request, once, once_retention_ms)) for row in _list_rows(rows)
    )

    def refuse(refused: Refused[T]) -> int:
        for row, _, why in refused:
            if on_assertion == "fail" or not isinstance(why, AssertionFailedError):
                raise make_error(row, why) from why
        return 0

    worker = open_worker(Access(uri, table, transactions, policy))
    summary = commit_requests(worker, requests, refuse, batch=batch, ack=ack, trace=trace)
    if counts is not None:
        counts.add(summary)
    return summary


def commit_requests(
    worker: Worker,
    requests: Iterable[tuple[T, Request]],
    refuse: Callable[[Refused[T]], int],
    *,
    batch: int,
    ack: Ack = "complete",
    trace: Headers | None = None,
) -> Summary:
    """Commit requests, a batch at a time, and return what became of them.

    requests: each with its source, such as a row. batch: how many go together, if they are not
    large. refuse: gets those that did not commit, batch by batch. If it raises, later batches are
    not begun. It returns how many of them it has found to be repeated after all.
    trace: the parent of the transactions' spans, as `capture_trace` returns it.
    When it returns, or raises, everything that it committed is complete.
    """
    seen: Counter[str] = Counter()
    before = worker.events.copy()
    try:
        for some in divide_batches(requests, _weigh, size=batch, max_bytes=BATCH_BYTES):
            with continue_trace(trace):
                results = _commit_batch(worker.engine, [request for _, request in some], ack)
            seen.update(_name_result(result) for result in results)
            refused = [
                (source, request, result)
                for (source, request), result in zip(some, results, strict=True)
                if not isinstance(result, Committed)
            ]
            if refused:
                seen["repeated"] += (late := refuse(refused))
                seen["refused"] -= late
    finally:
        worker.engine.flush()
        flush_traces()  # Spark kills a worker that has nothing to do
    seen.update(worker.events - before)
    return Summary(*(seen[field.name] for field in fields(Summary)))


def make_error(row: object, why: TxnError) -> PartitionError:
    """Return the error of a task that names the row whose request did not commit, and why."""
    message = f"request failed: {type(why).__name__}: {why}"
    return PartitionError(message, row=row)


def _list_rows(rows: Iterable[Any]) -> Iterator[Any]:
    """Yield rows one by one, also those of record batches and of pandas' frames. Neither library is
    imported for that: a worker that has none of its objects does without it."""
    pyarrow, pandas = sys.modules.get("pyarrow"), sys.modules.get("pandas")
    for item in rows:
        if pyarrow is not None and isinstance(item, pyarrow.RecordBatch):
            yield from item.to_pylist()
        elif pandas is not None and isinstance(item, pandas.DataFrame):
            yield from item.to_dict("records")
        else:
            yield item


def _make_request(
    row: T,
    to_request: Callable[[T], RequestLike],
    once: Callable[[T], str | bytes] | None,
    once_retention_ms: int | None,
) -> Request:
    try:
        request = as_request(to_request(row))
        if once is not None:
            request = replace(request, once=as_bytes("once", once(row)))
    except InvalidRequestError as error:
        raise make_error(row, error) from error
    if once_retention_ms is None:
        return request
    return replace(request, once_retention_ms=once_retention_ms)


def _weigh(source: tuple[Any, Request]) -> int:
    """Return the bytes of a request's values. One without a list of mutations is refused later."""
    request = source[1]
    mutations = request.mutations if isinstance(request.mutations, list | tuple) else ()
    return sum(len(mutation.value) for mutation in mutations if isinstance(mutation, Mutation))


def _commit_batch(
    engine: Engine, requests: Sequence[Request], ack: Ack
) -> Sequence[Committed | TxnError]:
    """A batch with an invalid request wrote nothing: then each is sent alone, to find that one."""
    try:
        return engine.commit_many(requests, ack=ack)
    except InvalidRequestError as error:
        if len(requests) == 1:
            return [error]
        return [result for request in requests for result in _commit_batch(engine, [request], ack)]


def _name_result(result: Committed | TxnError) -> str:
    if not isinstance(result, Committed):
        return "refused"
    return "repeated" if result.repeated else "committed"
