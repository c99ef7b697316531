"""`python -m tests.bench.client URI`: what the client of a Thrift 2 gateway pays for a request.

So many threads of one process do one of four works, in turns: `thriftpy2` sends what transfers have
sent with thriftpy2's own client, a connection a thread; `pool` sends the same through our pool,
each request alone; `floor` are transfers without transactions; `commit` are transfers. Told are,
for a request, the processor time and the context switches of the process, as medians over the
rounds, and the ratio of processor time to the first line of the same round.

`--beside FOLDER` measures another checkout of the project as well, in turns with this one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
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
from thriftpy2.utils import deserialize, serialize

from tests.bench import workloads
from tests.bench.measuring import counted_requests
from txn import Engine, connect
from txn.stores import gateway
from txn.stores.gateway import Connection
from txn.stores.hbase.idl import IDL
from txn.stores.hbase.store import HBaseStore

ACCOUNTS = 1_000
RECORDED = 100
WORKS = ("thriftpy2", "pool", "floor", "commit")
TABLES = workloads.Tables("bench-client")
HERE = Path(__file__).parents[2]

Request = tuple[str, Any]
"""A method of the gateway, and the struct of its arguments."""

Call = Callable[[], int]
"""One call of a work; returns how many requests it sent, or 0 where they are counted elsewhere."""


@dataclass(frozen=True, slots=True)
class Spent:
    """In one window: requests, and for each of them processor time, of that in the kernel, and
    context switches. per_second: requests."""

    requests: int
    cpu_us: float
    system_us: float
    switches: float
    per_second: float


def measure(calls: Sequence[Call], seconds: float, sent: Callable[[], int]) -> Spent:
    """Let each call be repeated by a thread of its own for so long."""
    before, sent_before, began = resource.getrusage(resource.RUSAGE_SELF), sent(), time.monotonic()
    counts: list[int] = []
    threads = [
        threading.Thread(target=_repeat, args=(call, began + seconds, counts)) for call in calls
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = resource.getrusage(resource.RUSAGE_SELF)
    requests = sum(counts) or sent() - sent_before
    user_s, system_s = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    switches = after.ru_nvcsw - before.ru_nvcsw + after.ru_nivcsw - before.ru_nivcsw
    return Spent(
        requests,
        (user_s + system_s) * 1e6 / requests,
        system_s * 1e6 / requests,
        switches / requests,
        requests / (time.monotonic() - began),
    )


def _repeat(call: Call, end: float, counts: list[int]) -> None:
    count = 0
    while time.monotonic() < end:
        count += call()
    counts.append(count)


def record(engine: Engine, rng: Random) -> list[Request]:
    """Return what some transfers send."""
    requests: list[Request] = []
    send = Connection.send

    def recorded(connection: Connection, request: gateway.Request[Any], **named: Any) -> None:
        requests.append(_whole(*request[:2]))
        send(connection, request, **named)

    Connection.send = recorded  # type: ignore[method-assign]
    try:
        for _ in range(RECORDED):
            workloads.transfers(engine, rng, ACCOUNTS, 1, tables=TABLES)
    finally:
        Connection.send = send  # type: ignore[method-assign]
    return requests


def _whole(name: str, arguments: tuple[Any, ...]) -> Request:
    """Return the request made of the interface's own structs, whatever ours are made of."""
    kind = getattr(IDL.THBaseService, name + "_args")
    return name, deserialize(kind(), serialize(kind(*arguments)))


@contextmanager
def bare_clients(uri: str, count: int) -> Iterator[list[TClient]]:
    """Give so many clients of thriftpy2, each with a connection of its own."""
    parts = urlsplit(uri)
    transports, clients = [], []
    for _ in range(count):
        wire = TSocket(parts.hostname, parts.port)
        transport = TCyBufferedTransport(wire)
        transport.open()
        wire.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transports.append(transport)
        clients.append(TClient(IDL.THBaseService, TCyBinaryProtocol(transport)))
    try:
        yield clients
    finally:
        for transport in transports:
            transport.close()


def bare_call(client: TClient, requests: Iterator[Request]) -> int:
    """Send the next request as thriftpy2 does: by the method and its arguments."""
    name, arguments = next(requests)
    getattr(client, name)(**arguments.__dict__)
    return 1


