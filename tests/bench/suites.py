"""The suites: which cases, on which store."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.bench import workloads
from tests.bench.measuring import Case, Place
from tests.bench.servers import measured_hbase
from txn import connect


@dataclass(frozen=True, slots=True)
class Suite:
    """title: of its table. cases: each with its floor. stores: gives one for each case.

    warm: whether its servers compile themselves as they run: then a round goes before the first.
    """

    title: str
    cases: tuple[Case, ...]
    stores: Callable[[], Iterator[Place]]
    warm: bool = False


def _with_floors(*cases: Case) -> tuple[Case, ...]:
    return tuple(dict.fromkeys(each for case in cases for each in (case.floor, case)))


EMBEDDED = _with_floors(
    *(Case("transfer", batch, clients) for clients in (1, 2) for batch in (1, 10, 100))
)
HBASE = _with_floors(
    Case("transfer", 1, 1, ack="decided"),
    Case("transfer", 1, 1),
    Case("transfer", 1, 16),
    Case("transfer", 20, 16),
    Case("transfer", 1, 16, accounts=10),
    Case("ten cells", 1, 1),
    Case("ten cells", 1, 16),
)


def embedded() -> Iterator[Place]:
    """A new store for each case."""
    with tempfile.TemporaryDirectory(prefix="txn-bench-") as folder:
        number = 0
        while True:
            number += 1
            uri = f"embedded://{folder}/store{number}"
            _found(uri)
            yield Place(uri)


def _hbase(gateway: str) -> Iterator[Place]:
    """One HBase for all of it."""
    with measured_hbase() as hbase:
        _found(hbase.thrift2)  # Thrift 1 makes no tables
        while True:
            yield Place(getattr(hbase, gateway), hbase.processes)


def thrift1() -> Iterator[Place]:
    return _hbase("thrift1")


def thrift2() -> Iterator[Place]:
    return _hbase("thrift2")


def _found(uri: str) -> None:
    with connect(uri, table=workloads.TABLE, buckets=1) as engine:
        workloads.found(engine, max(case.accounts for case in (*EMBEDDED, *HBASE)))


SUITES = {
    "embedded": Suite("the embedded store", EMBEDDED, embedded),
    "thrift1": Suite("HBase through Thrift 1", HBASE, thrift1, warm=True),
    "thrift2": Suite("HBase through Thrift 2", HBASE, thrift2, warm=True),
}


@contextmanager
def opened(suite: Suite) -> Iterator[Iterator[Place]]:
    """Give the suite's stores, one after the other, and end them afterwards."""
    stores = suite.stores()
    try:
        yield stores
    finally:
        stores.close()  # type: ignore[attr-defined]
