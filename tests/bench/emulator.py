"""`python -m tests.bench.emulator`: the emulator's gateways beside those of a real HBase.

Single requests of plain clients: get, put, checkAndPut and a scan of 100 rows, from 1 client and
from 16 (threads in 4 processes), to each subject in turn, for some rounds, after HBase has had the
time to compile itself (`--warm`). What is told is the ratio to HBase within a round. HBase's log
goes to the operating system's cache, so the emulator's store is opened with `sync=off`, which
promises the same; one subject is the store as by default.
HBASE_TXN_TEST_THRIFT1 and HBASE_TXN_TEST_THRIFT2 name the gateways of a running HBase.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from random import Random
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table
from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TClient
from thriftpy2.transport import TCyBufferedTransport, TSocket

from tests.bench import report
from tests.bench.servers import measured_hbase
from tests.integration.serving import served
from txn.emulator.thrift1 import IDL as ONE
from txn.stores.hbase.idl import IDL as TWO

TABLE = b"bench_emulator"
ROWS = 1000
SCANNED = 100
VALUE = b"v" * 100
WORKS = ("get", "put", "checkAndPut", "scan")
CLIENTS = (1, 16)
PROCESSES = 4
PATIENCE_S = 60
SUBJECTS = ("HBase", "emulator", "emulator, 2 workers", "emulator, synced")
HEAD = ("gateway", "work", "clients", "subject", "a second", "ms", "99 %", "to HBase", "range")

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Measured:
    """Requests a second of all clients together; median and 99th percentile of one, in ms."""

    per_second: float
    call_ms: float
    slow_ms: float


def row(number: int) -> bytes:
    return b"row%06d" % number


def calls1(client: Any, rng: Random) -> dict[str, Call]:
    """One request of each kind to Thrift 1."""
    numbers = count()

    def put() -> object:
        mutations = [ONE.Mutation(column=b"d:q", value=VALUE)]
        return client.mutateRow(TABLE, row(rng.randrange(ROWS)), mutations, {})

    def check() -> object:
        mutation = ONE.Mutation(column=b"d:c", value=b"%d" % next(numbers))
        return client.checkAndPut(TABLE, row(rng.randrange(ROWS)), b"d:q", VALUE, mutation, {})

    def scan() -> None:
        wanted = ONE.TScan(startRow=row(rng.randrange(ROWS - SCANNED)), caching=SCANNED)
        scanner = client.scannerOpenWithScan(TABLE, wanted, {})
        assert len(client.scannerGetList(scanner, SCANNED)) == SCANNED
        client.scannerClose(scanner)

    return {
        "get": lambda: client.getRow(TABLE, row(rng.randrange(ROWS)), {}),
        "put": put,
        "checkAndPut": check,
        "scan": scan,
    }


def calls2(client: Any, rng: Random) -> dict[str, Call]:
    """One request of each kind to Thrift 2."""
    numbers = count()

    def put(column: bytes = b"q", value: bytes = VALUE, name: bytes | None = None) -> Any:
        cells = [TWO.TColumnValue(b"d", column, value)]
        return TWO.TPut(row=name or row(rng.randrange(ROWS)), columnValues=cells)

    def check() -> object:
        name = row(rng.randrange(ROWS))
        changed = put(b"c", b"%d" % next(numbers), name)
        return client.checkAndPut(TABLE, name, b"d", b"q", VALUE, changed)

    def scan() -> None:
        start = row(rng.randrange(ROWS - SCANNED))
        wanted = TWO.TScan(startRow=start, caching=SCANNED, limit=SCANNED)
        assert len(client.getScannerResults(TABLE, wanted, SCANNED)) == SCANNED

    return {
        "get": lambda: client.get(TABLE, TWO.TGet(row=row(rng.randrange(ROWS)))),
        "put": lambda: client.put(TABLE, put()),
        "checkAndPut": check,
        "scan": scan,
    }


KINDS = {
    "thrift1": (ONE.Hbase, calls1),
    "thrift2": (TWO.THBaseService, calls2),
}


@contextmanager
def client(uri: str) -> Iterator[Any]:
    parts = urlsplit(uri)
    transport = TCyBufferedTransport(TSocket(parts.hostname, parts.port, socket_timeout=60_000))
    transport.open()
    try:
        yield TClient(KINDS[parts.scheme.removeprefix("hbase+")][0], TCyBinaryProtocol(transport))
    finally:
        transport.close()


def fill(uri: str) -> None:
    """Make the table and its rows, through Thrift 2."""
    with client(uri) as c:
        name = TWO.TTableName(qualifier=TABLE)
        if c.tableExists(name):
            drop(uri)
        c.createTable(TWO.TTableDescriptor(name, [TWO.TColumnFamilyDescriptor(name=b"d")]), [])
        for start in range(0, ROWS, 100):
            puts = [
                TWO.TPut(row=row(i), columnValues=[TWO.TColumnValue(b"d", b"q", VALUE)])
                for i in range(start, start + 100)
            ]
            c.putMultiple(TABLE, puts)


def drop(uri: str) -> None:
    with client(uri) as c:
        name = TWO.TTableName(qualifier=TABLE)
        c.disableTable(name)
        c.deleteTable(name)


def measure(uri: str, work: str, clients: int, seconds: float, seed: int) -> Measured:
    """Let so many clients do one kind of work for so long."""
    context = multiprocessing.get_context("spawn")
    processes = min(clients, PROCESSES)
    ready, results = context.Barrier(processes), context.Queue()
    shares = [
        (uri, work, (clients // processes, seconds, seed + 100 * i), (ready, results))
        for i in range(processes)
    ]
    workers = [context.Process(target=_process, args=share) for share in shares]
    for worker in workers:
        worker.start()
    try:
        found = [results.get(timeout=seconds + PATIENCE_S) for _ in workers]
        for worker in workers:
            worker.join()
    finally:
        for worker in workers:
            worker.kill()
    times = sorted(each for part in found for each in part)
    slow = times[len(times) * 99 // 100]
    return Measured(len(times) * clients / sum(times), median(times) * 1000, slow * 1000)


def _process(uri: str, work: str, how: tuple[int, float, int], start: tuple[Any, Any]) -> None:
    """The body of one measuring process; `start` is a barrier, and a queue for what it found."""
    (threads, seconds, seed), (ready, results) = how, start
    times: list[float] = []
    calls = KINDS[urlsplit(uri).scheme.removeprefix("hbase+")][1]

    def repeat(call: Call) -> None:
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            call()
            times.append(time.perf_counter() - began)

    with ExitStack() as stack:
        mine = [
            calls(stack.enter_context(client(uri)), Random(seed + i))[work] for i in range(threads)
        ]
        for call in mine:
            call()
        ready.wait()
        running = [threading.Thread(target=repeat, args=(call,)) for call in mine]
        for each in running:
            each.start()
        for each in running:
            each.join()
    results.put(times)


@contextmanager
def subjects(folder: Path) -> Iterator[dict[str, dict[str, str]]]:
    """What is measured, by name: its gateways' URIs."""
    with ExitStack() as stack:
        hbase = stack.enter_context(measured_hbase())
        found = {"HBase": {"thrift1": hbase.thrift1, "thrift2": hbase.thrift2}}
        for name, options, workers in (
            ("emulator", "?sync=off", 1),
            ("emulator, 2 workers", "?sync=off", 2),
            ("emulator, synced", "", 1),
        ):
            store = f"embedded://{folder}/{name.replace(', ', '-').replace(' ', '-')}{options}"
            arguments = ("--thrift1", "0", "--thrift2", "0", "--workers", str(workers))
            found[name] = stack.enter_context(served(store, folder / "log", *arguments)).uris
        for uris in found.values():
            fill(uris["thrift2"])
        stack.callback(drop, hbase.thrift2)
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.emulator", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="for each case in each round")
    parser.add_argument("--warm", type=float, default=8, help="seconds of each work before")
    parser.add_argument("--kinds", nargs="*", default=sorted(KINDS), choices=sorted(KINDS))
    parser.add_argument("--works", nargs="*", default=WORKS, choices=WORKS)
    parser.add_argument("--clients", nargs="*", type=int, default=CLIENTS)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="txn-bench-") as name, subjects(Path(name)) as found:
        for kind, work in product(options.kinds, options.works):
            measure(found["HBase"][kind], work, max(CLIENTS), options.warm, seed=-1)
        cases = list(product(options.kinds, options.works, options.clients))
        for kind, work, clients in cases:
            rounds: list[dict[str, Measured]] = [
                {
                    subject: measure(uris[kind], work, clients, options.seconds, seed)
                    for subject, uris in found.items()
                }
                for seed in range(options.rounds)
            ]
            rows += [_row(subject, (kind, work, clients), rounds) for subject in found]
    if options.write:
        report.save("emulator", rows)
        report.put("emulator", *page_table(rows))
    print(json.dumps(rows, indent=1)) if options.json else _show(rows)


