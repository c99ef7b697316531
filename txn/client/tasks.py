"""An engine for asyncio: the same transactions, awaited.

The methods have the signatures of the blocking ones. Commits use `Engine.submit`, so thousands of
tasks share batches without a thread each. A bounded number of threads makes all other blocking
calls.
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
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial, wraps
from itertools import islice
from threading import get_ident
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from txn.arguments import check_calls
from txn.assertions import Assertion
from txn.client.block import OptimisticTransaction, Repeats, find_answer
from txn.client.connect import connect
from txn.client.engine import RUN_ATTEMPTS, Engine
from txn.client.hot_keys import LONGEST_S, MustQueue
from txn.clock import Clock
from txn.errors import InvalidRequestError
from txn.events import Listener, silent
from txn.host.worker_pool import make_executor
from txn.model import Delete, Key, Mutation, Row, check_whole
from txn.policy import Policy
from txn.protocol.statuses import ProtocolName
from txn.request import TRANSACTIONS, Ack, Committed, Request, Terms, as_request

THREADS = 16
PAGE_ROWS = 200
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@check_calls
@asynccontextmanager
async def connect_async(
    uri: str,
    *,
    threads: int = THREADS,
    table: str | bytes | None = None,
    transactions: str | bytes = TRANSACTIONS,
    salt_buckets: int = 1,
    policy: Policy | None = None,
    on_event: Listener = silent,
    clock: Clock | None = None,
    protocol: ProtocolName | None = None,
    create: bool = True,
    name: str | None = None,
) -> AsyncIterator[AsyncEngine]:
    """Open a store like `txn.connect`; yield an AsyncEngine and close it at the end."""
    given = {name: value for name, value in locals().items() if name != "threads"}
    engine = await asyncio.to_thread(partial(connect, **given))
    async with AsyncEngine(engine, threads=threads) as tasks:
        yield tasks


class Threads:
    """A bounded number of threads for blocking calls. A `deadline_ms` counts from the call, not
    from the start of its thread."""

    def __init__(self, count: int, clock: Clock) -> None:
        self._clock = clock
        self._pool = make_executor(count, "txn-async")

    async def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call the function in a thread, in the task's context. Cancelling does not end it."""
        called_ms = self._clock.monotonic_ms()

        def work() -> T:
            waited_ms = self._clock.monotonic_ms() - called_ms
            if "deadline_ms" in kwargs:
                kwargs["deadline_ms"] = _subtract(kwargs["deadline_ms"], waited_ms)
            return function(*args, **kwargs)

        call = partial(copy_context().run, work)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        self._pool.shutdown(wait=False)


def _subtract(deadline_ms: Any, waited_ms: int) -> Any:
    """Return the rest of a deadline, or of each in a list. The engine refuses any other value."""
    if type(deadline_ms) is int:
        return deadline_ms - waited_ms
    if isinstance(deadline_ms, Sequence) and not isinstance(deadline_ms, str | bytes):
        return [_subtract(each, waited_ms) for each in deadline_ms]
    return deadline_ms


