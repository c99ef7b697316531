"""The context of every step of the protocol, and the one way to call a store.

Calls to a store that does not answer are repeated for a bounded time. Then its error is raised, and
the row stays as a crash would leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Protocol, TypeVar, cast

from txn.clock import Clock, call_until
from txn.errors import (
    InvalidRequestError,
    ReadOnlyError,
    StoreClosedError,
    StoreError,
    TableUnavailable,
)
from txn.events import LOG, CallName, Listener, Retried
from txn.model import READS_WITHIN_MS, Family, refuse_other_database
from txn.policy import Policy
from txn.protocol.statuses import Rules
from txn.stores.base import Store
from txn.text import name_failure

T = TypeVar("T")


class HasDeadline(Protocol):
    """A transaction with a deadline for its decision, by the monotonic clock."""

    due_ms: int


@dataclass(slots=True)
class ClockTrust:
    """A client's knowledge of its own clock: see `clocks`.

    offset_ms: the time of day minus the monotonic clock at the last successful comparison; None:
    there was none. due_ms: when to compare again (monotonic). noted_ms: the same offset when the
    clock was last noted in a store on this machine.
    """

    offset_ms: int | None = None
    due_ms: int = 0
    noted_ms: int | None = None

    def find_step_ms(self, wall_ms: int, monotonic_ms: int) -> int:
        """Return how far the time of day was set since the comparison; 0 without one."""
        offset_ms = self.offset_ms  # other threads compare as well
        return 0 if offset_ms is None else wall_ms - monotonic_ms - offset_ms


@dataclass(frozen=True, slots=True)
class Context:
    """The context of every phase.

    table: the transaction table. salt_buckets: the number of prefixes that spread the rows of new
    transactions. trust: see `clocks`. until_ms: when to give up a failing store (monotonic), if the
    policy's patience lasts longer. program: its name in transaction rows; None: see `name_owner`.
    """

    store: Store
    table: bytes
    clock: Clock
    rng: Random
    policy: Policy
    on_event: Listener
    rules: Rules
    salt_buckets: int = 1
    trust: ClockTrust = field(default_factory=ClockTrust, compare=False)
    until_ms: int | None = None
    program: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether the store is on this machine: it has the same time and can run calls
        atomically."""
        return "atomic" in self.store.features

    def tries(self, *, most: int | None = None, due_ms: int | None = None) -> Iterator[int]:
        """Yield 1, 2, ... with a pause before each but the first: see `Backoff.tries`."""
        return self.policy.backoff.tries(self.clock, self.rng, most=most, due_ms=due_ms)


def call_store(context: Context, call: Callable[[], T], now_ms: int | None = None) -> T:
    """Return the result of an idempotent call, repeating it with backoff while the store fails and
    the policy's patience lasts. A missing table is not awaited: an operator must restore it, and
    this may run in a local transaction that keeps all writers out.

    now_ms: the monotonic time, if the caller has just read it.
    """
    clock, policy = context.clock, context.policy
    began_ms = clock.monotonic_ms() if now_ms is None else now_ms
    tries: Iterator[int] | None = None  # created on the first failure, which is rare
    while True:
        try:
            return call() if context.until_ms is None else call_until(context.until_ms, call)
        except (StoreClosedError, TableUnavailable):
            raise
        except StoreError as error:
            if tries is None:
                due_ms = began_ms + min(policy.store_patience_ms, policy.deadline_ms)
                if context.until_ms is not None:
                    due_ms = min(due_ms, context.until_ms)
                tries = policy.store_backoff.tries(clock, context.rng, due_ms=due_ms)
                next(tries)
            if next(tries, None) is None:
                raise
            cause = name_failure(error)
            LOG.debug("a call of the store is sent again: call=%s cause=%s", error.call, cause)
            # An unknown call is a failed status change.
            context.on_event(Retried(cast(CallName, error.call or "check_and_put")))


def make_durable(context: Context) -> None:
    """Make what was read on a local store durable, before it is reported as an outcome: its writer
    may not have flushed it yet, or not have been able to. A process that may only read cannot."""
    if context.is_local:
        with suppress(ReadOnlyError):
            call_store(context, partial(context.store.write, [], durable=True))


def limit_patience(context: Context, attempts: Iterable[HasDeadline]) -> Context:
    """Return a context whose patience with a store ends at the last deadline of the attempts."""
    latest_ms = context.clock.monotonic_ms() + context.policy.store_patience_ms
    until_ms = 0
    for t in attempts:
        if t.due_ms >= latest_ms:
            return context
        until_ms = max(until_ms, t.due_ms)
    return replace(context, until_ms=until_ms)


def describe_table(context: Context, table: bytes) -> Mapping[bytes, Family]:
    """Return a table's families; raise InvalidRequestError if missing or another database's."""
    found = call_store(context, lambda: context.store.describe(table))
    if found is None:
        raise InvalidRequestError("no such table", table=table)
    refuse_other_database(table, found.values(), context.table)
    return found


def are_apart(context: Context, first_ms: int) -> bool:
    """Whether a read that began at `first_ms` is too old to be compared with one that has just
    ended. Keys that were deleted in between may have been retired."""
    return context.clock.monotonic_ms() - first_ms > READS_WITHIN_MS
