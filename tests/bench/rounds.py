"""`python -m tests.bench rounds`: the requests and rounds of a transfer of two keys with its read.

It runs over HBase's own RPC against a cluster of region servers in threads, which keep their cells
in memory: the figures are counts, not times. A round is the requests that a thread sends before it
waits for an answer. The caller's requests are counted for each transfer; those of the thread that
finishes in the background (5-COMPLETE of many transactions at once) are shown as a share.
"""

from __future__ import annotations

import argparse
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from tests.bench.measuring import Case, Protocol, open_engine
from tests.bench.workloads import found, transfers
from tests.unit.fake_cluster import fake_cluster
from txn.model import LOCK_SUFFIX, TAG_SUFFIX
from txn.protocol.statuses import KeptRows
from txn.stores.hbase.native.connection import RpcCall, RpcConnection

ACCOUNTS = 50
WARM = 3
BUCKETS = 4


@dataclass(frozen=True, slots=True)
class Placement:
    """Where transaction rows are: on which of the servers, by their region's number. The accounts
    are in one region of the first server. rows: that of `connect`."""

    title: str
    servers: Sequence[int]
    rows: KeptRows | None = None

    @property
    def salt_buckets(self) -> int:
        return len(self.servers)

    def find_server(self, table: bytes, region: int) -> int:
        return self.servers[region] if table.endswith(b"-transactions") else 0


