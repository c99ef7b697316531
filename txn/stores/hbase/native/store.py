"""The store contract over HBase's own RPC."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from random import Random
from typing import Any, TypeVar
from urllib.parse import SplitResult

from txn.clock import Clock, limit_due
from txn.errors import MaybeApplied, NotApplied, TableUnavailable, TxnError
from txn.host.forks import start_in_each_process
from txn.model import Cell, Check, Edit, Key, Row
from txn.stores.base import ColumnPage, Families, Feature, TableSize
from txn.stores.hbase import places
from txn.stores.hbase.base import ASKED_WITHIN_MS, HBaseTables, ScanRange
from txn.stores.hbase.native.batch import Batches
from txn.stores.hbase.native.connection import RemoteError
from txn.stores.hbase.native.endpoint import Endpoint
from txn.stores.hbase.native.items import ReadRow, WriteRow, list_checks, make_scan
from txn.stores.hbase.native.messages import PB, Cells
from txn.stores.hbase.native.regions import BY_NAME, PAUSES, Location, Regions
from txn.stores.hbase.native.registry import Registry
from txn.stores.hbase.native.servers import Servers
from txn.stores.hbase.native.sharing import SharedReads
from txn.stores.hbase.native.tables import MasterTables
from txn.stores.hbase.native.target import Address, Target, parse_target
from txn.stores.hbase.schema import make_table

T = TypeVar("T")

PAGE_ROWS = 2_000
NEW_ROWS = 16  # of a table of unknown values; they may have 10 MB each


def native_store(parts: SplitResult, clock: Clock) -> NativeStore:
    """Return the store of a URI's cluster, without sending anything yet."""
    return NativeStore(parse_target(parts), clock)


