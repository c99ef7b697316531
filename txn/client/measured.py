"""Any store, each call of which is told to a watch: its name, what became of it, how long it took.

An engine has one where somebody watches, and none where nobody does. What is called `together` is
told when that is over: nothing foreign runs while the store keeps all other writers out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from txn.clock import measure_ms
from txn.errors import NotApplied, StoreError, TxnError
from txn.model import Cell, Check, Columns, Edit, Family, Key, Row, Unless
from txn.stores.base import Feature, Store
from txn.watch import CallName, CallOutcome, StoreCall, Watch

ATOMIC: Feature = "atomic_together"
T = TypeVar("T")


class _Told(threading.local):
    """What a thread has yet to tell: None where it tells at once."""

    later: list[StoreCall] | None = None


class MeasuredStore:
    """A store that tells of its calls. A `read` that does something beside takes as long as both,
    and a `scan` only as long as the store: it is told once its last row was taken, or it failed."""

    def __init__(self, inner: Store, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch
        self._told = _Told()

    @property
    def features(self) -> frozenset[Feature]:
        return self._inner.features

    def read(
        self, *groups: Collection[Key], beside: Callable[[], None] | None = None
    ) -> dict[Key, Cell | None]:
        items = sum(map(len, groups))
        return self._measure("read", items, lambda: self._inner.read(*groups, beside=beside))

    def read_versions(self, keys: Collection[Key], count: int) -> dict[Key, list[Cell]]:
        def call() -> dict[Key, list[Cell]]:
            return self._inner.read_versions(keys, count)

        return self._measure("read_versions", len(keys), call)

    def write(self, edits: Sequence[Edit], *, durable: bool = True, by_row: bool = False) -> None:
        def call() -> None:
            self._inner.write(edits, durable=durable, by_row=by_row)

        self._measure("write", len(edits), call)

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        def call() -> list[bool]:
            return self._inner.check_and_put(checks, durable=durable)

        return self._measure("check_and_put", len(checks), call)

    def scan(
        self,
        table: bytes,
        start: bytes = b"",
        stop: bytes | None = None,
        columns: Columns = None,
        unless: Unless | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[Row]:
        began_ms = measure_ms()
        try:
            rows = self._inner.scan(table, start, stop, columns, unless, reverse=reverse)
        except BaseException as error:
            outcome = self._judge(error, "scan")
            self._tell(StoreCall("scan", outcome, 0, measure_ms() - began_ms))
            raise
        return self._tell_scan(rows)

    def together(self, work: Callable[[], None]) -> None:
        if self._told.later is not None:  # within another one it just runs
            self._inner.together(work)
            return
        later: list[StoreCall] = []
        self._told.later = later
        try:
            self._measure("together", 1, lambda: self._inner.together(work))
        finally:
            self._told.later = None
            for event in later:
                self._watch(event)

    def list_tables(self) -> list[bytes]:
        return self._measure("list_tables", 1, self._inner.list_tables)

    def describe(self, table: bytes) -> Mapping[bytes, Family] | None:
        return self._measure("describe", 1, lambda: self._inner.describe(table))

    def ensure_table(
        self, table: bytes, families: Mapping[bytes, Family], splits: Sequence[bytes] = ()
    ) -> None:
        def call() -> None:
            self._inner.ensure_table(table, families, splits)

        self._measure("ensure_table", 1, call)

    def find_splits(
        self, table: bytes, count: int, start: bytes = b"", stop: bytes | None = None
    ) -> list[bytes]:
        def call() -> list[bytes]:
            return self._inner.find_splits(table, count, start, stop)

        return self._measure("find_splits", 1, call)

    def compact(self, table: bytes, purge_before_ms: int) -> None:
        self._measure("compact", 1, lambda: self._inner.compact(table, purge_before_ms))

    def close(self) -> None:
        self._inner.close()

    def _measure(self, name: CallName, items: int, call: Callable[[], T]) -> T:
        began_ms = measure_ms()
        try:
            result = call()
        except BaseException as error:
            self._tell(StoreCall(name, self._judge(error, name), items, measure_ms() - began_ms))
            raise
        self._tell(StoreCall(name, "done", items, measure_ms() - began_ms))
        return result

    def _tell_scan(self, rows: Iterator[Row]) -> Iterator[Row]:
        # Nothing is told of one that is left early: it may be collected as garbage, at any point of
        # the program, in which a watch must not run.
        found, elapsed_ms = 0, 0.0
        while True:
            began_ms = measure_ms()
            try:
                row = next(rows, None)
            except BaseException as error:
                elapsed_ms += measure_ms() - began_ms
                self._tell(StoreCall("scan", self._judge(error, "scan"), found, elapsed_ms))
                raise
            elapsed_ms += measure_ms() - began_ms
            if row is None:
                break
            found += 1
            yield row
        self._tell(StoreCall("scan", "done", found, elapsed_ms))

    def _tell(self, event: StoreCall) -> None:
        if self._told.later is None:
            self._watch(event)
        else:
            self._told.later.append(event)

    def _judge(self, error: BaseException, name: CallName) -> CallOutcome:
        """Return what an error says of the call, and let it say which one it was. One that is none
        of the library's may come at any point, as an interrupt does. What is done `together` an
        atomic store undoes, whatever its work raises; any other has done a part of it."""
        is_atomic = ATOMIC in self.features
        if isinstance(error, StoreError):
            error.call = error.call or name
        if name == "together" and not is_atomic:
            return "maybe applied"
        if isinstance(error, StoreError):
            return "not applied" if isinstance(error, NotApplied) else "maybe applied"
        is_together = name == "together" or self._told.later is not None
        is_undone = is_together and is_atomic and isinstance(error, Exception)
        return "refused" if is_undone or isinstance(error, TxnError) else "maybe applied"
