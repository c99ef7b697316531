"""HBase's own RPC where it does not go as planned, against a server that does what it is told."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

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
    fake_region_server,
)
from tests.unit.fake_region_server import FakeRegionServer as Server
from tests.unit.interrupting import Interrupt
from txn.clock import ManualClock, poll
from txn.errors import (
    InvalidRequestError,
    MaybeApplied,
    NotApplied,
    StoreError,
    TableUnavailable,
)
from txn.model import Cell, Check, Edit, Family, Key
from txn.stores import open_store
from txn.stores.hbase.native.connection import IDLE_MS, RpcCall, RpcConnection
from txn.stores.hbase.native.items import ASYNC_WAL
from txn.stores.hbase.native.messages import PB
from txn.stores.hbase.native.regions import DISABLED
from txn.stores.hbase.native.store import NativeStore
from txn.stores.hbase.native.store import NativeStore as Store
from txn.stores.hbase.native.tenure import REST_MS
from txn.stores.wire import SharedWire

PATIENCE_S = 60
FAMILIES = {b"d": Family()}
BUSY, ELSEWHERE = "RegionTooBusyException", "NotServingRegionException"

Opener = Callable[..., Store]
Refusal = tuple[str | None, str, str, type[StoreError], str]
"""Which row, or the call, is refused by what; the rows of the checks; and what they are told."""


def key(row: str, column: str = "x") -> Key:
    return Key(row, "d", column, TABLE)


def put_if(row: str, expected: bytes, value: bytes) -> Check:
    return Check(key(row), expected, ((key(row), value),))


PUT = put_if("a", b"", b"1")


@pytest.fixture
def server() -> Iterator[Server]:
    with fake_region_server() as server:
        yield server


@pytest.fixture
def other() -> Iterator[Server]:
    with fake_region_server() as other:
        yield other


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def open_at(server: Server, clock: ManualClock) -> Iterator[Opener]:
    """Opens stores of the server, with more options and the manual clock."""
    with ExitStack() as stack:

        def open_at(options: str = "", uri: str = server.uri) -> Store:
            store = open_store(f"{uri}{options}", clock)
            assert isinstance(store, Store)
            stack.callback(store.close)
            return store

        yield open_at


@pytest.fixture
def store(server: Server, open_at: Opener) -> Store:
    """A store that has found its server, and whose clock does not move by itself."""
    store = open_at("&timeout_ms=2000")
    store.read([key("warm")])
    store._sizes.learn(b"t", 1_000, 1_000)  # else few rows share an answer
    forget(server)
    return store


def forget(*servers: Server) -> None:
    for server in servers:
        del server.methods[:], server.sizes[:], server.requests[:]


def get_connection(store: Store) -> RpcConnection:
    (found,) = (each for at, each in store._servers._open.items() if at[1] == "ClientService")
    return found


def send_get(store: Store, server: Server, due_ms: int) -> RpcCall:
    request = PB.GetRequest(region={"type": 1, "value": b""}, get={"row": b"a"})
    place = ("127.0.0.1", server.port)
    return store._servers.send(place, "ClientService", "Get", request, due_ms)


def fail(
    server: Server, error: Exception, times: int = 1, after: Callable[[], None] = lambda: None
) -> None:
    """Let the next calls fail that are for rows."""

    def before(number: int, method: str) -> None:
        if method == "Multi" and number <= times:
            after()
            raise error

    server.before = before


def refuse(server: Server, method: str, error: Exception) -> None:
    """Let all calls of a method fail."""

    def before(number: int, asked: str) -> None:
        if asked == method:
            raise error

    server.before = before


@pytest.fixture
def apart(server: Server, other: Server, open_at: Opener) -> Store:
    """A store that has found its two servers, of rows from `m` on and of those before it."""
    server.starts, server.ports, store = [b"", b"m"], {b"m": other.port}, open_at()
    store.read([key("a"), key("n")])
    forget(server, other)
    return store


def test_a_call_is_one_request_however_many_rows(server: Server, store: Store) -> None:
    server.starts = [b"", b"3", b"6"]
    keys = [key(str(number)) for number in range(10)]
    store.write([Edit(each, b"1", 5) for each in keys])
    assert store.check_and_put([put_if(str(number), b"1", b"2") for number in range(10)])
    assert store.read(keys) == {each: Cell(b"2", 1) for each in keys}
    assert server.methods.count("Multi") == 3
    assert server.sizes == [10, 10, 10]
    other_name = keys[0]._replace(table=b"default:" + TABLE)  # HBase knows regions by the shorter
    assert store.read([other_name]) == {other_name: Cell(b"2", 1)}


def test_groups_are_one_request_or_one_each_if_that_lacks_some(
    server: Server, store: Store
) -> None:
    """What is missing would be read after what follows it."""
    found = dict.fromkeys([key("a"), key("b"), key("c")])
    assert store.read([key("a")], [key("b"), key("c")]) == found
    server.refused[b"a"] = ["NotServingRegionException"]
    assert store.read([key("a")], [key("b"), key("c")]) == found
    assert server.sizes == [3, 3, 1, 2]


def test_groups_on_two_servers_are_one_by_one(server: Server, other: Server, apart: Store) -> None:
    """Two servers keep no order between them."""
    answered: list[str] = []
    server.before = lambda number, method: answered.append("first")
    other.before = lambda number, method: answered.append("second")
    found = apart.read([key("n")], [key("a")], [key("o")])
    assert found == dict.fromkeys([key("n"), key("a"), key("o")])
    assert answered == ["second", "first", "second"]


def test_edits_that_later_ones_replace_are_not_sent(server: Server, store: Store) -> None:
    """Of two puts of a cell at one timestamp, HBase shows the one that arrived last."""
    store.write([Edit(key("a"), value, at) for value, at in ((b"1", 5), (b"2", 6), (b"3", 5))])
    (action,) = server.requests[-1].regionAction[0].action
    cells = [cell for each in action.mutation.column_value for cell in each.qualifier_value]
    assert [(cell.value, cell.timestamp) for cell in cells] == [(b"3", 5), (b"2", 6)]


def test_checks_of_several_tables_are_one_request(server: Server, store: Store) -> None:
    """Both of a row's writes are deferred: a server waits for its log if one of them wants that."""
    server.starts = [b"", b"m"]
    row = Key("r", "t", "status", "u")
    first = Check(row, None, ((row, b"0"),), is_deferred=True)
    others = [PUT, put_if("n", b"", b"1"), put_if("a", b"", b"2")]
    assert store.check_and_put([first, *others]) == [True, True, True, False]
    assert server.sizes == [4]
    (request,) = server.requests
    assert [entry.atomic for entry in request.regionAction] == [False, True, True, True]
    assert [entry.HasField("condition") for entry in request.regionAction] == [False, *[True] * 3]
    durabilities = [
        [action.mutation.durability for action in entry.action] for entry in request.regionAction
    ]
    assert durabilities == [[ASYNC_WAL], [0], [0], [0]]
    edits = (Edit(key("a"), b"1", 5), Edit(key("a", "y"), None, 5))
    for expected in (b"", None):
        assert store.check_and_put([Check(key("a", "z"), expected, (), edits, True)]) == [True]
        (entry,) = server.requests.pop().regionAction
        assert [action.mutation.durability for action in entry.action] == [ASYNC_WAL] * 2


