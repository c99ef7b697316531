"""The connections of a Thrift store: how many, how long, and what becomes of broken ones."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from thriftpy2.protocol import TCompactProtocolFactory, TCyBinaryProtocolFactory
from thriftpy2.utils import serialize

from tests.unit.fake_gateway import Break, FakeGateway, fake_gateway
from txn.clock import ManualClock, poll
from txn.errors import (
    InvalidRequestError,
    MaybeApplied,
    NotApplied,
    StoreError,
    TableUnavailable,
    TxnError,
)
from txn.host.lending import Loan
from txn.model import Check, Edit, Key, RowExclusion
from txn.stores import gateway as gateway_module
from txn.stores import open_store
from txn.stores.base import Store
from txn.stores.gateway import Connection, Request, Term
from txn.stores.hbase import thrift2
from txn.stores.hbase.store import HBaseStore
from txn.stores.hbase.thrift2 import IDL

KEYS = [Key(f"r{number}", "d", "x", "t") for number in range(20)]
CHECKS = [Check(key, b"", ((key, b"1"),)) for key in KEYS]
ERROR = IDL.TIOError("java.io.IOException: out of order\n\tat java.lang.Thread.run")


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with fake_gateway() as gateway:
        yield gateway


@pytest.fixture
def store(gateway: FakeGateway) -> Iterator[Store]:
    store = open_store(gateway.uri + "?timeout_ms=60000")
    assert isinstance(store, HBaseStore)
    store._sizes.learn(b"t", 1_000, 1_000)  # else few rows share an answer
    yield store
    store.close()


def patient(store: Store) -> None:
    """Let the calls of a store from now on take the time that a busy machine needs."""
    assert isinstance(store, HBaseStore)
    store._pool.gateway = replace(store._pool.gateway, timeout_ms=60_000)


def breaks_at(*numbers: int) -> object:
    def before(number: int, name: str) -> None:
        if number in numbers:
            raise Break

    return before


# --- in parallel --------------------------------------------------------------------------------


def test_the_checks_of_a_batch_go_in_parallel(gateway: FakeGateway, store: Store) -> None:
    """A transaction takes its locks in the time of one."""
    meeting = threading.Barrier(5)

    def before(number: int, name: str) -> None:
        meeting.wait(timeout=60)

    gateway.before = before
    assert store.check_and_put(CHECKS[:5]) == [True] * 5
    assert gateway.most_at_once == 5


@pytest.mark.parametrize("transport", ["buffered", "framed"])
def test_checks_that_share_a_connection_are_sent_ahead(transport: str) -> None:
    """Nobody waits for an answer between two of them, and they go out in one piece; a frame is
    one request."""
    with fake_gateway(framed=transport == "framed") as gateway:
        store = open_store(f"{gateway.uri}?pool=1&transport={transport}&timeout_ms=60000")
        written: list[bytes] = []
        write = gateway_module.Wire.write

        def counted(wire: gateway_module.Wire, data: bytes) -> None:
            written.append(data)
            write(wire, data)

        with patch.object(gateway_module.Wire, "write", counted):
            assert store.check_and_put(CHECKS[:10]) == [True] * 10
        assert len(written) == (10 if transport == "framed" else 1)
        assert store.check_and_put(CHECKS * 3) == [True] * 60
        assert gateway.names == ["checkAndPut"] * 70
        store.close()


def test_a_row_is_put_by_itself(gateway: FakeGateway, store: Store) -> None:
    """Servers have less to do for a put than for a list of one."""
    store.write([Edit(KEYS[0], b"1", 1), Edit(KEYS[0]._replace(column=b"y"), b"1", 1)])
    store.write([Edit(KEYS[0], b"1", 1), Edit(KEYS[1], b"1", 1)])
    assert gateway.names == ["put", "putMultiple"]


def test_the_checks_of_a_row_go_one_after_the_other(gateway: FakeGateway, store: Store) -> None:
    """Later items see earlier ones, which connections of their own would not promise."""
    assert store.check_and_put([CHECKS[0]] * 4) == [True] * 4
    assert gateway.most_at_once == 1


def test_the_checks_of_a_row_keep_their_connection_until_the_last(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another thread took it in between, an error after the first effect could deny it."""
    assert isinstance(store, HBaseStore)
    take, taken = store._pool._take, list[int]()

    def count(loan: Loan[Connection], term: Term) -> Connection:
        taken.append(term.due_ms)
        return take(loan, term)

    monkeypatch.setattr(store._pool, "_take", count)
    assert store.check_and_put([*CHECKS[:2], *CHECKS[:2], CHECKS[0]]) == [True] * 5
    assert len(taken) == 1


