"""A task commits requests, a batch at a time, and counts them for the driver: what
`commit_partition`, the writer and the sink of the data source stand on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Self, TypeVar

from pyspark import Accumulator, SparkContext
from pyspark.accumulators import AddingAccumulatorParam, _deserialize_accumulator
from pyspark.sql import SparkSession

from txn.client.engine import Engine
from txn.errors import InvalidRequestError, TxnError
from txn.model import Mutation
from txn.request import Ack, Committed, Request
from txn.spark.workers import Worker
from txn.tracing import Headers, continue_trace, flush_traces

BATCH_BYTES = 8_000_000
"""Of the values of a batch, about: a worker has little memory, and a server refuses more."""

T = TypeVar("T")
Refused = Sequence[tuple[T, Request, TxnError]]
"""What did not commit of a batch: for whom a request was, the request, and why."""


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

    def name_accumulators(self) -> str:
        """Return the text for the option `counts` of a write, which carries no objects."""
        return ",".join(str(getattr(self, field.name).aid) for field in fields(self))

    @classmethod
    def find_accumulators(cls, names: str) -> Self:
        """Return the counts that the text names; called in the task."""
        param = AddingAccumulatorParam(0)
        return cls(*(_deserialize_accumulator(int(name), 0, param) for name in names.split(",")))

    def summary(self) -> Summary:
        """Return the present values; called in the driver."""
        return Summary(**{field.name: getattr(self, field.name).value for field in fields(Summary)})


class PartitionError(TxnError):
    """A request of the task did not commit, or, where its cause is a CommitOutcomeUnknown, perhaps
    did: its message names the first one, its row and why."""


def commit_requests(
    worker: Worker,
    wanted: Iterable[tuple[T, Request]],
    refuse: Callable[[Refused[T]], int],
    *,
    batch: int,
    ack: Ack = "complete",
    trace: Headers | None = None,
) -> Summary:
    """Commit requests, a batch at a time, and return what became of them.

    wanted: each with what it is for, such as a row. batch: how many go together, if they are not
    large. refuse: told of those that did not commit, batch by batch; what it raises ends all, and
    later batches are not begun. It returns how many of them it has found to be repeated after all.
    trace: under which span those of the transactions are, as `capture_trace` tells it.
    When it returns, or raises, everything that it committed is complete.
    """
    seen: Counter[str] = Counter()
    before = worker.events.copy()
    try:
        for some in _batches(wanted, batch):
            with continue_trace(trace):
                results = _results(worker.engine, [request for _, request in some], ack)
            seen.update(_kind(result) for result in results)
            refused = [
                (given, request, result)
                for (given, request), result in zip(some, results, strict=True)
                if not isinstance(result, Committed)
            ]
            if refused:
                seen["repeated"] += (late := refuse(refused))
                seen["refused"] -= late
    finally:
        worker.engine.flush()
        flush_traces()  # Spark kills a worker that has nothing to do
    seen.update(worker.events - before)
    return Summary(**{field.name: seen[field.name] for field in fields(Summary)})


def _batches(wanted: Iterable[tuple[T, Request]], size: int) -> Iterator[list[tuple[T, Request]]]:
    """Yield the requests, so many together, or fewer where they are large."""
    batch: list[tuple[T, Request]] = []
    weight = 0
    for each in wanted:
        batch.append(each)
        weight += _weigh(each[1])
        if len(batch) >= size or weight >= BATCH_BYTES:
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch


def _weigh(request: Request) -> int:
    """Return the bytes of a request's values. One without a list of mutations is refused later."""
    mutations = request.mutations if isinstance(request.mutations, list | tuple) else ()
    return sum(len(mutation.value) for mutation in mutations if isinstance(mutation, Mutation))


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
        case _:
            return "refused"


def make_error(row: object, why: TxnError) -> PartitionError:
    """Return the error of a task that names the row whose request did not commit, and why."""
    message = f"request failed: {type(why).__name__}: {why}"
    return PartitionError(message, row=row)
