"""Parts of the native store alone: its URI, nodes of ZooKeeper, Kerberos, blocks of cells."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call
from urllib.parse import urlsplit

import pytest
from kazoo.exceptions import NoNodeError

from tests.unit.fake_region_server import encode_cell
from txn.clock import ManualClock, SystemClock
from txn.errors import InvalidRequestError, MaybeApplied, NotApplied
from txn.model import Cell, Key
from txn.stores import open_store
from txn.stores.hbase.native.kerberos import Unwelcome, prove_user
from txn.stores.hbase.native.messages import PB, Cells
from txn.stores.hbase.native.registry import Registry
from txn.stores.hbase.native.servers import Servers
from txn.stores.hbase.native.target import Address, Target, parse_target
from txn.stores.hbase.native.tenure import REST_MS, Tenure


def parse(uri: str) -> Target:
    return parse_target(urlsplit(uri))


@pytest.mark.parametrize(
    ("uri", "zookeeper", "znode"),
    [
        ("hbase://zk", [("zk", 2181)], "/hbase"),
        ("hbase://a,b:2182,c", [("a", 2182), ("b", 2182), ("c", 2181)], "/hbase"),
        ("hbase://a,b,c:2182/", [("a", 2182), ("b", 2182), ("c", 2182)], "/hbase"),
        ("hbase://zk/of/it%20all", [("zk", 2181)], "/of/it all"),
        ("hbase://[::1]:2182", [("::1", 2182)], "/hbase"),
    ],
)
def test_a_uri_names_a_zookeeper(uri: str, zookeeper: list[tuple[str, int]], znode: str) -> None:
    """A host without a port has that of the one behind it, as HBase's own setting has it."""
    target = parse(uri)
    assert (list(target.zookeeper), target.znode, target.registry) == (zookeeper, znode, ())


def test_a_uri_names_masters_instead() -> None:
    target = parse("hbase://?registry=a:1,b,c:3&user=alice")
    assert target.registry == (("a", 1), ("b", 3), ("c", 3))
    assert (target.zookeeper, target.user) == ((), "alice")
    assert parse("hbase://?registry=a").registry == (("a", 16_000),)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("hbase://", "write hbase://zk1"),
        ("hbase://zk?registry=master", "write hbase://zk1"),
        ("hbase://user@zk", "write hbase://zk1"),
        ("hbase://zk:port", "not a port.*'port'"),
        ("hbase://zk,,zk2", "not an address"),
        ("hbase://::1:2181", r"not an address.*\[IPv6\]"),
        ("hbase://[::1]x:1", "not an address|not a URI"),  # newer Pythons refuse it themselves
        ("hbase://zk\n:2181", "not a URI"),
        ("hbase:///hbase?registry=master:16000", "write hbase://zk1"),
        ("hbase://zk?user=", "an option has no value.*'user'"),
        ("hbase://zk?auth=none", "unknown value.*simple.*kerberos"),
        (f"hbase://zk?ca={__file__}", "not a file of certificates"),
    ],
)
def test_a_bad_uri_is_refused(uri: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        open_store(uri)


SERVER = ("host", 16_020)


def make_tenure() -> tuple[Tenure, list[int], ManualClock]:
    """Return a tenure of a server that is at work, when the registry was asked, and the clock."""
    clock, asked = ManualClock(), list[int]()
    clock.advance(100_000)

    def list_servers(since_ms: int, due_ms: int) -> Sequence[Address]:
        asked.append(since_ms)
        clock.advance(5)
        return [SERVER]

    return Tenure(SERVER, list_servers, clock), asked, clock


def test_an_answer_that_lay_unread_vouches_for_when_it_was_asked_for() -> None:
    """The server may have stood still since then, with its session to end soon."""
    tenure, _, clock = make_tenure()
    sent_ms = clock.monotonic_ms()
    clock.advance(REST_MS)
    came_ms = clock.monotonic_ms()
    assert not tenure.vouches_for(sent_ms, came_ms)
    tenure.confirm(sent_ms, came_ms, came_ms + 1_000)
    clock.advance(1)
    assert not tenure.vouches_for(came_ms, clock.monotonic_ms())


def test_answers_vouch_for_each_other_until_there_was_a_rest() -> None:
    """What counts is when the earlier was sent: it may have been answered at once."""
    tenure, asked, clock = make_tenure()
    now_ms = clock.monotonic_ms()
    assert not tenure.vouches_for(now_ms, now_ms), "the first one"
    tenure.confirm(now_ms, now_ms, now_ms + 1_000)
    assert len(asked) == 1
    sent_ms = clock.monotonic_ms()
    clock.advance(REST_MS - 10)
    assert tenure.vouches_for(sent_ms, clock.monotonic_ms())
    clock.advance(11)
    assert not tenure.vouches_for(clock.monotonic_ms(), clock.monotonic_ms())
    assert not tenure.vouches_for(clock.monotonic_ms(), clock.monotonic_ms()), "nor the next"


def fake_zookeeper(answer: bytes | list[str] | Exception) -> MagicMock:
    """In place of kazoo's client: a node's data or children, or what asking for them raises."""
    client = MagicMock()
    client.return_value = client
    for asked in (client.get_async, client.get_children_async):
        if isinstance(answer, Exception):
            asked.return_value.get.side_effect = answer
        else:
            asked.return_value.get.return_value = (
                answer if isinstance(answer, list) else (answer, None)
            )
    return client


Ask = Callable[[bytes | list[str] | Exception], Registry]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """A registry whose ZooKeeper answers this."""

    def ask(answer: bytes | list[str] | Exception) -> Registry:
        client = fake_zookeeper(answer)
        monkeypatch.setattr("txn.stores.hbase.native.registry.BoundedClient", client)
        return open_registry("hbase://zk/node")

    return ask


def open_registry(uri: str) -> Registry:
    clock, target = SystemClock(), parse(uri)
    return Registry(target, Servers(target, clock), clock)


def due_ms() -> int:
    return SystemClock().monotonic_ms() + 5_000


@pytest.mark.parametrize("writer", [b"", b"\xff\x00\x00\x00\x03abc"], ids=["plain", "named"])
def test_a_node_is_read_behind_its_writers_name(ask: Ask, writer: bytes) -> None:
    """HBase writes that before the mark and the message; other versions may not."""
    told = PB.Master()
    told.master.host_name, told.master.port = "host", 16_001
    registry = ask(writer + b"PBUF" + told.SerializeToString())
    assert registry.find_master(due_ms()) == ("host", 16_001)
    assert registry.find_meta(due_ms()) == ("host", 16_001), "a message of the same form"


NOT_OURS = [b"", b"\xff", b"other", b"PBUF", b"PBUF\xff\xff", b"\xff\0\0\0\1"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        *((data, r"not HBase's.*/node/meta-region") for data in NOT_OURS),
        (NoNodeError(), r"no HBase is at this node.*zk:2181.*/node/meta-region"),
        (OSError("too bad"), r"no answer from ZooKeeper.*zk:2181.*too bad"),
    ],
)
def test_another_programs_node_is_told(ask: Ask, answer: bytes | Exception, message: str) -> None:
    with pytest.raises(NotApplied, match=message):
        ask(answer).find_meta(due_ms())


