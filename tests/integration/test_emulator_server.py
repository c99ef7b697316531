"""The server beneath the emulator: every way to speak to it, and each of its limits."""

from __future__ import annotations

import itertools
import logging
import socket
import ssl
import struct
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thriftpy2.protocol import TCompactProtocol, TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException, TMessageType
from thriftpy2.transport import TCyMemoryBuffer

from tests.integration.serving import (
    ECHO,
    MODES,
    PATIENCE_S,
    client,
    echo_server,
    raw,
    rest,
)
from txn import InvalidRequestError
from txn.clock import poll
from txn.server.options import Limits, Options, listen
from txn.server.ports import server_tls_context

TLS = Path(__file__).with_name("tls")
WHOLE = ECHO.Whole(
    b"\x00\xff",
    [ECHO.Part(b"a", 2**62), ECHO.Part(b"", -5)],
    {b"k": ECHO.Part(b"b")},
    False,
    -1.5,
    [True, False, True],
    -300,
    -7,
    [1, -1, 70_000],
    "text \u2014 \U0001f600",
    ECHO.Whole(b"inner", truth=True),
)


def message(name: str, arguments: Any, protocol: Any = TCyBinaryProtocol, number: int = 7) -> bytes:
    """The bytes of a request, without a frame."""
    buffer = TCyMemoryBuffer()
    spoken = protocol(buffer)
    spoken.write_message_begin(name, TMessageType.CALL, number)
    spoken.write_struct(arguments)
    return buffer.getvalue()


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


SAME = message("same", ECHO.Echo.same_args(WHOLE))


@pytest.mark.parametrize("mode", MODES)
def test_one_port_understands_every_mode(mode: str) -> None:
    """Happybase has four, older clients leave the version out; none says which it will use."""
    with echo_server() as (port, echo, _), client(port, mode) as remote:
        assert remote.same(WHOLE) == WHOLE
        echo.let.set()
        assert remote.wait(b"x" * 100_000) == b"x" * 100_000
        with pytest.raises(ECHO.Declared, match="as agreed"):
            remote.fail(True)
        with pytest.raises(TApplicationException, match="Internal error processing fail"):
            remote.fail(False)
        remote.tell(b"one way")
        assert remote.same(WHOLE) == WHOLE
        assert echo.told == [b"one way"]
        assert len(remote.large(3_000_000)) == 3_000_000


whole = st.builds(
    ECHO.Whole,
    st.binary(max_size=20),
    st.none() | st.lists(st.builds(ECHO.Part, st.binary(), st.integers(-(2**63), 2**63 - 1))),
    st.none() | st.dictionaries(st.binary(), st.builds(ECHO.Part, st.binary())),
    st.none() | st.booleans(),
    st.none() | st.floats(allow_nan=False),
    st.none() | st.lists(st.booleans()),
    st.none() | st.integers(-(2**15), 2**15 - 1),
    st.none() | st.integers(-128, 127),
    st.none() | st.lists(st.integers(-(2**31), 2**31 - 1), unique=True),
    st.none() | st.text(st.characters(exclude_categories=["Cs"])),
)


@pytest.mark.parametrize("mode", ["framed binary", "buffered compact"])
def test_values_arrive_as_they_were_sent(mode: str) -> None:
    """The reader is the server's own: it must agree with the driver's about every value."""
    with echo_server() as (port, _, _), client(port, mode) as remote:

        @settings(max_examples=200, deadline=None)
        @given(whole)
        def agree(sent: Any) -> None:
            assert remote.same(sent) == sent

        agree()


