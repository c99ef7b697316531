"""What the console makes of the metrics of servers."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest

from recovery.console import metrics as metrics_module
from recovery.console.metrics import EVERY_MS, ServerMetrics, read_histogram
from recovery.console.statistics import Latency
from txn.clock import ManualClock
from txn.errors import InvalidRequestError

pytestmark = pytest.mark.fast

Page = list[str]


@pytest.fixture
def page() -> Page:
    """What the server tells: the last text."""
    return [""]


@pytest.fixture
def address(page: Page) -> Iterator[str]:
    """A server on this machine that shows the page."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page[-1].encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
        server.shutdown()
        thread.join()


def tell(conflicts: int, helped: int) -> str:
    return (
        "# TYPE hbase_txn_conflicts counter\n"
        f'hbase_txn_conflicts_total{{table="stock"}} {conflicts}\n'
        "# TYPE hbase_txn_helped counter\n"
        f'hbase_txn_helped_total{{action="rolled back"}} {helped}\n'
        "# TYPE other counter\nother_total 7\n"
    )


def test_what_servers_count_is_told_from_the_first_look_on(address: str, page: Page) -> None:
    clock = ManualClock()
    servers = ServerMetrics([address], clock)
    for conflicts, helped in ((100, 3), (105, 3), (106, 4)):
        page.append(tell(conflicts, helped))
        servers.refresh()
        clock.advance(EVERY_MS)
    counts = servers.read()
    assert counts is not None
    assert (counts.conflicts, counts.helped) == ({"stock": 6}, {"rolled back": 1})


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
    clock = ManualClock()
    servers = ServerMetrics([address], clock)
    quiet = list_phase("clean", 1, 1, 1)
    for numbers in ((5, 5, 5), (5, 55, 55), (5, 99, 105)):
        page.append(quiet + list_phase("lock", *numbers))
        servers.refresh()
        clock.advance(EVERY_MS)
    counts = servers.read()
    assert counts is not None
    (lock,) = counts.phases
    assert (lock.phase, lock.number) == ("lock", 200)
    assert lock.p50 == pytest.approx(1 + 9 * 100 / 188)
    assert (lock.p95, lock.p99) == (math.inf, math.inf)


def test_a_time_lies_within_its_bucket() -> None:
    found = read_histogram("put", {0.001: 50, 0.01: 100, math.inf: 100})
    assert found == Latency("put", 100, 1.0, pytest.approx(9.1), pytest.approx(9.82))


def test_a_server_that_began_again_has_counted_from_zero(address: str, page: Page) -> None:
    clock = ManualClock()
    servers = ServerMetrics([address], clock)
    for conflicts in (100, 2):
        page.append(tell(conflicts, 0))
        servers.refresh()
        clock.advance(EVERY_MS)
    counts = servers.read()
    assert counts is not None
    assert counts.conflicts == {"stock": 2}


def test_a_phase_of_a_restarted_server_may_have_no_total(address: str, page: Page) -> None:
    """If as many batches took long before its end as took little time since, only the buckets
    between have grown."""
    clock = ManualClock()
    servers = ServerMetrics([address], clock)
    for numbers in ((0, 0, 7), (0, 7, 7)):
        page.append(list_phase("lock", *numbers))
        servers.refresh()
        clock.advance(EVERY_MS)
    counts = servers.read()
    assert counts is not None
    assert counts.phases == []


def test_a_server_is_not_asked_at_each_look(address: str, page: Page) -> None:
    clock = ManualClock()
    servers = ServerMetrics([address], clock)
    page.append(tell(1, 0))
    servers.refresh()
    page.append(tell(2, 0))
    clock.advance(EVERY_MS - 1)
    servers.refresh()
    counts = servers.read()
    assert counts is not None
    assert counts.conflicts == {}


@pytest.mark.parametrize(
    "text",
    [
        "no metrics {",
        "hbase_txn_conflicts_total{ 1",
        'hbase_txn_phase_seconds_bucket{phase="lock",le="soon"} 1\n',
    ],
)
def test_a_server_that_tells_nonsense_is_named(text: str, address: str, page: Page) -> None:
    page.append(text)
    servers = ServerMetrics([address], ManualClock())
    servers.refresh()
    counts = servers.read()
    assert counts is not None
    assert list(counts.silent) == [address]


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


def drip(connection: socket.socket, words: bytes) -> None:
    for byte in words:
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


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
        servers = ServerMetrics([other, address], ManualClock())
        servers.refresh()
        counts = servers.read()
    assert counts is not None
    assert list(counts.silent) == [other]
    assert why in counts.silent[other]
    assert counts.since_ms is not None


def test_a_server_that_answers_slowly_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "TIMEOUT_S", 0.3)

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n")
        drip(connection, b"x" * 100)

    with answering(answer) as slow:
        servers = ServerMetrics([slow], ManualClock())
        began_s = time.monotonic()
        servers.refresh()
        assert time.monotonic() - began_s < 2
        counts = servers.read()
    assert counts is not None
    assert list(counts.silent) == [slow]


def test_a_server_that_does_not_answer_is_named() -> None:
    servers = ServerMetrics(["http://127.0.0.1:1/metrics"], ManualClock())
    servers.refresh()
    counts = servers.read()
    assert counts is not None
    assert "refused" in counts.silent["http://127.0.0.1:1/metrics"]


def test_no_server_tells_nothing() -> None:
    assert ServerMetrics([], ManualClock()).read() is None


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"file:///etc/passwd"):
        ServerMetrics(["file:///etc/passwd"], ManualClock())