def test_checks_and_a_read_are_one_request(server: Server, store: Store) -> None:
    server.starts = [b"", b"m"]
    checks = [PUT, put_if("a", b"2", b"3"), put_if("n", b"", b"1")]
    wanted = [key("b"), key("a"), key("n")]
    answers, cells, _ = store.check_and_read(checks, wanted)
    assert answers == [True, False, True]
    assert cells == {key("a"): Cell(b"1", 1), key("b"): None, key("n"): Cell(b"1", 1)}
    assert server.sizes == [6]
    assert store.check_and_read([], wanted)[1] == cells
    assert store.check_and_read(checks[:1], []) == ([False], {}, {})
    assert server.sizes == [6, 3, 1]


def test_a_read_is_repeated_and_its_checks_are_not(
    server: Server, other: Server, apart: Store
) -> None:
    """Lost are the answers of a server to reads alone; then those to a request with a check."""
    keys = [key("a"), key("n")]
    fail(other, Break())
    server.refused[b"a"] = ["", "NotServingRegionException"]
    answers, cells, _ = apart.check_and_read([PUT], keys)
    assert (answers, cells) == ([True], {key("a"): Cell(b"1", 1), key("n"): None})
    assert (server.sizes, other.sizes) == ([2, 1], [1, 1])
    server.methods.clear()
    fail(server, Break())
    with pytest.raises(MaybeApplied, match="no answer"):
        apart.check_and_read([put_if("a", b"1", b"2")], keys)
    assert server.count("Multi") == 1


