"""The connections of a Thrift store: how many, how long, and what becomes of broken ones."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from tests.unit.fake_gateway import Break, fake_gateway
from tests.unit.fake_gateway import FakeGateway as Gateway
from txn.clock import ManualClock
from txn.errors import (
    InvalidRequestError,
    MaybeApplied,
    NotApplied,
    StoreError,
    TableUnavailable,
)
from txn.host.lending import Loan
from txn.model import Check, Edit, Key, RowExclusion
from txn.stores import gateway as gateway_module
from txn.stores import open_store, wire
from txn.stores.gateway import Connection, Request, Term
from txn.stores.hbase.store import HBaseStore as Pooled
from txn.stores.hbase.thrift2 import IDL
from txn.stores.wire import NS_PER_MS

Opener = Callable[[str], Pooled]

CERTIFICATE = Path(__file__).parents[1] / "integration" / "tls" / "certificate.pem"
KEYS = [Key(f"r{number}", "d", "x", "t") for number in range(20)]
CHECKS = [Check(key, b"", ((key, b"1"),)) for key in KEYS]
LARGE = [Key(b"%05d" % number + bytes(30_000), "d", "x", "t") for number in range(3)]
ERROR = IDL.TIOError("java.io.IOException: out of order\n\tat java.lang.Thread.run")


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with fake_gateway() as gateway:
        yield gateway


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """What limits all waits for a gateway; it moves when it is told to."""
    clock = ManualClock()
    manual = SimpleNamespace(monotonic_ns=lambda: clock.monotonic_ms() * NS_PER_MS)
    for module in (gateway_module, wire):
        monkeypatch.setattr(module, "time", manual)
    return clock


@pytest.fixture
def open_at(gateway: Gateway, clock: ManualClock) -> Iterator[Opener]:
    """Opens stores of the gateway with some options."""
    with ExitStack() as stack:

        def open_at(options: str) -> Pooled:
            store = open_store(f"{gateway.uri}{options}", clock)
            assert isinstance(store, Pooled)
            stack.callback(store.close)
            return store

        yield open_at


@pytest.fixture
def store(open_at: Opener) -> Pooled:
    store = open_at("")
    store._sizes.learn(b"t", 1_000, 1_000)  # else few rows share an answer
    return store


@pytest.fixture
def narrow(open_at: Opener) -> Pooled:
    """A store with one connection."""
    return open_at("?pool=1")


def breaks_at(*numbers: int, error: Exception | None = None) -> Callable[[int, str], None]:
    def before(number: int, name: str) -> None:
        if number in numbers:
            raise error or Break

    return before


def fail(gateway: Gateway, failing: str, error: Exception) -> None:
    """Let all requests of a name fail."""

    def before(number: int, name: str) -> None:
        if name == failing:
            raise error

    gateway.before = before


def test_the_checks_of_a_batch_and_a_read_go_in_parallel(gateway: Gateway, store: Pooled) -> None:
    """A transaction takes its locks in the time of one, and is decided a round trip sooner."""
    meeting = threading.Barrier(5)
    gateway.before = lambda number, name: meeting.wait(timeout=60)
    assert store.check_and_put(CHECKS[:5]) == [True] * 5
    assert gateway.most_at_once == 5
    answers, found, _ = store.check_and_read(CHECKS[:4], KEYS[:3])
    assert (answers, found) == ([True] * 4, dict.fromkeys(KEYS[:3]))
    assert sorted(gateway.names[5:]) == ["checkAndPut"] * 4 + ["getMultiple"]


@pytest.mark.parametrize("is_framed", [False, True])
def test_checks_that_share_a_connection_are_sent_ahead(is_framed: bool) -> None:
    """A frame is one request. Non-blocking gateways are framed, and some speak compactly."""
    options = "&transport=framed&protocol=compact" if is_framed else ""
    write, written = gateway_module.Wire.write, list[bytes]()

    def counted(wire: gateway_module.Wire, data: bytes) -> None:
        written.append(data)
        write(wire, data)

    with (
        fake_gateway(framed_and_compact=is_framed) as gateway,
        closing(open_store(f"{gateway.uri}?pool=1&timeout_ms=60000{options}")) as store,
    ):
        with patch.object(gateway_module.Wire, "write", counted):
            assert store.check_and_put(CHECKS[:10]) == [True] * 10
        assert len(written) == (10 if is_framed else 1)
        assert store.check_and_put(CHECKS * 3) == [True] * 60
        assert gateway.names == ["checkAndPut"] * 70
        assert store.read(KEYS) == dict.fromkeys(KEYS)
        assert list(store.scan(b"t")) == []


def test_a_gateway_behind_tls_is_trusted_by_its_certificate(gateway: Gateway) -> None:
    """One that nobody vouches for is refused before anything is sent."""
    gateway.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    gateway.tls.load_cert_chain(CERTIFICATE, CERTIFICATE.with_name("key.pem"))
    uri, value = f"hbase+thrift2://localhost:{gateway.port}", bytes(100_000)
    with closing(open_store(f"{uri}?ca={CERTIFICATE}")) as store:
        store.write([Edit(KEYS[0], value, 1)])
        assert store.read(KEYS) == dict.fromkeys(KEYS)
    is_told = pytest.raises(NotApplied, match=r"cannot connect.*certificate verify failed")
    with closing(open_store(f"{uri}?tls=on")) as store, is_told:
        store.read(KEYS)
    assert gateway.names.count("put") == 1


def test_a_row_is_put_by_itself(gateway: Gateway, store: Pooled) -> None:
    store.write([Edit(KEYS[0], b"1", 1), Edit(KEYS[0]._replace(column=b"y"), b"1", 1)])
    store.write([Edit(KEYS[0], b"1", 1), Edit(KEYS[1], b"1", 1)])
    assert gateway.names == ["put", "putMultiple"]


def test_the_checks_of_a_row_keep_their_connection_until_the_last(
    gateway: Gateway, store: Pooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another thread took it in between, an error after the first effect could deny it."""
    take, taken = store._pool._take, list[int]()

    def count(loan: Loan[Connection], term: Term) -> Connection:
        taken.append(term.due_ms)
        return take(loan, term)

    monkeypatch.setattr(store._pool, "_take", count)
    assert store.check_and_put([*CHECKS[:2], *CHECKS[:2], CHECKS[0]]) == [True] * 5
    assert len(taken) == gateway.most_at_once == 1


