"""The engine of a Python worker: one per store, opened after Spark has forked the worker and kept
for all its tasks, with the events that it has counted."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from pyspark import TaskContext

from txn.client.connect import connect
from txn.client.engine import Engine
from txn.events import Conflict, Event, Helped, Listener, silent
from txn.policy import Policy
from txn.request import TRANSACTIONS

T = TypeVar("T")

YOUNG_OBJECTS = 10_000
"""The number of new objects between two garbage collections of a worker."""


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


@dataclass(frozen=True, slots=True)
class Worker:
    """The engine of this process, and the events that its listener has counted."""

    engine: Engine
    events: Counter[str]


class EventCounter:
    """A listener that counts conflicts and help; it asks for no measurements of calls."""

    wants_calls = False

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()

    def __call__(self, event: Event) -> None:
        match event:
            case Conflict():
                self.events["conflicts"] += 1
            case Helped():
                self.events["helped"] += 1


@cache
def open_worker(access: Access) -> Worker:
    """Return this process's engine for a store, which all tasks share. Events of a server's engine
    happen in the server and are not counted."""
    _calm_collector()
    count = EventCounter()
    is_server = access.uri.startswith("txn:")
    return Worker(access.open_engine(silent if is_server else count), count.events)


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
