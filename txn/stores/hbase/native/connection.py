"""One connection to a server of HBase, shared by any number of threads.

Calls are sent one after the other and answered in any order; a number identifies each. There is no
reader thread. One of the waiting threads, the leader, reads for all until it has its own answer;
then the next one leads. So a single thread sends and receives without a switch of threads.
"""

from __future__ import annotations

import ssl
import struct
from functools import partial
from threading import Lock
from typing import Any

from google.protobuf.message import DecodeError

from txn.clock import Clock, poll
from txn.host.holds import Hold, Holds
from txn.stores.hbase.native.kerberos import prove_user
from txn.stores.hbase.native.messages import CODEC, PB, Cells
from txn.stores.hbase.native.target import Address, Target
from txn.stores.hbase.native.tenure import Tenure
from txn.stores.hbase.places import BUSY, ELSEWHERE, FINAL, REOPENED
from txn.stores.wire import connect_socket, share_wire

PREAMBLE = b"HBas\x00"  # followed by the version
SPEAKS = {"version": "2.4.0", "version_major": 2, "version_minor": 4}  # our claimed client
UNSAID = dict.fromkeys(("url", "revision", "user", "date", "src_checksum"), "")
SIMPLE, KERBEROS = b"\x50", b"\x51"
POLL_S = 0.05  # how often a waiting thread looks: an interrupted one wakes nobody
IDLE_MS = 1_000  # the server may have closed a connection that was idle for longer
CHUNK = 65_536
MOST_BYTES = {"ClientMetaService": 1 << 20, "MasterService": 64 << 20, "ClientService": 256 << 20}
"""The longest answer of each service. A region server ends a Multi's answer after 100 MB and a
row, and a Scan's after 2 MB and a cell. Nothing proves who answers, unless TLS or Kerberos does."""
LAST_NUMBER = (1 << 31) - 1  # of a call: a server reads larger ones as negative

NO_CELLS = Cells(b"")

_LENGTH = struct.Struct(">I")


class RemoteError(Exception):
    """A server answered a call, or an item, with an error. name: of its Java class. do_not_retry:
    the server says that it refuses the call for good, as it never does of an item."""

    def __init__(
        self, name: str | bytes, trace: str | bytes, *, do_not_retry: bool = False
    ) -> None:
        super().__init__(decode_text(trace) or decode_text(name))
        self.name = decode_text(name).rpartition(".")[2].rpartition("$")[2]
        self.table: bytes | None = None
        self._do_not_retry = do_not_retry

    @property
    def is_elsewhere(self) -> bool:
        """Nothing was done: the server does not have the region, or is not running."""
        return self.name in ELSEWHERE

    @property
    def is_busy(self) -> bool:
        """Nothing was done: the server is overloaded."""
        return self.name in BUSY

    @property
    def is_final(self) -> bool:
        """Return True if a retry would get the same answer."""
        is_other_scanner = self.name in REOPENED
        return self.name in FINAL or (self._do_not_retry and not is_other_scanner)


class RpcCall:
    """A call in flight; later its answer and the cells behind it, or an error."""

    __slots__ = (
        *("answer", "came_ms", "cells", "connection", "error", "hold"),
        *("is_done", "leads", "number", "sent_ms", "wakes"),
    )

    def __init__(self, connection: RpcConnection, number: int, sent_ms: int) -> None:
        self.connection = connection
        self.number = number
        self.sent_ms = self.came_ms = sent_ms
        self.answer = b""
        self.cells = NO_CELLS
        self.error: Exception | None = None
        self.is_done = self.leads = False
        self.hold: Hold | None = None  # of a thread that waits or leads, until it stops
        self.wakes: Lock | None = None  # of a waiting thread; held until there is news

    def receive(self, response: Any, due_ms: int) -> Any:
        """Wait for the answer. Raise RemoteError if it is an error. Raise OSError if none comes;
        then the outcome of the call is unknown."""
        connection = self.connection
        if not self.is_done:
            connection.wait(self, due_ms)
        if self.error is not None:
            raise self.error
        tenure = connection.tenure
        if tenure is not None and not tenure.vouches_for(self.sent_ms, self.came_ms):
            connection.confirm(tenure, self, due_ms)
        try:
            return response.FromString(self.answer)
        except DecodeError as error:
            garbled = _refuse_answer(error)
            connection.end(garbled)
            raise garbled from error

    def end(self, error: Exception | None, answer: bytes = b"", cells: Cells = NO_CELLS) -> None:
        """Store the answer, or the reason why there will be none, and wake the waiting thread."""
        self.error, self.answer, self.cells, self.is_done = error, answer, cells, True
        self.wake()

    def wake(self) -> None:
        if self.wakes is not None:
            self.wakes.release()
            self.wakes = None