def test_many_rows_are_cut_into_several_requests(server: Server, store: Store) -> None:
    """A server holds a request in its memory: 2,000 rows and 8 MB are under way at most."""
    keys = [key(f"{number:05}") for number in range(4_100)]
    store.write([Edit(each, b"1", 5) for each in keys])
    assert server.sizes == [250] * 16 + [50] * 2
    assert all(store.read(keys[:65]).values())
    assert server.sizes[18:] == [33, 32]
    assert all(store.read(keys[:2_100], keys[:1]).values())
    assert server.sizes[20:] == [125] * 16 + [50] * 2 + [1]
    store.write([Edit(each, b"1" * 3_000_000, 5) for each in keys[:5]])
    assert server.sizes[39:] == [2, 2, 1]


def test_a_row_written_in_part_is_not_said_to_be_as_it_was(server: Server, store: Store) -> None:
    """Its put is refused, its delete marker taken; by row, it is tried again as a whole."""
    edits = [Edit(key("a"), b"1", 5), Edit(key("a"), None, 4)]
    server.refused[b"a"] = ["RegionTooBusyException", ""]
    store.write(edits, by_row=True)
    assert server.sizes == [2, 2]
    assert [entry.atomic for each in server.requests for entry in each.regionAction] == [True] * 2
    server.refused[b"a"] = ["RegionTooBusyException", ""] * 1_000
    with pytest.raises(MaybeApplied, match="could not do it in time"):
        store.write(edits)


def test_answers_come_in_any_order_to_many_threads(server: Server, store: Store) -> None:
    server.cells = {(b"%d" % n, b"d", b"x"): b"%d" % n for n in range(16)}
    second_answered = threading.Event()

    def before(number: int, method: str) -> None:
        if method == "Multi" and number == 1:
            assert second_answered.wait(PATIENCE_S)

    def read(number: int) -> Cell | None:
        return store.read([key(str(number))])[key(str(number))]

    server.before = before
    with ThreadPoolExecutor(16) as pool:
        first = pool.submit(read, 0)
        assert poll(lambda: bool(server.methods), 60_000)
        assert pool.submit(read, 1).result(PATIENCE_S) == Cell(b"1", 1)
        second_answered.set()
        assert first.result(PATIENCE_S) == Cell(b"0", 1)
        numbers = [number % 16 for number in range(800)]
        assert [*pool.map(read, numbers)] == [Cell(b"%d" % number, 1) for number in numbers]
    assert server.connections == 3, "for rows, for where they are, and for who is at work"


def test_calls_take_turns_on_the_connections_asked_for(server: Server, open_at: Opener) -> None:
    store = open_at("&connections=2&user=alice")
    for _ in range(6):
        store.read([key("a")])
    assert server.services.count("ClientService") == 2
    assert set(server.users) == {"alice"}


def stop_within_a_scan(server: Server) -> None:
    """Let the server stop before any row, within row c, and at row d, which is gone later."""
    server.cells = {(b"c", b"d", b"x"): b"1", (b"c", b"d", b"y"): b"2"}
    server.pages = [
        ([], False, b"b", True),
        ([b"b", b"c"], True, b"c", True),
        ([b"d"], True, b"", True),
        ([b"e"], False, b"", False),
    ]