def test_there_are_never_more_connections_than_the_pool_allows(gateway: FakeGateway) -> None:
    """A gateway gives each connection a thread: a client must not take them all."""
    store = open_store(gateway.uri + "?pool=3")
    assert store.check_and_put(CHECKS) == [True] * len(CHECKS)
    store.check_and_put(CHECKS)
    assert 2 <= gateway.connections <= 3
    assert gateway.most_at_once <= 3
    store.close()


@pytest.mark.parametrize("pool", [1, 2])
def test_many_threads_share_a_small_pool(gateway: FakeGateway, pool: int) -> None:
    """Whoever holds a connection never waits for another one, or all would wait for ever."""
    store = open_store(f"{gateway.uri}?pool={pool}&timeout_ms=120000")
    done = []

    def work() -> None:
        for _ in range(20):
            done.extend(store.check_and_read(CHECKS[:3], KEYS)[0])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 8 * 20 * 3
    assert gateway.connections <= pool
    store.close()


def test_checks_and_a_read_go_in_parallel(gateway: FakeGateway, store: Store) -> None:
    """One round trip less until a transaction is decided."""
    meeting = threading.Barrier(3)
    gateway.before = lambda number, name: meeting.wait(timeout=60) and None
    answers, found, _ = store.check_and_read(CHECKS[:2], KEYS[:3])
    assert (answers, found) == ([True, True], dict.fromkeys(KEYS[:3]))
    assert sorted(gateway.names) == ["checkAndPut"] * 2 + ["getMultiple"]


def test_a_read_follows_the_checks_on_their_connection(gateway: FakeGateway) -> None:
    """Nobody waits for an answer in between; a check behind a long reply could wait for ever. What
    is to follow a check of its row is sent when that is answered."""
    store = open_store(gateway.uri + "?pool=1&timeout_ms=60000")
    gateway.value = bytes(1_000_000)
    checks = [CHECKS[0], CHECKS[0], *CHECKS[:18]]
    answers, found, _ = store.check_and_read(checks, KEYS[:2])
    assert answers == [True] * 20
    assert [len(cell.value) for cell in found.values() if cell] == [1_000_000] * 2
    assert gateway.names == ["checkAndPut"] * 18 + ["getMultiple"] + ["checkAndPut"] * 2
    assert gateway.connections == 1
    store.close()


def test_a_large_read_comes_after_the_checks(gateway: FakeGateway, store: Store) -> None:
    """A gateway might not read it before its replies were read."""
    large = [Key(b"%05d" % number + bytes(30_000), "d", "x", "t") for number in range(3)]
    assert store.check_and_read(CHECKS[:1], large) == ([True], dict.fromkeys(large), {})
    assert gateway.names == ["checkAndPut", "getMultiple"]
    assert gateway.most_at_once == 1


def test_a_large_read_that_is_not_sent_does_not_deny_the_checks(store: Store) -> None:
    """NotApplied promises that the whole call had no effect."""
    assert isinstance(store, HBaseStore)
    large = [Key(b"%05d" % number + bytes(30_000), "d", "x", "t") for number in range(3)]
    taken = iter([store._pool._take])

    def take(loan: Loan[Connection], term: Term) -> Connection:
        for found in taken:
            return found(loan, term)
        raise NotApplied("no connection came free in time")

    with patch.object(store._pool, "_take", take):
        with pytest.raises(MaybeApplied, match="came free"):
            store.check_and_read(CHECKS[:1], large)
        with pytest.raises(NotApplied):
            store.check_and_read([], large)