@pytest.mark.parametrize("pool", [1, 3])
def test_many_threads_share_a_small_pool(gateway: Gateway, open_at: Opener, pool: int) -> None:
    """Who holds a connection never waits for another one, or all would wait for ever."""
    store = open_at(f"?pool={pool}")

    def work(_: int) -> list[bool]:
        return store.check_and_read(CHECKS[:3], KEYS)[0]

    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(work, range(160))] == [[True] * 3] * 160
    assert gateway.most_at_once <= gateway.connections == pool


def test_a_read_follows_the_checks_on_their_connection(gateway: Gateway, narrow: Pooled) -> None:
    """A check behind a long reply could wait for ever."""
    gateway.value = bytes(1_000_000)
    checks = [CHECKS[0], CHECKS[0], *CHECKS[:18]]
    answers, found, _ = narrow.check_and_read(checks, KEYS[:2])
    assert answers == [True] * 20
    assert [len(cell.value) for cell in found.values() if cell] == [1_000_000] * 2
    assert gateway.names == ["checkAndPut"] * 18 + ["getMultiple"] + ["checkAndPut"] * 2
    assert gateway.connections == 1


def test_a_large_read_comes_after_the_checks(gateway: Gateway, store: Pooled) -> None:
    """That it is not sent does not deny the checks: NotApplied is said of a whole call."""
    assert store.check_and_read(CHECKS[:1], LARGE) == ([True], dict.fromkeys(LARGE), {})
    assert gateway.names == ["checkAndPut", "getMultiple"]
    assert gateway.most_at_once == 1
    takes = iter([store._pool._take])

    def take(loan: Loan[Connection], term: Term) -> Connection:
        for found in takes:
            return found(loan, term)
        raise NotApplied("no connection came free in time")

    with patch.object(store._pool, "_take", take):
        with pytest.raises(MaybeApplied, match="came free"):
            store.check_and_read(CHECKS[:1], LARGE)
        with pytest.raises(NotApplied):
            store.check_and_read([], LARGE)