def test_a_scan_goes_on_where_the_server_stopped(server: Server, store: Store) -> None:
    """Where it found nothing, or within a row, which is then read whole, or is gone."""
    stop_within_a_scan(server)
    found = store.scan(TABLE, columns=[(b"d", b"x"), (b"d", b"y")])
    assert [(row.row, len(row.cells)) for row in found] == [(b"b", 1), (b"c", 2), (b"e", 1)]
    assert server.scanned == [b"", b"b", b"c\0", b"d\0"]


def test_columns_go_on_where_the_server_stopped(server: Server, store: Store) -> None:
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


def test_a_reverse_scan_goes_on_where_the_server_stopped(server: Server, open_at: Opener) -> None:
    """The row at which it stopped may be to come; and then the region before it."""
    server.starts, store = [b"", b"m"], open_at()
    server.cells = {(b"x", b"d", b"x"): b"1", (b"x", b"d", b"y"): b"2"}
    server.pages = [
        ([], False, b"y", True),
        ([b"y", b"x"], True, b"x", True),
        ([b"n"], False, b"", False),
        ([b"c"], True, b"c", True),
        ([b"b"], False, b"", False),
    ]
    found = store.scan(TABLE, columns=[(b"d", b"x"), (b"d", b"y")], reverse=True)
    wanted = [(b"y", 1), (b"x", 2), (b"n", 1), (b"b", 1)]
    assert [(row.row, len(row.cells)) for row in found] == wanted
    assert server.scanned == [b"", b"y\0", b"x", b"m", b"c"]


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(Break(), id="before the answer"),
        pytest.param(Break(after=3), id="within its length"),
        pytest.param(Break(after=9), id="within the answer"),
        pytest.param(Say(b"HTTP/1.1 400 Bad Request\r\n\r\n"), id="another protocol's"),
        pytest.param(Say(b"\x00\x00\x00\x06\xff\xff\xff\xff\xff\xff"), id="no numbers"),
        pytest.param(Say(b"\x00\x00\x00\x04\x02\x08\x01\x7f"), id="wrong lengths"),
        pytest.param(Say(b"\x00\x00\x00\x03\x02\xff\xff"), id="no header"),
    ],
)
def test_a_call_whose_answer_is_lost_is_repeated_unless_it_has_a_check(
    server: Server, store: Store, error: Exception
) -> None:
    """Its repeat would answer no where it answered yes."""
    fail(server, error)
    store.write([Edit(key("a"), b"1", 5)])
    assert server.count("Multi") == 2
    server.methods.clear()
    with pytest.raises(MaybeApplied):
        store.check_and_put([put_if("b", b"", b"1")])
    assert server.count("Multi") == 1
    assert store.read([key("a")]) == {key("a"): Cell(b"1", 1)}
    assert store.check_and_put([put_if("a", b"1", b"2")]) == [True]


def answer(body: bytes) -> Say:
    """The answer to the next call."""
    return Say(struct.pack(">I", 3 + len(body)) + b"\x02\x08\x03" + body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\x00", "answers are missing"),
        (b"\x02\xff\xff", "not an answer|no answer"),
        ({"resultOrException": [{"index": 1}]}, "an answer is of no row"),
        ({}, "rows are missing"),
    ],
)
def test_an_answer_that_is_not_of_the_request_may_have_been_applied(
    server: Server, store: Store, body: bytes | dict[str, Any], message: str
) -> None:
    """It has fewer rows than were asked for, is no message, or is of other rows."""
    if isinstance(body, dict):
        whole = PB.MultiResponse(regionActionResult=[body]).SerializeToString()
        fail(server, answer(bytes([len(whole)]) + whole))
        with pytest.raises(MaybeApplied, match=message):
            store.write([Edit(key("a"), b"1", 5)])
    else:
        fail(server, answer(body))
        with pytest.raises(MaybeApplied, match=message):
            store.check_and_put([PUT])


