"""HBase's own RPC where it does not go as planned, against a server that does what it is told."""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import pytest

from tests.unit.fake_region_server import (
    NAMELESS,
    TABLE,
    Break,
    FakeRegionServer,
    Flood,
    Refuse,
    Say,
    Silence,
    encode_cell,
    fake_region_server,
)
from txn.clock import ManualClock, SystemClock
from txn.errors import (
    InvalidRequestError,
    MaybeApplied,
    NotApplied,
    StoreClosedError,
    StoreError,
    TableUnavailable,
)
from txn.model import Cell, Check, Edit, Family, Key
from txn.stores import open_store
from txn.stores.base import TableSize
from txn.stores.hbase.native import tables
from txn.stores.hbase.native.connection import RpcCall
from txn.stores.hbase.native.items import ASYNC_WAL, ReadRow
from txn.stores.hbase.native.messages import PB, Cells
from txn.stores.hbase.native.regions import DISABLED
from txn.stores.hbase.native.servers import Servers
from txn.stores.hbase.native.store import NativeStore
from txn.stores.hbase.native.target import Address, Target
from txn.stores.hbase.native.tenure import REST_MS
from txn.stores.wire import SharedWire


def key(row: str, column: str = "x") -> Key:
    return Key(row, "d", column, TABLE)


def put_if(row: str, expected: bytes, value: bytes) -> Check:
    return Check(key(row), expected, ((key(row), value),))


@pytest.fixture
def server() -> Iterator[FakeRegionServer]:
    with fake_region_server() as server:
        yield server


@pytest.fixture
def store(server: FakeRegionServer) -> Iterator[NativeStore]:
    store = open_store(server.uri + "&timeout_ms=2000")
    assert isinstance(store, NativeStore)
    store.read([key("warm")])
    store._sizes.learn(b"t", 1_000, 1_000)  # else few rows share an answer
    server.methods.clear()
    server.sizes.clear()
    server.requests.clear()
    yield store
    store.close()


def send_get(store: NativeStore, place: Address, due_ms: int) -> RpcCall:
    request = PB.GetRequest(region={"type": 1, "value": b""}, get={"row": b"a"})
    return store._servers.send(place, "ClientService", "Get", request, due_ms)


