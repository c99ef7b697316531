"""`commit_partition`: tasks commit requests in batches, and count them for the driver.

The writers of the data source use it as well. Spark may run a task again, even twice at once. With
a `once` token for each row this changes nothing: the second run gets the results of the first. A
Python worker opens one engine per store, after the fork, and keeps it for all its tasks.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cache
from operator import add
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from pyspark import Accumulator, AccumulatorParam, TaskContext
from pyspark.accumulators import _deserialize_accumulator
from pyspark.sql import SparkSession

from txn.assertions import Assertion
from txn.client.connect import connect
from txn.client.engine import Engine
from txn.errors import AssertionFailedError, InvalidRequestError, TxnError
from txn.events import Conflict, Event, Helped, Listener, silent
from txn.model import Delete, Mutation, as_bytes, check_choice, check_whole
from txn.policy import Policy
from txn.request import ACKS, TRANSACTIONS, Ack, Committed, Request, as_request
from txn.tracing import Headers, continue_trace, flush_traces

BATCH = 250
"""The usual number of rows in a batch: an engine commits about as many small requests together."""

BATCH_BYTES = 8_000_000
"""The approximate limit of the values in a batch; a server refuses more."""

T = TypeVar("T")
RequestLike = Request | tuple[Iterable[Mutation | Delete], Iterable[Assertion]]
OnAssertion = Literal["fail", "count"]
Refused = Sequence[tuple[T, Request, TxnError]]
"""The requests of a batch that did not commit, each with its source and the error."""

YOUNG_OBJECTS = 10_000
"""The number of new objects between two garbage collections of a worker."""


# ---------------------------------------------------------------------------------------- workers


@dataclass(frozen=True, slots=True)
class Access:
    """How a task opens its store, as in `txn.connect`. Nothing is created: a wrong name is an
    error."""

    uri: str
    table: str | bytes | None = None
    transactions: str | bytes = TRANSACTIONS
    policy: Policy | None = None

    def open_engine(self, on_event: Listener = silent) -> Engine:
        """Open an engine that the caller closes: for planning, and in the driver."""
        return connect(
            self.uri,
            table=self.table,
            transactions=self.transactions,
            policy=self.policy,
            on_event=on_event,
            create=False,
        )


class EventCounter(Counter[str]):
    """A listener that counts conflicts and help; it asks for no measurements of calls."""

    wants_calls = False

    def __call__(self, event: Event) -> None:
        match event:
            case Conflict():
                self["conflicts"] += 1
            case Helped():
                self["helped"] += 1


class Worker(NamedTuple):
    """The engine of this process, and the events that its listener has counted."""

    engine: Engine
    events: EventCounter


@cache
def open_worker(access: Access) -> Worker:
    """Return this process's engine for a store, which all tasks share. Events of a server's engine
    happen in the server and are not counted."""
    _calm_collector()
    events = EventCounter()
    is_server = access.uri.startswith("txn:")
    return Worker(access.open_engine(silent if is_server else events), events)


def divide_batches(
    items: Iterable[T], weigh: Callable[[T], int], *, size: int, max_bytes: int
) -> Iterator[list[T]]:
    """Yield lists of `size` items, or fewer if they are large: a worker has little memory."""
    batch: list[T] = []
    weight = 0
    for item in items:
        batch.append(item)
        weight += weigh(item)
        if len(batch) >= size or weight >= max_bytes:
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch


def find_partition() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


def _calm_collector() -> None:
    """Collect garbage less often in a Spark worker, and never among existing objects. For a batch
    of many small objects, collection took a sixth of a commit's time."""
    if TaskContext.get() is None:
        return
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    gc.set_threshold(max(young, YOUNG_OBJECTS), *older)