def test_others_on_the_connection_are_told_too(server: Server, store: Store) -> None:
    arrived = threading.Barrier(4)

    def before(number: int, method: str) -> None:
        if method == "Multi" and number <= 3:
            arrived.wait(PATIENCE_S)
            raise Silence

    server.before = before
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(store.check_and_put, [put_if(row, b"", b"1")]) for row in "abc"]
        arrived.wait(PATIENCE_S)
        server.cut()
        for each in waiting:
            with pytest.raises(MaybeApplied, match="no answer"):
                each.result(PATIENCE_S)


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_a_connection_that_the_server_closed_at_rest_is_not_used(
    server: Server, store: Store, clock: ManualClock, is_waited_for: bool
) -> None:
    """A check sent on it would be lost; also where an answer was left unread."""
    if not is_waited_for:
        server.refused[b"00"] = ["*DoNotRetryIOException"]

        def before(number: int, method: str) -> None:
            if (number, method) == (2, "Multi"):
                raise Silence

        server.before = before
        with pytest.raises(MaybeApplied):
            store.read([key(f"{number:02}") for number in range(65)])
    server.cut()
    assert poll(get_connection(store)._wire.is_readable, 60_000)
    clock.advance(IDLE_MS)
    assert store.check_and_put([PUT]) == [True]


def test_a_server_that_cannot_be_reached_has_done_nothing(open_at: Opener) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = open_at("&timeout_ms=300", f"hbase://?registry=127.0.0.1:{port}")
    with pytest.raises(NotApplied, match=r"127\.0\.0\.1"):
        store.check_and_put([PUT])


def test_a_connection_is_replaced_before_its_numbers_end(server: Server, store: Store) -> None:
    """They are 31 bits for a server; what is on its way under the last ones is still answered."""
    connections = server.services.count("ClientService")
    get_connection(store)._number = (1 << 31) - 2
    for _ in range(2):
        assert store.read([key("a")]) == {key("a"): None}
    assert server.services.count("ClientService") == connections + 1
    assert server.count("Multi") == 2


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(Silence(), id="nothing"),
        pytest.param(
            Flood(b"\x00\x00\x00\x04\x02\x08\x7f\x00"), id="answers that nobody waits for"
        ),
        pytest.param(Flood(b"\x0f\x00\x00\x00" * 64), id="a frame without an end"),
    ],
)
def test_a_call_ends_in_time_whatever_comes_instead_of_its_answer(
    server: Server, store: Store, clock: ManualClock, error: Exception
) -> None:
    """And the next one goes over another connection: this one may be dead."""
    connections = server.connections
    fail(server, error, after=lambda: clock.advance(2_000))
    with pytest.raises(MaybeApplied, match="timed out"):
        store.check_and_put([PUT])
    assert store.check_and_put([PUT]) == [True]
    assert server.connections == connections + 1


@pytest.mark.parametrize(
    ("method", "size"), [("GetMetaRegionLocations", 2 << 20), ("Multi", 512 << 20)]
)
def test_an_answer_is_no_longer_than_its_service_can_make_it(
    server: Server, open_at: Opener, method: str, size: int
) -> None:
    """Without TLS or Kerberos nobody knows who has sent it. It was read up to 1 GB."""
    refuse(server, method, Flood(struct.pack(">I", size) * 16_384))
    with pytest.raises(StoreError, match=f"an answer of {size} bytes limit={size // 2}"):
        open_at("&timeout_ms=200").check_and_put([PUT])


def test_who_gives_up_lets_another_read(server: Server, store: Store, clock: ManualClock) -> None:
    release = threading.Event()

    def before(number: int, method: str) -> None:
        if number == 1:
            raise Silence
        release.wait(PATIENCE_S)

    server.before = before
    now_ms, connection = clock.monotonic_ms(), get_connection(store)
    hasty, patient = (send_get(store, server, now_ms + 5_000) for _ in range(2))
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(hasty.receive, PB.GetResponse, now_ms + 300)
        assert poll(lambda: connection._is_led, 60_000)
        follower = pool.submit(patient.receive, PB.GetResponse, now_ms + 5_000)
        assert poll(lambda: bool(connection._waiting), 60_000)
        clock.advance(300)
        with pytest.raises(TimeoutError):
            leader.result(PATIENCE_S)
        release.set()
        assert isinstance(follower.result(PATIENCE_S), PB.GetResponse)