def test_fields_that_are_unknown_or_of_another_type_are_skipped() -> None:
    newer = ECHO.Part(b"n")
    newer.thrift_spec = {
        1: (11, "name", False),
        2: (11, "number", False),
        30: (15, "names", (12, ECHO.Part), False),
        31: (13, "named", (11, (15, 8)), False),
        32: (2, "truth", False),
        33: (4, "real", False),
    }
    newer.number, newer.truth, newer.real = b"not a number", True, 1.0
    newer.names, newer.named = [ECHO.Part(b"x", 1)] * 2, {b"k": [1, 2, 3]}
    for protocol in (TCyBinaryProtocol, TCompactProtocol):
        arguments = ECHO.Echo.same_args(ECHO.Whole(b"w", [newer, ECHO.Part(b"last", 1)]))
        mode = "buffered binary" if protocol is TCyBinaryProtocol else "buffered compact"
        with echo_server() as (port, _, _), client(port, mode) as remote:
            connected = remote._iprot.trans
            connected.write(message("same", arguments, protocol, number=0))
            connected.flush()
            got = remote._recv("same")
        assert got == ECHO.Whole(b"w", [ECHO.Part(b"n"), ECHO.Part(b"last", 1)])


@pytest.mark.parametrize("mode", MODES)
def test_an_unknown_method_is_answered_and_the_connection_goes_on(mode: str) -> None:
    """As HBase's gateway does it: a client may try what only a newer one has."""
    with echo_server() as (port, _, _), client(port, mode) as remote:
        for _ in range(2):
            remote._oprot.write_message_begin("unheard", TMessageType.CALL, 0)
            remote._oprot.write_struct(ECHO.Echo.same_args(WHOLE))
            remote._oprot.trans.flush()
            with pytest.raises(TApplicationException, match="unheard") as caught:
                remote._recv("same")
            assert caught.value.type == TApplicationException.UNKNOWN_METHOD
            assert remote.same(WHOLE) == WHOLE


def test_a_request_without_a_required_field_is_answered() -> None:
    with echo_server() as (port, _, _), client(port) as remote:
        with pytest.raises(TApplicationException, match="Required field 'name'"):
            remote.same(ECHO.Whole(None, [ECHO.Part(None), ECHO.Part(b"x")]))
        assert remote.same(WHOLE) == WHOLE


def closes(port: int, data: bytes) -> bool:
    """Whether the server closes a connection on which it gets these bytes, without an answer."""
    with raw(port) as connected:
        with suppress(ConnectionError):  # it may close before it has got all of it
            connected.sendall(data)
        return rest(connected) == b""


