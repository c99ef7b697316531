"""Regions that are moved, split and merged by the master; and tables that are dropped."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from txn.clock import SystemClock
from txn.errors import MaybeApplied
from txn.stores.hbase.native.connection import RemoteError
from txn.stores.hbase.native.messages import PB, Messages
from txn.stores.hbase.native.regions import META, META_REGION
from txn.stores.hbase.native.store import NativeStore

MESSAGES = Messages(
    "shuffling.proto",
    """
message TableName { required bytes namespace = 1; required bytes qualifier = 2; }
message RegionInfo {
  required uint64 region_id = 1;
  required TableName table_name = 2;
  optional bytes start_key = 3;
  optional bytes end_key = 4;
  optional bool offline = 5;
  optional bool split = 6;
  optional int32 replica_id = 7;
}
message RegionSpecifier { required int32 type = 1; required bytes value = 2; }
message MoveRegionRequest { required RegionSpecifier region = 1; }
message MoveRegionResponse { }
message SplitTableRegionRequest {
  required RegionInfo region_info = 1;
  required bytes split_row = 2;
}
message MergeTableRegionsRequest {
  repeated RegionSpecifier region = 1;
  optional bool forcible = 3;
}
message TableRequest { required TableName table_name = 1; }
message ProcedureStarted { optional uint64 proc_id = 1; }
""",
)
BY_NAME, BY_ENCODED_NAME = 1, 2
RUNNING = 1
LOOK_EACH_MS = 20
WITHIN_MS = 60_000


class Region(NamedTuple):
    """A region that is open. info: its bounds and more; server: who has it, `host:port`."""

    name: bytes
    info: Any
    server: bytes | None


class Shuffler:
    """Changes the regions of a table, one at a time.

    HBase splits and merges only regions that have all their rows in files of their own: which is
    not so for minutes after they were split or merged.
    """

    def __init__(self, store: NativeStore, table: bytes, rng: Random) -> None:
        self._store = store
        self._table = table
        self._rng = rng
        self._clock = SystemClock()

    def regions(self) -> list[Region]:
        """Return the regions that are open."""
        request = PB.ScanRequest(number_of_rows=1_000, close_scanner=True)
        request.region.type, request.region.value = BY_NAME, META_REGION
        request.scan.start_row, request.scan.stop_row = self._table + b",,", self._table + b"-"
        request.scan.column.add(family=b"info", qualifier=[b"regioninfo", b"server"])
        due_ms = self._clock.monotonic_ms() + WITHIN_MS
        response, cells = self._store._regions.ask_meta("Scan", request, PB.ScanResponse, due_ms)
        found = []
        for count in response.cells_per_result:
            row = {
                key.column: (key.row, cell.value) for key, cell in cells.take(count, META).items()
            }
            name, told = row[b"regioninfo"]
            info = MESSAGES.RegionInfo.FromString(told.removeprefix(b"PBUF"))
            if not info.offline and not info.split:
                found.append(Region(name, info, row.get(b"server", (name, None))[1]))
        return found

    def move(self) -> bool:
        """Move a region to another server; False where it stays, as where there is no other."""
        region = self._rng.choice(self.regions())
        request = MESSAGES.MoveRegionRequest()
        request.region.type, request.region.value = BY_ENCODED_NAME, _encoded(region.name)
        if not self._change("MoveRegion", request, MESSAGES.MoveRegionResponse):
            return False
        return (region.name, region.server) not in {
            (now.name, now.server) for now in self.regions()
        }

    def split(self, row: bytes) -> bool:
        """Let a region begin at a row."""
        for _, info, _ in self.regions():
            if info.start_key < row and (not info.end_key or row < info.end_key):
                request = MESSAGES.SplitTableRegionRequest(region_info=info, split_row=row)
                return self._change("SplitRegion", request, MESSAGES.ProcedureStarted)
        return False

    def merge(self, row: bytes) -> bool:
        """Make one of the region that begins at a row and the one before it."""
        regions = self.regions()
        starts = [region.info.start_key for region in regions]
        at = starts.index(row)
        request = MESSAGES.MergeTableRegionsRequest(forcible=True)
        for region in regions[at - 1 : at + 1]:
            request.region.add(type=BY_ENCODED_NAME, value=_encoded(region.name))
        return self._change("MergeTableRegions", request, MESSAGES.ProcedureStarted)

    def _change(self, method: str, request: Any, response: Any) -> bool:
        return change(self._store, method, request, response)


def drop(store: NativeStore, table: bytes) -> None:
    """Disable a table and delete it, with all that is in it."""
    request = MESSAGES.TableRequest()
    request.table_name.namespace, request.table_name.qualifier = b"default", table
    for method in ("DisableTable", "DeleteTable"):
        assert change(store, method, request, MESSAGES.ProcedureStarted), (method, table)


def change(store: NativeStore, method: str, request: Any, response: Any) -> bool:
    """Have the master do it, and wait for its end; False where the master would not."""
    master, clock = store._tables._master, SystemClock()
    due_ms = clock.monotonic_ms() + WITHIN_MS
    try:
        started, _ = master.ask(method, request, response, due_ms, once=True)
    except RemoteError:
        return False  # a region that is still on its way, say
    number = getattr(started, "proc_id", None)
    if number is None:
        return True
    wanted = PB.GetProcedureResultRequest(proc_id=number)
    while clock.monotonic_ms() < due_ms:
        done, _ = master.ask("getProcedureResult", wanted, PB.GetProcedureResultResponse, due_ms)
        if done.state != RUNNING:
            return not done.HasField("exception")
        clock.sleep_ms(LOOK_EACH_MS)
    raise MaybeApplied("the master does not end it", method=method, within_ms=WITHIN_MS)


def _encoded(name: bytes) -> bytes:
    return name.rstrip(b".").rpartition(b".")[2]
