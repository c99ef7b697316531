"""A wrapper that makes calls of any store fail, for tests. A plan says which calls fail, and how.

A fault answers three questions about a call: which items took effect, what the store reported, and
which items will take effect (again) later. A crashed client makes no further call. Nothing is
random and nothing waits; `deliver` carries out a late request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar, cast

from txn.arguments import check_calls
from txn.errors import MaybeApplied, NotApplied, StoreError
from txn.model import Cell, Check, Edit, Key
from txn.stores import base
from txn.stores.base import Answers, Families, Feature, Store, StoreWrapper

Item = Key | Edit | Check | tuple[Check, ...] | bytes
T = TypeVar("T", Edit, Check, Sequence[Check])


class Crash(BaseException):
    """The client has stopped. The library never catches it, as no program catches SIGKILL."""


_INSIDE: ContextVar[object] = ContextVar("inside", default=None)
"""The store in whose `atomically` the caller is: a thread, or a greenlet."""


class _Undone(Exception):
    """The work of an `atomically` had no effect, and never will."""


class Reply(Enum):
    """What the store reports to its caller."""

    ANSWER = "answer"
    NOT_APPLIED = "not applied"
    MAYBE_APPLIED = "maybe applied"
    CRASH = "crash"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a store: its number among the client's calls (from 1), method and items."""

    number: int
    method: str
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """The fate of one call. In a write by row, a row shares the fate of its first item.

    applied: positions of the items that take effect now; None: all.
    reply: what the store reports to the caller.
    late: positions of the items that take effect (again) when `deliver` runs.
    twice: the call is repeated at once, as by a gateway, and the second answer is reported.
    """

    applied: frozenset[int] | None = None
    reply: Reply = Reply.ANSWER
    late: frozenset[int] = frozenset()
    twice: bool = False

    def __post_init__(self) -> None:
        if self.reply is Reply.ANSWER and self.applied is not None:
            raise ValueError("a call that is answered has taken effect")
        if self.reply is Reply.NOT_APPLIED and (self.applied != frozenset() or self.late):
            raise ValueError("a call that was not applied has no effect, now or later")


@dataclass(frozen=True, slots=True)
class Late:
    """Items of an earlier call that are still in flight; of a write by row, whole rows."""

    call: Call
    items: tuple[Item, ...]
    by_row: bool = False


Plan = Callable[[Call], Fault]
NO_FAULT = Fault()


def faultless(call: Call) -> Fault:
    """Return no fault."""
    return NO_FAULT


def at(faults: Mapping[int, Fault]) -> Plan:
    """Return the plan with these faults, by the numbers of the calls."""
    return lambda call: faults.get(call.number, NO_FAULT)


