"""Region servers in threads that share tables, whose cells are in a store in memory: whole commits
run over HBase's own RPC. It is for facts about requests: which, how many, and to whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.unit.fake_region_server import FakeRegionServer, Refuse, encode_cell
from txn.model import Check, Edit, Key
from txn.stores import open_store
from txn.stores.hbase.native.items import DELETE
from txn.stores.hbase.native.messages import PB
from txn.stores.hbase.native.regions import META_REGION
from txn.stores.hbase.native.tables import _read_schema

Placement = Callable[[bytes, int], int]
"""Returns the server, from 0, of a table's region, given the region's number in the table."""


class FakeCluster:
    """The first server is also the master and has the table of regions."""

    def __init__(self, servers: int, place: Placement) -> None:
        self.store = open_store("memory://")
        self.place = place
        self.schemas_by_table: dict[bytes, Any] = {}
        self.starts_by_table: dict[bytes, list[bytes]] = {}
        self.servers = [ClusterServer(self) for _ in range(servers)]

    @property
    def uri(self) -> str:
        return self.servers[0].uri

    def close(self) -> None:
        with ExitStack() as stack:
            for server in self.servers:
                stack.callback(server.close)


class ClusterServer(FakeRegionServer):
    """A server that carries out requests on the cluster's store."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        super().__init__()

    # ------------------------------------------------------------------------------- where

    def GetClusterStatus(self, body: bytes, block: bytearray) -> Any:
        response = PB.GetClusterStatusResponse(cluster_status=PB.ClusterStatus())
        for server in self._cluster.servers:
            response.cluster_status.servers_name.add(host_name="127.0.0.1", port=server.port)
        return response

    def Scan(self, body: bytes, block: bytearray) -> Any:
        """A row of the table of regions, or all rows of a range."""
        request = PB.ScanRequest.FromString(body)
        if request.region.value != META_REGION:
            return self._scan(_table_of(request.region), request.scan, block)
        table, _, row = request.scan.start_row.removesuffix(b",:").partition(b",")
        starts = self._cluster.starts_by_table.get(table, [])
        if not starts:
            return PB.ScanResponse()
        number = max(i for i, start in enumerate(starts) if start <= row)
        end = starts[number + 1] if number + 1 < len(starts) else b""
        info = PB.RegionInfo(region_id=1, start_key=starts[number], end_key=end)
        info.table_name.namespace, info.table_name.qualifier = b"default", table
        server = self._cluster.servers[self._cluster.place(table, number)]
        name = b"%b,%b,1.x." % (table, starts[number])
        block += encode_cell(name, b"info", b"regioninfo", b"PBUF" + info.SerializeToString())
        block += encode_cell(name, b"info", b"server", b"127.0.0.1:%d" % server.port)
        return PB.ScanResponse(cells_per_result=[2])

    def _scan(self, table: bytes, scan: Any, block: bytearray) -> Any:
        response = PB.ScanResponse(more_results_in_region=False)
        columns = [(each.family, name) for each in scan.column for name in each.qualifier]
        stop = scan.stop_row or None
        for row in self._cluster.store.scan(table, scan.start_row, stop, columns or None):
            response.cells_per_result.append(len(row.cells))
            for key, cell in row.cells.items():
                block += encode_cell(key.row, key.family, key.column, *cell)
        return response

    # ------------------------------------------------------------------------------- tables

    def GetTableDescriptors(self, body: bytes, block: bytearray) -> Any:
        request = PB.GetTableDescriptorsRequest.FromString(body)
        known = self._cluster.schemas_by_table
        names = [each.qualifier for each in request.table_names] or list(known)
        schemas = [known[name] for name in names if name in known]
        return PB.GetTableDescriptorsResponse(table_schema=schemas)

    def CreateTable(self, body: bytes, block: bytearray) -> Any:
        request = PB.CreateTableRequest.FromString(body)
        table = request.table_schema.table_name.qualifier
        self._cluster.store.ensure_table(table, _read_schema(request.table_schema))
        self._cluster.starts_by_table[table] = [b"", *request.split_keys]
        self._cluster.schemas_by_table[table] = request.table_schema
        return PB.ProcedureStarted(proc_id=1)

    # ------------------------------------------------------------------------------- rows

    def _do_entry(self, entry: Any, result: Any, block: bytearray) -> None:
        table = _table_of(entry.region)
        if entry.atomic:
            check = _decode_check(table, entry)
            (result.processed,) = self._cluster.store.check_and_put([check])
            result.resultOrException.add(index=0)
            return
        for action in entry.action:
            answer = result.resultOrException.add(index=action.index)
            if action.HasField("get"):
                self._read_row(table, action.get, answer.result, block)
            else:
                self._cluster.store.write(list(_list_edits(table, action.mutation)))

    def ExecService(self, body: bytes, block: bytearray) -> Any:
        """Change many rows of a table that names the class."""
        asked = PB.CoprocessorServiceRequest.FromString(body)
        table = _table_of(asked.region)
        attributes = self._cluster.schemas_by_table[table].attributes
        if not any(pair.first.startswith(b"coprocessor$") for pair in attributes):
            raise Refuse("!exceptions.UnknownProtocolException")
        request = PB.MutateRowsRequest.FromString(asked.call.request)
        changes = {each.row: tuple(_list_edits(table, each)) for each in request.mutation_request}
        checks = [
            Check(*_decode_condition(table, each), edits=changes.pop(each.row, ()))
            for each in request.condition
        ]
        (is_met,) = self._cluster.store.put_if_all([checks])
        value = PB.MutateRowsResponse(processed=is_met).SerializeToString()
        return PB.CoprocessorServiceResponse(
            region=asked.region, value={"name": "-", "value": value}
        )

    def _read_row(self, table: bytes, get: Any, result: Any, block: bytearray) -> None:
        keys = [
            Key(get.row, column.family, qualifier, table)
            for column in get.column
            for qualifier in column.qualifier
        ]
        found = self._cluster.store.read(keys)
        cells = [(key, cell) for key, cell in found.items() if cell is not None]
        result.associated_cell_count = len(cells)
        for key, cell in cells:
            block += encode_cell(key.row, key.family, key.column, *cell)