@pytest.mark.parametrize("failure", [ERROR, Break()])
@pytest.mark.parametrize("failing", ["getMultiple", "checkAndPut"])
def test_checks_with_a_failed_read_may_have_been_applied(
    gateway: FakeGateway, store: Store, failing: str, failure: Exception
) -> None:
    """Neither is sent again."""

    def before(number: int, name: str) -> None:
        if name == failing:
            raise failure

    gateway.before = before
    with pytest.raises(MaybeApplied):
        store.check_and_read(CHECKS[:1], KEYS)
    assert gateway.names.count("checkAndPut") == 1
    assert gateway.names.count("getMultiple") <= 1  # it may not have been received yet
    gateway.before = lambda number, name: None
    assert store.check_and_read(CHECKS[:1], KEYS) == ([True], dict.fromkeys(KEYS), {})


def test_a_check_without_a_condition_is_a_plain_request(gateway: FakeGateway, store: Store) -> None:
    """A put, a delete, or both at once; each may be deferred, and so may a checked one."""
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


def test_checks_without_a_condition_share_requests(gateway: FakeGateway, store: Store) -> None:
    """As the rows of a `write` do: the rows of a fenced batch, its last statuses, emptied tags. A
    deferred one does not travel with one that is not, since a request waits for its slowest row."""
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


def test_reads_in_turn_are_sent_on_one_connection(gateway: FakeGateway, store: Store) -> None:
    """A gateway answers a connection's requests one by one: so the second is read after the
    first, though nobody waits in between."""
    first, second = KEYS[:2], KEYS[2:]
    assert store.read(first, second) == dict.fromkeys(KEYS)
    assert (gateway.connections, gateway.most_at_once) == (1, 1)
    assert gateway.names == ["getMultiple"] * 2


def test_a_large_read_is_not_sent_before_the_reply_to_another(gateway: FakeGateway) -> None:
    """A gateway that cannot write its reply does not read: both sides would wait for ever."""
    store = open_store(gateway.uri + "?timeout_ms=120000")
    large = [Key(b"%05d" % number + bytes(30_000), "d", "x", "t") for number in range(300)]
    gateway.value = bytes(1_000_000)

    def before(number: int, name: str) -> None:
        gateway.value = gateway.value if number == 1 else b""

    gateway.before = before
    assert len(store.read(KEYS, large)) == 320
    store.close()


def test_reads_in_turn_are_repeated_once(gateway: FakeGateway, store: Store) -> None:
    """As all reads are; and a connection with a reply to come is never used again."""
    gateway.before = breaks_at(2)
    assert store.read(KEYS[:1], KEYS[1:2]) == dict.fromkeys(KEYS[:2])
    assert len(gateway.names) == 4
    gateway.before = breaks_at(5, 6)
    with pytest.raises(MaybeApplied, match="no answer"):
        store.read(KEYS[:1], KEYS[1:2])

    def refuse(number: int, name: str) -> None:
        if number == 7:
            raise ERROR

    gateway.before = refuse
    with pytest.raises(MaybeApplied, match="out of order"):
        store.read(KEYS[:1], KEYS[1:2])
    assert store.read(KEYS[:3]) == dict.fromkeys(KEYS[:3])


def test_a_request_reads_the_clock_once(gateway: FakeGateway) -> None:
    """When it begins: one deadline limits both waits, to send it and for its reply."""

    class Counting(ManualClock):
        reads = 0

        def monotonic_ms(self) -> int:
            Counting.reads += 1
            return super().monotonic_ms()

    store = open_store(gateway.uri, Counting())
    calls = (
        lambda: store.read(KEYS[:1]),
        lambda: store.write([Edit(KEYS[0], b"1", 1)]),
        lambda: store.check_and_put(CHECKS[:1]),
    )
    for call in (calls[0], *calls):  # the first one connects
        Counting.reads = 0
        call()
        reads = Counting.reads
    assert reads == 1
    store.close()


def test_who_waits_for_a_connection_gets_the_next_one(gateway: FakeGateway) -> None:
    """Giving one back wakes a thread that waits."""
    store = open_store(gateway.uri + "?pool=1&timeout_ms=60000")
    assert isinstance(store, HBaseStore)
    arrived, go_on, got = threading.Event(), threading.Event(), threading.Event()

    def before(number: int, name: str) -> None:
        if number == 1:
            arrived.set()
            go_on.wait(60)

    gateway.before = before
    first = threading.Thread(target=store.read, args=(KEYS[:1],))
    first.start()
    assert arrived.wait(60)
    second = threading.Thread(target=lambda: store.check_and_put(CHECKS[:1]) and got.set())
    second.start()
    assert poll(lambda: len(store._pool._lender._line.list_held()) == 1, 60_000)
    go_on.set()
    assert got.wait(60)
    first.join()
    second.join()
    assert gateway.connections == 1
    store.close()


