"""Signs of life of an owner whose work before the decision is long.

Others abort an owner that was silent for its whole lease. So whatever makes many calls goes through
`beat_between`, which beats between two of them once a third of the lease has passed since the last
sign; and what is much for one call is cut into portions, so that no call is silent for long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from txn.errors import DeadlineError
from txn.model import Edit
from txn.protocol.attempt import Attempt, Context, call_store, fail_aborted, read_statuses
from txn.protocol.lock_cells import FREE
from txn.protocol.phases import Status
from txn.protocol.row import column, whole_of

PORTION = 500  # within two thirds of a lease of 10 s, a gateway may take 13 ms for each
TOO_LATE = "deadline passed before the decision"
T = TypeVar("T")


def beat_between(context: Context, batch: Sequence[Attempt], items: Iterable[T]) -> Iterator[T]:
    """Yield the items; whenever one is done with, show that the owner of the batch lives, and fail
    those of it whose time is over."""
    for item in items:
        yield item
        now_ms = context.clock.monotonic_ms()
        for t in batch:
            if t.failure is None and now_ms >= t.due_ms:
                t.failure = DeadlineError(TOO_LATE, transaction=t.row_key)
        beat(context, batch)


def show_life(batch: Sequence[Attempt], sent_ms: int) -> None:
    """Remember when a step, or a beat, that shows in their rows was sent."""
    for t in batch:
        t.alive_ms = sent_ms


def split_portions(items: Sequence[T], size: int = PORTION) -> Iterator[Sequence[T]]:
    """Yield the items in portions that are not too many for one call."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def beat(context: Context, batch: Sequence[Attempt]) -> None:
    """Show, where a third of the lease has passed without a sign, that the owner lives, and see
    whether anybody thought that it does not: such a transaction fails. The signs of a part are in
    the row of its transaction."""
    live = [t for t in batch if t.failure is None]
    now_ms = context.clock.monotonic_ms()
    if all(now_ms - t.alive_ms < t.lease_ms // 3 for t in live):
        return
    wall_ms = context.clock.wall_ms()
    times: dict[bytes, int | None] = {}
    for t in live:  # a row that many beat in is told the server's time: their clocks differ
        whole = whole_of(t.row_key)
        times[whole or t.row_key] = wall_ms if whole is None and t.parts is None else None
    put_beats(context, times)
    call_store(context, lambda: read_statuses(context, live))
    show_life(fail_aborted(live, Status.LOCKED), now_ms)


def put_beats(context: Context, times: Mapping[bytes, int | None]) -> None:
    """Put a beat into each row, at a time of the owner's clock, or at the server's: None."""
    beats = [Edit(column(context.table, row, b"beat"), FREE, at) for row, at in times.items()]
    call_store(context, lambda: context.store.write(beats, durable=False))
