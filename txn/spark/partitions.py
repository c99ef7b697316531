"""`commit_partition`: tasks commit requests in batches, and count them for the driver.
`bind_partition` checks its arguments, and those of `run_partition`, before a job starts.

The writers of the data source use it as well. Spark may run a task again, even twice at once. With
a `once` token for each row this changes nothing: the second run gets the results of the first. A
Python worker opens one engine per store, after the fork, and keeps it for all its tasks.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from functools import cache
from itertools import chain
from logging import getLogger
from operator import add
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar

from pyspark import Accumulator, AccumulatorParam, SparkContext, TaskContext
from pyspark.accumulators import _deserialize_accumulator
from pyspark.sql import SparkSession

from txn.arguments import check_calls
from txn.assertions import Assertion
from txn.client.connect import connect
from txn.client.engine import Engine
from txn.errors import AssertionFailedError, InvalidRequestError, TokenReusedError, TxnError
from txn.events import Conflict, Event, Helped, Listener, silent
from txn.model import Delete, Key, Mutation, as_bytes, check_whole
from txn.policy import Policy
from txn.request import (
    TRANSACTIONS,
    Ack,
    Committed,
    Request,
    as_request,
    check_deadline,
    make_request,
)
from txn.spark.tokens import Once, digest_rows, find_token, name_function
from txn.tracing import Headers, continue_trace, flush_traces

BATCH = 250
"""The usual number of rows in a batch: an engine commits about as many small requests together."""

BATCH_BYTES = 8_000_000
"""The approximate limit of the values in a batch; a server refuses more."""

LOG = getLogger("txn")
T = TypeVar("T")
P = ParamSpec("P")
RequestLike = Request | tuple[Iterable[Mutation | Delete], Iterable[Assertion]]
OnAssertion = Literal["fail", "count"]
Refused = Sequence[tuple[T, Request, TxnError]]
"""The requests of a batch that did not commit, each with its source and the error."""

REUSED = "; repartition by the group if it is split, and give other rows or jobs other names"
SPLIT = (
    "the rows of a group do not stand together: repartition by it, and sort by it within partitions"
)
REPEATED = "%d rows were committed before: by this job, by another of its name, or as equal rows"

YOUNG_OBJECTS = 10_000
"""The number of new objects between two garbage collections of a worker."""


@dataclass(frozen=True, slots=True)
class Access:
    """How a task opens its store, as in `txn.connect`; nothing is created."""

    uri: str = field(repr=False)
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
    if TaskContext.get() is not None:
        # Collect garbage less often, and never among existing objects. For a batch of many small
        # objects, collection took a sixth of a commit's time.
        gc.collect()
        gc.freeze()
        young, *older = gc.get_threshold()
        gc.set_threshold(max(young, YOUNG_OBJECTS), *older)
    events = EventCounter()
    return Worker(access.open_engine(silent if access.uri.startswith("txn:") else events), events)


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


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of requests, counted.

    repeated: their `once` token had been committed before. refused: an assertion was false, the
    function of `run_partition` refused the row or, if the data source's writer keeps rejects, the
    transaction was aborted by a conflict.
    conflicts: locks that other transactions held. helped: others' transactions finished.
    retries: further runs of the function of `run_partition`, after conflicts.
    """

    committed: int = 0
    repeated: int = 0
    refused: int = 0
    conflicts: int = 0
    helped: int = 0
    retries: int = 0

    def __add__(self, other: Summary) -> Summary:
        return Summary(*map(add, astuple(self), astuple(other)))


class _StageCounts(NamedTuple):
    summary: Summary = Summary()
    stage: int | None = None


class _StageDisplay:
    """Named accumulators on the pages of stages in Spark's UI.

    Spark shows accumulators of the JVM alone, which tasks in Python cannot add to. So the driver
    adds to them, and enters them for the stage, while Spark's scheduler waits for Python to take
    the counts of a task. The stages are no public interface: if they change, the UI lacks the
    numbers.
    """

    def __init__(self, context: SparkContext, name: str) -> None:
        self._jvm: Any = context._jvm
        self._context: Any = context._jsc.sc()
        self._accumulators = {
            field.name: self._context.longAccumulator(f"{name} {field.name}")
            for field in fields(Summary)
        }

    def show(self, summary: Summary, stage: int | None) -> None:
        option = self._jvm.scala.Option
        with suppress(Exception):
            shown = self._context.dagScheduler().stageIdToStage().apply(stage).latestInfo()
            for name, number in asdict(summary).items():
                if number:
                    accumulator = self._accumulators[name]
                    accumulator.add(number)
                    info = accumulator.toInfo(option.empty(), option.apply(accumulator.value()))
                    shown.accumulables().put(accumulator.id(), info)


class _SummaryParam(AccumulatorParam[_StageCounts]):
    """display: None in tasks."""

    def __init__(self, display: _StageDisplay | None = None) -> None:
        self._display = display

    def __reduce__(self) -> tuple[Any, ...]:
        return _SummaryParam, ()

    def zero(self, value: _StageCounts) -> _StageCounts:
        return _StageCounts()

    def addInPlace(self, value1: _StageCounts, value2: _StageCounts) -> _StageCounts:
        if self._display is not None:
            self._display.show(*value2)
        return _StageCounts(value1.summary + value2.summary, value2.stage)


