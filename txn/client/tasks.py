"""An engine for asyncio: the same transactions, awaited.

The methods take their signatures from the blocking ones. Commits go through `Engine.submit`, so
that thousands of tasks share batches and need no thread each; a bounded number of threads makes all
other calls that block.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial, wraps
from itertools import islice
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from txn.assertions import Assertion
from txn.client.block import OptimisticTransaction, Repeats
from txn.client.connect import connect
from txn.client.engine import RUN_ATTEMPTS, Engine
from txn.client.hot_keys import HotKeyTicket
from txn.clock import Clock
from txn.errors import ConflictError
from txn.model import Delete, Key, Mutation, Row, as_bytes, check_whole
from txn.request import Ack, Committed, Request

THREADS = 16
PAGE_ROWS = 200
P = ParamSpec("P")
R = TypeVar("R")
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


class Threads:
    """A bounded number of threads for calls that block. A `deadline_ms` counts from the call, and
    not from when there is a thread for it."""

    def __init__(self, count: int, clock: Clock) -> None:
        self._clock = clock
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="txn-async")

    async def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call the function in a thread, in the task's context. If the task is cancelled, the
        thread carries on with the call."""
        called_ms = self._clock.monotonic_ms()

        def work() -> T:
            waited_ms = self._clock.monotonic_ms() - called_ms
            if "deadline_ms" in kwargs:
                kwargs["deadline_ms"] = _subtract(kwargs["deadline_ms"], waited_ms)
            return function(*args, **kwargs)

        call = partial(copy_context().run, work)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        """Take no more calls."""
        self._pool.shutdown(wait=False)


def _subtract(deadline_ms: Any, waited_ms: int) -> Any:
    """Return what is left of a deadline, or of each of a list; anything else is the engine's to
    refuse."""
    if type(deadline_ms) is int:
        return deadline_ms - waited_ms
    if isinstance(deadline_ms, Sequence) and not isinstance(deadline_ms, str | bytes):
        return [_subtract(each, waited_ms) for each in deadline_ms]
    return deadline_ms


def _like(
    blocking: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Give a method the name, signature and docstring of a blocking one."""

    def apply(method: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        return cast(Callable[Concatenate[Any, P], R], wraps(blocking)(method))

    return apply


def _run_in_thread(
    blocking: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return the method that calls a blocking one in a thread, and is awaited."""

    @_like(blocking)
    async def call(self: AsyncEngine | AsyncTransaction, *args: Any, **kwargs: Any) -> T:
        method: Callable[..., T] = getattr(self._blocking, blocking.__name__)
        return await self._threads.call(method, *args, **kwargs)

    return call


class AsyncEngine:
    """An engine for the tasks of one event loop; `engine` is the one that it uses.

    Its methods have the arguments of `Engine`'s, and are awaited; `scan` is an asynchronous
    iterator, and `transaction` is for an `async with` block. Tasks take no turns at hot keys.
    threads: how many reads, scans and ends of blocks go on at a time; commits need none.

    A task that is cancelled as it waits for a commit is cancelled at once. If the commit's batch
    had not begun, nothing is written; if it had, the commit goes on, and may happen. A caller that
    has to know gives the request a `once` token, and commits it again.
    """

    def __init__(self, engine: Engine, *, threads: int = THREADS) -> None:
        check_whole("threads", threads, 1)
        self.engine = self._blocking = engine
        self._threads = Threads(threads, engine.pace.clock)
        self._checked: set[tuple[bytes | None, bytes]] = set()  # tables and families

    commit_many = _run_in_thread(Engine.commit_many)
    read = _run_in_thread(Engine.read)
    outcome = _run_in_thread(Engine.outcome)
    ensure_table = _run_in_thread(Engine.ensure_table)
    flush = _run_in_thread(Engine.flush)

    @_like(Engine.commit)
    async def commit(
        self,
        mutations: Iterable[Mutation | Delete],
        assertions: Iterable[Assertion] = (),
        *,
        once: str | bytes | None = None,
        once_retention_ms: int | None = None,
        labels: Mapping[str, str] | None = None,
        **submitted: Any,
    ) -> Committed:
        token = None if once is None else as_bytes("once", once)
        request = Request(
            tuple(mutations), tuple(assertions), token, dict(labels or {}), once_retention_ms
        )
        await self._check(request)
        return await asyncio.wrap_future(self.engine.submit(request, **submitted))

    async def _check(self, request: Request) -> None:
        """Look up tables and families that were not met yet in a thread: it may take long."""
        try:
            families = {(key.table, key.family) for key in request.keys}
        except (AttributeError, TypeError):
            return  # `submit` says what is wrong with it
        if not families <= self._checked:
            await self._threads.call(self.engine.check_request, request)
            self._checked |= families

    @_like(Engine.scan)
    async def scan(self, *args: Any, **kwargs: Any) -> AsyncIterator[Row]:
        rows = await self._threads.call(self.engine.scan, *args, **kwargs)
        while page := await self._threads.call(lambda: list(islice(rows, PAGE_ROWS))):
            for row in page:
                yield row

    @_like(Engine.transaction)
    def transaction(self, *, deadline_ms: int | None = None, **terms: Any) -> AsyncTransaction:
        return self._begin(lambda: deadline_ms, lambda: deadline_ms, **terms)

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
        terms = {"once": once, "once_retention_ms": once_retention_ms, "labels": labels, "ack": ack}
        repeats = Repeats(self.engine.pace, attempts, deadline_ms)
        while repeats.begin():
            try:
                async with self._begin(repeats.left_ms, repeats.read_ms, **terms) as t:
                    return await function(t)
            except ConflictError as error:
                await asyncio.sleep(repeats.note(error) / 1000)
        raise repeats.make_error()

    def _begin(self, *times: Callable[[], int | None], **terms: Any) -> AsyncTransaction:
        # A thread that waited for its turn would be missing to the task that has it.
        block = self.engine.begin_block(*times, ticket=HotKeyTicket(waits=False), **terms)
        return AsyncTransaction(block, self._threads)

    async def close(self) -> None:
        """Wait for what is under way, and close the engine."""
        await self._threads.call(self.engine.close)
        self._threads.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncTransaction:
    """One block's reads and writes, awaited: see `OptimisticTransaction`. A block that is cancelled
    writes nothing, unless it was committing already."""

    def __init__(self, block: OptimisticTransaction, threads: Threads) -> None:
        self._blocking = block
        self._threads = threads

    get = _run_in_thread(OptimisticTransaction.get)
    get_many = _run_in_thread(OptimisticTransaction.get_many)
    scan = _run_in_thread(OptimisticTransaction.scan)
    increment = _run_in_thread(OptimisticTransaction.increment)
    append = _run_in_thread(OptimisticTransaction.append)

    @property
    def result(self) -> Committed | None:
        """After the block: the Committed, or None where it wrote nothing."""
        return self._blocking.result

    def put(self, key: Key, value: str | bytes) -> None:
        """Set the key's value when the block commits."""
        self._blocking.put(key, value)

    def delete(self, key: Key) -> None:
        """Remove the key when the block commits."""
        self._blocking.delete(key)

    def require(self, assertion: Assertion) -> None:
        """Commit only if the assertion holds of the stored cells as they are before this block's
        own changes."""
        self._blocking.require(assertion)

    async def __aenter__(self) -> Self:
        self._blocking.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._blocking.__exit__(kind, error, trace)  # which only closes it
        else:
            await self._threads.call(self._blocking.__exit__, None, None, None)