@pytest.mark.parametrize("failure", [ERROR, Break()])
@pytest.mark.parametrize("failing", ["getMultiple", "checkAndPut"])
def test_checks_with_a_failed_read_may_have_been_applied(
    gateway: Gateway, store: Pooled, failing: str, failure: Exception
) -> None:
    fail(gateway, failing, failure)
    with pytest.raises(MaybeApplied):
        store.check_and_read(CHECKS[:1], KEYS)
    assert gateway.names.count("checkAndPut") == 1
    assert gateway.names.count("getMultiple") <= 1  # it may not have been received yet
    gateway.before = lambda number, name: None
    assert store.check_and_read(CHECKS[:1], KEYS) == ([True], dict.fromkeys(KEYS), {})


def test_a_check_without_a_condition_is_a_plain_request(gateway: Gateway, store: Pooled) -> None:
    x, y = KEYS[0], KEYS[0]._replace(column=b"y")
    put, marker = ((x, b"1"),), (Edit(y, None, 5),)
    seen: list[int | None] = []
    for expected in (None, b""):
        for puts, edits in ((put, ()), ((), marker), (put, marker)):
            for deferred in (False, True):
                check = Check(x, expected, puts, edits, deferred)
                with patch.object(Connection, "send", _list_durabilities(seen)):
                    store.check_and_put([check])
    plain = ["put", "deleteMultiple", "mutateRow"]
    checked = ["checkAndPut", "checkAndDelete", "checkAndMutate"]
    assert gateway.names == [name for name in plain + checked for _ in range(2)]
    assert seen == [*[None, 2] * 2, *[None] * 2, *[2] * 2] * 2


def test_checks_without_a_condition_share_requests(gateway: Gateway, store: Pooled) -> None:
    """But not deferred ones with others: a request waits for its slowest row."""
    plain = [check._replace(expected=None) for check in CHECKS]
    assert store.check_and_put(plain[:3]) == [True] * 3
    assert gateway.names == ["putMultiple"]
    deferred = [check._replace(is_deferred=True) for check in plain[:3]]
    assert store.check_and_put([*deferred, *plain[3:]]) == [True] * 20
    assert gateway.names[1:] == ["putMultiple"] * 2
    assert store.check_and_read([*deferred, CHECKS[5]], KEYS[:2])[0] == [True] * 4
    assert sorted(gateway.names[3:]) == ["checkAndPut", "getMultiple", "putMultiple"]
    marks = [Check(key, None, edits=(Edit(key, None, 5),)) for key in KEYS[:2]]
    assert store.check_and_put(marks) == [True, True]
    assert gateway.names[6:] == ["deleteMultiple"]


def _list_durabilities(seen: list[int | None]) -> Callable[..., None]:
    """Return a `send` that notes the durability of each put and delete."""
    send = Connection.send

    def note(connection: Connection, request: Request[Any], **options: Any) -> None:
        change = request[1][-1]
        parts = [part.put or part.deleteSingle for part in getattr(change, "mutations", ())]
        changes = change if isinstance(change, list) else [change]
        seen.extend(part.durability for part in parts or changes)
        send(connection, request, **options)

    return note


def test_a_large_read_is_not_sent_before_another_reply(gateway: Gateway, store: Pooled) -> None:
    """A gateway that cannot write its reply does not read: both sides would wait for ever."""
    large = [Key(b"%05d" % number + bytes(30_000), "d", "x", "t") for number in range(300)]
    gateway.value = bytes(1_000_000)

    def before(number: int, name: str) -> None:
        gateway.value = gateway.value if number == 1 else b""

    gateway.before = before
    assert len(store.read(KEYS, large)) == 320


