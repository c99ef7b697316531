"""The suites: which cases, on which store."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench import workloads
from tests.bench.measuring import Case
from tests.integration.hbase import some_hbase
from txn import connect


@dataclass(frozen=True, slots=True)
class Suite:
    """title: of its table. cases: each with its floor. store: opens one for a round."""

    title: str
    cases: tuple[Case, ...]
    stores: Callable[[], Iterator[str]]


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


def embedded() -> Iterator[str]:
    """A new store for each case."""
    with tempfile.TemporaryDirectory(prefix="txn-bench-") as folder:
        number = 0
        while True:
            number += 1
            uri = f"embedded://{folder}/store{number}"
            _found(uri)
            yield uri


def _hbase(gateway: str) -> Iterator[str]:
    """One HBase for all of it."""
    with (
        tempfile.TemporaryDirectory(prefix="txn-bench-") as folder,
        some_hbase(Path(folder, "hbase")) as hbase,
    ):
        _found(hbase.thrift2)  # Thrift 1 makes no tables
        while True:
            yield getattr(hbase, gateway)


def thrift1() -> Iterator[str]:
    return _hbase("thrift1")


def thrift2() -> Iterator[str]:
    return _hbase("thrift2")


def _found(uri: str) -> None:
    with connect(uri, table=workloads.TABLE, buckets=1) as engine:
        workloads.found(engine, max(case.accounts for case in (*EMBEDDED, *HBASE)))


SUITES = {
    "embedded": Suite("the embedded store", EMBEDDED, embedded),
    "thrift1": Suite("HBase through Thrift 1", HBASE, thrift1),
    "thrift2": Suite("HBase through Thrift 2", HBASE, thrift2),
}


@contextmanager
def opened(suite: Suite) -> Iterator[Iterator[str]]:
    """Give the suite's stores, one after the other, and end them afterwards."""
    stores = suite.stores()
    try:
        yield stores
    finally:
        stores.close()  # type: ignore[attr-defined]