@dataclass(frozen=True, slots=True)
class Counts:
    """A Summary for the driver to read, which grows with each task that succeeds.

    Spark adds the counts of a task once, however often the task ran. So with `once`, committed and
    repeated together are exactly the rows.
    """

    accumulator: Accumulator[_StageCounts]

    @classmethod
    def of(cls, spark: SparkSession, name: str = "txn") -> Counts:
        """Return new counts. Spark's UI shows them as `NAME committed` and so on."""
        param = _SummaryParam(_StageDisplay(spark.sparkContext, name))
        return cls(spark.sparkContext.accumulator(_StageCounts(), param))

    def add(self, summary: Summary) -> None:
        context = TaskContext.get()
        self.accumulator.add(_StageCounts(summary, context.stageId() if context else None))

    def name_accumulator(self) -> str:
        """Return the text for the option `counts` of a write, since options cannot hold objects."""
        return str(self.accumulator.aid)

    @classmethod
    def find(cls, name: str) -> Counts:
        """Return the counts that the text names; called in the task."""
        return cls(_deserialize_accumulator(int(name), _StageCounts(), _SummaryParam()))

    def summary(self) -> Summary:
        return self.accumulator.value.summary


class PartitionError(TxnError):
    """A request of the task did not commit; its message names the first such request, its row and
    the error. If the cause is CommitOutcomeUnknown, the request may have committed."""

    written = "unknown"


def bind_partition(
    task: Callable[Concatenate[str, Iterable[Any], P], Summary],
    uri: str,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Callable[[Iterable[Any]], Any]:
    """Return `commit_partition` or `run_partition` with its arguments, for `foreachPartition`.

    The arguments and the store are checked here, in the driver, before a job starts. Raises
    TypeError for an argument that is unknown or missing, InvalidRequestError for one that does not
    fit or names a table that is absent, and StoreError if the store does not answer.
    """
    if not callable(task) or not {"uri", "rows"} <= inspect.signature(task).parameters.keys():
        raise InvalidRequestError("task must be commit_partition or run_partition", given=task)
    task(uri, (), *args, **kwargs)  # checks the arguments; without rows it opens no store
    given = inspect.signature(task).bind(uri, (), *args, **kwargs).arguments
    access = Access(
        **{each.name: given[each.name] for each in fields(Access) if each.name in given}
    )
    with access.open_engine() as engine:
        table = None if access.table is None else as_bytes("table", access.table)
        if table is not None and engine.context.store.describe(table) is None:
            raise InvalidRequestError("no such table: create it with ensure_table", table=table)
    return lambda rows: task(uri, rows, *args, **kwargs)


@check_calls
def commit_partition(
    uri: str,
    rows: Iterable[Any],
    to_request: Callable[[T], RequestLike],
    *,
    once: Once | None = None,
    job: str | None = None,
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
    once: returns what names a row, the same every time; or the name of a column. The token is
    `/JOB//RESULT` or `/JOB//COLUMN/VALUE`, and replaces that of the Request. Another row with it
    is an error. Without tokens a task that runs again commits again, and fails on assertions that
    its first run made false.
    job: the name of the job, required by `once`.
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
    check_arguments(locals())
    if (found := find_rows(rows)) is None:
        return Summary()
    target = name_function(to_request), table

    def build(row: T) -> tuple[T, Request]:
        try:
            request = as_request(to_request(row))
            token = request.once if once is None else find_token(row, once, job or "")
            content = request.once_content
            if content is None and token is not None:
                content = digest_rows([row], target)
            ms = request.once_retention_ms if once_retention_ms is None else once_retention_ms
            return row, replace(request, once=token, once_content=content, once_retention_ms=ms)
        except Exception as error:
            raise make_error(row, error) from error

    def refuse(refused: Refused[T]) -> int:
        for row, _, why in refused:
            if on_assertion == "fail" or not isinstance(why, AssertionFailedError):
                raise make_error(row, why) from why
        return 0

    worker = open_worker(Access(uri, table, transactions, policy))
    summary = commit_requests(worker, map(build, found), refuse, batch=batch, ack=ack, trace=trace)
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
    with finish_work(worker, seen):
        for some in divide_batches(requests, _weigh, size=batch, max_bytes=BATCH_BYTES):
            with continue_trace(trace):
                results = _commit_batch(worker.engine, [request for _, request in some], ack)
            refused = []
            for (source, request), result in zip(some, results, strict=True):
                if isinstance(result, Committed):
                    seen["repeated" if result.repeated else "committed"] += 1
                else:
                    refused.append((source, request, result))
            if refused:
                seen["repeated"] += (late := refuse(refused))
                seen["refused"] += len(refused) - late
    return Summary(**seen)


@contextmanager
def finish_work(worker: Worker, seen: Counter[str]) -> Iterator[None]:
    """Let all that the block commits be complete at its end, and count the events."""
    before = worker.events.copy()
    try:
        yield
    finally:
        worker.engine.flush()
        flush_traces()  # Spark kills an idle worker
    seen.update(worker.events - before)
    context = TaskContext.get()
    if seen["repeated"] and context is not None and context.attemptNumber() == 0:
        LOG.warning(REPEATED, seen["repeated"])


def check_arguments(given: Mapping[str, Any]) -> None:
    if given["once"] is not None and not given["job"]:
        problem = "once needs job, a name: two jobs over the same ids would share tokens"
        raise InvalidRequestError(problem, once=given["once"])
    for name in ("batch", "threads", "attempts"):
        check_whole(name, given.get(name, 1), 1)
    check_deadline(given.get("deadline_ms"))
    probe = (Delete(Key(b"-", b"-", b"-")),)
    details = given.get("labels"), given["once_retention_ms"]
    make_request(probe, (), b"-", *details, validate=given.get("validate"))


def make_error(row: object, why: Exception) -> PartitionError:
    advice = REUSED if isinstance(why, TokenReusedError) else ""
    return PartitionError(f"request failed: {type(why).__name__}: {why}{advice}", row=row)


def find_rows(rows: Iterable[Any]) -> Iterator[Any] | None:
    """Return the rows of a partition one by one, or None if there are none."""
    found = _list_rows(rows)
    for first in found:
        return chain([first], found)
    return None


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