class NativeStore(HBaseTables):
    """Tables of HBase without a gateway."""

    features: frozenset[Feature] = frozenset(
        {"multi_cell_check", "row_mutations", "describe", "remote_calls", "many_row_checks"}
    )

    def __init__(self, target: Target, clock: Clock) -> None:
        super().__init__(NEW_ROWS)
        self._clock = clock
        self._rng = Random()
        self._servers = Servers(target, clock)
        registry = Registry(target, self._servers, clock)
        self._regions = Regions(self._servers, registry, clock)
        self._batches = Batches(self._servers, self._regions, clock)
        self._endpoint = Endpoint(self._batches, clock)
        self._tables = MasterTables(self._servers, registry, clock)
        self._shared = SharedReads(self._batches.run, self._batches.try_once, clock)
        start_in_each_process(self._start)

    def _start(self) -> None:
        # After a fork, connections and shared reads belong to the parent.
        self._servers.reset()
        self._shared.reset()

    def _read(
        self, checks: Sequence[Check], groups: Sequence[Collection[Key]], stamps: Collection[Key]
    ) -> tuple[list[bool], dict[Key, Cell | None]]:
        """Send one request to each server, which carries out the checks of a row in order; groups
        share it if one server has them all."""
        rows = [_list_reads(keys, stamps=stamps) for keys in groups]
        keys = groups[0] if len(groups) == 1 else [key for part in groups for key in part]
        call: Callable[..., Any] = self._batches.run_in_turn
        items: Sequence[Any] = rows
        if len(groups) == 1:
            call = self._batches.run if checks else self._shared.read
            items = [*list_checks(checks), *rows[0]]
        found = self._try(lambda: chain(places.list_targets(checks), keys), b"", call, items)
        return found[: len(checks)], places.complete(keys, found[len(checks) :])

    def _read_versions(self, keys: Collection[Key], count: int) -> dict[Key, list[Cell]]:
        found = self._try(lambda: keys, b"", self._batches.run, _list_reads(keys, count))
        return places.complete_versions(keys, found)

    def write(self, edits: Sequence[Edit], *, durable: bool = True, by_row: bool = False) -> None:
        self._sizes.learn_written(edits)
        rows: dict[tuple[bytes | None, bytes], list[Edit]] = defaultdict(list)
        for edit in edits:
            row, _, _, table = edit[0]
            rows[table, row].append(edit)
        items = [WriteRow(part[0][0], part, is_at_once=by_row) for part in rows.values()]
        self._try(lambda: (edit.key for edit in edits), b"", self._batches.run, items)

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        self._sizes.learn_written([edit for check in checks for edit in check.edits])
        items = list_checks(checks)
        return self._try(lambda: places.list_targets(checks), b"", self._endpoint.check, items)

    def put_if_all(self, groups: Sequence[Sequence[Check]]) -> list[bool | None]:
        checks = [check for group in groups for check in group]
        self._sizes.learn_written([edit for check in checks for edit in check.edits])
        items = [list_checks(group) for group in groups]
        call: Callable[..., list[bool | None]] = self._endpoint.put_if_all
        return self._try(lambda: places.list_targets(checks), b"", call, items)

    def list_tables(self) -> list[bytes]:
        return sorted(self._tables.find_endpoints())

    def measure_tables(self, tables: Sequence[bytes]) -> Mapping[bytes, TableSize]:
        """Ask the master once, however many tables there are."""
        return self._tables.measure()

    def describe(self, table: bytes) -> Families | None:
        return self._tables.describe(table)

    def ensure_table(self, table: bytes, families: Families, splits: Sequence[bytes] = ()) -> None:
        """Create missing parts with the lifetime of delete markers that the protocol needs."""
        make_table(self._tables, self._clock, table, families, splits)

    def assign_table(self, table: bytes, database: bytes) -> None:
        self._tables.assign_table(table, database)

    def find_endpoints(self) -> Mapping[bytes, bool]:
        return self._tables.find_endpoints()

    def add_endpoint(self, table: bytes) -> None:
        self._tables.add_endpoint(table)

    def find_splits(
        self, table: bytes, count: int, start: bytes = b"", stop: bytes | None = None
    ) -> list[bytes]:
        found = self._try(tuple, table, self._regions.list_starts, table, start, stop)
        return places.keep_between(found, start, stop)

    def find_server(self, table: bytes, row: bytes) -> Address | None:
        return self._regions.find_server(table, row)

    def close(self) -> None:
        self._servers.close()

    def read_columns(
        self, table: bytes, start: bytes, stop: bytes | None, columns: Sequence[tuple[bytes, bytes]]
    ) -> ColumnPage:
        """Read a page without an object for each cell."""
        if stop and start >= stop:
            return ColumnPage([], [[] for _ in columns])
        wanted = ScanRange(table, start, stop or b"", columns, None, False, PAGE_ROWS)
        page: ColumnPage = self._try(
            lambda: [Key(b"-", family, column, table) for family, column in columns],
            table,
            self._scan_page,
            wanted,
            self._take_columns,
        )
        return page

    def _read_page(
        self, wanted: ScanRange, keys: Sequence[Key]
    ) -> tuple[list[Row], ScanRange | None]:
        page: tuple[list[Row], ScanRange | None] = self._try(
            lambda: keys, wanted.table, self._scan_page, wanted, self._take_rows
        )
        return page

    def _scan_page(
        self,
        wanted: ScanRange,
        take: Callable[[Location, Any, Cells, ScanRange, int], T],
        due_ms: int,
    ) -> T:
        table, request = wanted.table, make_scan(wanted)
        cause: Exception | None = None
        for _ in PAUSES.tries(self._clock, self._rng, due_ms=due_ms):
            bound = wanted.stop if wanted.reverse else wanted.start
            region = self._regions.find(table, bound, due_ms, before=wanted.reverse)
            request.region.type, request.region.value = BY_NAME, region.name
            try:
                call = self._servers.send(region.server, "ClientService", "Scan", request, due_ms)
                answer = call.receive(PB.ScanResponse, due_ms)
            except RemoteError as error:
                if not (error.is_elsewhere or error.is_busy):
                    raise
                cause = error
                if error.is_elsewhere:
                    self._regions.forget(region)
                    self._regions.check_table(table, due_ms)
            except OSError as error:
                cause = error
                self._regions.forget_server(region.server)
            else:
                return take(region, answer, call.cells, wanted, due_ms)
        raise NotApplied(
            "no server could read it in time", table=table, cause=places.first_line(cause)
        )

    def _take_rows(
        self, region: Location, answer: Any, cells: Cells, wanted: ScanRange, due_ms: int
    ) -> tuple[list[Row], ScanRange | None]:
        """Return the rows of an answer, and the rest of the range. A slow server stops early:
        within a row, which is then read separately, or where there are no rows."""
        table, counts = region.table, answer.cells_per_result
        taken = [cells.take(count, table) for count in counts if count]
        rows = [Row(next(iter(found)).row, found) for found in taken]
        rest = _find_rest(region, answer, wanted, rows[-1].row if rows else b"")
        if rows and any(answer.partial_flag_per_result[-1:]):
            last = self._read_row(wanted, rows.pop().row, due_ms)
            rows += [last] if last.cells else []  # it may have been deleted by now
        return rows, rest and rest._replace(limit=min(4 * wanted.limit, PAGE_ROWS))

    def _take_columns(
        self, region: Location, answer: Any, cells: Cells, wanted: ScanRange, due_ms: int
    ) -> ColumnPage:
        """Return the rows of an answer as `_take_rows` does, by columns."""
        columns = wanted.columns or ()
        counts = [count for count in answer.cells_per_result if count]
        rows, values = cells.take_columns(counts, columns)
        rest = _find_rest(region, answer, wanted, rows[-1] if rows else b"")
        if rows and any(answer.partial_flag_per_result[-1:]):
            found = self._read_row(wanted, rows[-1], due_ms).cells
            whole = {key[1:3]: cell.value for key, cell in found.items()}
            for column, cells_of in zip(columns, values, strict=True):
                cells_of[-1] = whole.get(column)
        return ColumnPage(rows, values, rest and rest.start)

    def _read_row(self, wanted: ScanRange, row: bytes, due_ms: int) -> Row:
        table = wanted.table
        keys = [Key(row, family, column, table) for family, column in wanted.columns or ()]
        key = Key(row, b"", b"", table)
        (found,) = self._batches.run([ReadRow(key, keys)], due_ms)
        return Row(row, found)

    def _try(
        self,
        list_keys: Callable[[], Iterable[Key]],
        table: bytes,
        call: Callable[..., T],
        *arguments: Any,
    ) -> T:
        """Make a call, with its deadline as the last argument. Translate a server's refusal for a
        request on these keys, or this table."""
        now_ms = self._clock.monotonic_ms()
        due_ms = limit_due(now_ms, now_ms + self._servers.target.timeout_ms)
        try:
            return call(*arguments, due_ms)
        except RemoteError as error:
            gone = self._find_absent(list_keys(), table)
            if gone is not None:
                raise gone from error
            if error.is_final:
                raise places.make_refusal(error.table or table, error) from error
            raise MaybeApplied("a server refused", cause=places.first_line(error)) from error

    def _find_absent(self, keys: Iterable[Key], table: bytes) -> TableUnavailable | None:
        with suppress(TxnError):
            return places.find_absent(
                lambda name: self._tables.describe(name, ASKED_WITHIN_MS), keys, table
            )
        return None


def _list_reads(
    keys: Collection[Key], versions: int | None = None, stamps: Collection[Key] = ()
) -> list[ReadRow]:
    rows: dict[tuple[bytes | None, bytes], list[Key]] = defaultdict(list)
    for key in dict.fromkeys(keys):
        rows[key[3], key[0]].append(key)
    if not stamps:
        return [ReadRow(part[0], part, versions) for part in rows.values()]
    sieves = (places.list_valued_columns(part, stamps) for part in rows.values())
    return [ReadRow(part[0], part, None, s) for part, s in zip(rows.values(), sieves, strict=True)]


def _find_rest(region: Location, answer: Any, wanted: ScanRange, last: bytes) -> ScanRange | None:
    """Return the rest of a range after an answer that ended with row `last` (empty: no row)."""
    if answer.more_results_in_region:
        return wanted.skip_rows(answer.cursor.row, last)
    bound = region.start if wanted.reverse else region.stop
    return wanted.move(bound) if bound else None