def pool_call(store: HBaseStore, requests: Iterator[Request]) -> int:
    """Send the next request through our pool."""
    name, arguments = next(requests)
    store._pool.run_one(Connection.ask, name, *arguments.__dict__.values(), repeat=False)
    return 1


def endless(requests: Sequence[Request], start: int) -> Iterator[Request]:
    """Yield the requests for ever, from one of them on."""
    while True:
        yield from requests[start:]
        start = 0


def serve(uri: str, threads: int) -> None:
    """Measure the works that are asked for on standard input, each with its seconds and a seed,
    and tell what was found on standard output."""
    with (
        connect(uri, table=TABLES.name, transactions=TABLES.transactions) as engine,
        bare_clients(uri, threads) as clients,
    ):
        workloads.found(engine, ACCOUNTS, TABLES)
        requests = record(engine, Random(0))
        store = engine.context.store
        assert isinstance(store, HBaseStore)
        sent = counted_requests()

        def call_of(work: str, number: int, seed: int) -> Call:
            rng, turns = Random(seed), endless(requests, number * len(requests) // threads)
            match work:
                case "thriftpy2":
                    return partial(bare_call, clients[number], turns)
                case "pool":
                    return partial(pool_call, store, turns)
                case "floor":
                    return lambda: 0 * workloads.plain_transfer(store, rng, ACCOUNTS, TABLES)
                case _:
                    of = (engine, rng, ACCOUNTS, 1)
                    return lambda: 0 * workloads.transfers(*of, tables=TABLES)

        print("ready", flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            seed = 1 + threads * asked["turn"]
            calls = [call_of(asked["work"], number, seed + number) for number in range(threads)]
            print(json.dumps(asdict(measure(calls, asked["seconds"], sent))), flush=True)


class Worker:
    """A process that measures one checkout."""

    def __init__(self, checkout: Path, uri: str, threads: int) -> None:
        self.checkout = checkout
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.client", uri, "--serve", f"--threads={threads}"],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def measure(self, work: str, turn: int, seconds: float) -> Spent:
        asked = {"work": work, "turn": turn, "seconds": seconds}
        assert self._process.stdin is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        return Spent(**json.loads(self._answer()))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def run(workers: Sequence[Worker], works: Sequence[str], rounds: int, seconds: float) -> list[Row]:
    """Measure each work of each checkout in each round, after one that does not count."""
    plan = [(work, worker) for work in works for worker in workers]
    found: dict[tuple[str, Worker], list[Spent]] = {case: [] for case in plan}
    for turn in range(rounds + 1):
        for work, worker in plan:
            spent = worker.measure(work, turn, seconds)
            if turn:
                found[work, worker].append(spent)
    base = found[plan[0]]
    return [
        {"work": work, "checkout": str(worker.checkout), **_summary(found[work, worker], base)}
        for work, worker in plan
    ]


Row = dict[str, Any]


def _summary(spent: Sequence[Spent], base: Sequence[Spent]) -> Row:
    names = ("cpu_us", "system_us", "switches", "per_second")
    medians = {name: median(getattr(each, name) for each in spent) for name in names}
    ratios = [mine.cpu_us / other.cpu_us for mine, other in zip(spent, base, strict=True)]
    return {**medians, "cpu_to_first": ratios, "windows": [asdict(each) for each in spent]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.client", description=__doc__)
    parser.add_argument("uri", help="hbase+thrift2://HOST:PORT")
    parser.add_argument("--works", nargs="*", choices=WORKS, default=WORKS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each work in each round")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--beside", type=Path, nargs="*", default=[], metavar="FOLDER")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    if options.serve:
        serve(options.uri, options.threads)
        return
    with ExitStack() as stack:
        workers = [
            stack.enter_context(closing(Worker(place, options.uri, options.threads)))
            for place in (*options.beside, HERE)
        ]
        rows = run(workers, options.works, options.rounds, options.seconds)
    print(json.dumps(rows, indent=1)) if options.json else show(rows)


def show(rows: Sequence[Row]) -> None:
    """Print the table."""
    head = ("work", "checkout", "cpu, µs", "kernel, µs", "switches", "a second")
    table = Table(*head, f"cpu to {rows[0]['work']}", title="a request")
    for row in rows:
        ratios = row["cpu_to_first"]
        table.add_row(
            row["work"],
            Path(row["checkout"]).name,
            *(f"{row[name]:,.1f}" for name in ("cpu_us", "system_us", "switches", "per_second")),
            f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