@contextmanager
def fake_cluster(servers: int, place: Placement) -> Iterator[FakeCluster]:
    cluster = FakeCluster(servers, place)
    try:
        yield cluster
    finally:
        cluster.close()


def _table_of(region: Any) -> bytes:
    name: bytes = region.value
    return name.partition(b",")[0]


def _decode_check(table: bytes, entry: Any) -> Check:
    """Return the check of an atomic entry; without a condition its first cell is the key."""
    edits = [edit for action in entry.action for edit in _list_edits(table, action.mutation)]
    if entry.HasField("condition"):
        key, expected = _decode_condition(table, entry.condition)
    else:
        key, expected = edits[0].key, None
    puts = tuple(
        (edit.key, edit.value)
        for edit in edits
        if edit.timestamp is None and edit.value is not None
    )
    return Check(key, expected, puts, tuple(e for e in edits if e.timestamp is not None))


def _decode_condition(table: bytes, wanted: Any) -> tuple[Key, bytes]:
    key = Key(wanted.row, wanted.family, wanted.qualifier, table)
    return key, wanted.comparator.serialized_comparator.comparable.value


def _list_edits(table: bytes, mutation: Any) -> Iterable[Edit]:
    for column in mutation.column_value:
        for cell in column.qualifier_value:
            key = Key(mutation.row, column.family, cell.qualifier, table)
            timestamp = cell.timestamp if cell.HasField("timestamp") else None
            yield Edit(key, None if mutation.mutate_type == DELETE else cell.value, timestamp)
