"""Tables and their settings, as the active master knows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, cast

from txn.clock import Clock, limit_due
from txn.errors import InvalidRequestError, MaybeApplied, NotApplied, StoreError
from txn.model import DATABASE_ENTRY, Family, plain_table
from txn.policy import Backoff
from txn.stores.base import Families, TableSize
from txn.stores.hbase.native.connection import RemoteError
from txn.stores.hbase.native.messages import PB
from txn.stores.hbase.native.registry import Registry
from txn.stores.hbase.native.servers import Servers, SoleService
from txn.stores.hbase.places import first_line, is_legal, make_refusal
from txn.stores.hbase.schema import (
    ENDPOINT,
    FOREVER_S,
    make_configuration,
    read_family,
    refuse_change,
)

PAUSES = Backoff(first_ms=20, longest_ms=500)
CHANGE_MS = 180_000
LOSES = {"SKIP_WAL", "ASYNC_WAL"}
DEFAULT_NAMESPACE = b"default"
FINISHED, UNKNOWN = 2, 0
LIVE_SERVERS = 2
"""The option of a cluster's status that asks for the loads of its servers."""


class MasterTables:
    def __init__(self, servers: Servers, registry: Registry, clock: Clock) -> None:
        self._servers = servers
        self._clock = clock
        self._rng = Random()
        self._master = SoleService(
            servers, "MasterService", registry.find_master, "no answer from the master"
        )

    def find_endpoints(self) -> dict[bytes, bool]:
        """Return whether each table names the endpoint, for all tables except HBase's own."""
        found = {}
        for schema in self._ask_schemas(PB.GetTableDescriptorsRequest()):
            name = schema.table_name
            found[plain_table(b"%b:%b" % (name.namespace, name.qualifier))] = _has_endpoint(schema)
        return found

    def describe(self, table: bytes, within_ms: int | None = None) -> dict[bytes, Family] | None:
        found = self._find_schema(table, within_ms)
        try:
            return None if found is None else _read_schema(found)
        except (AttributeError, ValueError) as error:  # invalid text is bytes
            raise StoreError("a setting is no number", table=table, cause=str(error)) from error

    def measure(self) -> dict[bytes, TableSize]:
        """Return the size of each table by the last reports of the region servers, in whole MB."""
        request = PB.GetClusterStatusRequest(options=[LIVE_SERVERS])
        try:
            response, _ = self._master.ask(
                "GetClusterStatus", request, PB.GetClusterStatusResponse, self._due_ms()
            )
        except RemoteError as error:
            raise MaybeApplied("the master refuses", cause=first_line(error)) from error
        regions, sizes = Counter[bytes](), Counter[bytes]()
        for server in response.cluster_status.live_servers:
            for load in server.server_load.region_loads:
                table = load.region_specifier.value.partition(b",")[0]
                regions[table] += 1
                sizes[table] += (load.storefile_size_MB + load.mem_store_size_MB) << 20
        return {table: TableSize(number, None, sizes[table]) for table, number in regions.items()}

    def create(self, table: bytes, families: Families, splits: Sequence[bytes]) -> bool:
        """Create a table and its namespace; return False if another client is changing it. If the
        master refuses the table, try it without the endpoint."""
        request = PB.CreateTableRequest(split_keys=sorted(splits))
        request.table_schema.table_name.CopyFrom(_table_name(table))
        for name, family in families.items():
            request.table_schema.column_families.append(_column(name, family))
        _name_endpoint(request.table_schema)
        try:
            return self._create(table, request)
        except InvalidRequestError:
            del request.table_schema.attributes[:]
            return self._create(table, request)

    def _create(self, table: bytes, request: Any) -> bool:
        try:
            self._carry_out(table, "CreateTable", request)
        except RemoteError as error:
            if error.name != "NamespaceNotFoundException":
                return refuse_change(table, error)
            wanted = PB.CreateNamespaceRequest()
            wanted.namespaceDescriptor.name = request.table_schema.table_name.namespace
            self._change(table, "CreateNamespace", wanted)  # False means that it exists by now
            return self._change(table, "CreateTable", request)
        return True

    def add(self, table: bytes, name: bytes, family: Family) -> bool:
        request = PB.AddColumnRequest(
            table_name=_table_name(table), column_families=_column(name, family)
        )
        return self._change(table, "AddColumn", request)

    def assign_table(self, table: bytes, database: bytes) -> None:
        """Set the database of each family."""

        def assign(schema: Any) -> None:
            for column in schema.column_families:
                pairs = {pair.name: pair for pair in column.configuration}
                pair = pairs.get(DATABASE_ENTRY) or column.configuration.add(name=DATABASE_ENTRY)
                pair.value = database.decode()

        self._modify(table, assign)

    def add_endpoint(self, table: bytes) -> None:
        self._modify(table, _name_endpoint)

    def _modify(self, table: bytes, change: Callable[[Any], None]) -> None:
        """Change a table's schema and keep the rest of it; the table's regions reopen."""
        found = self._find_schema(table)
        if found is None:
            raise InvalidRequestError("no such table", table=table)
        request = PB.ModifyTableRequest(table_name=_table_name(table), table_schema=found)
        change(request.table_schema)
        if request.table_schema != found and not self._change(table, "ModifyTable", request):
            raise StoreError("another client changes the table: try again", table=table)

    def _find_schema(self, table: bytes, within_ms: int | None = None) -> Any:
        if not is_legal(table):
            return None
        request = PB.GetTableDescriptorsRequest()
        request.table_names.append(_table_name(table))
        found = self._ask_schemas(request, table, within_ms)
        return found[0] if found else None

    def _ask_schemas(
        self, request: Any, table: bytes = b"", within_ms: int | None = None
    ) -> Sequence[Any]:
        try:
            due_ms = self._due_ms(within_ms)
            response, _ = self._master.ask(
                "GetTableDescriptors", request, PB.GetTableDescriptorsResponse, due_ms
            )
        except RemoteError as error:
            if error.name == "TableNotFoundException":
                return ()
            if error.is_final:
                raise make_refusal(table, error) from error
            raise MaybeApplied("the master refuses", cause=first_line(error)) from error
        return cast(Sequence[Any], response.table_schema)

    def _change(self, table: bytes, method: str, request: Any) -> bool:
        try:
            self._carry_out(table, method, request)
        except RemoteError as error:
            return refuse_change(table, error)
        return True

    def _carry_out(self, table: bytes, method: str, request: Any) -> None:
        """Make a change through the master and wait until it is done; raise RemoteError.

        A busy master may work on it for far longer than a call of the store may take.
        """
        started, _ = self._master.ask(
            method, request, PB.ProcedureStarted, self._due_ms(), once=True
        )
        wanted = PB.GetProcedureResultRequest(proc_id=started.proc_id)
        cause = None
        now_ms = self._clock.monotonic_ms()
        end_ms = limit_due(now_ms, now_ms + CHANGE_MS)
        try:
            for _ in PAUSES.tries(self._clock, self._rng, due_ms=end_ms):
                done, _ = self._master.ask(
                    "getProcedureResult", wanted, PB.GetProcedureResultResponse, self._due_ms()
                )
                if done.HasField("exception"):
                    failure = done.exception.generic_exception
                    raise RemoteError(
                        failure.class_name, f"{failure.class_name}: {failure.message}"
                    )
                if done.state in {FINISHED, UNKNOWN}:  # the master forgets old procedures
                    return
        except NotApplied as error:  # only the question failed: the change may have been made
            cause = error
        raise MaybeApplied("the master has not changed the table in time", table=table) from cause

    def _due_ms(self, within_ms: int | None = None) -> int:
        now_ms, limit_ms = self._clock.monotonic_ms(), self._servers.target.timeout_ms
        return limit_due(now_ms, now_ms + min(limit_ms, within_ms or limit_ms))