def test_a_connection_in_use_is_closed_when_it_comes_back(gateway: FakeGateway) -> None:
    """A store that was closed leaves none behind."""
    store = open_store(gateway.uri)
    assert isinstance(store, HBaseStore)
    gateway.before = lambda number, name: store.close()
    assert store.read(KEYS[:1]) == {KEYS[0]: None}
    assert store._pool._lender.free == []


def test_what_is_sent_is_what_the_interface_says() -> None:
    """Structs without the fields that are never set are written like those that have them."""
    columns = [IDL.TColumn(b"d", b"x", 5)]
    narrow = [thrift2.TColumn(b"d", b"x", 5)]
    values = [IDL.TColumnValue(b"d", b"x", b"1", 5)]
    pairs = [
        (IDL.TGet(b"r", columns), thrift2.TGet(b"r", narrow)),
        (IDL.TPut(b"r", values), thrift2.TPut(b"r", [thrift2.TColumnValue(b"d", b"x", b"1", 5)])),
        (
            IDL.TDelete(b"r", columns, deleteType=thrift2.DELETE_COLUMNS),
            thrift2.TDelete(b"r", narrow, thrift2.DELETE_COLUMNS),
        ),
    ]
    for factory in (TCyBinaryProtocolFactory(), TCompactProtocolFactory()):
        for whole, part in pairs:
            assert serialize(part, factory) == serialize(whole, factory)


# --- what goes wrong ----------------------------------------------------------------------------


def test_a_refused_connection_has_no_effect(gateway: FakeGateway) -> None:
    """Nothing was sent: the only failure after which a repeat is safe, whatever was asked."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # held, so that nobody else can come to listen there
        port = silent.getsockname()[1]
        store = open_store(f"hbase+thrift2://127.0.0.1:{port}")
        for call in (lambda: store.read(KEYS), lambda: store.check_and_put(CHECKS)):
            with pytest.raises(NotApplied, match=f"cannot connect.*gateway='127.0.0.1:{port}'"):
                call()
        store.close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70])
def test_a_host_that_is_not_there_has_no_effect(host: str) -> None:
    """A mistyped name is an error of the store, not of a driver."""
    store = open_store(f"hbase+thrift2://{host}:1")
    with pytest.raises(NotApplied, match="cannot connect"):
        store.read(KEYS)
    store.close()


def test_a_lost_reply_of_a_checked_write_may_have_taken_effect(
    gateway: FakeGateway, store: Store
) -> None:
    """It is never sent again here: its repeat would answer "no" where it answered "yes"."""
    gateway.before = breaks_at(1)
    with pytest.raises(MaybeApplied, match=r"no answer from the gateway.*gateway='127\.0\.0\.1"):
        store.check_and_put(CHECKS[:1])
    assert gateway.names == ["checkAndPut"]
    assert store.check_and_put(CHECKS[:1]) == [True]


@pytest.mark.parametrize("call", ["read", "write", "scan"])
def test_what_may_be_repeated_is_repeated_once(
    gateway: FakeGateway, store: Store, call: str
) -> None:
    """A gateway that was started again leaves broken connections, which are nobody's problem."""
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


