"""The suites: which cases, on which store."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count, product, repeat
from pathlib import Path
from typing import get_args

from tests.bench import report, workloads
from tests.bench.measuring import (
    LOCAL,
    Case,
    Measured,
    Place,
    Program,
    Protocol,
    Transport,
    open_engine,
)
from tests.bench.peers import running_peers
from tests.bench.servers import measured_hbase


@dataclass(frozen=True, slots=True)
class Suite:
    """title: of its table. cases: each with its floor. stores: gives one for each case. tables: of
    docs/performance.md.

    warm_s: for how long all of it runs before anything counts, since its servers compile themselves
    as they run. rounds: how many count. seconds: of each case in each round. peers: the folder of
    other programs.
    """

    title: str
    cases: tuple[Case, ...]
    stores: Callable[[Suite], Iterator[Place]]
    tables: tuple[report.PageTable, ...] = ()
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
        alike = {case.peer for case in wanted}
        others = [
            case for case in self.cases if case.program and (case.floor in alike or case in alike)
        ]
        return replace(self, cases=_with_floors(*others, *wanted))


def _with_floors(*cases: Case) -> tuple[Case, ...]:
    return tuple(dict.fromkeys(each for case in cases for each in (case.floor, case)))


def _by_protocols(*cases: Case) -> tuple[Case, ...]:
    """Each case with its floor and then with each protocol."""
    protocols: tuple[Protocol, ...] = get_args(Protocol)
    return _with_floors(*(replace(case, protocol=name) for case in cases for name in protocols))


def _by_transports(transports: Sequence[Transport], *cases: Case) -> tuple[Case, ...]:
    """Each case by each of these ways, with each protocol."""
    return _by_protocols(
        *(replace(case, transport=name) for case, name in product(cases, transports))
    )


def _list_peers(cases: tuple[Case, ...]) -> list[Case]:
    """What other programs do of these: plain Java has floors, the others do single transfers."""
    others = dict.fromkeys(case.peer for case in cases if case.work != "flights")
    programs: tuple[Program, ...] = ("omid", "tephra")
    single = [case for case in others if case.program == "java" and case.work == "transfer"]
    return [
        *others,
        *(replace(case, batch=1, program=program) for case, program in product(single, programs)),
    ]


GATEWAY_OR_NATIVE: dict[str, Transport] = {"Thrift 2": "thrift2", "native": "native"}
ONE = Case("transfer", 1, 1)
THREADS = Case("transfer", 1, 16, way="threads")
HOT = replace(THREADS, accounts=10)
SUBMIT = replace(THREADS, way="submit", batch=8)

EMBEDDED = _by_transports(LOCAL, ONE, replace(ONE, batch=100), THREADS, replace(THREADS, batch=100))
NATIVE = _by_transports(
    tuple(GATEWAY_OR_NATIVE.values()),
    replace(ONE, ack="decided"),
    ONE,
    replace(ONE, batch=20),
    replace(ONE, batch=100),
    Case("transfer", 1, 16),
    THREADS,
    SUBMIT,
    HOT,
    Case("transfer", 1, 16, accounts=10),
    Case("ten cells", 1, 1),
    Case("ten cells", 1, 16, way="threads"),
    Case("flights", 25, 2),
    Case("flights", 100, 1),
)

Choose = Callable[[Case], Case]


def _fenced(case: Case) -> Case:
    return replace(case, protocol="fenced")


def _cross(lines: Mapping[str, Choose], columns: Mapping[str, Case]) -> dict[str, dict[str, Case]]:
    return {
        line: {column: choose(case) for column, case in columns.items()}
        for line, choose in lines.items()
    }


BESIDE_SCALARDB = report.PageTable(
    "embedded",
    "program",
    _cross(
        {
            "ScalarDB, no transactions": lambda case: case.peer.floor,
            "ScalarDB": lambda case: case.peer,
            "embedded store, no transactions": lambda case: case.floor,
            "six-phase": lambda case: case,
            "fenced": _fenced,
            "six-phase, `commit_many` of 100": lambda case: replace(case, batch=100),
        },
        {
            "1 client, synced": replace(ONE, transport="synced"),
            "16 threads, synced": replace(THREADS, transport="synced"),
            "1 client": replace(ONE, transport="unsynced"),
            "16 threads": replace(THREADS, transport="unsynced"),
        },
    ),
    report.show_share_of_peer,
)
BESIDE_JAVA = report.PageTable(
    "native-peers",
    "program",
    _cross(
        {
            "Java, no transactions": lambda case: case.java,
            "Python, no transactions": lambda case: case.floor,
            "Tephra": lambda case: replace(case.java, batch=1, program="tephra"),
            "Omid": lambda case: replace(case.java, batch=1, program="omid"),
            "fenced": _fenced,
            "six-phase": lambda case: case,
            "fenced, `submit`": lambda case: _fenced(replace(case, way="submit", batch=8)),
            "six-phase, `submit`": lambda case: replace(case, way="submit", batch=8),
            "fenced, `commit_many` of 100": lambda case: _fenced(replace(case, batch=100)),
            "six-phase, `commit_many` of 100": lambda case: replace(case, batch=100),
        },
        {
            "1 client": replace(ONE, transport="native"),
            "16 threads": replace(THREADS, transport="native"),
            "16 threads, 10 accounts": replace(HOT, transport="native"),
        },
    ),
    report.show_rate,
)
WAYS: dict[str, Choose] = {
    "no transactions": lambda case: case.floor,
    "six-phase": lambda case: case,
    "fenced": _fenced,
}
BY_TRANSPORT = report.PageTable(
    "native",
    "work",
    {
        title: {
            f"{name}: {way}": choose(replace(case, transport=transport))
            for name, transport in GATEWAY_OR_NATIVE.items()
            for way, choose in WAYS.items()
        }
        for title, case in {
            "transfer, 1 client": ONE,
            'the same, `ack="decided"`': replace(ONE, ack="decided"),
            "transfer, 16 threads": THREADS,
            "transfer, 16 threads, 10 accounts": HOT,
            "transfer, 16 threads, `submit`": SUBMIT,
            "transfer, `commit_many` of 100": replace(ONE, batch=100),
            "10 cells in 10 rows, 1 client": Case("ten cells", 1, 1),
            "10 cells in 10 rows, 16 threads": Case("ten cells", 1, 16, way="threads"),
            "flight with indexes, `commit_many` of 100": Case("flights", 100, 1),
        }.items()
    },
    report.show_share_of_floor,
)


def embedded(suite: Suite) -> Iterator[Place]:
    """A new store for each case."""
    with tempfile.TemporaryDirectory(prefix="txn-bench-") as folder, ExitStack() as stack:
        programs = _start_peers(suite, stack, None)
        for number in count(1):
            uri = f"embedded://{folder}/store{number}"
            _found(uri, EMBEDDED)
            yield Place(uri, others={"unsynced": f"{uri}?sync=off"}, programs=programs)


def hbase(suite: Suite) -> Iterator[Place]:
    """One HBase for all of it, through its gateway or natively, and for other programs."""
    with measured_hbase() as servers, ExitStack() as stack:
        _found(servers.native, NATIVE)  # a gateway cannot name the endpoint
        programs = _start_peers(suite, stack, servers.folder)
        others = {"native": servers.native}
        yield from repeat(Place(servers.thrift2, servers.processes, others, programs))


def _start_peers(
    suite: Suite, stack: ExitStack, cluster: Path | None
) -> Mapping[str, Callable[[Case, float], Measured]]:
    if suite.peers is None:
        return {}
    names = list(dict.fromkeys(case.program for case in suite.cases if case.program))
    return stack.enter_context(running_peers(suite.peers, cluster, names))


def _found(uri: str, cases: Sequence[Case]) -> None:
    """Make the tables of every case; no two protocols share one."""
    by_tables = {case.tables: case for case in cases}
    accounts = max(case.accounts for case in cases)
    for tables, case in by_tables.items():
        with open_engine(uri, case) as engine:
            workloads.found(engine, accounts, tables)


SUITES = {
    "embedded": Suite("the embedded store", EMBEDDED, embedded, (BESIDE_SCALARDB,)),
    "native": Suite(
        "HBase, through Thrift 2 and by its own protocol",
        NATIVE,
        hbase,
        (BESIDE_JAVA, BY_TRANSPORT),
        warm_s=60.0,
        rounds=4,
        seconds=5.0,
    ),
}


@contextmanager
def opened(suite: Suite) -> Iterator[Iterator[Place]]:
    """Give the suite's stores, one after the other, and end them afterwards."""
    stores = suite.stores(suite)
    try:
        yield stores
    finally:
        stores.close()  # type: ignore[attr-defined]