# ----------------------------------------------------------------------------------------- counts


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of requests, counted.

    repeated: their `once` token had been committed before. refused: an assertion was false or, if
    the data source's writer keeps rejects, the transaction was aborted by a conflict.
    conflicts: locks that other transactions held. helped: others' transactions finished.
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
    """A Summary for the driver to read, which grows with each task that succeeds.

    Spark adds the counts of a task once, however often the task ran. So with `once`, committed and
    repeated together are exactly the rows.
    """

    accumulator: Accumulator[Summary]

    @classmethod
    def of(cls, spark: SparkSession) -> Counts:
        return cls(spark.sparkContext.accumulator(Summary(), _SummaryParam()))

    def add(self, summary: Summary) -> None:
        self.accumulator.add(summary)

    def name_accumulator(self) -> str:
        """Return the text for the option `counts` of a write, since options cannot hold objects."""
        return str(self.accumulator.aid)

    @classmethod
    def find(cls, name: str) -> Counts:
        """Return the counts that the text names; called in the task."""
        return cls(_deserialize_accumulator(int(name), Summary(), _SummaryParam()))

    def summary(self) -> Summary:
        return self.accumulator.value


class PartitionError(TxnError):
    """A request of the task did not commit; its message names the first such request, its row and
    the error. If the cause is CommitOutcomeUnknown, the request may have committed."""


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
    """Commit a transaction for each row of a Spark partition, in batches.

    rows: as `foreachPartition` passes them; or the record batches of `mapInArrow`, or the frames of
    `mapInPandas`, whose rows become dictionaries.
    to_request: returns a row's transaction, a Request or (mutations, assertions).
    once: returns a row's token, which must be the same every time; it replaces a token in the
    Request. Without tokens a task that runs again commits again, and fails on assertions that its
    first run made false.
    once_retention_ms: a promise that Spark runs no task of the job again later than this after its
    commits, so that fsck may then delete the tokens; see `Engine.commit`.
    on_assertion: whether a false assertion fails the task, or only counts as refused.
    batch: the most rows of a batch; batches of large rows are smaller.
    table, transactions, policy: as in `txn.connect`.
    trace: the result of `txn.tracing.capture_trace` in the driver, the transactions' parent span.

    When it returns or raises, everything that it committed is complete. Raises PartitionError for a
    failed request: earlier batches and the rest of its own batch stay committed; later batches do
    not begin. If a row makes no valid request, its own batch does not begin either.
    """
    check_whole("batch", batch, 1)
    check_choice("on_assertion", on_assertion, get_args(OnAssertion))
    check_choice("ack", ack, ACKS)
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
    """Commit requests in batches, and return the counts.

    requests: each with its source, such as a row. batch: the most requests of a batch.
    refuse: gets the requests of a batch that did not commit, and returns how many of them turned
    out to be repeated. If it raises, later batches do not begin.
    trace: the parent of the transactions' spans, as `capture_trace` returns it.
    When it returns or raises, everything that it committed is complete.
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
        flush_traces()  # Spark kills an idle worker
    seen.update(worker.events - before)
    return Summary(*(seen[field.name] for field in fields(Summary)))


def make_error(row: object, why: TxnError) -> PartitionError:
    message = f"request failed: {type(why).__name__}: {why}"
    return PartitionError(message, row=row)


def _list_rows(rows: Iterable[Any]) -> Iterator[Any]:
    """Yield rows one by one, also from record batches and pandas frames. Neither library is
    imported: a worker without them cannot have such objects."""
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
    given: dict[str, Any] = {}
    try:
        request = as_request(to_request(row))
        if once is not None:
            given["once"] = as_bytes("once", once(row))
        if once_retention_ms is not None:
            given["once_retention_ms"] = once_retention_ms
        return replace(request, **given) if given else request
    except InvalidRequestError as error:
        raise make_error(row, error) from error


def _weigh(source: tuple[Any, Request]) -> int:
    request = source[1]
    mutations = request.mutations if isinstance(request.mutations, list | tuple) else ()
    return sum(len(mutation.value) for mutation in mutations if isinstance(mutation, Mutation))


def _commit_batch(
    engine: Engine, requests: Sequence[Request], ack: Ack
) -> Sequence[Committed | TxnError]:
    """Commit a batch, or, if an invalid request fails it before any write, each request alone."""
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