SAME = Placement("on the keys' server", (0,))
OTHER = Placement("on another server", (1,))
EITHER = Placement(f"in {BUCKETS} buckets on both servers", (0, 1) * (BUCKETS // 2))
PLACEMENTS = (SAME, OTHER, EITHER)
CASES: list[tuple[Protocol, Placement]] = [
    *(("six-phase", placement) for placement in PLACEMENTS),
    *(("fenced", replace(placement, rows="always")) for placement in PLACEMENTS),
    ("fenced", replace(SAME, title="not needed")),
]


class Request(NamedTuple):
    """server: its port. parts: what the request reads and writes, in its order: `read`, statuses,
    `locks`, `values`, `tags`; or the method, if it is not one for rows."""

    server: int
    parts: tuple[str, ...]


Round = list[Request]


class Counts(NamedTuple):
    """rounds: of the caller, for each transfer; the first one is the read. later: how many requests
    other threads sent for each transfer."""

    rounds: list[list[Round]]
    later: float

    @property
    def requests(self) -> set[int]:
        """The requests of a transfer with its read; without what other threads send."""
        return {sum(map(len, each)) for each in self.rounds}

    @property
    def until_decided(self) -> set[int]:
        """The rounds of a transfer until its decision is acknowledged, with the read."""
        return {find_last(each, "2-ASSERTED", "ExecService") for each in self.rounds}

    @property
    def until_unlocked(self) -> set[int]:
        """The rounds of a transfer until its keys are free, with the read."""
        return {find_last(each, "locks", "ExecService") for each in self.rounds}


def find_last(rounds: Sequence[Round], *parts: str) -> int:
    """Return the number, from 1, of the last round that has one of these parts."""
    return max(
        number
        for number, requests in enumerate(rounds, 1)
        if any(part in request.parts for request in requests for part in parts)
    )


def count_rounds(protocol: Protocol, placement: Placement, count: int) -> Counts:
    """Make so many transfers, one after the other, and return what they sent."""
    case = Case("transfer", 1, 1, protocol=protocol, transport="native")
    with (
        fake_cluster(2, placement.find_server) as cluster,
        open_engine(
            cluster.uri, case, salt_buckets=placement.salt_buckets, rows=placement.rows
        ) as engine,
    ):
        rng = Random(1)
        found(engine, ACCOUNTS, case.tables)
        for _ in range(max(WARM, 8 * (placement.salt_buckets - 1))):  # until regions are known
            transfers(engine, rng, ACCOUNTS, 1, tables=case.tables)
        engine.flush()
        made: list[list[Round]] = []
        with recorded() as rounds:
            mine = rounds[threading.get_ident()]
            for _ in range(count):
                begin = len(mine)
                attempts = transfers(engine, rng, ACCOUNTS, 1, tables=case.tables)
                assert attempts == 1
                made.append(mine[begin:])
            in_flight = len(mine)
            engine.flush()
            assert len(mine) == in_flight
        total = sum(len(requests) for each in rounds.values() for requests in each)
        return Counts(made, (total - sum(map(len, mine))) / count)


@contextmanager
def recorded() -> Iterator[dict[int, list[Round]]]:
    """Record what each thread sends over HBase's own RPC, in rounds."""
    send, receive = RpcConnection.send, RpcCall.receive
    rounds: dict[int, list[Round]] = defaultdict(list)
    waited: set[int] = set()

    def record_send(connection: RpcConnection, method: str, request: Any, *times: int) -> Any:
        thread = threading.get_ident()
        if thread in waited or not rounds[thread]:
            waited.discard(thread)
            rounds[thread].append([])
        parts = list_parts(request) if method == "Multi" else (method,)
        rounds[thread][-1].append(Request(connection.address[1], parts))
        return send(connection, method, request, *times)

    def record_receive(*given: Any, **named: Any) -> Any:
        waited.add(threading.get_ident())
        return receive(*given, **named)

    with (
        patch.object(RpcConnection, "send", record_send),
        patch.object(RpcCall, "receive", record_receive),
    ):
        yield rounds


def list_parts(request: Any) -> tuple[str, ...]:
    """Return what a request for rows reads and writes."""
    parts: dict[str, None] = {}
    for entry in request.regionAction:
        for action in entry.action:
            if action.HasField("get"):
                parts["read"] = None
            for column in action.mutation.column_value:
                for cell in column.qualifier_value:
                    if (part := _name_part(column.family, cell)) is not None:
                        parts[part] = None
    return tuple(parts)


def _name_part(family: bytes, cell: Any) -> str | None:
    if cell.qualifier.endswith(LOCK_SUFFIX):
        return "locks"
    if cell.qualifier.endswith(TAG_SUFFIX):
        return "tags"
    if family == b"t":
        return cell.value.decode() if cell.qualifier == b"status" else None
    return "values"


def show(found: dict[tuple[Protocol, Placement], Counts]) -> None:
    """Print the counts, and the rounds of one transfer each."""
    console = Console(width=150)
    table = Table(
        "protocol",
        "transaction row",
        "requests, with the read",
        "5-COMPLETE",
        "rounds until decided, with the read",
        "after it",
        "until unlocked, with the read",
        "after it",
        title="a transfer of two keys, natively",
    )
    for (protocol, placement), counts in found.items():
        rounds = [
            text
            for numbers in (counts.until_decided, counts.until_unlocked)
            for text in (_show(numbers), _show({number - 1 for number in numbers}))
        ]
        share = f"{counts.later:.2f}"
        table.add_row(protocol, placement.title, _show(counts.requests), share, *rounds)
    console.print(table)
    for (protocol, placement), counts in found.items():
        console.print(f"{protocol}, the transaction row {placement.title}:", highlight=False)
        first = counts.rounds[0][0][0].server
        for number, requests in enumerate(counts.rounds[0]):
            places = ("keys' server" if each.server == first else "other" for each in requests)
            parts = (", ".join(each.parts) for each in requests)
            text = "; ".join(f"{a}: {b}" for a, b in zip(places, parts, strict=True))
            console.print(f"  {number} {text}", highlight=False)


def _show(numbers: set[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench rounds", description=__doc__)
    parser.add_argument("--count", type=int, default=50, help="transfers of each kind")
    options = parser.parse_args(given)
    show({case: count_rounds(*case, options.count) for case in CASES})


if __name__ == "__main__":
    main()