def _like(
    blocking: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    def apply(method: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        return cast(Callable[Concatenate[Any, P], R], wraps(blocking)(method))

    return apply


def _run_in_thread(
    blocking: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    @_like(blocking)
    async def call(self: AsyncEngine | AsyncTransaction, *args: Any, **kwargs: Any) -> T:
        method: Callable[..., T] = getattr(self._blocking, blocking.__name__)
        while True:
            try:
                return await self._threads.call(method, *args, **kwargs)
            except MustQueue as wait:
                is_first = asyncio.wrap_future(wait.place.is_first)
                while wait.queues.must_wait(wait.place):
                    await asyncio.wait([is_first], timeout=LONGEST_S)

    return call


class AsyncEngine:
    """An engine for the tasks of one event loop; `engine` is the one that it uses.

    Its methods have the arguments of `Engine`'s, and are awaited; `scan` is an asynchronous
    iterator, and `transaction` is for an `async with` block.
    threads: how many reads, scans and ends of blocks run at a time; commits need none.

    A task that waits for a commit is cancelled at once. If its batch had not begun, nothing is
    written; otherwise the commit continues, and may succeed. A caller that must know gives the
    request a `once` token and commits it again.
    """

    @check_calls
    def __init__(self, engine: Engine, *, threads: int = THREADS) -> None:
        check_whole("threads", threads, 1)
        self.engine = self._blocking = engine
        self._threads = Threads(threads, engine.pace.clock)
        self._checked: set[tuple[bytes | None, bytes]] = set()  # tables and families

    def __repr__(self) -> str:
        return f"<Async{repr(self.engine)[1:]}"

    commit_many = _run_in_thread(Engine.commit_many)
    read = _run_in_thread(Engine.read)
    find_once = _run_in_thread(Engine.find_once)
    outcome = _run_in_thread(Engine.outcome)
    ensure_table = _run_in_thread(Engine.ensure_table)
    flush = _run_in_thread(Engine.flush)

    @_like(Engine.commit)
    async def commit(
        self,
        mutations: Iterable[Mutation | Delete],
        assertions: Iterable[Assertion] = (),
        *,
        ack: Ack = "complete",
        deadline_ms: int | None = None,
        **others: Any,
    ) -> Committed:
        given = as_request((mutations, assertions))
        request = Request(given.mutations, given.assertions, **others)
        await self._check(request)
        future = self.engine.submit(request, ack=ack, deadline_ms=deadline_ms)
        return await asyncio.wrap_future(future)

    async def _check(self, request: Request) -> None:
        """Check new tables and families in a thread, because that may take long."""
        try:
            families = {(key.table, key.family) for key in request.keys}
        except (AttributeError, TypeError):
            return  # `submit` raises the error
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
        return self._begin(lambda: deadline_ms, lambda: deadline_ms, Terms(**terms))

    async def run(
        self,
        function: Callable[[AsyncTransaction], Awaitable[T]],
        *,
        attempts: int = RUN_ATTEMPTS,
        deadline_ms: int | None = None,
        once: str | bytes | None = None,
        once_retention_ms: int | None = None,
        labels: Mapping[str, str] | None = None,
        validate: bool | None = None,
        ack: Ack = "complete",
        once_content: str | bytes | None = None,
    ) -> T:
        """Await a function with a transaction, commit, and return the function's result. Repeat all
        of it on a ConflictError: see `Engine.run`."""
        terms = Terms(once, labels, once_retention_ms, ack, validate, once_content)
        repeats = Repeats(function, self.engine.pace, attempts, deadline_ms, terms)
        while repeats.begin():
            try:
                async with self._begin(repeats.left_ms, repeats.read_ms, terms) as t:
                    if t.result is None:
                        if repeats.end is not None:
                            raise repeats.end
                        result = function(t)
                        if not hasattr(result, "__await__"):
                            raise InvalidRequestError(
                                "the function of a task's block must be async", function=function
                            )
                        t.block.answer = await result
                return find_answer(t.block)  # type: ignore[no-any-return]
            except Exception as error:
                if (pause_ms := repeats.note(error)) is None:
                    raise
                await asyncio.sleep(pause_ms / 1000)
        raise repeats.make_error()

    def _begin(
        self, left_ms: Callable[[], int | None], read_ms: Callable[[], int | None], terms: Terms
    ) -> AsyncTransaction:
        return AsyncTransaction(self.engine.begin_block(left_ms, read_ms, terms), self._threads)

    async def close(self) -> None:
        """Wait for calls in progress, and close the engine."""
        await self._threads.call(self.engine.close)
        self._threads.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncTransaction:
    """One block's reads and writes, awaited: see `OptimisticTransaction`. A cancelled block writes
    nothing, unless its commit had begun."""

    def __init__(self, block: OptimisticTransaction, threads: Threads) -> None:
        self.block = self._blocking = block
        self._threads = threads

    get = _run_in_thread(OptimisticTransaction.get)
    get_many = _run_in_thread(OptimisticTransaction.get_many)
    scan = _run_in_thread(OptimisticTransaction.scan)
    increment = _run_in_thread(OptimisticTransaction.increment)
    append = _run_in_thread(OptimisticTransaction.append)

    @property
    def result(self) -> Committed | None:
        """See `OptimisticTransaction`."""
        return self._blocking.result

    def put(self, key: Key, value: str | bytes) -> None:
        """Set the key's value when the block commits."""
        self._blocking.put(key, value)

    def delete(self, key: Key) -> None:
        """Remove the key when the block commits."""
        self._blocking.delete(key)

    def require(self, assertion: Assertion) -> None:
        """Commit only if the assertion holds for the stored cells, without this block's own
        changes."""
        self._blocking.require(assertion)

    async def __aenter__(self) -> Self:
        ticket, enter = self.block.ticket, self.block.__enter__
        ticket.task, ticket.thread = asyncio.current_task(), get_ident()
        await self._threads.call(enter) if self.block.find_first else enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._blocking.__exit__(kind, error, trace)  # only closes it
        else:
            await self._threads.call(self._blocking.__exit__, None, None, None)