@pytest.mark.parametrize("name", ["CallQueueTooBigException", "ServerNotRunningYetException"])
def test_a_call_that_was_not_begun_is_made_again(server: Server, store: Store, name: str) -> None:
    """The server says so: nothing was done, a check neither."""
    fail(server, Refuse(name), times=2)
    assert store.check_and_put([PUT]) == [True]
    assert server.count("Multi") == 3


def test_a_check_in_flight_when_another_thread_closes_the_store_may_be_done(
    server: Server, store: Store
) -> None:
    server.before = lambda number, method: store.close() if method == "Multi" else None
    with pytest.raises(MaybeApplied):
        store.check_and_put([PUT])


def test_a_refusal_is_told_when_no_check_is_in_flight_any_more(
    server: Server, store: Store
) -> None:
    """Who reads the cells then, sees what was done."""
    server.refused[b"00"] = ["*DoNotRetryIOException"]
    server.before = lambda number, method: time.sleep(0.2 * (method == "Multi" and number == 2))
    with pytest.raises(TableUnavailable):
        store.check_and_put([put_if(f"{number:02}", b"", b"1") for number in range(17)])
    assert server.count("Multi") == 2
    assert any(row == b"16" for row, _, _ in server.cells)


@pytest.mark.parametrize("name", [BUSY, ELSEWHERE, "exceptions.RegionMovedException"])
def test_only_what_was_not_done_is_asked_again(server: Server, store: Store, name: str) -> None:
    server.refused[b"b"] = [name, name]
    assert store.check_and_put([put_if(row, b"", b"1") for row in "abc"]) == [True] * 3
    assert server.sizes == [3, 1, 1]
    assert (server.count("Scan") > 0) is (name != BUSY)