class FaultyStore(StoreWrapper):
    """A client's view of a store that fails as the plan says.

    calls: the number of calls so far.
    in_flight: requests that `deliver` can still carry out.
    reads_early: decides whether a read comes before the checks that it travels with, or after.
    features: some are left out at first; a test may add them. With "atomic" the calls inside
    `atomically` are one call, with one fault.
    """

    @check_calls
    def __init__(
        self, inner: Store, plan: Plan = faultless, reads_early: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(inner)
        # A real client's store may read row by row and run calls one after the other, so tests must
        # cope with that. Calls that the store makes by itself have no number.
        apart: frozenset[Feature] = frozenset(
            {"instant_reads", "atomic", "remote_calls", "many_row_checks"}
        )
        self.features: frozenset[Feature] = inner.features - apart
        self.plan = plan
        self.reads_early = reads_early
        self.calls = 0
        self.crashed = False
        self.in_flight: list[Late] = []

    @property
    def is_inside(self) -> bool:
        """Whether the caller is inside `atomically`, so that its calls are part of that one."""
        return _INSIDE.get() is self

    def _around(self, name: str, items: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        _report(self._fault(name, items))
        return call()

    def read(self, *groups: Collection[Key]) -> dict[Key, Cell | None]:
        found: dict[Key, Cell | None] = {}
        for keys in groups:
            _report(self._fault("read", tuple(keys)))
            found.update(self._inner.read(keys))
        return found

    def write(self, edits: Sequence[Edit], *, durable: bool = True, by_row: bool = False) -> None:
        fault = self._fault("write", tuple(edits), by_row)
        for _ in range(1 + fault.twice):
            if applied := _split_applied(fault, edits):
                self._inner.write(applied, durable=durable, by_row=by_row)
        _report(fault)

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        fault = self._fault("check_and_put", tuple(checks))
        answers: list[bool] = []
        for _ in range(1 + fault.twice):
            if applied := _split_applied(fault, checks):
                answers = self._inner.check_and_put(applied, durable=durable)
        _report(fault)
        return answers

    def put_if_all(self, groups: Sequence[Sequence[Check]]) -> list[bool | None]:
        """Make one call, whose items are the groups, with "many_row_checks"."""
        if "many_row_checks" not in self.features:
            return base.put_single_checks(self, groups)
        fault = self._fault("put_if_all", tuple(map(tuple, groups)))
        answers: list[bool | None] = []
        for _ in range(1 + fault.twice):
            if applied := _split_applied(fault, groups):
                again = self._inner.put_if_all(applied)
                # None says that nothing was done, so it cannot follow another answer.
                answers = [
                    a if b is None else b for a, b in zip(answers or again, again, strict=True)
                ]
        _report(fault)
        return answers

    def check_and_read(
        self,
        checks: Sequence[Check],
        keys: Collection[Key],
        stamps: Collection[Key] = (),
        *,
        durable: bool = True,
    ) -> Answers:
        """Make two calls, of which the read may come first."""
        early = None
        if checks and self.reads_early():
            with suppress(StoreError):
                early = self.read([*keys, *stamps])
        if early is not None:
            answers = self.check_and_put(checks, durable=durable)
            return base.divide_found(answers, early, keys, stamps)
        return base.check_then_read(self, checks, keys, stamps, durable=durable)

    def atomically(self, work: Callable[[], None]) -> None:
        if "atomic" not in self.features or self.is_inside:
            work()  # one call after the other; anything may come in between
            return
        fault = self._fault("atomically", ())

        def once_or_undone() -> None:
            work()
            if fault.applied is not None:
                raise _Undone

        outside = _INSIDE.set(self)
        try:
            with suppress(_Undone):
                self._inner.atomically(once_or_undone)
        finally:
            _INSIDE.reset(outside)
        _report(fault)

    def ensure_table(self, table: bytes, families: Families, splits: Sequence[bytes] = ()) -> None:
        fault = self._fault("ensure_table", (table,))
        if fault.applied is None or fault.applied:
            self._inner.ensure_table(table, families, splits)
        _report(fault)

    def deliver(self, index: int = 0) -> Late:
        """Carry out a request in flight, even if its sender has crashed meanwhile."""
        late = self.in_flight.pop(index)
        if late.call.method == "write":
            self._inner.write(cast(tuple[Edit, ...], late.items), by_row=late.by_row)
        elif late.call.method == "put_if_all":
            self._inner.put_if_all(cast(tuple[tuple[Check, ...], ...], late.items))
        else:
            self._inner.check_and_put(cast(tuple[Check, ...], late.items))
        return late

    def _fault(self, method: str, items: tuple[Item, ...], by_row: bool = False) -> Fault:
        if self.is_inside:
            return NO_FAULT
        if self.crashed:
            raise Crash
        self.calls += 1
        call = Call(self.calls, method, items)
        fault = self.plan(call)
        if by_row:
            fault = _keep_rows_whole(fault, items)
        self.crashed = self.crashed or fault.reply is Reply.CRASH
        if fault.late:
            late = tuple(item for i, item in enumerate(items) if i in fault.late)
            self.in_flight.append(Late(call, late, by_row))
        return fault


def _split_applied(fault: Fault, items: Sequence[T]) -> Sequence[T]:
    if fault.applied is None:
        return items
    return [item for i, item in enumerate(items) if i in fault.applied]


def _keep_rows_whole(fault: Fault, items: Sequence[Item]) -> Fault:
    places = [
        (item.key.table, item.key.row) if isinstance(item, Edit) else i
        for i, item in enumerate(items)
    ]
    firsts = [places.index(place) for place in places]

    def whole(chosen: frozenset[int]) -> frozenset[int]:
        return frozenset(i for i, first in enumerate(firsts) if first in chosen)

    applied = None if fault.applied is None else whole(fault.applied)
    return replace(fault, applied=applied, late=whole(fault.late))


def _report(fault: Fault) -> None:
    match fault.reply:
        case Reply.CRASH:
            raise Crash
        case Reply.NOT_APPLIED:
            raise NotApplied("the store refused the call")
        case Reply.MAYBE_APPLIED:
            raise MaybeApplied("the reply was lost")
        case Reply.ANSWER:
            return