class RpcConnection:
    """A socket to one service of a server; `is_broken` once it can carry no more calls.

    service: "ClientService" of a region server, "MasterService" or "ClientMetaService".
    tenure: decides whether answers of a region server are valid. honours_conditions: whether its
    MultiRowMutationEndpoint does; None: unknown.
    """

    def __init__(
        self,
        address: Address,
        service: str,
        target: Target,
        clock: Clock,
        *,
        within_ms: int,
        tls: ssl.SSLContext | None,
        tenure: Tenure | None,
    ) -> None:
        """Connect; raise OSError (which covers time-outs and TLS) on failure."""
        due_ms = clock.monotonic_ms() + within_ms
        self.address = address
        self.is_broken = False
        self.honours_conditions: bool | None = None
        self._most_bytes = MOST_BYTES[service]
        self._clock = clock
        self.tenure = tenure
        self._wire = share_wire(connect_socket(*address, within_ms, tls), clock.monotonic_ms)
        self._sending: Holds[None] = Holds()  # the first one sends
        self._changing = Lock()
        self._calls: dict[int, RpcCall] = {}
        self._waiting: list[RpcCall] = []
        self._leader: Hold | None = None
        self._is_half_sent = self._is_half_read = False  # for good, if a thread was interrupted
        self._is_ended = False
        self._number = 0
        self._buffer = bytearray()
        self._used_ms = clock.monotonic_ms()
        try:
            self._greet(service, target, due_ms)
        except BaseException:
            self._wire.close()
            raise

    def send(self, method: str, request: Any, now_ms: int, due_ms: int) -> RpcCall:
        """Send a call; the server drops it if it has not begun by the deadline. OSError means that
        nothing was sent. `RpcCall.receive` raises later errors."""
        body = request.SerializeToString()
        with (hold := Hold()):
            self._sending.add(hold, None)
            if not self._sending.is_first(hold):
                left_ms = due_ms - self._clock.monotonic_ms()
                if not (left_ms > 0 and poll(lambda: self._sending.is_first(hold), left_ms)):
                    if left_ms > 0:
                        self.retire()  # the thread that sends is stuck
                    raise TimeoutError("timed out")
                now_ms = self._clock.monotonic_ms()
            if self._is_half_sent:
                self.end()
            if self.is_broken:
                raise ConnectionError("the connection was closed")
            if now_ms >= due_ms:
                raise TimeoutError("timed out")
            self._number = number = self._number + 1
            call = self._calls[number] = RpcCall(self, number, now_ms)
            head = PB.RequestHeader(
                call_id=number, method_name=method, request_param=True, timeout=due_ms - now_ms
            ).SerializeToString()
            short = bytes((len(head),)) + head  # its length fits into one byte
            self._send_whole(call, _frame(short + _delimit(body)), due_ms)
            if number == LAST_NUMBER:
                self.retire()
            self._sending.remove(hold)
        if self._is_ended:
            self._close_if_unused()
        return call

    def _send_whole(self, call: RpcCall, data: bytes, due_ms: int) -> None:
        """Send all of the data, or end the connection: later data would complete a partial call."""
        self._is_half_sent = True
        try:
            self._wire.write(data, due_ms)
        except OSError as error:
            call.end(error)
            self.end(ConnectionError(f"another call could not be sent: {error}"))
        except BaseException:
            self.end()
            raise
        self._is_half_sent = False

    def confirm(self, tenure: Tenure, call: RpcCall, due_ms: int) -> None:
        """Have the cluster confirm an answer for which nothing else vouches."""
        try:
            tenure.confirm(call.sent_ms, call.came_ms, due_ms)
        except TimeoutError:
            self.retire()  # the thread that confirms is stuck or was interrupted
            raise
        except ConnectionError as error:
            self.end(error)
            raise

    def drop(self, call: RpcCall) -> None:
        """Discard the answer to a call for which no thread waits."""
        with self._changing:
            self._calls.pop(call.number, None)
            self._end_if_done()
        self._close_if_unused()

    def rests_well(self, now_ms: int) -> bool:
        """Return True if it seems able to carry the next call, without sending one."""
        if self.is_broken:
            return False
        if self._calls or now_ms - self._used_ms < IDLE_MS:
            return True
        return not self._wire.is_readable()

    def end(self, error: Exception | None = None) -> None:
        """Close the connection and fail all calls in flight."""
        self.is_broken = True
        with self._changing:
            calls, self._calls = self._calls, {}
            self._waiting.clear()
            for call in calls.values():
                if call.is_done:  # the thread that was about to wake it was interrupted
                    call.wake()
                else:
                    call.end(error or ConnectionError("the connection was closed"))
            self._end_if_done()
        self._close_if_unused()

    def retire(self) -> None:
        """Accept no more calls, and close after the last one in flight."""
        with self._changing:
            self.is_broken = True
            self._end_if_done()
        self._close_if_unused()

    def close_copy(self) -> None:
        """Close a forked process's copy. The connection belongs to the parent, and so do the
        threads that wait on it or hold its locks. A call of the thread that forked ends here."""
        self._wire.close()
        self._sending, self._changing = Holds(), Lock()
        self._leader = None
        for call in self._calls.values():
            call.wakes = None
        self.end(ConnectionError("the connection is the parent's"))

    # ------------------------------------------------------------------------------- waiting

    def wait(self, call: RpcCall, due_ms: int) -> None:
        """Read for all threads, or wait for the one that does, until the answer is there."""
        with (hold := Hold()):
            call.hold = hold
            try:
                try:
                    if self._may_lead(call, due_ms):
                        if self._is_half_read:
                            self.end(ConnectionError("a reading thread was interrupted"))
                        else:
                            self._receive_one(due_ms)
                        while not call.is_done:
                            self._wire.check_time(due_ms)  # others' answers may never stop
                            self._receive_one(due_ms)
                finally:
                    if not call.is_done or call.leads:  # in this order: others set both
                        self._leave(call)
            except TimeoutError:
                self.retire()  # it may be dead; other waiting threads keep their own deadlines
                raise
            except BaseException:
                self.drop(call)
                raise
        if self._is_ended:
            self._close_if_unused()

    def _may_lead(self, call: RpcCall, due_ms: int) -> bool:
        """Wait until the answer is there (False) or this thread must read (True)."""
        left_s = None
        while True:
            with self._changing:
                if call.is_done:
                    return False
                if not self._is_led:
                    call.leads, self._leader = True, call.hold
                if call.leads:
                    return True
                if call.wakes is None:
                    call.wakes = Lock()
                    call.wakes.acquire()
                    self._waiting.append(call)
                wakes = call.wakes
            if left_s is None:
                left_s = max(0, due_ms - self._clock.monotonic_ms()) / 1000
            elif left_s <= 0:
                raise TimeoutError("timed out")
            wakes.acquire(timeout=min(left_s, POLL_S))
            left_s -= POLL_S

    @property
    def _is_led(self) -> bool:
        leader = self._leader
        return leader is not None and leader.locked()

    def _leave(self, call: RpcCall) -> None:
        """Stop waiting for a call, and pass the lead on."""
        with self._changing:
            if call in self._waiting:
                self._waiting.remove(call)
            call.wakes = None
            if call.leads:
                self._leader = None
                if self._waiting:
                    following = self._waiting.pop()
                    following.leads, self._leader = True, following.hold
                    following.wake()
                call.leads = False
            if not call.is_done:
                self._calls.pop(call.number, None)
            if self.is_broken:
                self._end_if_done()

    def _greet(self, service: str, target: Target, due_ms: int) -> None:
        header = PB.ConnectionHeader(
            service_name=service,
            cell_block_codec_class=CODEC,
            version_info=PB.VersionInfo(**SPEAKS, **UNSAID),
        )
        write = partial(self._wire.write, due=due_ms)
        if target.auth == "kerberos":
            write(PREAMBLE + KERBEROS)
            read = partial(self._take, due_ms=due_ms)
            header.user_info.effective_user = prove_user(target, self.address[0], read, write)
            write(_frame(header.SerializeToString()))
        else:
            header.user_info.effective_user = target.user
            write(PREAMBLE + SIMPLE + _frame(header.SerializeToString()))

    def _receive_one(self, due_ms: int) -> None:
        self._is_half_read = True
        try:
            self._fill(_LENGTH.size, due_ms)
            (size,) = _LENGTH.unpack_from(self._buffer)
            if size > self._most_bytes:
                raise ConnectionError(f"an answer of {size} bytes limit={self._most_bytes}")
            frame = self._take(_LENGTH.size + size, due_ms)
            head, begin = _read_delimited(frame, _LENGTH.size)
            header = PB.ResponseHeader.FromString(head)
            error = None
            if header.HasField("exception"):
                name, trace = header.exception.exception_class_name, header.exception.stack_trace
                error = RemoteError(name, trace, do_not_retry=header.exception.do_not_retry)
            answer, end = (b"", 0) if error else _read_delimited(frame, begin)
        except TimeoutError:
            self._is_half_read = False  # what came is in the buffer
            raise
        except (OSError, DecodeError) as broken:
            self.end(_refuse_answer(broken))
            return
        self._used_ms = self._clock.monotonic_ms()
        with self._changing:
            call = self._calls.get(header.call_id)
            if call is not None:  # registered until it has ended, whatever happens here
                call.came_ms = self._used_ms
                if call in self._waiting:
                    self._waiting.remove(call)
                call.end(error, answer, Cells(frame, end))
                del self._calls[header.call_id]
                if call.leads and not self._waiting:
                    call.leads, self._leader = False, None
            self._is_half_read = False
            if self.is_broken:
                self._end_if_done()
        if error is not None and not 0 < header.call_id <= self._number:
            self.end(ConnectionError(str(error)))  # about the connection: the user is not let in

    def _end_if_done(self) -> None:
        if self.is_broken and not self._calls:
            self._is_ended = True
            self._wire.end()

    def _close_if_unused(self) -> None:
        """Close an ended connection once no thread reads from it or writes to it."""
        if self._is_ended and not self._is_led and not self._sending.list_held():
            self._wire.close()

    def _take(self, size: int, due_ms: int) -> bytes:
        if len(self._buffer) < size:
            self._fill(size, due_ms)
        taken = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return taken

    def _fill(self, size: int, due_ms: int) -> None:
        """Read until `size` bytes are buffered. After a time-out they stay for the next reader."""
        missing = size - len(self._buffer)
        while missing > 0:
            data = self._wire.read(CHUNK + missing, due_ms)
            self._buffer += data
            missing -= len(data)
            if missing > 0:
                self._wire.check_time(due_ms)  # data may never stop


def _frame(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def decode_text(said: str | bytes) -> str:
    """Decode a server's message; protobuf returns invalid text as bytes."""
    return said if isinstance(said, str) else said.decode(errors="replace")


def _refuse_answer(error: OSError | DecodeError) -> OSError:
    if isinstance(error, OSError):
        return error
    return ConnectionError(f"not an answer of HBase's: {error}")


def _delimit(data: bytes) -> bytes:
    """Return the bytes behind their length."""
    size, head = len(data), b""
    while size > 127:
        head += bytes((size & 127 | 128,))
        size >>= 7
    return head + bytes((size,)) + data


def _read_delimited(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes behind their length, which is at this place, and where they end."""
    size = shift = 0
    for begin, byte in enumerate(data[at : at + 5], at + 1):
        size |= (byte & 127) << shift
        if byte < 128:
            end = begin + size
            if end > len(data):
                break
            return data[begin:end], end
        shift += 7
    raise ConnectionError("an answer of HBase's has other lengths")