def _table_name(table: bytes) -> Any:
    namespace, colon, name = table.rpartition(b":")
    return PB.TableName(namespace=namespace if colon else DEFAULT_NAMESPACE, qualifier=name)


def _column(name: bytes, family: Family) -> Any:
    column = PB.ColumnFamilySchema(name=name)
    column.attributes.add(first=b"VERSIONS", second=b"%d" % family.versions)
    if family.ttl_ms is not None:
        column.attributes.add(first=b"TTL", second=b"%d" % (family.ttl_ms // 1000))
    for entry, value in make_configuration(family).items():
        column.configuration.add(name=entry, value=value)
    return column


def _has_endpoint(schema: Any) -> bool:
    values = [p.second for p in schema.attributes if p.first.lower().startswith(b"coprocessor$")]
    return any(b"|%b|" % ENDPOINT.encode() in value for value in values)


def _name_endpoint(schema: Any) -> None:
    if not _has_endpoint(schema):
        names = {b"coprocessor$%d" % number for number in range(1, len(schema.attributes) + 2)}
        name = min(names - {pair.first.lower() for pair in schema.attributes})
        schema.attributes.add(first=name, second=b"|%b|1073741823|" % ENDPOINT.encode())


def _read_schema(schema: Any) -> dict[bytes, Family]:
    above = {pair.first: pair.second for pair in schema.attributes}
    durability = above.get(b"DURABILITY", b"").decode()
    found = {}
    for column in schema.column_families:
        own = {pair.first: pair.second for pair in column.attributes}
        configured = {pair.name: pair.value for pair in column.configuration}
        ttl, versions = own.get(b"TTL", b"FOREVER"), int(own.get(b"VERSIONS", b"1"))
        ttl_s = int(ttl) if ttl.isdigit() else FOREVER_S
        loses = durability if durability in LOSES else None
        found[column.name] = read_family(
            versions, ttl_s, loses, own=own, configured=configured, above=above
        )
    return found
