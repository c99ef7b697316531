"""What every step of the protocol works with, and the one way to call a store.

A store that does not answer is asked again for a bounded time; then its error is raised, and the
row stays as a crash would leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol, TypeVar, cast

from txn.clock import Clock, call_until
from txn.errors import InvalidRequestError, StoreClosedError, StoreError, TableUnavailable
from txn.events import LOG, CallName, Listener, Retried
from txn.model import READS_WITHIN_MS, Family, refuse_other_database
from txn.policy import Policy
from txn.protocol.statuses import Rules
from txn.stores.base import Store
from txn.text import name_failure

T = TypeVar("T")


class HasDeadline(Protocol):
    """A transaction that has until `due_ms`, by the monotonic clock, for its decision."""

    due_ms: int


@dataclass(slots=True)
class ClockTrust:
    """What a client knows of its clock: see `clocks`.

    offset_ms: by how much the time of day was ahead of the monotonic clock when it was last found
    to be right; None: it never was. due_ms: when to compare it again, by the monotonic clock.
    noted_ms: the same as offset_ms, when the clock was last noted in a store of this machine.
    """

    offset_ms: int | None = None
    due_ms: int = 0
    noted_ms: int | None = None

    def find_step_ms(self, clock: Clock) -> int:
        """Return by how far the time of day was set since then; 0 where it was never compared."""
        offset_ms = self.offset_ms  # other threads compare as well
        return 0 if offset_ms is None else clock.wall_ms() - clock.monotonic_ms() - offset_ms


@dataclass(frozen=True, slots=True)
class Context:
    """What every phase works with. `table` is the transaction table; `buckets`: how many prefixes
    spread the rows of new transactions; `trust`: what is known of the clock, see `clocks`;
    `until_ms`: when to give up a store that fails, by the monotonic clock, if the policy's patience
    lasts longer."""

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

    @property
    def is_local(self) -> bool:
        """Whether the store is of this machine: then its time is this machine's, and it makes one
        transaction of what is done together."""
        return "atomic" in self.store.features

    def tries(self, *, most: int | None = None, due_ms: int | None = None) -> Iterator[int]:
        """Yield 1, 2, ... with a pause before each but the first: see `Backoff.tries`."""
        return self.policy.backoff.tries(self.clock, self.rng, most=most, due_ms=due_ms)


def call_store(context: Context, call: Callable[[], T]) -> T:
    """Return what an idempotent call returns, sending it again while the store fails, with
    backoff, for as long as the policy's patience lasts. A table that is gone is not waited for:
    it comes back by a person's hand, and this may run in a local transaction that keeps all
    writers out."""
    clock, policy = context.clock, context.policy
    began_ms = clock.monotonic_ms()
    tries: Iterator[int] | None = None  # made where a call has failed: few do
    while True:
        try:
            return call() if context.until_ms is None else call_until(context.until_ms, call)
        except (StoreClosedError, TableUnavailable):
            raise
        except StoreError as error:
            if tries is None:
                due_ms = _find_due(context, began_ms)
                tries = policy.store_backoff.tries(clock, context.rng, due_ms=due_ms)
                next(tries)
            if next(tries, None) is None:
                raise
            report_retry(context, error)


def _find_due(context: Context, began_ms: int) -> int:
    policy = context.policy
    due_ms = began_ms + min(policy.store_patience_ms, policy.deadline_ms)
    return due_ms if context.until_ms is None else min(due_ms, context.until_ms)


def limit_patience(context: Context, attempts: Iterable[HasDeadline]) -> Context:
    """Return a context that is patient with a store for no longer than until the last of some
    attempts, which are not decided, is due."""
    until_ms = max([t.due_ms for t in attempts], default=0)
    latest_ms = context.clock.monotonic_ms() + context.policy.store_patience_ms
    return context if until_ms >= latest_ms else replace(context, until_ms=until_ms)


def report_retry(context: Context, error: StoreError) -> None:
    """Tell the watch which call of the store is sent again: where nobody knows, it is the change of
    a row's status, which has come to nothing."""
    LOG.debug(
        "a call of the store is sent again: call=%s cause=%s", error.call, name_failure(error)
    )
    context.on_event(Retried(cast(CallName, error.call or "check_and_put")))


def describe_table(context: Context, table: bytes) -> Mapping[bytes, Family]:
    """Return the families of a table; InvalidRequestError where there is none of its name, or where
    it belongs to another database."""
    found = call_store(context, lambda: context.store.describe(table))
    if found is None:
        raise InvalidRequestError("no such table", table=table)
    refuse_other_database(table, found.values(), context.table)
    return found


def are_apart(context: Context, first_ms: int) -> bool:
    """Whether a look that began then is too old to be compared with one that has just ended. What
    was deleted between the two may have been retired."""
    return context.clock.monotonic_ms() - first_ms > READS_WITHIN_MS
