"""A region server, and master, in threads: it keeps cells of a table and fails when told to."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import closing, suppress
from threading import Lock
from typing import Any

from tests.unit.fake_server import FakeServer
from txn.stores.hbase.native.messages import PB
from txn.stores.hbase.native.regions import META_REGION
from txn.stores.hbase.native.tables import LIVE_SERVERS

ENABLED = 0
RUNNING, FINISHED = 1, 2
TABLE = b"t"
PACKAGE = "org.apache.hadoop.hbase."
HONOURS, IGNORES, LIES = "honours", "ignores", "lies"  # what an endpoint does with conditions
NAMELESS = "?"  # a refusal without the name of an exception, as only a broken proxy may send it


class Break(Exception):
    """Close the connection instead of answering, after so many bytes of the answer."""

    def __init__(self, after: int = 0) -> None:
        self.after = after


class Say(Exception):
    """Send these bytes instead of the answer, at its length."""

    def __init__(self, data: bytes) -> None:
        self.data = data


class Flood(Say):
    """The same, over and over until the client hangs up."""


class Refuse(Exception):
    """Answer the call with an error of this Java class, behind a `!` one that is for good; words
    may follow a colon."""

    def tell(self, exception: Any) -> None:
        name, _, words = f"{PACKAGE}{self}".replace("!", "").partition(": ")
        exception.exception_class_name, exception.do_not_retry = name, str(self).startswith("!")
        exception.stack_trace = words and f"{name}: {words}"


class Silence(Exception):
    """Never answer the call."""


class FakeRegionServer(FakeServer):
    """What it was asked, and what it does before it answers."""

    def __init__(self) -> None:
        self.methods: list[str] = []  # of the calls, in the order of arrival
        self.requests: list[Any] = []  # the messages of its calls for rows
        self.sizes: list[int] = []  # their rows
        self.users: list[str] = []  # who has connected
        self.services: list[str] = []  # and to what
        # Called with the number of the call of this method (from 1) and the method; raises one of
        # the above, or waits.
        self.before: Callable[[int, str], object] = lambda number, method: None
        # The Java classes of errors for a row, told once (empty: none), or for ever behind a `*`.
        self.refused: dict[bytes, list[str]] = {}
        self.processes = True  # whether it knows the conditions of the entries of a request
        self.endpoints: dict[bytes, str] = {}  # of tables; below: the requests to them
        self.together: list[Any] = []
        self.said: bytes | None = None  # instead of their answers
        self.cells: dict[tuple[bytes, bytes, bytes], bytes] = {}
        self.starts = [b""]  # of its regions
        self.ports: dict[bytes, int] = {}  # of the servers of those of others, by start
        self.state = ENABLED
        self.schemas: list[Any] = []  # of the table, once it was made
        self.changing = 0  # how many more questions about a change are answered with "running"
        self.has_meta = True  # whether a server has the table of regions
        self.is_at_work = True  # whether its cluster counts on it
        # Answers to scans: rows, whether the last is only a part, where the server stands, and
        # whether there is more.
        self.pages: list[tuple[list[bytes], bool, bytes, bool]] = []
        self.scanned: list[bytes] = []  # where scans began
        super().__init__()

    @property
    def uri(self) -> str:
        return f"hbase://?registry={self.address}"

    def count(self, method: str) -> int:
        return self.methods.count(method)

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream, suppress(OSError, struct.error):
            assert stream.read(6) == b"HBas\x00\x50"
            header = PB.ConnectionHeader.FromString(stream.read(_length(stream)))
            assert header.service_name in {"ClientService", "ClientMetaService", "MasterService"}
            self.users.append(header.user_info.effective_user)
            self.services.append(header.service_name)
            sending = Lock()
            while True:
                size = _length(stream)
                data = stream.read(size)
                if len(data) < size:
                    return
                head, rest = _take(data)
                call = PB.RequestHeader.FromString(head)
                with self._lock:
                    self.methods.append(call.method_name)
                    number = self.count(call.method_name)
                self._start(self._answer, connection, sending, call, number, _take(rest)[0])

    def _answer(
        self, connection: socket.socket, sending: Lock, header: Any, number: int, body: bytes
    ) -> None:
        answer, after = PB.ResponseHeader(call_id=header.call_id), None
        said, parts = None, b""
        try:
            self.before(number, header.method_name)
        except Silence:
            return
        except Break as broken:
            after = broken.after
        except Flood as flood:
            with sending, suppress(OSError):
                while True:
                    connection.sendall(flood.data)
            return
        except Say as saying:
            said = saying.data
        except Refuse as refused:
            refused.tell(answer.exception)
        if not answer.HasField("exception"):
            block = bytearray()
            try:
                response = getattr(self, header.method_name)(body, block)
                parts = _delimited(response.SerializeToString()) + block
            except Refuse as refused:
                refused.tell(answer.exception)
        frame = _delimited(answer.SerializeToString()) + parts
        frame = struct.pack(">I", len(frame)) + frame if said is None else said
        with sending, suppress(OSError):
            self._send(connection, frame[:after], ends=after is not None)

    def _send(self, connection: socket.socket, data: bytes, *, ends: bool) -> None:
        connection.sendall(data)
        if ends:
            connection.shutdown(socket.SHUT_RDWR)

    def GetMetaRegionLocations(self, body: bytes, block: bytearray) -> Any:
        response = PB.GetMetaRegionLocationsResponse()
        location = response.meta_locations.add()
        if self.has_meta:
            location.server_name.host_name, location.server_name.port = "127.0.0.1", self.port
        location.region_info.region_id = 1
        location.region_info.table_name.namespace = b"hbase"
        location.region_info.table_name.qualifier = b"meta"
        return response

    def GetActiveMaster(self, body: bytes, block: bytearray) -> Any:
        response = PB.GetActiveMasterResponse()
        response.server_name.host_name, response.server_name.port = "127.0.0.1", self.port
        return response

    def GetClusterStatus(self, body: bytes, block: bytearray) -> Any:
        response = PB.GetClusterStatusResponse(cluster_status=PB.ClusterStatus())
        for port in (self.port, *self.ports.values()) if self.is_at_work else ():
            response.cluster_status.servers_name.add(host_name="127.0.0.1", port=port)
        if LIVE_SERVERS in PB.GetClusterStatusRequest.FromString(body).options:
            for start, port in {b"": self.port, **self.ports}.items():
                live = response.cluster_status.live_servers.add()
                live.server.host_name, live.server.port = "127.0.0.1", port
                load = live.server_load.region_loads.add(storefile_size_MB=3, mem_store_size_MB=1)
                load.region_specifier.type = 1
                load.region_specifier.value = TABLE + b"," + start + b",1.abc."
        return response

    def Scan(self, body: bytes, block: bytearray) -> Any:
        """A row of the table of regions; else the next one of the pages that were laid out."""
        request = PB.ScanRequest.FromString(body)
        wanted = request.scan.start_row
        if request.region.value != META_REGION:
            self.scanned.append(wanted)
            return self._page(block)
        table = wanted.partition(b",")[0].rstrip(b"\0")
        start = self._find_region(wanted[len(table) :])
        following = [other for other in self.starts if other > start]
        info = PB.RegionInfo(region_id=1, start_key=start, end_key=min(following, default=b""))
        info.table_name.namespace, info.table_name.qualifier = b"default", table
        response = PB.ScanResponse(cells_per_result=[2])
        name = b"%b,%b,1.x." % (table, start)
        for column, value in (
            (b"regioninfo", b"PBUF" + info.SerializeToString()),
            (b"server", b"127.0.0.1:%d" % self.ports.get(start, self.port)),
        ):
            block += encode_cell(name, b"info", column, value)
        return response

    def _find_region(self, asked: bytes) -> bytes:
        """Return the start of the region with a row, of the one before it, or of the last one."""
        if asked == b"\0":
            return max(self.starts)
        if asked.endswith(b",:"):
            return max(start for start in self.starts if start <= asked[1:-2])
        return max(start for start in self.starts if start < asked[1:-1])

    def _page(self, block: bytearray) -> Any:
        rows, is_partial, cursor, more = self.pages.pop(0)
        response = PB.ScanResponse(more_results_in_region=more)
        for row in rows:
            response.cells_per_result.append(1)
            response.partial_flag_per_result.append(is_partial and row == rows[-1])
            block += encode_cell(row, b"d", b"x", b"1")
        if cursor:
            response.cursor.row = cursor
        return response

    def Get(self, body: bytes, block: bytearray) -> Any:
        """The state of the table."""
        response = PB.GetResponse()
        value = PB.TableState(state=self.state).SerializeToString()
        response.result.associated_cell_count = 1
        block += encode_cell(TABLE, b"table", b"state", value)
        return response

    def GetTableDescriptors(self, body: bytes, block: bytearray) -> Any:
        return PB.GetTableDescriptorsResponse(table_schema=self.schemas)

    def CreateTable(self, body: bytes, block: bytearray) -> Any:
        self.schemas = [PB.CreateTableRequest.FromString(body).table_schema]
        return PB.ProcedureStarted(proc_id=1)

    def CreateNamespace(self, body: bytes, block: bytearray) -> Any:
        return PB.ProcedureStarted(proc_id=1)

    def getProcedureResult(self, body: bytes, block: bytearray) -> Any:
        self.changing = max(0, self.changing - 1)
        return PB.GetProcedureResultResponse(state=RUNNING if self.changing else FINISHED)

    def Multi(self, body: bytes, block: bytearray) -> Any:
        response = PB.MultiResponse()
        request = PB.MultiRequest.FromString(body)
        with self._lock:
            self.requests.append(request)
            self.sizes.append(sum(len(entry.action) for entry in request.regionAction))
            for entry in request.regionAction:
                self._do_entry(entry, response.regionActionResult.add(), block)
        return response

    def ExecService(self, body: bytes, block: bytearray) -> Any:
        """Change many rows."""
        asked = PB.CoprocessorServiceRequest.FromString(body)
        kind = self.endpoints.get(asked.region.value.partition(b",")[0])
        if kind is None:
            raise Refuse("!exceptions.UnknownProtocolException")
        request, told = PB.MutateRowsRequest.FromString(asked.call.request), PB.ResultOrException()
        with self._lock:
            self.together.append(request)
            if any([self._refuses(each.row, told) for each in request.condition]):
                raise Refuse(told.exception.name.removeprefix(PACKAGE))
            is_met = all([self._holds(condition) for condition in request.condition])
            for mutation in request.mutation_request if is_met or kind != HONOURS else ():
                self._put(mutation)
        said = PB.MutateRowsResponse(processed={HONOURS: is_met, LIES: True}.get(kind))
        value = said.SerializeToString() if self.said is None else self.said
        return PB.CoprocessorServiceResponse(
            region=asked.region, value={"name": "", "value": value}
        )

    def _holds(self, condition: Any) -> bool:
        found = self.cells.get((condition.row, condition.family, condition.qualifier), b"")
        wanted: bytes = condition.comparator.serialized_comparator.comparable.value
        return found == wanted

    def _do_entry(self, entry: Any, result: Any, block: bytearray) -> None:
        is_met = True
        if entry.HasField("condition"):
            if self._refuses(entry.condition.row, result):
                return
            is_met = self._holds(entry.condition)
            if self.processes:
                result.processed = is_met
        for action in entry.action:
            told = result.resultOrException.add(index=action.index)
            row = action.get.row or action.mutation.row
            if not entry.HasField("condition") and self._refuses(row, told):
                continue
            if action.HasField("get"):
                self._get(action.get, told.result, block)
            elif is_met:
                self._put(action.mutation)

    def _refuses(self, row: bytes, told: Any) -> bool:
        names = self.refused.get(row, [])
        if not names:
            return False
        name = names[0] if names[0].startswith("*") else names.pop(0)
        if not name:
            return False
        told.exception.name = "" if name == NAMELESS else PACKAGE + name.lstrip("*")
        return True

    def _get(self, get: Any, result: Any, block: bytearray) -> None:
        result.associated_cell_count = 0
        for column in get.column:
            for qualifier in column.qualifier:
                value = self.cells.get((get.row, column.family, qualifier))
                if value is not None:
                    result.associated_cell_count += 1
                    if get.HasField("filter") and not qualifier.endswith((b"_lock", b"_tag")):
                        value = len(value).to_bytes(4)
                    block += encode_cell(get.row, column.family, qualifier, value)

    def _put(self, mutation: Any) -> None:
        for column in mutation.column_value:
            for cell in column.qualifier_value:
                self.cells[mutation.row, column.family, cell.qualifier] = cell.value


def fake_region_server() -> closing[FakeRegionServer]:
    return closing(FakeRegionServer())


def encode_cell(
    row: bytes, family: bytes, column: bytes, value: bytes, timestamp: int = 1
) -> bytes:
    """Return a put cell as HBase writes it."""
    key = struct.pack(">H", len(row)) + row + bytes([len(family)]) + family + column
    key += struct.pack(">q", timestamp) + b"\x04"
    cell = struct.pack(">ii", len(key), len(value)) + key + value
    return struct.pack(">i", len(cell)) + cell


def _length(stream: Any) -> int:
    (size,) = struct.unpack(">I", stream.read(4))
    return int(size)


def _take(data: bytes) -> tuple[bytes, bytes]:
    """Take the part that begins with its length; return what follows it, too."""
    size = shift = at = 0
    while True:
        size |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return data[at : at + size], data[at + size :]
        shift += 7


def _delimited(data: bytes) -> bytes:
    size, head = len(data), bytearray()
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes([*head, size]) + data
