"""The suites: which cases, on which store."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from itertools import product, repeat
from pathlib import Path
from typing import get_args

from tests.bench import workloads
from tests.bench.measuring import USUAL, Case, Place, Program, Protocol, Transport, open_engine
from tests.bench.peers import running_peers
from tests.bench.servers import measured_hbase
from txn import Engine, connect

WARM_S = 20.0


@dataclass(frozen=True, slots=True)
class Suite:
    """title: of its table. cases: each with its floor. stores: gives one for each case.

    warm_s: for how long all of it runs before anything counts, since its servers compile themselves
    as they run. rounds: how many count. seconds: of each case in each round. peers: the folder of
    other programs.
    """

    title: str
    cases: tuple[Case, ...]
    stores: Callable[[Suite], Iterator[Place]]
    warm_s: float = 0
    rounds: int = 5
    seconds: float = 3.0
    peers: Path | None = None

    def with_peers(self, folder: Path) -> Suite:
        """Return it with the cases of other programs among its own."""
        cases = _with_floors(*_list_peers(self.cases), *self.cases)
        return replace(self, cases=cases, peers=folder)

    def only(self, text: str) -> Suite:
        """Return it with those of its cases whose names say so, with their floors, and with what
        other programs do of the same."""
        wanted = [case for case in self.cases if text in f"{case.subject}: {case.name}"]
        alike = {case.java for case in wanted}
        others = [case for case in self.cases if case.program and case.java in alike]
        return replace(self, cases=_with_floors(*others, *wanted))


def _with_floors(*cases: Case) -> tuple[Case, ...]:
    return tuple(dict.fromkeys(each for case in cases for each in (case.floor, case)))


def _by_protocols(*cases: Case) -> tuple[Case, ...]:
    """Each case with its floor and then with each protocol that there is."""
    is_choice = "protocol" in signature(connect).parameters
    protocols: tuple[Protocol, ...] = get_args(Protocol) if is_choice else (USUAL,)
    return _with_floors(*(replace(case, protocol=name) for case in cases for name in protocols))


def _by_transports(*cases: Case) -> tuple[Case, ...]:
    """Each case through a gateway and natively, with each protocol, where there is a way to it."""
    transports: tuple[Transport, ...] = ("thrift2", "native")
    possible = [case for case in cases if case.way != "submit" or hasattr(Engine, "submit")]
    return _by_protocols(
        *(replace(case, transport=name) for case, name in product(possible, transports))
    )


def _list_peers(cases: tuple[Case, ...]) -> list[Case]:
    """What other programs do of these: plain Java has floors, the others do single transfers."""
    floors = dict.fromkeys(case.java for case in cases if case.work != "flights")
    programs: tuple[Program, ...] = ("omid", "tephra")
    single = [case for case in floors if case.work == "transfer"]
    return [
        *floors,
        *(replace(case, batch=1, program=program) for case, program in product(single, programs)),
    ]


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


NATIVE = _by_transports(
    Case("transfer", 1, 1, ack="decided"),
    Case("transfer", 1, 1),
    Case("transfer", 20, 1),
    Case("transfer", 100, 1),
    Case("transfer", 1, 16),
    Case("transfer", 1, 16, way="threads"),
    Case("transfer", 8, 16, way="submit"),
    Case("transfer", 1, 16, accounts=10, way="threads"),
    Case("transfer", 1, 16, accounts=10),
    Case("ten cells", 1, 1),
    Case("ten cells", 1, 16, way="threads"),
    Case("flights", 25, 2),
    Case("flights", 100, 1),
)


def embedded(_: Suite) -> Iterator[Place]:
    """A new store for each case."""
    with tempfile.TemporaryDirectory(prefix="txn-bench-") as folder:
        number = 0
        while True:
            number += 1
            uri = f"embedded://{folder}/store{number}"
            _found(uri)
            yield Place(uri)


def thrift1(_: Suite) -> Iterator[Place]:
    """One HBase for all of it."""
    with measured_hbase() as hbase:
        _found(hbase.thrift2)  # Thrift 1 makes no tables
        yield from repeat(Place(hbase.thrift1, hbase.processes))


def thrift2(suite: Suite) -> Iterator[Place]:
    """One HBase for all of it, through its gateway or natively, and for other programs."""
    with measured_hbase() as hbase, ExitStack() as stack:
        _found(hbase.thrift2)
        programs = {}
        if suite.peers:
            names = list(dict.fromkeys(case.program for case in suite.cases if case.program))
            running = running_peers(suite.peers, hbase.folder, names)
            programs = stack.enter_context(running)
        others = {"native": hbase.native}
        yield from repeat(Place(hbase.thrift2, hbase.processes, others, programs))


def _found(uri: str) -> None:
    """Make the tables of every case; no two protocols share one."""
    every = (*EMBEDDED, *HBASE, *PROTOCOLS, *NATIVE)
    cases = {case.tables: case for case in every}
    accounts = max(case.accounts for case in every)
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
    "native": Suite("HBase by its own protocol", NATIVE, thrift2, 60.0, rounds=4, seconds=5.0),
}


@contextmanager
def opened(suite: Suite) -> Iterator[Iterator[Place]]:
    """Give the suite's stores, one after the other, and end them afterwards."""
    stores = suite.stores(suite)
    try:
        yield stores
    finally:
        stores.close()  # type: ignore[attr-defined]
