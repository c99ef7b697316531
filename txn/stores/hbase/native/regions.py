"""Find the region and server of a row in HBase's meta table.

Regions are cached until a caller reports that one is stale. A region is looked up when one of its
rows is first needed, and again after it moved, was split or merged, or lost its server.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from txn.clock import Clock
from txn.errors import MaybeApplied, NotApplied, TableUnavailable, annotate
from txn.model import Cell, Key, plain_table
from txn.policy import Backoff
from txn.stores.hbase.native.connection import RemoteError
from txn.stores.hbase.native.messages import PB, Cells
from txn.stores.hbase.native.registry import MARK, Registry
from txn.stores.hbase.native.servers import Servers, SoleService
from txn.stores.hbase.native.target import Address
from txn.stores.hbase.places import first_line

META = b"hbase:meta"
META_REGION = b"hbase:meta,,1"
BY_NAME = 1

AFTER_ALL = b":"  # sorts behind the number that ends a region's name
DISABLED, DISABLING = 1, 2
LONGEST_PORT = 5  # digits
UNREADABLE = "cannot read where regions are"
PAUSES = Backoff(first_ms=10, longest_ms=1_000)


class Location(NamedTuple):
    """Rows of a table from start (included) to stop (excluded; empty: to the end)."""

    table: bytes
    start: bytes
    stop: bytes
    name: bytes
    server: Address

    def has(self, row: bytes, before: bool = False) -> bool:
        """Return True if the row is in the region. before: ask for the row before it instead, which
        is the table's last row if the row is empty."""
        if before:
            return (not row or self.start < row) and (not self.stop or b"" < row <= self.stop)
        return self.start <= row and (not self.stop or row < self.stop)


class _Known(NamedTuple):
    starts: tuple[bytes, ...] = ()
    regions: tuple[Location, ...] = ()


NOTHING = _Known()


