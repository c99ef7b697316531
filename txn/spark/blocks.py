"""`run_partition`: tasks run a block, which reads and writes, for each row or group of rows.

With a `once` token a row's block commits once, whatever Spark does with its task. A committed row
is not run again: its balance may be too low by now. So the tokens of a batch are read first. A
block that another attempt of the task overtakes finds its token as it commits, and one that fails
or writes nothing looks for its token again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from txn.arguments import check_calls
from txn.client.block import OptimisticTransaction, refuse_unrun
from txn.client.engine import RUN_ATTEMPTS, Engine
from txn.errors import AssertionFailedError, InvalidRequestError, Repeated, TxnError
from txn.policy import Policy
from txn.protocol.codec import decode_first, require_same
from txn.protocol.row import marker_key
from txn.request import TRANSACTIONS, Ack, Request
from txn.spark import partitions
from txn.spark.tokens import Once, digest_rows, find_token, name_function
from txn.tracing import Headers, continue_trace


class RowRefusedError(TxnError):
    """Raised by the function of `run_partition`: nothing is written for this row."""


@check_calls
def run_partition(
    uri: str,
    rows: Iterable[Any],
    function: Callable[[OptimisticTransaction, Any], object],
    *,
    once: Once | None = None,
    job: str | None = None,
    once_retention_ms: int | None = None,
    group: Callable[[Any], object] | str | None = None,
    batch: int = partitions.BATCH,
    threads: int = 1,
    attempts: int = RUN_ATTEMPTS,
    deadline_ms: int | None = None,
    labels: Mapping[str, str] | None = None,
    validate: bool | None = None,
    counts: partitions.Counts | None = None,
    on_assertion: partitions.OnAssertion = "fail",
    ack: Ack = "complete",
    table: str | bytes | None = None,
    transactions: str | bytes = TRANSACTIONS,
    policy: Policy | None = None,
    trace: Headers | None = None,
) -> partitions.Summary:
    """Run a transaction that reads and writes for each row of a Spark partition.

    function: gets a block, as of `Engine.run`, and the row. A conflict runs it again, so it should
    have no other effects. It raises RowRefusedError, or its `block.require` fails, to write nothing
    for the row.
    group: the name of a column, or a function of a row. Adjacent rows with the same value are one
    transaction; `function` and `once` then get the list of them.
    once, job: as of `commit_partition`. A row whose token is committed is not run again.
    batch: the number of rows whose tokens are read together.
    threads: the number of blocks at once; with more than one they run in no order.
    on_assertion: whether a refused row fails the task, or only counts as refused.
    attempts, deadline_ms, labels, validate: of each block, as in `Engine.run`.
    The others are those of `commit_partition`. A block that writes nothing counts as committed.

    When it returns or raises, everything that it committed is complete. Raises PartitionError for
    the first row that failed: earlier rows stay committed, and some later ones with `threads`.
    """
    partitions.check_arguments(locals())
    if (found := partitions.find_rows(rows)) is None:
        return partitions.Summary()
    worker = partitions.open_worker(partitions.Access(uri, table, transactions, policy))
    options = {"attempts": attempts, "deadline_ms": deadline_ms, "labels": labels, "ack": ack}
    options["validate"] = validate
    if once is not None:
        options["once_retention_ms"] = once_retention_ms
    runner = _BlockRunner(worker.engine, function, on_assertion, options, trace)
    sources = found if group is None else _list_groups(found, group)
    target = name_function(function), table

    def make_item(source: Any) -> _Item:
        try:
            if once is None:
                return _Item(source, Request(()))
            rows = source if group is not None else [source]
            names = [source] if callable(once) else rows
            tokens = {find_token(each, once, job or "") for each in names}
            if len(tokens) > 1:
                raise InvalidRequestError("the rows of a group have several tokens", once=once)
            content = digest_rows(rows, target)
            return _Item(source, Request((), (), tokens.pop(), once_content=content, answer=b""))
        except Exception as error:
            raise partitions.make_error(source, error) from error

    seen: Counter[str] = Counter()
    with partitions.finish_work(worker, seen), ThreadPoolExecutor(threads) as pool:
        for some in partitions.divide_batches(
            map(make_item, sources), lambda _: 0, size=batch, max_bytes=1
        ):
            left = runner.drop_committed(some)
            seen["repeated"] += len(some) - len(left)
            for result, retries in (map if threads == 1 else pool.map)(runner.run, left):
                seen[result] += 1
                seen["retries"] += retries
    summary = partitions.Summary(**seen)
    if counts is not None:
        counts.add(summary)
    return summary


class _Item(NamedTuple):
    """A row, or the rows of a group. request: an empty one, with the token and its content."""

    source: Any
    request: Request


class _BlockRunner(NamedTuple):
    engine: Engine
    function: Callable[[OptimisticTransaction, Any], object]
    on_assertion: partitions.OnAssertion
    options: Mapping[str, Any]
    trace: Headers | None

    def drop_committed(self, items: Sequence[_Item]) -> Sequence[_Item]:
        """Return the items whose token is not committed, read at once. Raise PartitionError if one
        is committed with another content."""
        table = self.engine.context.table
        keys = {i.request.once: marker_key(table, i.request.once) for i in items if i.request.once}
        cells = self.engine.read(keys.values())
        left = []
        found = b""
        for item in items:
            token = item.request.once
            if token is None or (cell := cells[keys[token]]) is None:
                left.append(item)
                continue
            found = token
            try:
                require_same(item.request, decode_first(cell, keys[token]))
            except TxnError as error:
                raise partitions.make_error(item.source, error) from error
        if found:
            self.engine.find_once(found)  # makes all that was read durable
        return left

    def run(self, item: _Item) -> tuple[str, int]:
        """Return what became of the item, and the number of retries."""
        calls: list[OptimisticTransaction] = []

        def call(block: OptimisticTransaction) -> object:
            calls.append(block)
            return refuse_unrun(self.function, self.function(block, item.source))

        once, content = item.request.once, item.request.once_content
        try:
            with continue_trace(self.trace):
                self.engine.run(call, once=once, once_content=content, **self.options)
        except Repeated:
            outcome = "repeated"
        except Exception as error:
            is_refused = isinstance(error, AssertionFailedError | RowRefusedError)
            if not is_refused or self.on_assertion == "fail":
                raise partitions.make_error(item.source, error) from error
            outcome = "refused"
        else:
            result = calls[-1].result if calls else None
            is_new = not result.repeated if result else bool(self.drop_committed([item]))
            outcome = "committed" if is_new else "repeated"
        return outcome, max(0, len(calls) - 1)


def _list_groups(rows: Iterator[Any], group: Callable[[Any], object] | str) -> Iterator[list[Any]]:
    closed = set()
    for value, members in groupby(rows, group if callable(group) else itemgetter(group)):
        some = list(members)
        if value in closed:
            error = InvalidRequestError(partitions.SPLIT, group=value)
            raise partitions.make_error(some[0], error)
        closed.add(value)
        yield some
