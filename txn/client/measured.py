"""A store that reports each call to a listener: name, outcome and duration.

An engine uses it only if it has a listener. Calls inside `atomically` are reported after it: no
foreign code runs while the store keeps all other writers out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from txn.clock import measure_s
from txn.errors import NotApplied, StoreError, TxnError
from txn.events import CallName, CallOutcome, Listener, StoreCall
from txn.model import Row
from txn.stores.base import Feature, Store, StoreWrapper

ATOMIC: Feature = "atomic"


class _Delayed(threading.local):
    """The delayed reports of a thread, while `hold` is held; otherwise it reports at once."""

    hold = threading.Lock()  # never held; replaced by that of a call to `atomically`
    later: list[StoreCall]


class MeasuredStore(StoreWrapper):
    """Reports the calls of a store. A `scan` counts only the store's time, and is reported after
    its last row or its failure."""

    def __init__(self, inner: Store, on_event: Listener) -> None:
        super().__init__(inner)
        self._on_event = on_event
        self._delayed = _Delayed()

    @property
    def features(self) -> frozenset[Feature]:
        return self._inner.features

    def _around(self, name: Any, items: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        if name == "scan":
            return self._measure_scan(call)
        count = 1 if name == "list_tables" else len(items)
        outcome: CallOutcome = "done"
        began_s = measure_s()
        try:
            return call()
        except BaseException as error:
            outcome = self._find_outcome(error, name)
            raise
        finally:
            elapsed_ms = (measure_s() - began_s) * 1000
            self._report(StoreCall(name, outcome, count, elapsed_ms))

    def atomically(self, work: Callable[[], None]) -> None:
        if self._delayed.hold.locked():  # a nested call just runs
            self._inner.atomically(work)
            return
        later: list[StoreCall] = []
        try:
            with (hold := threading.Lock()):
                self._delayed.later, self._delayed.hold = later, hold
                self._around("atomically", (work,), partial(self._inner.atomically, work))
        finally:
            for event in later:
                self._on_event(event)

    def _measure_scan(self, call: Callable[[], Iterator[Row]]) -> Iterator[Row]:
        # A scan that is left early is not reported: a listener must not run in garbage collection.
        rows: Iterator[Row] | None = None
        found, elapsed_ms = 0, 0.0
        while True:
            began_s = measure_s()
            try:
                rows = rows or call()  # is measured with the first row
                row = next(rows, None)
            except BaseException as error:
                elapsed_ms += (measure_s() - began_s) * 1000
                self._report(
                    StoreCall("scan", self._find_outcome(error, "scan"), found, elapsed_ms)
                )
                raise
            elapsed_ms += (measure_s() - began_s) * 1000
            if row is None:
                break
            found += 1
            yield row
        self._report(StoreCall("scan", "done", found, elapsed_ms))

    def _report(self, event: StoreCall) -> None:
        if self._delayed.hold.locked():
            self._delayed.later.append(event)
        else:
            self._on_event(event)

    def _find_outcome(self, error: BaseException, name: CallName) -> CallOutcome:
        """Return the outcome that an error implies, and note the call in it. A foreign error, such
        as an interrupt, may come at any point. An atomic store undoes its work after any error;
        another store may have done part of it."""
        is_atomic = ATOMIC in self.features
        if isinstance(error, StoreError):
            error.call = error.call or name
        if name == "atomically" and not is_atomic:
            return "maybe applied"
        if isinstance(error, StoreError):
            return "not applied" if isinstance(error, NotApplied) else "maybe applied"
        is_together = name == "atomically" or self._delayed.hold.locked()
        is_undone = is_together and is_atomic and isinstance(error, Exception)
        return "refused" if is_undone or isinstance(error, TxnError) else "maybe applied"
