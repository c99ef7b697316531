"""An engine for asyncio: the same transactions, awaited.

Commits go through `Engine.submit`, so that thousands of tasks gather in batches and need no thread
each. What else blocks is done by a bounded number of threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeVar

from txn.assertions import Assertion
from txn.client.block import OptimisticTransaction, Repeats
from txn.client.connect import connect
from txn.client.engine import RUN_ATTEMPTS, Engine, Given
from txn.client.hot_keys import Ticket
from txn.errors import ConflictError, TxnError
from txn.model import Cell, Delete, Key, Mutation, Row, as_bytes, check_whole
from txn.request import Ack, Committed, Outcome, Request, check_deadline
from txn.spans import Columns

THREADS = 16
PAGE_ROWS = 200
T = TypeVar("T")


@asynccontextmanager
async def connect_async(
    uri: str, *, threads: int = THREADS, **arguments: Any
) -> AsyncIterator[AsyncEngine]:
    """Open a store as `txn.connect` does, whose arguments these are, and give an AsyncEngine on it,
    which is closed at the end of the block."""
    async with AsyncEngine(
        await asyncio.to_thread(partial(connect, uri, **arguments)), threads=threads
    ) as engine:
        yield engine


class AsyncEngine:
    """What an Engine does, for tasks of one event loop; `engine` is that engine.

    threads: how many reads, scans and ends of blocks go on at a time; commits need none.

    A task that is cancelled as it waits for a commit is cancelled at once. If the commit's batch
    had not begun, nothing is written; if it had, the commit goes on, and may happen. Who has to
    know gives the request a `once` token, and commits it again.
    """

    def __init__(self, engine: Engine, *, threads: int = THREADS) -> None:
        check_whole("threads", threads, 1)
        self.engine = engine
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="txn-async")
        self._met: set[tuple[bytes | None, bytes]] = set()  # tables and families

    # ----------------------------------------------------------------------------- committing

    async def commit(
        self,
        mutations: Iterable[Mutation | Delete],
        assertions: Iterable[Assertion] = (),
        *,
        once: str | bytes | None = None,
        once_retention_ms: int | None = None,
        labels: Mapping[str, str] | None = None,
        ack: Ack = "complete",
        deadline_ms: int | None = None,
    ) -> Committed:
        """Apply all mutations if all assertions hold, else none: see `Engine.commit`."""
        token = None if once is None else as_bytes("once", once)
        request = Request(
            tuple(mutations), tuple(assertions), token, dict(labels or {}), once_retention_ms
        )
        await self._check(request)
        future = self.engine.submit(request, ack=ack, deadline_ms=deadline_ms)
        return await asyncio.wrap_future(future)

    async def _check(self, request: Request) -> None:
        """Have a thread look up what was not met yet, which may take long."""
        try:
            places = {(key.table, key.family) for key in request.keys}
        except (AttributeError, TypeError):
            return  # what is wrong with it is told when it is submitted
        if not places <= self._met:
            await self.work(partial(self.engine.check_request, request))
            self._met |= places

    async def commit_many(
        self,
        requests: Iterable[Given],
        *,
        ack: Ack = "complete",
        deadline_ms: Sequence[int | None] | None = None,
    ) -> list[Committed | TxnError]:
        """Commit many independent transactions together: see `Engine.commit_many`."""
        wanted = list(requests)
        times = None if deadline_ms is None else [self._count_down(each) for each in deadline_ms]
        return await self.work(
            lambda: self.engine.commit_many(
                wanted, ack=ack, deadline_ms=None if times is None else [left() for left in times]
            )
        )

    # -------------------------------------------------------------------------------- reading

    async def read(
        self, keys: Collection[Key], *, deadline_ms: int | None = None
    ) -> dict[Key, Cell | None]:
        """Return the keys' cells as of one instant: see `Engine.read`."""
        left_ms = self._count_down(deadline_ms)
        return await self.work(lambda: self.engine.read(keys, deadline_ms=left_ms()))

    async def scan(
        self,
        table: str | bytes | None = None,
        start: str | bytes = b"",
        stop: str | bytes | None = None,
        *,
        prefix: str | bytes | None = None,
        columns: Columns | None = None,
        snapshot: bool = False,
        deadline_ms: int | None = None,
    ) -> AsyncIterator[Row]:
        """Yield rows in order, as `Engine.scan` does."""
        scan = partial(
            self.engine.scan, table, start, stop, prefix=prefix, columns=columns, snapshot=snapshot
        )
        left_ms = self._count_down(deadline_ms)
        rows = await self.work(lambda: scan(deadline_ms=left_ms()))
        while page := await self.work(lambda: list(islice(rows, PAGE_ROWS))):
            for row in page:
                yield row

    # --------------------------------------------------------------------------- interactively

    def transaction(
        self,
        *,
        once: str | bytes | None = None,
        once_retention_ms: int | None = None,
        labels: Mapping[str, str] | None = None,
        ack: Ack = "complete",
        deadline_ms: int | None = None,
    ) -> AsyncTransaction:
        """Return a transaction for one `async with` block, which commits it at its end: see
        `Engine.transaction`. Tasks take no turns at keys in demand, as threads do."""
        return self._begin(
            lambda: deadline_ms,
            lambda: deadline_ms,
            once=once,
            once_retention_ms=once_retention_ms,
            labels=labels,
            ack=ack,
        )

    async def run(
        self,
        function: Callable[[AsyncTransaction], Awaitable[T]],
        *,
        attempts: int = RUN_ATTEMPTS,
        deadline_ms: int | None = None,
        once: str | bytes | None = None,
        once_retention_ms: int | None = None,
        labels: Mapping[str, str] | None = None,
        ack: Ack = "complete",
    ) -> T:
        """Await a function with a transaction, commit, and return what the function returned; do
        all of it again on a ConflictError: see `Engine.run`."""
        repeats = Repeats(self.engine.pace, attempts, deadline_ms)
        while repeats.begin():
            try:
                async with self._begin(
                    repeats.left_ms,
                    repeats.read_ms,
                    once=once,
                    once_retention_ms=once_retention_ms,
                    labels=labels,
                    ack=ack,
                ) as t:
                    return await function(t)
            except ConflictError as error:
                await asyncio.sleep(repeats.note(error) / 1000)
        raise repeats.make_error()

    def _begin(self, *times: Callable[[], int | None], **arguments: Any) -> AsyncTransaction:
        # A thread that waited for a turn would be missing to whoever has it.
        block = self.engine.begin_block(*times, ticket=Ticket(waits=False), **arguments)
        return AsyncTransaction(block, self.work)

    # ------------------------------------------------------------------------ tables and ending

    async def outcome(self, transaction: str | bytes) -> Outcome:
        """Return what has become of a transaction, by its row key."""
        return await self.work(partial(self.engine.outcome, transaction))

    async def ensure_table(self, table: str | bytes, families: Iterable[str | bytes]) -> None:
        """Create the table and those of its families that are missing."""
        await self.work(partial(self.engine.ensure_table, table, list(families)))

    async def flush(self) -> None:
        """Wait until everything that was committed is complete, or left to others."""
        await self.work(self.engine.flush)

    async def close(self) -> None:
        """Wait for what is under way, and close the engine."""
        await self.work(self.engine.close)
        self._pool.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _count_down(self, deadline_ms: int | None) -> Callable[[], int | None]:
        """Return what tells how many ms are left, however long a thread has to be waited for."""
        check_deadline(deadline_ms)
        if deadline_ms is None:
            return lambda: None
        due_ms = self.engine.pace.clock.monotonic_ms() + deadline_ms
        return lambda: due_ms - self.engine.pace.clock.monotonic_ms()

    async def work(self, function: Callable[[], T]) -> T:
        """Call a function that blocks in one of the threads, in the task's context. Cancelled, it
        is left to end there."""
        call = partial(copy_context().run, function)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)