def test_reads_in_turn_share_a_connection_and_a_repeat(gateway: Gateway, store: Pooled) -> None:
    """A gateway answers a connection's requests one by one."""
    assert store.read(KEYS[:2], KEYS[2:]) == dict.fromkeys(KEYS)
    assert (gateway.connections, gateway.most_at_once) == (1, 1)
    assert gateway.names == ["getMultiple"] * 2
    gateway.names.clear()
    gateway.before = breaks_at(2)
    assert store.read(KEYS[:1], KEYS[1:2]) == dict.fromkeys(KEYS[:2])
    assert len(gateway.names) == 4
    gateway.before = breaks_at(5, 6)
    with pytest.raises(MaybeApplied, match="no answer"):
        store.read(KEYS[:1], KEYS[1:2])
    gateway.before = breaks_at(7, error=ERROR)
    with pytest.raises(MaybeApplied, match="out of order"):
        store.read(KEYS[:1], KEYS[1:2])
    assert store.read(KEYS[:3]) == dict.fromkeys(KEYS[:3])


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid", "a..b", "x" * 70])
def test_a_refused_connection_has_no_effect(host: str) -> None:
    """Nothing was sent: the only failure after which a repeat is safe, whatever was asked."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # held, so that nobody else can come to listen there
        port = silent.getsockname()[1]
        store = open_store(f"hbase+thrift2://{host}:{port}")
        for call in (lambda: store.read(KEYS), lambda: store.check_and_put(CHECKS)):
            with pytest.raises(NotApplied, match=f"cannot connect.*gateway='{host}:{port}'"):
                call()
        store.close()


@pytest.mark.parametrize("checks", [CHECKS[:1], CHECKS])
def test_a_lost_reply_of_a_checked_write_may_have_taken_effect(
    gateway: Gateway, store: Pooled, checks: list[Check]
) -> None:
    """It is never sent again here: its repeat would answer "no" where it answered "yes"."""
    gateway.before = breaks_at(1)
    with pytest.raises(MaybeApplied, match=r"no answer from the gateway.*gateway='127\.0\.0\.1"):
        store.check_and_put(checks)
    assert gateway.names.count("checkAndPut") <= len(checks)
    gateway.before = breaks_at()
    assert store.check_and_put(checks) == [True] * len(checks)


@pytest.mark.parametrize("call", ["read", "write", "scan"])
def test_what_may_be_repeated_is_repeated_once(gateway: Gateway, store: Pooled, call: str) -> None:
    calls = {
        "read": lambda: store.read(KEYS),
        "write": lambda: store.write([Edit(KEYS[0], b"1", 1)]),
        "scan": lambda: list(store.scan(b"t")),
    }
    gateway.before = breaks_at(1, 3, 4)
    calls[call]()
    assert len(gateway.names) == 2
    with pytest.raises(MaybeApplied):
        calls[call]()
    assert len(gateway.names) == 4


def test_a_silent_gateway_is_given_up(gateway: Gateway, narrow: Pooled, clock: ManualClock) -> None:
    """And its connection, with the reply to come, which would be taken for another's."""
    go_on, silent = threading.Event(), list[bool]()

    def before(number: int, name: str) -> None:
        if silent and silent.pop():
            clock.advance(30_000)
            go_on.wait(60)

    gateway.before = before
    for call in (lambda: narrow.check_and_put(CHECKS[:1]), lambda: narrow.read(KEYS[:1])):
        silent.append(True)
        with pytest.raises(MaybeApplied, match="timed out"):
            call()
        go_on.set()
        assert narrow.read(KEYS[:1]) == {KEYS[0]: None}
        assert narrow.check_and_put(CHECKS[:1]) == [True]
        go_on.clear()
    go_on.set()
    assert gateway.connections == 3