def _row(
    subject: str, case: tuple[str, str, int], rounds: list[dict[str, Measured]]
) -> dict[str, Any]:
    kind, work, clients = case
    mine = [each[subject] for each in rounds]
    return {
        "kind": kind,
        "work": work,
        "clients": clients,
        "subject": subject,
        "per_second": median(each.per_second for each in mine),
        "call_ms": median(each.call_ms for each in mine),
        "slow_ms": median(each.slow_ms for each in mine),
        "to_hbase": [each[subject].per_second / each["HBase"].per_second for each in rounds],
    }


def _line(row: dict[str, Any]) -> list[str]:
    ratios = row["to_hbase"]
    return [
        *(row["kind"], row["work"], str(row["clients"]), row["subject"]),
        *(f"{row['per_second']:,.0f}", f"{row['call_ms']:.2f}", f"{row['slow_ms']:.1f}"),
        *(f"{median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"),
    ]


def page_table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return HBase's rates, and the shares of it, each with 1 client and with 16."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in rows:
        is_hbase = row["subject"] == SUBJECTS[0]
        text = f"{row['per_second']:,.0f}" if is_hbase else f"{median(row['to_hbase']):.2f}"
        line = found.setdefault((row["kind"], row["work"]), {})
        line.setdefault(row["subject"], []).append(text)
    body = [
        [f"{kind} {work}", *("; ".join(line[subject]) for subject in SUBJECTS)]
        for (kind, work), line in found.items()
    ]
    return ["request", "HBase, a second", *SUBJECTS[1:]], body


def _show(rows: list[dict[str, Any]]) -> None:
    table = Table(*HEAD, title="the emulator beside HBase")
    for row in rows:
        table.add_row(*_line(row))
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