class Regions:
    """A cache of regions. It is safe for threads without a lock: a table's entry is replaced and
    never changed, and an update lost in a race only costs another lookup."""

    def __init__(self, servers: Servers, registry: Registry, clock: Clock) -> None:
        self._clock = clock
        self._rng = Random()
        self._tables: dict[bytes, _Known] = {}
        self._meta = SoleService(servers, "ClientService", registry.find_meta, UNREADABLE)

    def find(self, table: bytes, row: bytes, due_ms: int, *, before: bool = False) -> Location:
        """Return the region of a row. before: of the row before it instead, which is the table's
        last row if the row is empty.

        Raises TableUnavailable for an absent table, and NotApplied if the region is on no server by
        the deadline.
        """
        region = self._find_known(table, row, before)
        if region is not None:
            return region
        for _ in PAUSES.tries(self._clock, self._rng, due_ms=due_ms):
            found = self._read_region(table, row, due_ms, before)
            if found is not None and found.has(row, before):
                self._keep(found)
                return found
            self.check_table(table, due_ms)  # a region that moves, splits or merges has no server
        raise NotApplied("no server has the region", table=table, row=row[:40])

    def find_server(self, table: bytes, row: bytes) -> Address | None:
        """Return the server of a row, or None if its region is not in the cache."""
        region = self._find_known(table, row, before=False)
        return None if region is None else region.server

    def list_starts(
        self, table: bytes, start: bytes, stop: bytes | None, due_ms: int
    ) -> list[bytes]:
        """Return the first row of each region that overlaps a range, in order."""
        region = self.find(table, start, due_ms)
        starts = [region.start]
        while region.stop and (not stop or region.stop < stop):
            region = self.find(table, region.stop, due_ms)
            starts.append(region.start)
        return starts

    def forget(self, region: Location) -> None:
        """Forget a region, so that its next use looks it up."""
        known = self._tables.get(region.table, NOTHING)
        self._tables[region.table] = _without(known, lambda each: each == region)

    def forget_server(self, address: Address) -> None:
        for table, known in list(self._tables.items()):
            self._tables[table] = _without(known, lambda each: each.server == address)
        self._meta.forget(address)

    def check_table(self, table: bytes, due_ms: int) -> None:
        """Raise TableUnavailable if a table is absent or disabled."""
        request = PB.GetRequest()
        request.get.row = plain_table(table)
        request.get.column.add(family=b"table", qualifier=[b"state"])
        response, cells = self.ask_meta("Get", request, PB.GetResponse, due_ms)
        found = cells.take(response.result.associated_cell_count, META)
        if not found:
            raise TableUnavailable(annotate("no such table", table=table), table)
        with suppress(DecodeError):
            state = PB.TableState.FromString(next(iter(found.values())).value).state
            if state in {DISABLED, DISABLING}:
                raise TableUnavailable(annotate("the table is disabled", table=table), table)

    def _find_known(self, table: bytes, row: bytes, before: bool) -> Location | None:
        known = self._tables.get(table, NOTHING)
        if before:
            at = bisect_left(known.starts, row) if row else len(known.starts)
        else:
            at = bisect_right(known.starts, row)
        region = known.regions[at - 1] if at else None
        return region if region is not None and region.has(row, before) else None

    def _keep(self, found: Location) -> None:
        known = self._tables.get(found.table, NOTHING)
        start, stop = found.start, found.stop
        kept = _without(
            known,
            lambda each: (not stop or each.start < stop) and (not each.stop or start < each.stop),
        )
        at = bisect_right(kept.starts, start)
        self._tables[found.table] = _Known(
            (*kept.starts[:at], start, *kept.starts[at:]),
            (*kept.regions[:at], found, *kept.regions[at:]),
        )

    def _read_region(self, table: bytes, row: bytes, due_ms: int, before: bool) -> Location | None:
        """Read the last region that begins at or before the row or, with before, strictly before
        it. Return None if it is on no server now."""
        request = PB.ScanRequest(number_of_rows=1, close_scanner=True)
        name = plain_table(table)
        if before:
            request.scan.start_row = b"%b,%b," % (name, row) if row else name + b"\0"
        else:
            request.scan.start_row = b"%b,%b,%b" % (name, row, AFTER_ALL)
        request.scan.stop_row = b"%b,," % name
        request.scan.reversed = True
        request.scan.column.add(family=b"info", qualifier=[b"regioninfo", b"server"])
        response, cells = self.ask_meta("Scan", request, PB.ScanResponse, due_ms)
        for count in response.cells_per_result:
            return _decode_region(table, cells.take(count, META))
        return None

    def ask_meta(self, method: str, request: Any, response: Any, due_ms: int) -> tuple[Any, Cells]:
        """Send a request to the server that has the meta table now."""
        request.region.type, request.region.value = BY_NAME, META_REGION
        try:
            return self._meta.ask(method, request, response, due_ms)
        except RemoteError as error:
            raise NotApplied(UNREADABLE, cause=first_line(error)) from error


def _without(known: _Known, is_gone: Callable[[Location], bool]) -> _Known:
    kept = tuple(region for region in known.regions if not is_gone(region))
    return _Known(tuple(region.start for region in kept), kept)


def _decode_region(table: bytes, cells: Mapping[Key, Cell]) -> Location | None:
    described = {key.column: cell.value for key, cell in cells.items()}
    host, _, port = described.get(b"server", b"").decode(errors="replace").rpartition(":")
    try:
        info = PB.RegionInfo.FromString(described[b"regioninfo"].removeprefix(MARK))
    except (KeyError, DecodeError) as error:
        raise MaybeApplied("a region is not described as HBase does", row=[*cells][:1]) from error
    if info.offline or info.split or not port.isdecimal() or len(port) > LONGEST_PORT:
        return None
    name = next(iter(cells)).row
    return Location(table, info.start_key, info.end_key, name, (host, int(port)))
