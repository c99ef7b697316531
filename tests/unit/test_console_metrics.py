"""What the console makes of the metrics of servers."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest

from recovery.console.metrics import EVERY_MS, ServerCounts, ServerMetrics
from txn.clock import ManualClock
from txn.errors import InvalidRequestError

Page = list[str]


@pytest.fixture
def page() -> Page:
    """What the server tells: the last text."""
    return [""]


@contextmanager
def answering(work: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server on this machine that does this with each connection."""

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1_000)
            with suppress(OSError):
                work(self.request)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
        server.shutdown()
        thread.join()


@pytest.fixture
def address(page: Page) -> Iterator[str]:
    """A server on this machine that shows the page."""
    with answering(
        lambda connection: connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + page[-1].encode())
    ) as address:
        yield address


def tell(conflicts: int, helped: int) -> str:
    return (
        "# TYPE hbase_txn_conflicts counter\n"
        f'hbase_txn_conflicts_total{{table="stock"}} {conflicts}\n'
        "# TYPE hbase_txn_helped counter\n"
        f'hbase_txn_helped_total{{action="rolled back"}} {helped}\n'
        "# TYPE other counter\nother_total 7\n"
    )


def count(servers: ServerMetrics) -> ServerCounts:
    """Ask the servers; return what they have told until now."""
    servers.refresh()
    counts = servers.last
    assert counts is not None
    return counts


def follow(address: str, page: Page, *texts: str) -> ServerCounts:
    """Ask a server whenever it is time to, while it tells these texts."""
    clock = ManualClock()
    servers = ServerMetrics([address], clock)
    for text in texts:
        page.append(text)
        counts = count(servers)
        clock.advance(EVERY_MS)
    return counts


def test_what_servers_count_is_told_from_the_first_look_on(address: str, page: Page) -> None:
    """A server that began again has counted from zero: no conflict went away."""
    counts = follow(address, page, tell(100, 3), tell(105, 3), tell(106, 4))
    assert (counts.conflicts, counts.helped) == ({"stock": 6}, {"rolled back": 1})
    assert follow(address, page, tell(100, 0), tell(2, 0)).conflicts == {"stock": 2}


def list_phase(phase: str, *numbers: int) -> str:
    """A histogram of a phase: how many batches took up to 1 ms, 10 ms, and longer."""
    name = "hbase_txn_phase_seconds"
    lines = [
        f'{name}_bucket{{phase="{phase}",outcome="{outcome}",le="{bound}"}} {number}'
        for outcome in ("done", "failed")
        for bound, number in zip(("0.001", "0.01", "+Inf"), numbers, strict=True)
    ]
    return "\n".join([f"# TYPE {name} histogram", *lines, ""])


def test_how_long_phases_took_is_told_from_the_first_look_on(address: str, page: Page) -> None:
    quiet = list_phase("clean", 1, 1, 1)
    told = [(5, 5, 5), (5, 55, 55), (5, 99, 105)]
    counts = follow(address, page, *(quiet + list_phase("lock", *numbers) for numbers in told))
    (lock,) = counts.phases
    assert (lock.phase, lock.number) == ("lock", 200)
    assert lock.p50 == pytest.approx(1 + 9 * 100 / 188)
    assert (lock.p95, lock.p99) == (math.inf, math.inf)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (b"garbage\r\n", "garbage"),
        (b"", "Remote end closed"),
        (b"HTTP/1.1 503 Busy\r\n\r\n", "503: Busy"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", "cut off"),
        (b"HTTP/1.1 200 OK\r\n\r\n\xff", "utf-8"),
        (
            b'HTTP/1.0 200 OK\r\n\r\nhbase_txn_conflicts_total{table="t"} NaN\n',
            "not a finite number",
        ),
    ],
)
def test_a_server_that_answers_anything_else_keeps_no_other_from_being_asked(
    words: bytes, why: str, address: str, page: Page
) -> None:
    page.append(tell(1, 0))
    with answering(lambda connection: connection.sendall(words)) as other:
        counts = count(ServerMetrics([other, address], ManualClock()))
    assert list(counts.silent) == [other]
    assert why in counts.silent[other]
    assert counts.since_ms is not None


def test_a_server_that_does_not_answer_is_named() -> None:
    nobody = "http://127.0.0.1:1/metrics"
    assert "refused" in count(ServerMetrics([nobody], ManualClock())).silent[nobody]
    assert ServerMetrics([], ManualClock()).last is None


def test_an_address_that_is_none_is_refused() -> None:
    """Such as a file, which would be read."""
    with pytest.raises(InvalidRequestError, match=r"file:///etc/passwd"):
        ServerMetrics(["file:///etc/passwd"], ManualClock())