def test_a_scan_that_leaves_out_too_much_to_come_in_time_goes_on_without(
    gateway: Gateway, store: Pooled, clock: ManualClock
) -> None:
    go_on = threading.Event()

    def before(number: int, name: str) -> None:
        if gateway.names.count("getScannerResults") == 1:
            clock.advance(30_000)
            go_on.wait(60)

    gateway.before = before
    exclude = RowExclusion(b"d", b"x", frozenset({b"out"}))
    assert list(store.scan(b"t", exclude=exclude)) == []
    go_on.set()
    assert gateway.names.count("getScannerResults") == 2


def test_an_error_of_the_gateway_is_told_without_its_trace(gateway: Gateway, store: Pooled) -> None:
    """A table that refuses for good is named: of several that of the request."""
    fail(gateway, "checkAndPut", ERROR)
    with pytest.raises(MaybeApplied, match=r"out of order'$"):
        store.check_and_put(CHECKS[:1])
    store.read(KEYS)
    assert gateway.connections == 1
    said = "org.apache.hadoop.hbase.DoNotRetryIOException: read only\n\tat x"
    fail(gateway, "checkAndPut", IDL.TIOError(said))
    with pytest.raises(TableUnavailable, match=r"the table refuses it.*read only'$") as caught:
        store.check_and_put(CHECKS[:2])
    assert caught.value.table == CHECKS[0].key.table


def test_closed_connections_are_not_used(
    gateway: Gateway, store: Pooled, clock: ManualClock
) -> None:
    """It closes those that rested for a minute. A checked write on one would be in doubt."""
    store.check_and_put(CHECKS[:4])
    gateway.cut()
    while gateway._threads[-1].is_alive():
        gateway._threads[-1].join(timeout=5)
    clock.advance(60_000)
    assert store.check_and_put(CHECKS[:4]) == [True] * 4


def test_a_child_makes_connections_of_its_own(gateway: Gateway, store: Pooled) -> None:
    """Spark forks its workers: two processes on one connection would mix up their replies."""
    store.read(KEYS)
    child = os.fork()
    if child == 0:
        ok = store.check_and_put(CHECKS[:2]) == [True, True]
        store.close()
        os._exit(0 if ok else 1)
    assert store.read(KEYS) == dict.fromkeys(KEYS)
    assert os.waitpid(child, 0)[1] == 0
    assert gateway.connections == 3
    assert store.read(KEYS) == dict.fromkeys(KEYS)
    assert gateway.connections == 3


def test_a_closed_store_leaves_no_connection_and_says_so(gateway: Gateway, store: Pooled) -> None:
    gateway.before = lambda number, name: store.close()
    assert store.read(KEYS[:1]) == {KEYS[0]: None}
    assert store._pool._lender.free == []
    for _ in range(2):
        with pytest.raises(StoreError, match="closed"):
            store.check_and_put(CHECKS)
        store._pool._start()  # as in a child of a fork


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("hbase+thrift2://", r"write hbase\+thrift2://host:port"),
        ("hbase+thrift2://user@host", "write"),
        ("hbase+thrift2://host:notaport", "not a port"),
        ("hbase+thrift2://host:", "not a port"),
        ("hbase+thrift2://one,two:9090", "not an address"),
        ("hbase+thrift2://ann:secret@host?pool=3", r"write.*uri='hbase\+thrift2://\*\*\*@host"),
        ("hbase+thrift2://host?pool=1&pool=2", "an option is there twice"),
        ("hbase+thrift2://host?pool=٣", "not a positive number"),
        ("txn://[::1?token=secret", r"not a URI given='txn://\[::1\?token=\*\*\*'"),
        ("txn://host:0", "not a port"),
        ("txn://host?token=a&token=b", "give one token"),
        ("hbase+thrift2://host?pools=3", "unknown option.*'pools'.*'pool'"),
        ("hbase+thrift2://host?pool=0", "not a positive number"),
        ("hbase+thrift2://host?transport=udp", "unknown value.*buffered.*framed"),
        ("hbase+thrift2://host?ca=/none", "no such file"),
        (f"hbase+thrift2://host?ca={__file__}", "not a file of certificates"),
    ],
)
def test_a_bad_uri_is_refused_with_what_is_known(uri: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        open_store(uri)
