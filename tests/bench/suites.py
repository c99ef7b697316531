"""The suites: which cases, on which store."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from typing import get_args

from tests.bench import workloads
from tests.bench.measuring import USUAL, Case, Place, Protocol, open_engine
from tests.bench.servers import measured_hbase
from txn import connect

WARM_S = 20.0


@dataclass(frozen=True, slots=True)
class Suite:
    """title: of its table. cases: each with its floor. stores: gives one for each case.

    warm_s: for how long all of it runs before anything counts, since its servers compile themselves
    as they run. rounds: how many count. seconds: of each case in each round.
    """

    title: str
    cases: tuple[Case, ...]
    stores: Callable[[], Iterator[Place]]
    warm_s: float = 0
    rounds: int = 5
    seconds: float = 3.0


def _with_floors(*cases: Case) -> tuple[Case, ...]:
    return tuple(dict.fromkeys(each for case in cases for each in (case.floor, case)))


def _by_protocols(*cases: Case) -> tuple[Case, ...]:
    """Each case with its floor and then with each protocol that there is."""
    is_choice = "protocol" in signature(connect).parameters
    protocols: tuple[Protocol, ...] = get_args(Protocol) if is_choice else (USUAL,)
    return _with_floors(*(replace(case, protocol=name) for case in cases for name in protocols))


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
PROTOCOLS = _by_protocols(
    Case("transfer", 1, 1, ack="decided"),
    Case("transfer", 1, 1),
    Case("transfer", 1, 16),
    Case("transfer", 1, 16, accounts=10),
    Case("ten cells", 1, 1),
    Case("ten cells", 1, 16),
    Case("flights", 25, 2),
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
    """Make the tables of every case; no two protocols share one."""
    cases = {case.tables: case for case in (*EMBEDDED, *HBASE, *PROTOCOLS)}
    accounts = max(case.accounts for case in (*EMBEDDED, *HBASE, *PROTOCOLS))
    for tables, case in cases.items():
        with open_engine(uri, case) as engine:
            workloads.found(engine, accounts, tables)


SUITES = {
    "embedded": Suite("the embedded store", EMBEDDED, embedded),
    "thrift1": Suite("HBase through Thrift 1", HBASE, thrift1, WARM_S),
    "thrift2": Suite("HBase through Thrift 2", HBASE, thrift2, WARM_S),
    "protocols": Suite(
        "protocols on HBase through Thrift 2", PROTOCOLS, thrift2, WARM_S, rounds=4, seconds=6.0
    ),
}


@contextmanager
def opened(suite: Suite) -> Iterator[Iterator[Place]]:
    """Give the suite's stores, one after the other, and end them afterwards."""
    stores = suite.stores()
    try:
        yield stores
    finally:
        stores.close()  # type: ignore[attr-defined]