@pytest.mark.parametrize(
    "refusal",
    [
        ("b", "*RegionTooBusyException", "b", NotApplied, "RegionTooBusy"),
        ("b", "*RegionTooBusyException", "ab", MaybeApplied, "RegionTooBusy"),  # a was done
        ("a", ELSEWHERE, "aa", MaybeApplied, "."),  # the second was done, and is not to come first
        ("a", "WALSyncTimeoutIOException", "a", MaybeApplied, "WALSyncTimeout"),  # how far it came?
        ("a", NAMELESS, "a", MaybeApplied, "."),  # an empty name is a name: it would seem done
        ("a", "DoNotRetryIOException", "a", TableUnavailable, "the table refuses it.*DoNotRetry"),
        ("a", "AccessDeniedException", "a", TableUnavailable, "the table refuses it.*AccessDenied"),
        (None, "!ErrorOfSomeCoprocessor", "a", TableUnavailable, "ErrorOfSome"),  # told by a flag
        (None, "ErrorOfSomeCoprocessor", "a", MaybeApplied, "ErrorOfSome"),
        (None, "!UnknownScannerException", "a", MaybeApplied, "UnknownScanner"),  # only that one
    ],
)
def test_a_refusal_tells_whether_the_checks_were_done(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    """Refused is a row, or the call. HBase's own clients do not ask for good refusals again."""
    monkeypatch.setattr(Store, "_find_absent", lambda *_: None)  # this master knows no table
    row, name, rows, kind, message = refusal
    if row is None:
        fail(server, Refuse(name))
    else:
        server.refused[row.encode()] = [name]
    with pytest.raises(kind, match=message) as caught:
        store.check_and_put([put_if(each, b"", b"%d" % n) for n, each in enumerate(rows)])
    assert type(caught.value) is kind
    assert "b''" not in str(caught.value)  # of no table, where it is the call that was refused
    if isinstance(caught.value, TableUnavailable) and row:
        assert caught.value.table == TABLE
    if not name.startswith("*"):
        assert server.count("Multi") == 1
    if rows == "aa":
        assert server.cells[b"a", b"d", b"x"] == b"1"


def test_a_table_that_is_not_there_is_named(server: Server, store: Store) -> None:
    for ask in (lambda: store.write([Edit(key("a"), b"1", 1)]), lambda: store.read([key("a")])):
        server.refused[b"a"] = [NAMELESS]
        with pytest.raises(TableUnavailable, match="no such table"):  # as the fake master says
            ask()


def test_what_was_done_before_a_region_was_lost_is_not_denied(server: Server, store: Store) -> None:
    """One row was written; the region of the other has moved, and nobody can say where to."""
    store.read([key("a"), key("b")])
    server.refused[b"b"] = ["NotServingRegionException"]

    def before(number: int, method: str) -> None:
        if method in {"Scan", "Get"}:
            raise Break

    server.before = before
    with pytest.raises(MaybeApplied):
        store.check_and_put([PUT, put_if("b", b"", b"1")])
    assert server.cells[b"a", b"d", b"x"] == b"1"


def test_a_server_without_conditions_is_found_out(server: Server, store: Store) -> None:
    """HBase before 2.4 leaves them out, puts, and does not say whether they held."""
    server.processes = False
    with pytest.raises(MaybeApplied, match=r"HBase 2\.4 is needed"):
        store.check_and_put([put_if("a", b"other", b"1")])


def test_a_master_that_is_mute_does_not_keep_the_next_one_from_being_asked(server: Server) -> None:
    """It takes connections, as one does that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        registry = f"127.0.0.1:{mute.getsockname()[1]},{server.address}"
        uri = f"hbase://?registry={registry}&timeout_ms=60000&connect_ms=1000"
        with closing(open_store(uri)) as store:
            assert store.read([key("a")]) == {key("a"): None}


def test_a_table_of_regions_that_is_nowhere_was_not_asked(server: Server, open_at: Opener) -> None:
    """Its server has gone, and the next one has not opened it yet."""
    store = open_at("&timeout_ms=300")
    server.has_meta = False
    with pytest.raises(NotApplied, match=r"cannot read where regions are.*is nowhere"):
        store.check_and_put([PUT])
    server.has_meta = True
    assert store.check_and_put([PUT]) == [True]


def test_a_namespace_is_made_only_if_it_is_missing(server: Server, store: Store) -> None:
    """Who may make tables in it may not be one to make namespaces."""
    store.ensure_table(b"ns:t", FAMILIES)
    assert (server.count("CreateTable"), server.count("CreateNamespace")) == (1, 0)

    def before(number: int, method: str) -> None:
        if method == "CreateTable" and number == 2:
            raise Refuse("NamespaceNotFoundException")

    server.before, server.schemas = before, []
    store.ensure_table(b"new:t", FAMILIES)
    assert (server.count("CreateTable"), server.count("CreateNamespace")) == (3, 1)


def test_a_master_that_refuses_the_endpoint_makes_the_table_without(
    server: Server, store: Store
) -> None:
    """A new table names it, unless the master forbids that."""
    store.ensure_table(b"t", FAMILIES)
    assert store.find_endpoints() == {b"t": True}

    def before(number: int, method: str) -> None:
        if method == "CreateTable" and number in refused:
            raise Refuse("!DoNotRetryIOException")

    server.before, server.schemas, refused = before, [], {2, 4, 5}
    store.ensure_table(b"t", FAMILIES)
    assert (server.count("CreateTable"), store.find_endpoints()) == (3, {b"t": False})
    server.schemas = []
    with pytest.raises(InvalidRequestError, match="cannot make the table"):
        store.ensure_table(b"t", FAMILIES)


def test_a_busy_master_may_take_longer_than_a_call(
    server: Server, store: Store, clock: ManualClock
) -> None:
    """It has accepted the change and says that it is at work on it."""
    server.changing, began_ms = 1_000_000, clock.monotonic_ms()

    def before(number: int, method: str) -> None:
        if clock.monotonic_ms() - began_ms > 10 * 2_000:  # ten times the time of a call
            server.changing = 0

    server.before = before
    store.ensure_table(b"t", FAMILIES)
    assert server.count("getProcedureResult") > 1
    assert server.schemas


def test_the_server_of_a_row_is_known_once_its_region_was_used(
    server: Server, open_at: Opener, clock: ManualClock
) -> None:
    """Nothing is asked to find it out, and it is forgotten with the region."""
    server.starts, store = [b"", b"m"], open_at()
    assert store.find_server(TABLE, b"a") is None
    assert server.methods == []
    store.read([key("a")])
    server.methods.clear()
    assert store.find_server(TABLE, b"b") == ("127.0.0.1", server.port)
    assert store.find_server(TABLE, b"n") is None
    assert store.find_server(b"u", b"a") is None
    assert server.methods == []
    server.refused[b"a"] = ["*NotServingRegionException"]
    server.state, now_ms = DISABLED, clock.monotonic_ms()
    with pytest.raises(TableUnavailable, match="the table is disabled"):
        store.read([key("a")])
    assert clock.monotonic_ms() - now_ms < 1_000, "it comes back by a person's hand"
    assert store.find_server(TABLE, b"a") is None


def test_a_call_that_was_sent_in_part_ends_its_connection(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch
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


def test_a_child_that_was_forked_during_a_read_ends_it_by_itself(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is its parent's, and so are the threads that held locks of the connection."""
    connection, connections = get_connection(store), server.services.count("ClientService")
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
            signal.alarm(PATIENCE_S)
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
    assert server.services.count("ClientService") == connections + 1, "the child's own"


@pytest.fixture
def rested(server: Server, store: Store, clock: ManualClock) -> Store:
    """A store whose last answer came so long ago that its server may have lost its regions."""
    store.read([key("a")])
    clock.advance(REST_MS + 1)
    server.methods.clear()
    return store


def test_after_a_rest_the_cluster_is_asked_once_about_a_server(
    server: Server, rested: Store
) -> None:
    for _ in range(3):
        rested.read([key("a")])
    assert server.methods == ["Multi", "GetActiveMaster", "GetClusterStatus", "Multi", "Multi"]


def test_answers_of_a_server_that_has_lost_its_regions_are_not_believed(
    server: Server, rested: Store, clock: ManualClock
) -> None:
    """What it read may have been written elsewhere since."""

    def recover(number: int, method: str) -> None:
        server.is_at_work = number > 1 or method != "GetClusterStatus"

    server.is_at_work, server.before = False, recover
    server.cells[b"a", b"d", b"x"] = b"1"
    assert rested.read([key("a")]) == {key("a"): Cell(b"1", 1)}
    assert server.count("Multi") == 2
    assert server.count("Scan") > 0, "it asked where the row is by now"
    clock.advance(REST_MS + 1)
    server.methods.clear()
    server.pages = [([b"old"], False, b"", False), ([b"new"], False, b"", False)]
    assert [row.row for row in rested.scan(TABLE)] == [b"new"]


@pytest.mark.parametrize("message", ["has lost its regions", r"cannot confirm .*AccessDenied"])
def test_a_no_of_a_doubtful_server_is_not_believed(
    server: Server, rested: Store, message: str
) -> None:
    """Its yes would be true, as it could not have written; but which it was does not matter."""
    server.is_at_work = False
    if "AccessDenied" in message:
        refuse(server, "GetClusterStatus", Refuse("AccessDeniedException"))
    with pytest.raises(MaybeApplied, match=message):
        rested.check_and_put([put_if("a", b"1", b"2")])


def test_checks_do_not_take_all_of_a_servers_threads(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """It has 30 by default, for all of its clients."""
    checks = [put_if(f"{number:03}", b"", b"1") for number in range(400)]
    assert store.check_and_put(checks) == [True] * 400
    assert server.sizes == [50] * 8
