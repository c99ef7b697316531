"""Telling the watch of phases: that one starts, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar, cast

from txn.clock import measure_ms
from txn.errors import TableUnavailable
from txn.protocol.attempt import Context, Transaction
from txn.watch import Phase, PhaseName, PhaseOutcome, silent

P = ParamSpec("P")
T = TypeVar("T", bound=Transaction)
Work = Callable[Concatenate[Context, Sequence[T], P], list[T]]


def announce(name: PhaseName) -> Callable[[Work[T, P]], Work[T, P]]:
    """Tell the watch when a phase starts and how it ends."""

    def decorate(work: Work[T, P]) -> Work[T, P]:
        @wraps(work)
        def phase(
            context: Context, transactions: Sequence[T], *args: P.args, **kwargs: P.kwargs
        ) -> list[T]:
            if context.watch is silent:
                return work(context, transactions, *args, **kwargs)
            count = len(transactions)
            context.watch(Phase(name, "started", count))
            started_ms = measure_ms()
            live: list[T] = []
            try:
                live = work(context, transactions, *args, **kwargs)
            except TableUnavailable as error:
                # The others go through the phase again, without those that need the table.
                count = sum(t.needs(error.table) for t in transactions) or count
                raise
            finally:
                elapsed_ms = measure_ms() - started_ms
                outcome: PhaseOutcome = "done" if live or not count else "failed"
                context.watch(Phase(name, outcome, count, count - len(live), elapsed_ms))
            return live

        return cast(Work[T, P], phase)

    return decorate