def eventually(port: int) -> bool:
    """Whether the server serves again, once it has noticed that clients have left."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            with client(port) as remote:
                return bool(remote.same(WHOLE) == WHOLE)
        except Exception:  # noqa: BLE001  (refused in any way: ask again)
            continue
    return False


def string(length: int) -> bytes:
    """A request whose argument begins a text of so many bytes."""
    return message("wait", ECHO.Echo.wait_args(b""))[:-5] + struct.pack(">i", length)


HEAD = message("same", ECHO.Echo.same_args(ECHO.Whole(b"")))[:-2]
MANY = message("same", ECHO.Echo.same_args(ECHO.Whole(b"", numbers=list(range(1100)))))
LONG = message("wait", ECHO.Echo.wait_args(b"x" * 10_000))
BRIEF = Limits(request_ms=500, idle_ms=500, message_bytes=10_000, items=1000)
NONSENSE = [
    b"",
    SAME[:-1],
    framed(SAME)[:-1],
    framed(b"")[:4],
    struct.pack(">i", 2**31 - 1) + SAME[:100],
    struct.pack(">I", 2**31 + 5) + SAME[:100],
    string(2**31 - 1),
    string(-1),
    framed(string(1000)),
    b"\x80\x01\x00\x01" + struct.pack(">i", 2**31 - 1) + b"name",
    b"\x80\x02\x00\x01" + SAME[4:],
    b"\x82\x21\x01" + b"\xff" * 20,
    b"\x82\x21\x01\xff\xff\xff\xff\x07name",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x00",
    b"\xff" * 64,
    HEAD + b"\x0f\x00\x02\x0c" + struct.pack(">i", 2**31 - 1),  # elements without room for them
    HEAD + b"\x0f\x00\x63\x02" + struct.pack(">i", 2**31 - 1),
    HEAD + b"\x0d\x00\x03\x0b\x0c" + struct.pack(">i", -1),
    *(wrap(each) for wrap in (bytes, framed) for each in (LONG, MANY)),
]


def test_nonsense_closes_the_connection_and_takes_no_memory() -> None:
    """A length prefix of two gigabytes must be read as what it is: four bytes. What does not arrive
    holds nobody; each connection has a thread of its own."""
    with echo_server(BRIEF) as (port, echo, _), ThreadPoolExecutor(len(NONSENSE)) as pool:
        tracemalloc.start()
        try:
            assert all(pool.map(lambda data: closes(port, data), NONSENSE))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 4_000_000
        assert eventually(port)
        echo.let.set()
        with client(port) as remote:
            assert remote.wait(b"x" * 9_900) == b"x" * 9_900
            assert len(remote.same(ECHO.Whole(b"", numbers=list(range(900)))).numbers) == 900


@pytest.mark.parametrize("wrap", [bytes, framed])
def test_a_request_that_drips_is_closed(wrap: Any) -> None:
    """A byte now and then keeps any time-out for single reads from ending."""
    with echo_server(Limits(request_ms=300)) as (port, _, _), raw(port) as slow:
        for byte in itertools.cycle(wrap(SAME)[:-1]):
            try:
                slow.sendall(bytes([byte]))
            except ConnectionError:
                break
            time.sleep(0.02)


def test_requests_in_flight_share_the_servers_memory(caplog: pytest.LogCaptureFixture) -> None:
    """Many clients with requests that each are small enough could exhaust it together."""
    limits = Limits(memory_bytes=1_000_000)
    with echo_server(limits) as (port, echo, _), ThreadPoolExecutor(1) as pool:
        with client(port) as first, client(port) as second:
            held = pool.submit(first.wait, b"x" * 700_000)
            assert echo.entered.wait(PATIENCE_S)
            with pytest.raises(Exception):  # noqa: B017  (however the driver calls it)
                second.wait(b"x" * 700_000)
            assert "too much in flight for the server's memory" in caplog.text
            assert "limit_mb=0" in caplog.text
            echo.let.set()
            assert len(held.result()) == 700_000
        with client(port) as third:
            assert len(third.wait(b"x" * 700_000)) == 700_000


@pytest.mark.parametrize("known", [True, False])
def test_nesting_beyond_the_limit_closes_the_connection(known: bool) -> None:
    """In what is read as in what is skipped; the interpreter's stack is not the limit."""
    nested = ECHO.Whole(b"")
    for _ in range(8):
        nested = ECHO.Whole(b"", inner=nested)
    head = message("same", ECHO.Echo.same_args(ECHO.Whole(b"")))[:-2]
    field = b"\x0c\x00\x0b" if known else b"\x0c\x00\x63"
    with echo_server() as (port, _, _):
        with client(port) as remote:
            assert remote.same(nested) == nested
        assert closes(port, head + field * 100_000)
        assert closes(port, head + b"\x0f\x00\x63" + b"\x0f\x00\x00\x00\x01" * 100_000)