def fail(
    server: FakeRegionServer,
    error: Exception,
    times: int = 1,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Let the next calls fail that are for rows."""

    def before(number: int, method: str) -> None:
        if method == "Multi" and number <= times:
            after()
            raise error

    server.before = before


# --- one request a server -------------------------------------------------------------------------


def test_a_call_is_one_request_however_many_rows(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """In many regions or one: that is what the gateways could not do."""
    server.starts = [b"", b"3", b"6"]
    keys = [key(str(number)) for number in range(10)]
    store.write([Edit(each, b"1", 5) for each in keys])
    assert store.check_and_put([put_if(str(number), b"1", b"2") for number in range(10)])
    assert store.read(keys) == {each: Cell(b"2", 1) for each in keys}
    assert server.methods.count("Multi") == 3
    assert server.sizes == [10, 10, 10]


def test_many_checks_are_taken_side_by_side(server: FakeRegionServer, store: NativeStore) -> None:
    """A server syncs its log after each of those that it takes in one request. Those of one row
    stay in their order."""
    rows = [f"{number:02}" for number in range(40)]
    checks = [put_if(row, b"", b"1") for row in rows] + [put_if(row, b"1", b"2") for row in rows]
    assert store.check_and_put(checks) == [True] * 80
    assert server.sizes == [16] * 5
    assert set(server.cells.values()) == {b"2"}


def test_checks_do_not_take_all_of_a_servers_threads(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """It has 30 by default, for all of its clients."""
    checks = [put_if(f"{number:03}", b"", b"1") for number in range(400)]
    assert store.check_and_put(checks) == [True] * 400
    assert server.sizes == [50] * 8


def test_groups_of_a_read_are_one_request_in_their_order(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """A server does what is in a request one after the other."""
    store.write([Edit(key(row), b"1", 5) for row in "ab"])
    assert store.read([key("a")], [key("b"), key("c")]) == {
        key("a"): Cell(b"1", 1),
        key("b"): Cell(b"1", 1),
        key("c"): None,
    }
    assert server.count("Multi") == 2


def test_groups_are_asked_one_by_one_if_one_request_did_not_get_all(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """What is missing would be read after what follows it."""
    server.refused[b"a"] = ["NotServingRegionException"]
    assert store.read([key("a")], [key("b")]) == {key("a"): None, key("b"): None}
    assert server.sizes == [2, 1, 1]


def test_groups_on_several_servers_are_asked_one_by_one(server: FakeRegionServer) -> None:
    """Two servers keep no order between them."""
    with fake_region_server() as other:
        server.starts, server.ports = [b"", b"m"], {b"m": other.port}
        store = open_store(server.uri)
        store.read([key("a"), key("n")])
        answered: list[str] = []
        server.before = lambda number, method: answered.append("first") if number > 1 else None
        other.before = lambda number, method: answered.append("second") if number > 1 else None
        found = store.read([key("n")], [key("a")], [key("o")])
        assert found == dict.fromkeys([key("n"), key("a"), key("o")])
        assert [each for each in answered if each] == ["second", "first", "second"]
        store.close()


def test_edits_that_later_ones_replace_are_not_sent(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """Of two puts of a cell at one timestamp, HBase shows the one that arrived last."""
    store.write([Edit(key("a"), value, at) for value, at in ((b"1", 5), (b"2", 6), (b"3", 5))])
    (action,) = server.requests[-1].regionAction[0].action
    cells = [cell for each in action.mutation.column_value for cell in each.qualifier_value]
    assert [(cell.value, cell.timestamp) for cell in cells] == [(b"3", 5), (b"2", 6)]


def test_checks_of_several_tables_are_one_request(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """With a condition or without, and deferred or not: a transaction row and its locks, in
    whatever regions of the server they are."""
    server.starts = [b"", b"m"]
    row = Key("r", "t", "status", "u")
    checks = [
        Check(row, None, ((row, b"0"),), is_deferred=True),
        put_if("a", b"", b"1"),
        put_if("n", b"", b"1"),
        put_if("a", b"", b"2"),
    ]
    assert store.check_and_put(checks) == [True, True, True, False]
    assert server.sizes == [4]
    (request,) = server.requests
    assert [entry.atomic for entry in request.regionAction] == [False, True, True, True]
    assert [entry.HasField("condition") for entry in request.regionAction] == [False, *[True] * 3]
    durabilities = [
        [action.mutation.durability for action in entry.action] for entry in request.regionAction
    ]
    assert durabilities == [[ASYNC_WAL], [0], [0], [0]]


def test_a_deferred_check_is_so_in_both_of_its_writes(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """The server waits for its log if one of a row's writes wants that."""
    edits = (Edit(key("a"), b"1", 5), Edit(key("a", "y"), None, 5))
    for expected in (b"", None):
        assert store.check_and_put([Check(key("a", "z"), expected, (), edits, True)]) == [True]
        (entry,) = server.requests.pop().regionAction
        assert [action.mutation.durability for action in entry.action] == [ASYNC_WAL] * 2


def test_checks_and_a_read_are_one_request(server: FakeRegionServer, store: NativeStore) -> None:
    """The server carries out the checks first."""
    server.starts = [b"", b"m"]
    checks = [put_if("a", b"", b"1"), put_if("a", b"2", b"3"), put_if("n", b"", b"1")]
    wanted = [key("b"), key("a"), key("n")]
    answers, cells, _ = store.check_and_read(checks, wanted)
    assert answers == [True, False, True]
    assert cells == {key("a"): Cell(b"1", 1), key("b"): None, key("n"): Cell(b"1", 1)}
    assert server.sizes == [6]
    assert store.check_and_read([], wanted)[1] == cells
    assert store.check_and_read(checks[:1], []) == ([False], {}, {})
    assert server.sizes == [6, 3, 1]


def test_servers_do_checks_and_reads_at_the_same_time(server: FakeRegionServer) -> None:
    """One request to each, and one round."""
    met = threading.Barrier(2)
    with fake_region_server() as other:
        server.starts, server.ports = [b"", b"m"], {b"m": other.port}
        store = open_store(server.uri)
        store.read([key("a"), key("n")])
        del server.methods[:], other.methods[:]
        server.before = other.before = lambda number, method: met.wait(30) and None
        assert store.check_and_put([put_if("a", b"", b"1"), put_if("n", b"", b"1")]) == [True] * 2
        answers, cells, _ = store.check_and_read([put_if("a", b"1", b"2")], [key("n"), key("a")])
        assert (answers, cells) == ([True], {key("n"): Cell(b"1", 1), key("a"): Cell(b"2", 1)})
        assert server.methods == other.methods == ["Multi"] * 2
        store.close()


def test_a_read_with_checks_is_repeated_and_they_are_not(server: FakeRegionServer) -> None:
    """The answers of a server to reads alone are lost, or their region has moved; then those to a
    request with a check."""
    with fake_region_server() as other:
        server.starts, server.ports = [b"", b"m"], {b"m": other.port}
        store = open_store(server.uri)
        keys = [key("a"), key("n")]
        store.read(keys)
        del server.methods[:], other.methods[:]
        fail(other, Break())
        server.refused[b"a"] = ["", "NotServingRegionException"]
        answers, cells, _ = store.check_and_read([put_if("a", b"", b"1")], keys)
        assert (answers, cells) == ([True], {key("a"): Cell(b"1", 1), key("n"): None})
        assert (server.sizes[1:], other.sizes[1:]) == ([2, 1], [1, 1])
        server.methods.clear()
        fail(server, Break())
        with pytest.raises(MaybeApplied, match="no answer"):
            store.check_and_read([put_if("a", b"1", b"2")], keys)
        assert server.count("Multi") == 1
        store.close()


def test_checks_with_a_read_are_shared_out_by_their_work(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """A server waits for its log after a check, but not after a deferred one."""
    checks = [put_if(f"{number:02}", b"", b"1") for number in range(16)]
    deferred = [check._replace(is_deferred=True) for check in checks]
    wanted = [key(f"{number:02}") for number in range(20, 52)]
    assert store.check_and_read(checks, wanted)[0] == [True] * 16
    assert server.sizes == [12, 36]
    assert store.check_and_read(deferred, wanted)[0] == [False] * 16
    assert server.sizes[2:] == [48]


def test_many_rows_are_cut_into_several_requests(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """A server holds all of a request in its memory: 2,000 rows and 8 MB are under way at most, in
    requests side by side, so that the server works while the next is made."""
    keys = [key(f"{number:05}") for number in range(4_100)]
    store.write([Edit(each, b"1", 5) for each in keys])
    assert server.sizes == [250] * 16 + [50] * 2
    assert all(store.read(keys[:65]).values())
    assert server.sizes[18:] == [33, 32]
    store.write([Edit(each, b"1" * 3_000_000, 5) for each in keys[:5]])
    assert server.sizes[20:] == [2, 2, 1]


def test_groups_of_many_rows_are_cut_too(server: FakeRegionServer, store: NativeStore) -> None:
    """As those of any other call are."""
    keys = [key(f"{number:05}") for number in range(2_100)]
    assert store.read(keys, keys[:1]) == dict.fromkeys(keys)
    assert server.sizes == [125] * 16 + [50] * 2 + [1]


def test_a_server_that_cannot_be_reached_is_tried_once_for_all_parts_of_a_call(
    server: FakeRegionServer, store: NativeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To find out may take as long as opening a connection may."""
    tried: list[object] = []

    def send(*of: object) -> NoReturn:
        tried.append(of)
        raise TimeoutError("timed out")

    monkeypatch.setattr(store._servers, "send", send)
    items = [ReadRow(Key(b"%03d" % number, "", "", "t"), []) for number in range(200)]
    assert store._batches.try_once(items, SystemClock().monotonic_ms() + 5_000) == [None] * 200
    assert len(tried) == 1


def test_a_row_of_which_a_part_was_written_is_not_said_to_be_as_it_was(
    server: FakeRegionServer,
) -> None:
    """Here its put is refused, again and again, and its delete marker is taken."""
    server.refused[b"a"] = ["RegionTooBusyException", ""] * 1_000
    store = open_store(f"{server.uri}&timeout_ms=300", ManualClock())
    with pytest.raises(MaybeApplied, match="could not do it in time"):
        store.write([Edit(key("a"), b"1", 5), Edit(key("a"), None, 4)])
    store.close()


def test_closing_ends_calls_on_connections_that_were_replaced(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """One that was given up still carries the calls that were on their way."""
    asked, release = threading.Event(), threading.Event()

    def before(number: int, method: str) -> None:
        if method == "Multi" and number == 1:
            asked.set()
            release.wait(5)

    server.before = before
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.check_and_put, [put_if("a", b"", b"1")])
        assert asked.wait(5)
        for at, connection in store._servers._open.items():
            if at[1] == "ClientService":
                connection.retire()
        assert store.read([key("b")]) == {key("b"): None}
        store.close()
        with pytest.raises(StoreClosedError):
            waiting.result(3)
        release.set()


def test_answers_come_in_any_order(server: FakeRegionServer, store: NativeStore) -> None:
    """The first of two calls is answered last, on the one connection that there is."""
    server.cells = {(row, b"d", b"x"): row for row in (b"a", b"b")}
    second_answered = threading.Event()
    found: dict[str, object] = {}

    def before(number: int, method: str) -> None:
        if method == "Multi" and number == 1:
            assert second_answered.wait(5)

    def read(row: str) -> None:
        found[row] = store.read([key(row)])[key(row)]

    server.before = before
    first = threading.Thread(target=read, args=("a",))
    first.start()
    while not server.methods:
        time.sleep(0.001)
    second = threading.Thread(target=read, args=("b",))
    second.start()
    second.join()
    assert found == {"b": Cell(b"b", 1)}
    second_answered.set()
    first.join()
    assert found == {"a": Cell(b"a", 1), "b": Cell(b"b", 1)}
    assert server.connections == 3, "for rows, for where they are, and for who is at work"


def test_many_threads_share_a_connection(server: FakeRegionServer, store: NativeStore) -> None:
    """Each gets its own answers, whoever reads them."""
    server.cells = {(b"%d" % n, b"d", b"x"): b"%d" % n for n in range(16)}
    wrong: list[object] = []

    def read(number: int) -> None:
        for _ in range(50):
            found = store.read([key(str(number))])
            if found != {key(str(number)): Cell(b"%d" % number, 1)}:
                wrong.append(found)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert server.connections == 3


def stop_within_a_scan(server: FakeRegionServer) -> None:
    """Let the server stop before any row, within row c, and at row d, which is gone when it is read
    again."""
    server.cells = {(b"c", b"d", b"x"): b"1", (b"c", b"d", b"y"): b"2"}
    server.pages = [
        ([], False, b"b", True),
        ([b"b", b"c"], True, b"c", True),
        ([b"d"], True, b"", True),
        ([b"e"], False, b"", False),
    ]


def test_a_scan_goes_on_where_the_server_stopped(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """It stops when it takes long: where it found nothing, or within a row, which is then read
    whole, and may be gone by then."""
    stop_within_a_scan(server)
    found = store.scan(TABLE, columns=[(b"d", b"x"), (b"d", b"y")])
    assert [(row.row, len(row.cells)) for row in found] == [(b"b", 1), (b"c", 2), (b"e", 1)]
    assert server.scanned == [b"", b"b", b"c\0", b"d\0"]


def test_columns_go_on_where_the_server_stopped(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """As the rows of a scan do; a row that is gone by then has no values."""
    stop_within_a_scan(server)
    columns = [(b"d", b"y"), (b"d", b"x")]
    found, start = [], b""
    for _ in range(4):
        page = store.read_columns(TABLE, start, None, columns)
        found.append((page.rows, page.values))
        start = page.rest or b""
    assert found == [
        ([], [[], []]),
        ([b"b", b"c"], [[None, b"2"], [b"1", b"1"]]),
        ([b"d"], [[None], [None]]),
        ([b"e"], [[None], [b"1"]]),
    ]
    assert start == b""
    assert server.scanned == [b"", b"b", b"c\0", b"d\0"]
    assert store.read_columns(TABLE, b"b", b"b", columns) == ([], [[], []], None)


@pytest.mark.parametrize("columns", [[(b"d", b"x")], [(b"d", b"y")]], ids=["too few", "others"])
def test_cells_that_are_not_what_was_asked_are_refused(columns: list[tuple[bytes, bytes]]) -> None:
    block = encode_cell(b"a", b"d", b"x", b"1")
    with pytest.raises(MaybeApplied, match="cells are missing"):
        Cells(block[: -1 if columns[0][1] == b"x" else None]).take_columns([1], columns)


def test_a_reverse_scan_goes_on_where_the_server_stopped(server: FakeRegionServer) -> None:
    """The row at which it stopped may still be to come; and behind a region comes the one before
    it."""
    server.starts, store = [b"", b"m"], open_store(server.uri)
    server.cells = {(b"x", b"d", b"x"): b"1", (b"x", b"d", b"y"): b"2"}
    server.pages = [
        ([], False, b"y", True),
        ([b"y", b"x"], True, b"x", True),
        ([b"n"], False, b"", False),
        ([b"c"], True, b"c", True),
        ([b"b"], False, b"", False),
    ]
    found = store.scan(TABLE, columns=[(b"d", b"x"), (b"d", b"y")], reverse=True)
    assert [(row.row, len(row.cells)) for row in found] == [
        (b"y", 1),
        (b"x", 2),
        (b"n", 1),
        (b"b", 1),
    ]
    assert server.scanned == [b"", b"y\0", b"x", b"m", b"c"]
    store.close()


def test_a_reverse_scan_ends_with_the_region_of_its_start(server: FakeRegionServer) -> None:
    """The regions before it have none of its rows."""
    server.starts, store = [b"", b"g", b"m"], open_store(server.uri)
    server.pages = [([], False, b"", False), ([], False, b"", False)]
    assert list(store.scan(TABLE, b"g", b"m\0", reverse=True)) == []
    assert server.scanned == [b"m\0", b"m"]
    store.close()


# --- broken connections ---------------------------------------------------------------------------

BROKEN = [
    pytest.param(Break(), id="before the answer"),
    pytest.param(Break(after=3), id="within its length"),
    pytest.param(Break(after=9), id="within the answer"),
    pytest.param(Say(b"HTTP/1.1 400 Bad Request\r\n\r\n"), id="another protocol's"),
    pytest.param(Say(b"\x00\x00\x00\x06\xff\xff\xff\xff\xff\xff"), id="no numbers"),
    pytest.param(Say(b"\x00\x00\x00\x04\x02\x08\x01\x7f"), id="wrong lengths"),
    pytest.param(Say(b"\x00\x00\x00\x03\x02\xff\xff"), id="no header"),
]


@pytest.mark.parametrize("error", BROKEN)
def test_a_read_or_write_whose_answer_is_lost_is_repeated(
    server: FakeRegionServer, store: NativeStore, error: Exception
) -> None:
    """Repeating it changes nothing."""
    fail(server, error)
    store.write([Edit(key("a"), b"1", 5)])
    assert server.count("Multi") == 2
    assert store.read([key("a")]) == {key("a"): Cell(b"1", 1)}


@pytest.mark.parametrize("error", BROKEN)
def test_a_check_whose_answer_is_lost_may_have_been_applied(
    server: FakeRegionServer, store: NativeStore, error: Exception
) -> None:
    """Its repeat would answer no where it answered yes."""
    fail(server, error)
    with pytest.raises(MaybeApplied):
        store.check_and_put([put_if("a", b"", b"1")])
    assert server.count("Multi") == 1
    assert store.check_and_put([put_if("a", b"1", b"2")]) == [True]


@pytest.mark.parametrize("answer", [b"\x02\x08\x03\x00", b"\x02\x08\x03\x02\xff\xff"])
def test_an_answer_that_is_not_of_the_request_may_have_been_applied(
    server: FakeRegionServer, store: NativeStore, answer: bytes
) -> None:
    """It has fewer rows than were asked for, is no message, or is of nothing at all."""
    fail(server, Say(struct.pack(">I", len(answer)) + answer), times=9)
    for call in (
        lambda: store.check_and_put([put_if("a", b"", b"1")]),
        lambda: store.read([key("a")]),
    ):
        with pytest.raises(MaybeApplied):
            call()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({}, "rows are missing"),
        ({"resultOrException": [{"index": 1}]}, "an answer is of no row"),
    ],
)
def test_an_answer_for_other_rows_is_told(
    server: FakeRegionServer, store: NativeStore, result: dict[str, Any], message: str
) -> None:
    """Nobody knows what became of the rows that were sent."""
    body = PB.MultiResponse(regionActionResult=[result]).SerializeToString()
    answer = b"\x02\x08\x03" + bytes([len(body)]) + body
    fail(server, Say(struct.pack(">I", len(answer)) + answer))
    with pytest.raises(MaybeApplied, match=message):
        store.write([Edit(key("a"), b"1", 5)])


def test_a_row_that_is_written_at_once_is_tried_again_as_a_whole(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """A server that refuses one of its two writes has done neither."""
    server.refused[b"a"] = ["RegionTooBusyException", ""]
    store.write([Edit(key("a"), b"1", 5), Edit(key("a", "y"), None, 5)], by_row=True)
    assert server.sizes == [2, 2]
    assert [entry.atomic for request in server.requests for entry in request.regionAction] == [
        True,
        True,
    ]


def test_others_on_the_connection_are_told_too(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """A connection that ends has calls of many threads on their way."""
    arrived, results = threading.Barrier(4), []

    def before(number: int, method: str) -> None:
        if method == "Multi" and number <= 3:
            arrived.wait(5)
            raise Silence

    def check(row: str) -> None:
        try:
            store.check_and_put([put_if(row, b"", b"1")])
        except MaybeApplied as error:
            results.append(str(error))

    server.before = before
    threads = [threading.Thread(target=check, args=(row,)) for row in "abc"]
    for thread in threads:
        thread.start()
    arrived.wait(5)
    server.cut()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    assert all("no answer" in result for result in results)


def test_a_connection_that_the_server_closed_at_rest_is_not_used(
    server: FakeRegionServer, store: NativeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check sent on it would be lost, and nobody could tell."""
    server.cut()
    time.sleep(0.1)  # the end of the connection arrives
    monkeypatch.setattr("txn.stores.hbase.native.connection.IDLE_MS", 0)
    assert store.check_and_put([put_if("a", b"", b"1")]) == [True]


def test_a_server_that_cannot_be_reached_has_done_nothing() -> None:
    """It is asked until the time of the call is over."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = open_store(f"hbase://?registry=127.0.0.1:{port}&timeout_ms=300", ManualClock())
    with pytest.raises(NotApplied, match=r"127\.0\.0\.1"):
        store.check_and_put([put_if("a", b"", b"1")])
    store.close()


def test_a_connection_is_replaced_before_its_numbers_end(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """They are 31 bits for a server; what is on its way under the last ones is still answered."""
    connections = server.services.count("ClientService")
    (connection,) = (each for at, each in store._servers._open.items() if at[1] == "ClientService")
    connection._number = (1 << 31) - 2
    for _ in range(2):
        assert store.read([key("a")]) == {key("a"): None}
    assert server.services.count("ClientService") == connections + 1
    assert server.count("Multi") == 2


# --- time-outs ------------------------------------------------------------------------------------


def test_a_call_that_is_not_answered_ends_in_time(server: FakeRegionServer) -> None:
    """And the next one goes over another connection: this one may be dead."""
    clock = ManualClock()
    store = open_store(server.uri + "&timeout_ms=400", clock)
    store.read([key("a")])
    connections = server.connections
    server.methods.clear()
    fail(server, Silence(), after=lambda: clock.advance(400))
    began = time.monotonic()
    with pytest.raises(MaybeApplied, match="timed out"):
        store.check_and_put([put_if("a", b"", b"1")])
    assert time.monotonic() - began < 2
    assert store.check_and_put([put_if("a", b"", b"1")]) == [True]
    assert server.connections == connections + 1
    store.close()


def test_a_read_of_several_requests_ends_in_time(server: FakeRegionServer) -> None:
    """The second has what the first has left of it. A slow machine does not even send it."""
    store = open_store(server.uri + "&timeout_ms=600")
    store.read([key("a")])
    server.before = lambda number, method: time.sleep(0.4) if method == "Multi" else None
    with pytest.raises((MaybeApplied, NotApplied), match="timed out"):
        store._read((), ([key("a")], [key(str(row)) for row in range(2_000)]), ())
    store.close()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x00\x00\x00\x04\x02\x08\x7f\x00", id="answers that nobody waits for"),
        pytest.param(b"\x0f\x00\x00\x00" * 64, id="a frame without an end"),
    ],
)
def test_a_call_ends_in_time_whatever_comes_instead_of_its_answer(
    server: FakeRegionServer, data: bytes
) -> None:
    """Its thread reads for others, and their answers may come without a pause."""
    clock = ManualClock()
    store = open_store(server.uri + "&timeout_ms=400", clock)
    store.read([key("a")])
    server.methods.clear()
    fail(server, Flood(data), after=lambda: clock.advance(400))
    began = time.monotonic()
    with pytest.raises(MaybeApplied, match="timed out"):
        store.check_and_put([put_if("a", b"", b"1")])
    assert time.monotonic() - began < 2
    assert store.check_and_put([put_if("a", b"", b"1")]) == [True]
    store.close()


@pytest.mark.parametrize(
    ("method", "size"), [("GetMetaRegionLocations", 2 << 20), ("Multi", 512 << 20)]
)
def test_an_answer_is_no_longer_than_its_service_can_make_it(
    server: FakeRegionServer, method: str, size: int
) -> None:
    """Without TLS or Kerberos nobody knows who has sent it. It was read up to 1 GB."""

    def before(number: int, asked: str) -> None:
        if asked == method:
            raise Flood(struct.pack(">I", size) * 16_384)

    server.before = before
    store = open_store(server.uri + "&timeout_ms=200", ManualClock())
    with pytest.raises(StoreError, match=f"an answer of {size} bytes limit={size // 2}"):
        store.check_and_put([put_if("a", b"", b"1")])
    store.close()


def test_a_page_of_a_scan_ends_in_time(server: FakeRegionServer) -> None:
    """The row that it stopped in is read in what is left of its time."""
    clock = ManualClock()
    store = open_store(server.uri + "&timeout_ms=600", clock)
    store.read([key("a")])
    server.pages = [([b"b"], True, b"b", False)]
    given_up = threading.Event()

    def before(number: int, method: str) -> None:
        clock.advance(400)
        if method == "Multi":
            given_up.wait(5)

    server.before = before
    with pytest.raises(MaybeApplied, match="timed out"):
        list(store.scan(TABLE, columns=[(b"d", b"x")]))
    given_up.set()
    store.close()


def test_no_connection_is_opened_for_a_call_whose_time_is_over(server: FakeRegionServer) -> None:
    """It has waited for another thread, which opens one to the same server."""

    class Later(SystemClock):
        """A clock on which time passes whenever it is looked at."""

        now_ms = 0

        def monotonic_ms(self) -> int:
            self.now_ms += 600
            return self.now_ms

    servers = Servers(Target(), Later())
    with pytest.raises(TimeoutError):
        servers.send(("127.0.0.1", server.port), "ClientService", "Get", PB.GetRequest(), 1_000)
    assert server.connections == 0
    servers.close()


def test_who_reads_for_others_and_gives_up_lets_another_read(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """The others' answers come while it is gone."""
    clock, release = SystemClock(), threading.Event()

    def before(number: int, method: str) -> None:
        if number == 1:
            raise Silence
        release.wait(5)

    server.before = before
    place = ("127.0.0.1", server.port)
    now_ms = clock.monotonic_ms()
    calls = [send_get(store, place, now_ms + 5_000) for _ in range(2)]
    ended: list[object] = []

    def wait(call: RpcCall, within_ms: int) -> None:
        try:
            ended.append(call.receive(PB.GetResponse, now_ms + within_ms))
        except TimeoutError as error:
            ended.append(error)
            release.set()

    threads = [
        threading.Thread(target=wait, args=each) for each in zip(calls, (300, 5_000), strict=True)
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert isinstance(ended[0], TimeoutError)
    assert isinstance(ended[1], PB.GetResponse)


# --- servers that do not do it --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["CallQueueTooBigException", "ServerNotRunningYetException"])
def test_a_call_that_was_not_begun_is_made_again(
    server: FakeRegionServer, store: NativeStore, name: str
) -> None:
    """The server says so: nothing was done, a check neither."""
    fail(server, Refuse(name), times=2)
    assert store.check_and_put([put_if("a", b"", b"1")]) == [True]
    assert server.count("Multi") == 3


@pytest.mark.parametrize(
    "name",
    ["NotServingRegionException", "RegionTooBusyException", "exceptions.RegionMovedException"],
)
def test_only_what_was_not_done_is_asked_again(
    server: FakeRegionServer, store: NativeStore, name: str
) -> None:
    """Of a batch the region of one row has moved, or is busy; the others were done once."""
    server.refused[b"b"] = [name, name]
    checks = [put_if(row, b"", b"1") for row in "abc"]
    assert store.check_and_put(checks) == [True] * 3
    assert server.sizes == [3, 1, 1]
    assert (server.count("Scan") > 0) is (name != "RegionTooBusyException")


def test_what_is_never_done_was_not_applied(server: FakeRegionServer) -> None:
    """Not if it was all of the call; else a part of it was."""
    store = open_store(server.uri + "&timeout_ms=300", ManualClock())
    server.refused[b"b"] = ["*RegionTooBusyException"]
    with pytest.raises(NotApplied, match="RegionTooBusy"):
        store.check_and_put([put_if("b", b"", b"1")])
    with pytest.raises(MaybeApplied, match="RegionTooBusy"):
        store.check_and_put([put_if("a", b"", b"1"), put_if("b", b"", b"1")])
    store.close()


def test_checks_of_a_row_are_not_done_in_another_order(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """The region came back between the two: the second was done, and the first would come after."""
    server.refused[b"a"] = ["NotServingRegionException"]
    with pytest.raises(MaybeApplied):
        store.check_and_put([put_if("a", b"", b"1"), put_if("a", b"", b"2")])
    assert server.count("Multi") == 1
    assert server.cells[b"a", b"d", b"x"] == b"2"


def test_another_error_may_have_been_applied(server: FakeRegionServer, store: NativeStore) -> None:
    """Nobody knows how far the server came. Its own words are told."""
    server.refused[b"a"] = ["WALSyncTimeoutIOException"]
    with pytest.raises(TableUnavailable, match="no such table"):  # as the fake master says
        store.check_and_put([put_if("a", b"", b"1")])


def test_an_error_without_a_name_is_no_success(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """An empty name is a name: a write would seem done, and a row absent."""
    for ask in (lambda: store.write([Edit(key("a"), b"1", 1)]), lambda: store.read([key("a")])):
        server.refused[b"a"] = [NAMELESS]
        with pytest.raises((MaybeApplied, TableUnavailable)):
            ask()


@pytest.mark.parametrize("name", ["DoNotRetryIOException", "AccessDeniedException"])
def test_a_table_that_refuses_for_good_is_named(
    server: FakeRegionServer, store: NativeStore, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As one that is read-only; HBase's own clients do not ask it again either."""
    monkeypatch.setattr(type(store), "_find_absent", lambda *_: None)  # this master knows no table
    server.refused[b"a"] = [name]
    with pytest.raises(TableUnavailable, match=f"the table refuses it.*{name}") as caught:
        store.check_and_put([put_if("a", b"", b"1")])
    assert caught.value.table == key("a").table
    assert server.count("Multi") == 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("!ErrorOfSomeCoprocessor", TableUnavailable),
        ("ErrorOfSomeCoprocessor", MaybeApplied),
        ("!UnknownScannerException", MaybeApplied),
    ],
)
def test_a_server_tells_which_errors_are_for_good(
    server: FakeRegionServer,
    store: NativeStore,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: type[MaybeApplied],
) -> None:
    """By a flag, whatever the class. Of a scanner it means that one scanner."""
    monkeypatch.setattr(type(store), "_find_absent", lambda *_: None)
    fail(server, Refuse(name), times=1)
    with pytest.raises(kind, match=name.removeprefix("!")) as caught:
        store.check_and_put([put_if("a", b"", b"1")])
    assert type(caught.value) is kind
    assert "b''" not in str(caught.value)  # of no table: it is the call that was refused


def test_a_disabled_table_is_not_waited_for(server: FakeRegionServer, store: NativeStore) -> None:
    """It comes back by a person's hand."""
    server.refused[b"a"] = ["*NotServingRegionException"]
    server.state = 1
    began = time.monotonic()
    with pytest.raises(TableUnavailable, match="the table is disabled"):
        store.read([key("a")])
    assert time.monotonic() - began < 1


def test_what_was_done_before_regions_could_not_be_found_is_not_denied(
    server: FakeRegionServer,
) -> None:
    """One row was written; the region of the other has moved, and nobody can say where to."""
    store = open_store(server.uri + "&timeout_ms=500", ManualClock())
    store.read([key("a"), key("b")])
    server.refused[b"b"] = ["NotServingRegionException"]

    def before(number: int, method: str) -> None:
        if method in {"Scan", "Get"}:
            raise Break

    server.before = before
    with pytest.raises(MaybeApplied):
        store.check_and_put([put_if("a", b"", b"1"), put_if("b", b"", b"1")])
    assert server.cells[b"a", b"d", b"x"] == b"1"
    store.close()


def test_a_server_without_conditions_is_found_out(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """HBase before 2.4 leaves them out, puts, and does not say whether they held."""
    server.processes = False
    with pytest.raises(MaybeApplied, match=r"HBase 2\.4 is needed"):
        store.check_and_put([put_if("a", b"other", b"1")])


def test_a_master_that_is_mute_does_not_keep_the_next_one_from_being_asked(
    server: FakeRegionServer,
) -> None:
    """It takes connections, as one does that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        registry = f"127.0.0.1:{mute.getsockname()[1]},127.0.0.1:{server.port}"
        store = open_store(f"hbase://?registry={registry}&timeout_ms=5000&connect_ms=200")
        assert store.read([key("a")]) == {key("a"): None}
        store.close()


def test_a_table_of_regions_that_is_nowhere_was_not_asked(server: FakeRegionServer) -> None:
    """Its server has gone, and the next one has not opened it yet."""
    store = open_store(server.uri + "&timeout_ms=300", ManualClock())
    server.has_meta = False
    with pytest.raises(NotApplied, match=r"cannot read where regions are.*is nowhere"):
        store.check_and_put([put_if("a", b"", b"1")])
    server.has_meta = True
    assert store.check_and_put([put_if("a", b"", b"1")]) == [True]
    store.close()


# --- tables ---------------------------------------------------------------------------------------

FAMILIES = {b"d": Family()}


def test_a_namespace_is_made_only_if_it_is_missing(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """Who may make tables in it may not be one to make namespaces."""
    store.ensure_table(b"ns:t", FAMILIES)
    assert (server.count("CreateTable"), server.count("CreateNamespace")) == (1, 0)

    def before(number: int, method: str) -> None:
        if method == "CreateTable" and number == 2:
            raise Refuse("NamespaceNotFoundException")

    server.before, server.schemas = before, []
    store.ensure_table(b"new:t", FAMILIES)
    assert (server.count("CreateTable"), server.count("CreateNamespace")) == (3, 1)


def test_a_change_that_nobody_saw_the_end_of_may_have_been_made(server: FakeRegionServer) -> None:
    """And its client does not wait for longer than its time."""
    store = open_store(server.uri + "&timeout_ms=500")

    def before(number: int, method: str) -> None:
        if method == "getProcedureResult":
            raise Silence

    server.before = before
    began = time.monotonic()
    with pytest.raises(MaybeApplied, match="has not changed the table in time"):
        store.ensure_table(b"t", FAMILIES)
    assert time.monotonic() - began < 2
    assert server.schemas
    store.close()


def test_a_busy_master_may_take_longer_than_a_call(server: FakeRegionServer) -> None:
    """It has accepted the change and says that it is at work on it."""
    store = open_store(server.uri + "&timeout_ms=1000")
    server.changing = 1_000_000
    began = time.monotonic()

    def before(number: int, method: str) -> None:
        if time.monotonic() - began > 1.1:  # longer than timeout_ms
            server.changing = 0

    server.before = before
    store.ensure_table(b"t", FAMILIES)
    assert server.count("getProcedureResult") > 1
    assert server.schemas
    store.close()


def test_a_change_that_a_master_never_ends_is_given_up(
    server: FakeRegionServer, store: NativeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "CHANGE_MS", 300)
    server.changing = 1000
    with pytest.raises(MaybeApplied, match="has not changed the table in time"):
        store.ensure_table(b"t", FAMILIES)


# --- interrupts ----------------------------------------------------------------------------------


class Interrupt(BaseException):
    """As a KeyboardInterrupt, which comes at any moment."""


def test_a_call_that_was_sent_in_part_ends_its_connection(
    server: FakeRegionServer, store: NativeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows would complete it, and be stored as a part of its value."""

    def write_a_part(self: SharedWire, data: bytes, due: int) -> None:
        monkeypatch.undo()
        self.write(data[:50], due)
        raise Interrupt

    monkeypatch.setattr(SharedWire, "write", write_a_part)
    with pytest.raises(Interrupt):
        store.write([Edit(key("a"), b"1" * 100, 5)])
    store.write([Edit(key("a"), b"2" * 100, 6)])
    assert server.cells == {(b"a", b"d", b"x"): b"2" * 100}


def test_a_thread_that_is_interrupted_over_an_answer_leaves_nobody_waiting(
    server: FakeRegionServer, store: NativeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had read the answer of another one, who is told that it will not come."""
    now_ms = SystemClock().monotonic_ms()
    place = ("127.0.0.1", server.port)
    release, later = threading.Event(), threading.Event()
    server.before = lambda number, method: (release if number == 1 else later).wait(5) and None
    first, second = (send_get(store, place, now_ms + 5_000) for _ in range(2))
    connection = first.connection
    end, interrupts = RpcCall.end, ["once"]

    def interrupted(call: RpcCall, *of: Any) -> None:
        if call is first and interrupts:
            interrupts.clear()
            raise Interrupt
        end(call, *of)

    monkeypatch.setattr(RpcCall, "end", interrupted)
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(second.receive, PB.GetResponse, now_ms + 5_000)
        while not connection._is_led:
            time.sleep(0.001)
        other = pool.submit(first.receive, PB.GetResponse, now_ms + 5_000)
        while not connection._waiting:
            time.sleep(0.001)
        release.set()
        with pytest.raises(Interrupt):
            leader.result(3)
        with pytest.raises(ConnectionError):
            other.result(3)
    later.set()


def test_a_thread_that_is_interrupted_lets_others_go_on(
    server: FakeRegionServer, store: NativeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that was called to read for them, and does not come."""
    clock, release = SystemClock(), threading.Event()
    server.before = lambda number, method: release.wait(5) and None
    now_ms = clock.monotonic_ms()
    place = ("127.0.0.1", server.port)
    calls = [send_get(store, place, now_ms + 5_000) for _ in range(3)]
    connection = calls[0].connection
    ended: list[object] = []

    def wait(call: RpcCall) -> None:
        ended.append(call.receive(PB.GetResponse, now_ms + 5_000))

    leader = threading.Thread(target=wait, args=(calls[0],))
    leader.start()
    while not connection._is_led:
        time.sleep(0.001)

    class Interrupted:
        """A lock whose wait ends with an interrupt, once the call has been called to lead."""

        def __init__(self) -> None:
            self._lock = threading.Lock()

        def acquire(self, timeout: float = -1) -> bool:
            if timeout < 0:
                return True
            release.set()
            leader.join()
            raise Interrupt

        def release(self) -> None:
            pass

    monkeypatch.setattr("txn.stores.hbase.native.connection.Lock", Interrupted)
    with pytest.raises(Interrupt):
        wait(calls[1])
    monkeypatch.undo()
    wait(calls[2])
    assert [type(each) for each in ended] == [PB.GetResponse] * 2


def test_a_call_that_nobody_waits_for_hides_no_dead_connection(
    server: FakeRegionServer, store: NativeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a call's requests was refused, and the answer to the other was not read."""
    server.refused[b"00"] = ["*DoNotRetryIOException"]

    def before(number: int, method: str) -> None:
        if (number, method) == (2, "Multi"):
            raise Silence

    server.before = before
    with pytest.raises(MaybeApplied):
        store.read([key(f"{number:02}") for number in range(65)])
    server.cut()
    time.sleep(0.1)  # the end of the connection arrives
    monkeypatch.setattr("txn.stores.hbase.native.connection.IDLE_MS", 0)
    assert store.check_and_put([put_if("a", b"", b"1")]) == [True]


# --- servers that have stood still ----------------------------------------------------------------


@pytest.fixture
def rested(server: FakeRegionServer) -> Iterator[NativeStore]:
    """A store whose last answer came so long ago that its server may have lost its regions."""
    clock = ManualClock()
    store = open_store(server.uri + "&timeout_ms=2000", clock)
    assert isinstance(store, NativeStore)
    store.read([key("a")])
    clock.advance(REST_MS + 1)
    server.methods.clear()
    yield store
    store.close()


def test_after_a_rest_the_cluster_is_asked_whether_the_server_is_at_work(
    server: FakeRegionServer, rested: NativeStore
) -> None:
    """Once, however many answers follow."""
    for _ in range(3):
        rested.read([key("a")])
    assert server.methods == ["Multi", "GetActiveMaster", "GetClusterStatus", "Multi", "Multi"]


def test_answers_of_a_server_that_has_lost_its_regions_are_not_believed(
    server: FakeRegionServer, rested: NativeStore
) -> None:
    """What it read may have been written elsewhere since."""

    def recover(number: int, method: str) -> None:
        server.is_at_work = number > 1 or method != "GetClusterStatus"

    server.before = recover
    server.cells[b"a", b"d", b"x"] = b"1"
    assert rested.read([key("a")]) == {key("a"): Cell(b"1", 1)}
    assert server.count("Multi") == 2
    assert server.count("Scan") > 0, "it asked where the row is by now"


def test_a_no_of_a_server_that_has_lost_its_regions_is_not_believed(
    server: FakeRegionServer, rested: NativeStore
) -> None:
    """Its yes would be true, as it could not have written; but which it was does not matter."""
    server.is_at_work = False
    with pytest.raises(MaybeApplied, match="has lost its regions"):
        rested.check_and_put([put_if("a", b"1", b"2")])


def test_a_page_of_a_server_that_has_lost_its_regions_is_read_elsewhere(
    server: FakeRegionServer, rested: NativeStore
) -> None:
    """A scan is a read too."""
    server.is_at_work = False
    server.pages = [([b"old"], False, b"", False), ([b"new"], False, b"", False)]

    def recover(number: int, method: str) -> None:
        server.is_at_work = number > 1 or method != "GetClusterStatus"

    server.before = recover
    assert [row.row for row in rested.scan(TABLE)] == [b"new"]


def test_where_nobody_tells_who_is_at_work_a_read_ends_in_time(
    server: FakeRegionServer, rested: NativeStore
) -> None:
    """It says why."""

    def refuse(number: int, method: str) -> None:
        if method == "GetClusterStatus":
            raise Refuse("AccessDeniedException")

    server.before = refuse
    with pytest.raises(MaybeApplied, match=r"cannot confirm .*AccessDenied"):
        rested.read([key("a")])


def test_a_table_of_the_default_namespace_has_two_names(store: NativeStore) -> None:
    """HBase knows its regions by the shorter one."""
    wanted = Key("a", "d", "x", b"default:" + TABLE)
    assert store.read([wanted]) == {wanted: None}


def test_the_sizes_of_tables_are_asked_of_the_master_once(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """Each server reports its regions; one that it cannot ask is no table without a size."""
    server.ports = {b"m": server.port + 1}
    assert store.measure_tables([TABLE]) == {TABLE: TableSize(2, None, 8 << 20)}
    assert server.count("GetClusterStatus") == 1

    def refuse(number: int, method: str) -> None:
        raise Refuse("AccessDeniedException")

    server.before = refuse
    with pytest.raises(MaybeApplied, match="AccessDenied"):
        store.measure_tables([TABLE])


# --- life -----------------------------------------------------------------------------------------


def test_the_server_of_a_row_is_known_once_its_region_was_used(server: FakeRegionServer) -> None:
    """Nothing is asked to find it out, and it is forgotten with the region."""
    server.starts = [b"", b"m"]
    store = open_store(server.uri)
    assert isinstance(store, NativeStore)
    assert store.find_server(TABLE, b"a") is None
    assert server.methods == []
    store.read([key("a")])
    server.methods.clear()
    assert store.find_server(TABLE, b"b") == ("127.0.0.1", server.port)
    assert store.find_server(TABLE, b"n") is None
    assert store.find_server(b"u", b"a") is None
    assert server.methods == []
    server.refused[b"a"] = ["NotServingRegionException"]
    server.state = DISABLED
    with pytest.raises(TableUnavailable):
        store.read([key("a")])
    assert store.find_server(TABLE, b"a") is None
    store.close()


def test_calls_take_turns_on_several_connections(server: FakeRegionServer) -> None:
    """As many as were asked for."""
    store = open_store(server.uri + "&connections=2")
    for _ in range(6):
        store.read([key("a")])
    assert server.services.count("ClientService") == 2
    store.close()


def test_a_server_is_told_who_speaks(server: FakeRegionServer) -> None:
    """Where names are believed it is the one of the URI."""
    store = open_store(server.uri + "&user=alice")
    store.read([key("a")])
    assert set(server.users) == {"alice"}
    store.close()


def test_kerberos_without_its_library_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause would bring it."""
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        store = open_store(f"hbase://?registry=127.0.0.1:{mute.getsockname()[1]}&auth=kerberos")
        with pytest.raises(InvalidRequestError, match=r"install hbase-txn\[kerberos\]"):
            store.read([key("a")])
        store.close()


def test_a_child_has_connections_of_its_own(server: FakeRegionServer, store: NativeStore) -> None:
    """Two processes on one would mix their answers."""
    connections = server.services.count("ClientService")
    child = os.fork()
    if not child:
        os._exit(0 if store.read([key("a")]) == {key("a"): None} else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert server.services.count("ClientService") == connections + 1
    assert store.read([key("a")]) == {key("a"): None}
    assert server.services.count("ClientService") == connections + 1


def test_a_child_that_was_forked_during_a_read_ends_it_by_itself(
    server: FakeRegionServer, store: NativeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is its parent's, and so are the threads that held locks of the connection."""
    (connection,) = (each for at, each in store._servers._open.items() if at[1] == "ClientService")
    parent, child, found = os.getpid(), 0, None
    receive = RpcCall.receive

    def fork(*arguments: Any) -> Any:
        nonlocal child
        monkeypatch.undo()
        locks = connection._changing, threading.Lock()
        for lock in locks:
            lock.acquire()  # as another thread has them
        connection._sending.add(locks[1], None)
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(5)
        else:
            for lock in locks:
                lock.release()
        return receive(*arguments)

    monkeypatch.setattr(RpcCall, "receive", fork)
    try:
        found = store.read([key("a")])
    finally:
        if os.getpid() != parent:
            os._exit(found != {key("a"): None})
    assert os.waitpid(child, 0)[1] == 0
    assert found == {key("a"): None}
    assert store.read([key("a")]) == found


def test_a_closed_store_is_used_no_more(server: FakeRegionServer) -> None:
    """It says so, instead of opening its connections again."""
    store = open_store(server.uri)
    store.read([key("a")])
    store.close()
    with pytest.raises(StoreClosedError):
        store.read([key("a")])


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("hbase://", "write hbase://zk1"),
        ("hbase://zk?registry=master", "write hbase://zk1"),
        ("hbase://user@zk", "write hbase://zk1"),
        ("hbase://zk:port", "not a port.*'port'"),
        ("hbase://zk:99999", "not an address"),
        ("hbase://zk,,zk2", "not an address"),
        ("hbase://::1:2181", r"not an address.*\[IPv6\]"),
        ("hbase://[::1]x:1", "not an address|not a URI"),  # newer Pythons refuse it themselves
        ("hbase://zk1, zk2", "not an address"),
        ("hbase://zk\n:2181", "not a URI"),
        ("hbase:///hbase?registry=master:16000", "write hbase://zk1"),
        ("hbase://zk?pool=3", "unknown option.*'pool'.*'connections'"),
        ("hbase://zk?timeout_ms=0", "not a positive number"),
        ("hbase://zk?user=", "an option has no value.*'user'"),
        ("hbase://zk?auth=none", "unknown value.*simple.*kerberos"),
        (f"hbase://zk?ca={__file__}", "not a file of certificates"),
    ],
)
def test_a_bad_uri_is_refused(uri: str, message: str) -> None:
    """The message names the part that is wrong."""
    with pytest.raises(InvalidRequestError, match=message):
        open_store(uri)