def test_a_zookeeper_without_an_answer_ends_in_time() -> None:
    registry = open_registry("hbase://127.0.0.1:1?connect_ms=1000")
    with pytest.raises(NotApplied, match="no answer from ZooKeeper"):
        registry.find_meta(due_ms())


def test_servers_at_work_have_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZooKeeper is told to catch up before: what it knew is late."""
    client = fake_zookeeper(["one,16020,1700000000000", "two,16020,1700000000001"])
    monkeypatch.setattr("txn.stores.hbase.native.registry.BoundedClient", client)
    registry, now_ms = open_registry("hbase://zk/node"), SystemClock().monotonic_ms()
    servers = registry.list_servers(now_ms - 1, due_ms())
    assert servers == {("one", 16_020), ("two", 16_020)}
    assert registry.list_servers(now_ms - 1, due_ms()) is servers
    asked = [each for each in client.method_calls if "async" in each[0]]
    assert asked == [call.sync_async("/node/rs"), call.get_children_async("/node/rs")]


@pytest.mark.parametrize("name", ["other", "one,x,1", "1,2"])
def test_nodes_that_are_no_servers_are_told(ask: Ask, name: str) -> None:
    with pytest.raises(NotApplied, match="not HBase's"):
        ask([name]).list_servers(0, due_ms())


class FakeContext:
    """One of gssapi's, which has what it wants after one token, and wraps nothing."""

    initiator_name = "alice@REALM"

    def __init__(self, **options: Any) -> None:
        self.complete = False

    def step(self, token: bytes = b"") -> bytes:
        self.complete = bool(token)
        return b"" if token else b"hello"

    def unwrap(self, data: bytes) -> Any:
        return SimpleNamespace(message=data)

    def wrap(self, data: bytes, encrypt: bool) -> Any:
        return SimpleNamespace(message=data)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Puts a library in place, as far as it is used; the names of servers that it was asked for."""
    named: list[tuple[str, str]] = []
    fake = SimpleNamespace(
        RequirementFlag=SimpleNamespace(mutual_authentication=1, integrity=2),
        NameType=SimpleNamespace(kerberos_principal="principal", hostbased_service="service"),
        exceptions=SimpleNamespace(GSSError=KeyError),
        SecurityContext=FakeContext,
        Name=lambda *of: named.append(of),
    )
    monkeypatch.setitem(sys.modules, "gssapi", fake)
    return named


def prove(answers: bytes, **options: Any) -> tuple[str, bytes]:
    """Return the user, and what was sent to a server that answers this."""
    sent = bytearray()
    rest = bytearray(answers)

    def read(size: int) -> bytes:
        taken = bytes(rest[:size])
        del rest[:size]
        return taken

    user = prove_user(Target(auth="kerberos", **options), "host", read, sent.extend)
    return user, bytes(sent)


def frame(data: bytes, status: int = 0) -> bytes:
    return struct.pack(">ii", status, len(data)) + data


def say(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode()


@pytest.mark.parametrize(
    ("principal", "name"),
    [
        ("hbase/_HOST@REALM", ("hbase/host@REALM", "principal")),
        ("hbase/other@REALM", ("hbase/other@REALM", "principal")),
        ("hbase/_HOST", ("hbase@host", "service")),
        ("hbase", ("hbase@host", "service")),
    ],
)
def test_a_name_is_proven(
    named: list[tuple[str, str]], principal: str, name: tuple[str, str]
) -> None:
    answers = frame(b"welcome") + frame(b"\x07\x00\xff\xff")
    user, sent = prove(answers, principal=principal)
    assert user == "alice@REALM"
    assert named == [name]
    assert sent.endswith(b"\x00\x00\x00\x04\x01\x00\x00\x00")


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (frame(b"welcome") + frame(b"\x04\x00\xff\xff"), "wants more than"),  # privacy
        (frame(b"welcome") + frame(b""), "wants more than"),
        (b"\0\0\0\1" + say("class") + say("words"), "refuses: class: words"),
        (b"\0\0\0\0" + struct.pack(">i", -88), "leave out auth"),
        (b"HTTP" + say("1.1 "), "not a token|refuses"),
        (b"\0\0\0\0\x7f\0\0\0", "not a token"),  # of that length
    ],
)
@pytest.mark.usefixtures("named")
def test_a_server_that_wants_something_else_is_told(answers: bytes, message: str) -> None:
    with pytest.raises(Unwelcome, match=message):
        prove(answers + b"\0" * 8)


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(InvalidRequestError, match=r"install hbase-txn\[kerberos\]"):
        prove(b"")


CELL, COLUMN = encode_cell(b"row", b"d", b"x", b"value"), [(b"d", b"x")]


def test_cells_are_taken_in_their_order() -> None:
    cells = Cells(CELL + encode_cell(b"row", b"d", b"y", b"") + encode_cell(b"s", b"d", b"x", b"1"))
    assert cells.take(2, b"t") == {
        Key("row", "d", "x", b"t"): Cell(b"value", 1),
        Key("row", "d", "y", b"t"): Cell(b"", 1),
    }
    assert cells.take(0, b"t") == {}
    assert cells.take(1, b"t") == {Key("s", "d", "x", b"t"): Cell(b"1", 1)}


@pytest.mark.parametrize(
    "block",
    [
        *(CELL[:size] for size in (0, 3, 13, 17, 20, 30, -1)),
        b"\0\0\0\1" + CELL[4:],  # too short, and then what is too long
        b"\x7f\0\0\0" + CELL[4:],
        CELL[:4] + b"\x7f\0\0\0" + CELL[8:],
        CELL[:8] + b"\0\0\0\x7f" + CELL[12:],
        CELL[:12] + b"\xff\xff" + CELL[14:],
    ],
)
def test_a_block_that_is_not_one_is_told(block: bytes) -> None:
    for cells in (Cells(block).take, lambda count, _: Cells(block).take_columns([count], COLUMN)):
        with pytest.raises(MaybeApplied, match="cells are missing"):
            cells(1, b"t")


def test_a_column_that_was_not_asked_for_is_told() -> None:
    with pytest.raises(MaybeApplied, match="cells are missing"):
        Cells(CELL).take_columns([1], [(b"d", b"y")])


def test_a_cell_of_negative_length_ends_the_answer() -> None:
    """It led back to where it began, so one block was read four billion times."""
    block = struct.pack(">iiiH", -4, -12, -20, 0) + bytes(40)
    with pytest.raises(MaybeApplied, match="cells are missing"):
        Cells(block).take(1 << 32, b"t")
    with pytest.raises(MaybeApplied, match="cells are missing"):
        Cells(block).take_columns([1 << 32], COLUMN)