def test_replies_that_are_not_taken_share_the_servers_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Forty slow readers took 2.8 GB of a server that was given 64 MB."""
    large = message("large", ECHO.Echo.large_args(7_000_000))
    with echo_server(Limits(memory_bytes=8_000_000)) as (port, _, server):
        with raw(port) as slow, client(port) as second, caplog.at_level(logging.WARNING):
            slow.sendall(large)
            assert poll(lambda: server._shared.memory._left < 2_000_000, 60_000)
            with pytest.raises(TApplicationException, match=r"too large.*limit_mb=7"):
                second.large(7_000_000)
            assert "a reply is too large method='large'" in caplog.text
            assert len(second.large(900_000)) == 900_000
        with client(port) as third:
            assert poll(lambda: server._shared.memory._left == 8_000_000, 60_000)
            assert len(third.large(7_000_000)) == 7_000_000


def test_the_connection_too_many_is_closed_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It must not wait without an answer, as it does at HBase's gateway."""
    with echo_server(Limits(connections=2)) as (port, _, _):
        with client(port) as first, client(port) as second, caplog.at_level(logging.WARNING):
            assert first.same(WHOLE) == second.same(WHOLE) == WHOLE
            with raw(port) as third:
                assert rest(third) == b""
            assert "too many connections: closed one limit=2" in caplog.text
            assert first.same(WHOLE) == WHOLE
        assert eventually(port)


def test_a_stop_finishes_what_has_begun() -> None:
    """What was accepted is answered; idle connections are closed at once, new ones refused."""
    with (
        echo_server(Limits(grace_ms=PATIENCE_S * 1000)) as (port, echo, server),
        ThreadPoolExecutor(2) as pool,
        client(port) as busy,
        raw(port) as idle,
    ):
        idle.sendall(framed(SAME))  # so it has been accepted, and is not closed before the port is
        (size,) = struct.unpack(">i", idle.recv(4))
        assert b"same" in idle.recv(size)
        result = pool.submit(busy.wait, b"still here")
        assert echo.entered.wait(PATIENCE_S)
        stopped = pool.submit(server.stop)
        assert rest(idle) == b""
        assert not stopped.done()
        with pytest.raises(OSError), raw(port):
            pass
        echo.let.set()
        assert result.result() == b"still here"
        assert stopped.result() is True


def test_a_stop_ends_after_its_grace_whatever_hangs() -> None:
    with (
        echo_server(Limits(grace_ms=200)) as (port, echo, server),
        ThreadPoolExecutor(1) as pool,
        client(port) as busy,
    ):
        late = pool.submit(busy.wait, b"")
        assert echo.entered.wait(PATIENCE_S)
        assert server.stop() is False
        echo.let.set()
        with pytest.raises(Exception):  # noqa: B017
            late.result()


def test_tls_and_plain_text_do_not_mix_and_no_stop_waits_for_who_has_not_greeted() -> None:
    """A client that forgets TLS is closed, and not answered in plain text."""
    options = Options(tls_cert=TLS / "certificate.pem", tls_key=TLS / "key.pem")
    limits = Limits(request_ms=20_000, grace_ms=PATIENCE_S * 1000)
    with echo_server(limits, tls=server_tls_context(options)) as (port, _, server):
        trust = ssl.create_default_context(cafile=TLS / "certificate.pem")
        with raw(port) as bare, trust.wrap_socket(bare, server_hostname="localhost") as secure:
            for _ in range(3):
                secure.sendall(framed(SAME))
                (size,) = struct.unpack(">i", secure.recv(4))
                assert b"same" in secure.recv(size)
            with raw(port) as plain:
                plain.sendall(framed(SAME))
                assert b"same" not in rest(plain)
            with raw(port) as silent:
                assert poll(lambda: len(server._connections) == 2, PATIENCE_S * 1000)
                assert server.stop() is True
                rest(silent)  # ends
            with suppress(ssl.SSLError):
                assert secure.recv(1) == b""


def test_what_cannot_be_listened_with_is_refused(tmp_path: Path) -> None:
    """Files that are no certificate, and a port in use; `txn serve` prints it."""
    empty = tmp_path / "empty.pem"
    empty.touch()
    for options in (
        Options(tls_cert=empty),
        Options(tls_cert=tmp_path / "absent.pem"),
        Options(tls_key=TLS / "key.pem"),
    ):
        with pytest.raises(InvalidRequestError):
            server_tls_context(options)
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(InvalidRequestError, match="cannot listen"):
        listen("127.0.0.1", taken.getsockname()[1])