def test_a_write_whose_repeat_finds_no_gateway_may_have_taken_effect(
    gateway: FakeGateway, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request was sent; that the second could not be says nothing about it."""

    def break_for_good(number: int, name: str) -> None:
        def refuse(*arguments: object) -> socket.socket:
            raise ConnectionRefusedError("refused")

        monkeypatch.setattr(gateway_module, "connect_socket", refuse)
        raise Break

    gateway.before = break_for_good
    with pytest.raises(MaybeApplied, match="no answer from the gateway"):
        store.write([Edit(KEYS[0], b"1", 1)])
    assert gateway.names == ["put"]


def test_a_silent_gateway_is_waited_for_until_the_deadline(gateway: FakeGateway) -> None:
    """A client must be able to say how long; what was sent may still take effect."""
    store = open_store(gateway.uri + "?timeout_ms=100")
    go_on = threading.Event()
    gateway.before = lambda number, name: None if go_on.wait(60) else pytest.fail("never")
    for call in (lambda: store.check_and_put(CHECKS[:3]), lambda: store.read(KEYS)):
        with pytest.raises(MaybeApplied, match="timed out"):
            call()
    go_on.set()
    gateway.before = lambda number, name: None
    patient(store)
    assert store.check_and_put(CHECKS[:1]) == [True]
    store.close()


def test_a_scan_that_leaves_out_too_much_to_come_in_time_goes_on_without(
    gateway: FakeGateway,
) -> None:
    """A gateway that finds nothing to send for minutes would never get to the end."""
    store = open_store(gateway.uri + "?timeout_ms=200")
    go_on = threading.Event()

    def before(number: int, name: str) -> None:
        if gateway.names.count("getScannerResults") == 1:
            go_on.wait(60)

    gateway.before = before
    exclude = RowExclusion(b"d", b"x", frozenset({b"out"}))
    assert list(store.scan(b"t", exclude=exclude)) == []
    go_on.set()
    assert gateway.names.count("getScannerResults") == 2
    store.close()


def test_a_late_reply_is_never_taken_for_another_s(gateway: FakeGateway) -> None:
    """The connection of a request that timed out is thrown away with the reply to come."""
    store = open_store(gateway.uri + "?timeout_ms=200&pool=1")
    go_on = threading.Event()

    def before(number: int, name: str) -> None:
        if number == 1:
            go_on.wait(60)

    gateway.before = before
    with pytest.raises(MaybeApplied):
        store.check_and_put(CHECKS[:1])
    go_on.set()
    patient(store)
    assert store.read(KEYS[:1]) == {KEYS[0]: None}
    assert gateway.connections == 2
    store.close()


def test_an_error_of_the_gateway_is_told_without_its_trace(
    gateway: FakeGateway, store: Store
) -> None:
    """HBase sends whole stack traces; the first line says it. The connection stays."""

    def before(number: int, name: str) -> None:
        if name == "checkAndPut":
            raise ERROR

    gateway.before = before
    with pytest.raises(MaybeApplied, match=r"out of order'$") as caught:
        store.check_and_put(CHECKS[:1])
    assert "Thread.run" not in str(caught.value)
    store.read(KEYS)
    assert gateway.connections == 1


def test_a_table_that_refuses_for_good_is_named(gateway: FakeGateway, store: Store) -> None:
    """A read-only one was asked again for 15 s. Of several tables it is the one of the request."""

    def before(number: int, name: str) -> None:
        if name == "checkAndPut":
            raise IDL.TIOError("org.apache.hadoop.hbase.DoNotRetryIOException: read only\n\tat x")

    gateway.before = before
    with pytest.raises(TableUnavailable, match=r"the table refuses it.*read only'$") as caught:
        store.check_and_put(CHECKS[:2])
    assert caught.value.table == CHECKS[0].key.table


def test_what_is_no_reply_of_thrift_s_is_not_an_answer() -> None:
    """Another program listens there, or what is between breaks the stream."""
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:

        def answer_in_http() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        answered = pool.submit(answer_in_http)
        store = open_store(f"hbase+thrift2://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(MaybeApplied, match="not a reply"):
            store.check_and_put(CHECKS[:1])
        answered.result(60)
        store.close()


def test_a_mistake_of_ours_is_raised_as_it_is(gateway: FakeGateway, store: Store) -> None:
    """As an error of the store it would be sent again for as long as a store is given."""
    assert isinstance(store, HBaseStore)
    deadly = Edit(KEYS[0], 5, 1)  # type: ignore[arg-type]
    for call in (lambda: store.write([deadly]), lambda: store._pool.run([MISTAKEN], repeat=True)):
        with pytest.raises(Exception) as caught:
            call()
        assert not isinstance(caught.value, TxnError)
    assert store.check_and_put(CHECKS[:2]) == [True, True]


MISTAKEN: Request[int] = ("getMultiple", (b"t", []), lambda found: found + 1)  # not a number


def test_one_broken_connection_of_a_batch_fails_the_batch(
    gateway: FakeGateway, store: Store
) -> None:
    """Some items may have taken effect: the caller looks at all of them again."""
    gateway.before = breaks_at(3)
    with pytest.raises(MaybeApplied):
        store.check_and_put(CHECKS)
    gateway.before = breaks_at()
    assert store.check_and_put(CHECKS) == [True] * len(CHECKS)


def test_connections_that_the_gateway_closed_are_not_used(gateway: FakeGateway) -> None:
    """It closes those that rested for a minute. A checked write on one would be in doubt."""
    clock = ManualClock()
    store = open_store(gateway.uri, clock)
    store.check_and_put(CHECKS[:4])
    gateway.cut()
    while gateway._threads[-1].is_alive():
        gateway._threads[-1].join(timeout=5)
    clock.advance(60_000)
    assert store.check_and_put(CHECKS[:4]) == [True] * 4
    store.close()


def test_a_caller_that_is_interrupted_leaves_no_reply_behind(
    gateway: FakeGateway, store: Store
) -> None:
    """The next caller would take it for its own."""
    store.check_and_put(CHECKS[:2])
    interrupt = patch.object(Connection, "receive", side_effect=KeyboardInterrupt)
    with interrupt, pytest.raises(KeyboardInterrupt):
        store.check_and_read(CHECKS[:1], KEYS)
    assert store.check_and_put(CHECKS[:2]) == [True, True]


def test_a_child_makes_connections_of_its_own(gateway: FakeGateway, store: Store) -> None:
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


def test_a_closed_store_says_so(gateway: FakeGateway) -> None:
    """Also to whoever is still at work in another thread."""
    store = open_store(gateway.uri)
    store.close()
    assert isinstance(store, HBaseStore)
    for _ in range(2):
        with pytest.raises(StoreError, match="closed"):
            store.check_and_put(CHECKS)
        store._pool._start()  # as in a child of a fork


# --- the URI ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("hbase+thrift2://", r"write hbase\+thrift2://host:port"),
        ("hbase+thrift1:///path", "write"),
        ("hbase+thrift2://user@host", "write"),
        ("hbase+thrift2://host:notaport", "not a port"),
        ("hbase+thrift2://host:99999", "not a port"),
        ("hbase+thrift2://host:0", "not a port"),
        ("hbase+thrift2://host:", "not a port"),
        ("hbase+thrift2://one,two:9090", "not an address"),
        ("hbase+thrift2://h%20t:9090", "not an address"),
        ("hbase+thrift2://ann:secret@host?pool=3", r"write.*uri='hbase\+thrift2://\*\*\*@host"),
        ("hbase+thrift2://host?pool=1&pool=2", "an option is there twice"),
        ("hbase+thrift2://host?pool=٣", "not a positive number"),
        ("hbase+thrift2://host ", "not a URI"),
        ("txn://[::1?token=secret", r"not a URI given='txn://\[::1\?token=\*\*\*'"),
        ("txn://host:0", "not a port"),
        ("txn://host?token=a&token=b", "give one token"),
        ("txn://host?token=a&token_file=/b", "give one token"),
        ("hbase+thrift2://host?pools=3", "unknown option.*'pools'.*'pool'"),
        ("hbase+thrift2://host?pool=0", "not a positive number"),
        ("hbase+thrift2://host?timeout_ms=1.5", "not a positive number"),
        ("hbase+thrift2://host?transport=udp", "unknown value.*buffered.*framed"),
        ("hbase+thrift2://host?ca=/none", "no such file"),
        (f"hbase+thrift2://host?ca={__file__}", "not a file of certificates"),
    ],
)
def test_a_bad_uri_is_refused_with_what_is_known(uri: str, message: str) -> None:
    """Before anything is connected."""
    with pytest.raises(InvalidRequestError, match=message):
        open_store(uri)


def test_without_the_drivers_it_is_said_what_to_install() -> None:
    """They are an extra: the embedded store needs none of them."""
    program = (
        "import sys; sys.modules['thriftpy2'] = None\n"
        "from txn import connect\n"
        "from txn.errors import InvalidRequestError\n"
        "connect('memory://')\n"
        "try: connect('hbase+thrift2://host')\n"
        "except InvalidRequestError as error: print(error)\n"
    )
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith("install hbase-txn[hbase]")
    assert "thriftpy2" in said