Work = Callable[[Callable[[], Any]], Awaitable[Any]]


class AsyncTransaction:
    """One block's reads and writes, awaited: see `OptimisticTransaction`. A block that is cancelled
    writes nothing, unless it was committing already."""

    def __init__(self, block: OptimisticTransaction, work: Work) -> None:
        self._block = block
        self._work = work

    @property
    def result(self) -> Committed | None:
        """After the block: the Committed, or None where it wrote nothing."""
        return self._block.result

    async def get(self, key: Key) -> bytes | None:
        """Return the key's value, or None: what this block wrote, else what it read first."""
        return (await self.get_many([key]))[key]

    async def get_many(self, wanted: Collection[Key]) -> dict[Key, bytes | None]:
        """Return the values of keys."""
        values: dict[Key, bytes | None] = await self._work(partial(self._block.get_many, wanted))
        return values

    async def scan(
        self,
        table: str | bytes | None = None,
        start: str | bytes = b"",
        stop: str | bytes | None = None,
        *,
        prefix: str | bytes | None = None,
        columns: Columns | None = None,
    ) -> list[Row]:
        """Return the rows of a range that have a value, in order, with what this block wrote."""
        scan = partial(self._block.scan, table, start, stop, prefix=prefix, columns=columns)
        rows: list[Row] = await self._work(scan)
        return rows

    def put(self, key: Key, value: str | bytes) -> None:
        """Set the key's value when the block commits."""
        self._block.put(key, value)

    def delete(self, key: Key) -> None:
        """Remove the key when the block commits."""
        self._block.delete(key)

    def require(self, assertion: Assertion) -> None:
        """Commit only if the assertion holds of the stored cells as they are before this block's
        own changes."""
        self._block.require(assertion)

    async def increment(self, key: Key, by: int = 1) -> int:
        """Add to a counter; return its new value."""
        total: int = await self._work(partial(self._block.increment, key, by))
        return total

    async def append(self, key: Key, value: str | bytes) -> bytes:
        """Add bytes to the end of the key's value; return all of it."""
        whole: bytes = await self._work(partial(self._block.append, key, value))
        return whole

    async def __aenter__(self) -> Self:
        self._block.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._block.__exit__(kind, error, trace)  # which only closes it
        else:
            await self._work(partial(self._block.__exit__, None, None, None))
