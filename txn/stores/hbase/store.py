"""The store contract over either Thrift gateway of HBase.

A dialect makes the single requests. This module has the common rules: what is refused before it is
sent, what is sent in parallel or retried, and what an error means. A checked write is never retried
here, since the retry answers "no" where the first try answered "yes".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar

from txn.clock import Clock
from txn.errors import InvalidRequestError, MaybeApplied, TableUnavailable, TxnError, annotate
from txn.model import Cell, Check, Edit, Family, Key, Row, check_targets, plain_table
from txn.stores.base import Families, Feature, TableSize, follow_checks, put_single_checks
from txn.stores.gateway import AHEAD_BYTES, Connection, GatewayError, Pool, Request
from txn.stores.hbase import places
from txn.stores.hbase.base import ANSWER_BYTES, ASKED_WITHIN_MS, HBaseTables, ScanRange
from txn.stores.hbase.places import Cells, KeysByRow, Versions
from txn.stores.hbase.schema import make_table, refuse_change

T = TypeVar("T")

ROWS_A_REQUEST = 1_000
BYTES_A_REQUEST = 1_500_000  # a framed gateway accepts 2 MB by default
PAGE_ROWS = 500
NEW_ROWS = 8  # of a table of unknown values: a gateway has little memory and a value up to 10 MB
PAGE_BYTES = 1_000_000
AHEAD = 16  # so many replies, even errors, fit into an unread socket


class PageScan(NamedTuple):
    """A request for one page: rows of a table from `first` up to `last` (excluded; empty: no
    limit). reverse: `first` is the greater row, and the rows come from last to first. sieve: an
    HBase filter that the rows must pass."""

    table: bytes
    first: bytes
    last: bytes
    columns: Sequence[tuple[bytes, bytes]] | None
    rows: int
    sieve: bytes | None
    reverse: bool


class Dialect(Protocol):
    """The requests of one kind of gateway: lists of requests that may run in parallel, and
    functions that ask over a connection."""

    features: frozenset[Feature]

    def read(self, table: bytes, rows: KeysByRow, stamps: Collection[Key]) -> list[Request[Cells]]:
        """Return requests for the newest versions, which together find all existing keys. Stamps
        have the lengths of their values, in four bytes, instead of these."""

    def read_versions(self, table: bytes, rows: KeysByRow, count: int) -> list[Request[Versions]]:
        """Return requests for up to `count` versions, which together find all existing keys."""

    def write(
        self, table: bytes, edits: Iterable[Edit], by_row: bool, is_deferred: bool = False
    ) -> list[Request[bool]]:
        """Return requests to put and mark; no cell has two edits of one kind and timestamp."""

    def check(self, check: Check) -> list[Request[bool]]:
        """Return requests to send in order, for a check with a condition, until one is "no"."""

    def page(self, gateway: Connection, scan: PageScan) -> list[Row]:
        """Return the first rows of a range, fewer only at its end."""

    def list_tables(self, gateway: Connection) -> list[bytes]: ...

    def describe(self, gateway: Connection, table: bytes) -> dict[bytes, Family]:
        """Return the families' settings; raise GatewayError for an absent table."""

    def starts(self, gateway: Connection, table: bytes) -> list[bytes]:
        """Return the first rows of all regions."""

    def is_enabled(self, gateway: Connection, table: bytes) -> bool:
        """Return whether an existing table can be used."""

    def create(
        self, gateway: Connection, table: bytes, families: Families, splits: Sequence[bytes]
    ) -> None:
        """Create a table and its namespace."""

    def add(self, gateway: Connection, table: bytes, name: bytes, family: Family) -> None: ...


class HBaseStore(HBaseTables):
    """Tables of HBase behind a gateway. Each call is durable, even with durable=False."""

    def __init__(self, pool: Pool, dialect: Dialect, clock: Clock) -> None:
        super().__init__(NEW_ROWS)
        self.features = dialect.features
        self._pool = pool
        self._dialect = dialect
        self._clock = clock

    def _read(
        self, checks: Sequence[Check], groups: Sequence[Collection[Key]], stamps: Collection[Key]
    ) -> tuple[list[bool], dict[Key, Cell | None]]:
        """Read each group with one request per table, or a few for many rows; a row is never
        divided. The requests are sent together with the first ones of the checks, unless they are
        large; a failure of either is one of the call. Two groups share a connection without a wait
        in between if each needs one request and the second is small."""
        keys = groups[0] if len(groups) == 1 else [key for part in groups for key in part]
        if checks and _bytes(keys) > AHEAD_BYTES:
            answers = self.check_and_put(checks)
            with follow_checks(checks):
                return answers, self._read((), groups, stamps)[1]
        read = self._dialect.read
        wanted = [_list_requests(read, places.group_by_table(part), stamps) for part in groups]
        if checks:
            self._require_possible(checks)
            answers, found = self._check_rows(checks, keys, wanted[0])
            return answers, places.complete(keys, found)
        found = []
        is_one_each = len(wanted) > 1 and all(len(part) == 1 for part in wanted)
        if is_one_each and all(_bytes(group) <= AHEAD_BYTES for group in groups[1:]):
            in_turn = [request for part in wanted for request in part]
            found = self._run(keys, in_turn, repeat=True, ahead=AHEAD, most=1)
            return [], places.complete(keys, found)
        for part in wanted:
            found += self._run(keys, part, repeat=True)
        return [], places.complete(keys, found)

    def _read_versions(self, keys: Collection[Key], count: int) -> Versions:
        """Read with the requests of `read`; Thrift 1 needs one for each key."""
        wanted = _list_requests(self._dialect.read_versions, places.group_by_table(keys), count)
        return places.complete_versions(keys, self._run(keys, wanted, repeat=True))

    def write(self, edits: Sequence[Edit], *, durable: bool = True, by_row: bool = False) -> None:
        """Write everything in parallel: no edit depends on the order."""
        self._sizes.learn_written(edits)
        if by_row:
            self._require_row_mutations(edits[0].key if edits else None)
        tables: dict[bytes, list[Edit]] = {}
        for edit in places.keep_last(edits):
            tables.setdefault(edit[0][3] or b"", []).append(edit)
        keys = (edit.key for edit in edits)
        self._run(keys, _list_requests(self._dialect.write, tables, by_row), repeat=True)

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        """Send the checks of different rows in parallel, and those of one row in order. Those
        without a condition share requests, as in `write`."""
        self._sizes.learn_written([edit for check in checks for edit in check.edits])
        self._require_possible(checks)
        if len(checks) == 1 and checks[0].expected is not None:
            steps = self._dialect.check(checks[0])
            if len(steps) == 1:
                targets = places.list_targets(checks)
                return self._run(targets, steps, repeat=False)  # nine times in ten
        return self._check_rows(checks, (), ())[0]

    put_if_all = put_single_checks

    def _require_possible(self, checks: Sequence[Check]) -> None:
        for check in checks:
            places.check_place(check[0])
            check_targets(check)
            if check.edits and check.expected is not None:
                self._require_row_mutations(check.key)

    def _check_rows(
        self, checks: Sequence[Check], keys: Collection[Key], reads: Sequence[Request[T]]
    ) -> tuple[list[bool], list[T]]:
        """Send the first request of each row together, then the second, and so on. All of them
        have one deadline and one connection that is kept, so that only the first can fail without
        effect. Plain writes and reads of the keys follow the first requests, so that no connection
        has a check behind a long reply."""
        answers = [True] * len(checks)
        found: list[Any] = []
        rows: dict[tuple[bytes | None, bytes], deque[tuple[int, Request[bool]]]] = {}
        for position, check in enumerate(checks):
            if check.expected is not None:
                row, _, _, table = check.key
                steps = rows.setdefault((table, row), deque())
                for request in self._dialect.check(check):
                    steps.append((position, request))
        writes = self._list_writes(checks)

        def send(first: Connection, others: Sequence[Request[Any]]) -> None:
            left = [*rows.values()]
            while left or others:
                requests = [steps[0][1] for steps in left]
                requests += others
                results = self._pool.send_all(first, requests, AHEAD, len(requests))
                found.extend(results[len(left) :])
                others = ()
                for waiting, answer in zip(left, results, strict=False):
                    position, _ = waiting.popleft()
                    answers[position] = answer
                    while not answer and waiting and waiting[0][0] == position:
                        waiting.popleft()
                left = [steps for steps in left if steps]

        others = [*writes, *reads]
        self._ask(chain(places.list_targets(checks), keys), b"", send, others, repeat=False)
        return answers, found[len(writes) :]

    def _list_writes(self, checks: Sequence[Check]) -> list[Request[bool]]:
        groups: dict[tuple[bytes, bool], list[Edit]] = {}
        for key, expected, puts, edits, is_deferred in checks:
            if expected is None:
                group = groups.setdefault((key.table or b"", is_deferred), [])
                group += (Edit(put, value, None) for put, value in puts)
                group += edits
        by_row = "row_mutations" in self.features
        return [
            request
            for (table, is_deferred), group in groups.items()
            for request in self._dialect.write(table, places.keep_last(group), by_row, is_deferred)
        ]

    def _read_page(
        self, wanted: ScanRange, keys: Sequence[Key]
    ) -> tuple[list[Row], ScanRange | None]:
        """Read a page. If it does not come in time, let the gateway send excluded rows, too."""
        if (most := ANSWER_BYTES // self._sizes.expect(wanted.table)) < wanted.limit:
            wanted = wanted._replace(limit=max(1, most))
        scan = _make_page_scan(wanted)
        try:
            page = self._ask(keys, wanted.table, self._dialect.page, scan)
        except MaybeApplied as error:
            if scan.sieve is None or not isinstance(error.__cause__, TimeoutError):
                raise
            return [], wanted._replace(exclude=None)
        rest = None if len(page) < scan.rows else wanted.skip_rows(b"", page[-1].row)
        rows = [row for row in page if wanted.has(row.row)]
        size = sum(map(len, [cell[0] for row in page for cell in row.cells.values()]))
        if page:
            self._sizes.learn(wanted.table, len(page), size)
        fitting = PAGE_BYTES * len(page) // max(size, 1)
        limit = min(fitting, 4 * wanted.limit, PAGE_ROWS)
        return rows, rest and rest._replace(limit=max(1, limit))

    def list_tables(self) -> list[bytes]:
        try:
            names = self._pool.run_one(self._dialect.list_tables, repeat=True)
            return sorted(map(plain_table, names))
        except GatewayError as error:
            raise self._make_unexplained(error, None) from error

    def measure_tables(self, tables: Sequence[bytes]) -> Mapping[bytes, TableSize]:
        """Count the regions of each table, which takes a request; a gateway tells no size."""
        found = {}
        for table in tables:
            with suppress(TableUnavailable):
                if starts := self._ask((), table, self._dialect.starts, table):
                    found[table] = TableSize(len(starts))
        return found

    def describe(self, table: bytes) -> Families | None:
        if not places.is_legal(table):
            return None  # there can be no such table, but gateways fail at the question
        try:
            return self._pool.run_one(self._dialect.describe, table, repeat=True)
        except GatewayError as error:
            line = places.first_line(error)  # it may be the bare name
            if line == table.decode(errors="replace") or "TableNotFound" in line:
                return None
            if "nvalid method name" in str(error):
                words = "the gateway is of the other kind, Thrift 1 or 2, or too old"
                facts = {"gateway": str(self._pool.gateway), "cause": line}
                raise InvalidRequestError(words, **facts) from error
            raise self._make_unexplained(error, table) from error

    def ensure_table(self, table: bytes, families: Families, splits: Sequence[bytes] = ()) -> None:
        """Create missing parts with the lifetime of delete markers that the protocol needs."""
        make_table(self, self._clock, table, families, splits)

    def create(self, table: bytes, families: Families, splits: Sequence[bytes]) -> bool:
        return self._change(self._dialect.create, table, families, splits)

    def add(self, table: bytes, name: bytes, family: Family) -> bool:
        return self._change(self._dialect.add, table, name, family)

    def find_splits(
        self, table: bytes, count: int, start: bytes = b"", stop: bytes | None = None
    ) -> list[bytes]:
        return places.keep_between(self._ask((), table, self._dialect.starts, table), start, stop)

    def close(self) -> None:
        self._pool.close()

    def _run(self, keys: Iterable[Key], requests: list[Request[T]], **options: Any) -> list[T]:
        return self._call(keys, b"", self._pool.run, requests, **options)

    def _ask(
        self,
        keys: Iterable[Key],
        table: bytes,
        work: Callable[..., T],
        *arguments: object,
        repeat: bool = True,
    ) -> T:
        run: Callable[..., T] = self._pool.run_one
        return self._call(keys, table, run, work, *arguments, repeat=repeat)

    def _call(
        self, keys: Iterable[Key], table: bytes, call: Callable[..., T], *args: Any, **options: Any
    ) -> T:
        """Make a call on these keys, or this table. Raise the error that its failure means for
        them, if it is another one: most gateway errors name a missing part in no fixed way, and
        HBase tries to write to a disabled table for longer than we wait."""
        try:
            return call(*args, **options)
        except (GatewayError, MaybeApplied) as error:
            asked, gone = list(keys), None
            tables = {table, *(key.table or b"" for key in asked)}
            if isinstance(error, GatewayError):
                with suppress(GatewayError, TxnError):
                    gone = places.find_absent(self.describe, asked, table)
                    gone = gone or self._find_disabled(tables)
                raise gone or self._make_unexplained(error, error.table) from error
            if isinstance(error.__cause__, TimeoutError) and (gone := self._find_disabled(tables)):
                raise gone from error
            raise

    def _find_disabled(self, tables: Iterable[bytes]) -> TableUnavailable | None:
        with suppress(GatewayError, TxnError):
            for name in sorted(filter(None, tables)):
                ask, within_ms = self._dialect.is_enabled, ASKED_WITHIN_MS
                if not self._pool.run_one(ask, name, repeat=True, within_ms=within_ms):
                    return TableUnavailable(annotate("the table is disabled", table=name), name)
        return None

    def _make_unexplained(self, error: GatewayError, table: bytes | None) -> MaybeApplied:
        if places.is_final(error, getattr(error.__cause__, "canRetry", None)):
            return places.make_refusal(table or b"", error)
        message, cause = "the gateway answered with an error", places.first_line(error)
        return MaybeApplied(message, gateway=str(self._pool.gateway), cause=cause)

    def _require_row_mutations(self, key: Key | None) -> None:
        if "row_mutations" not in self.features:
            raise InvalidRequestError(
                "a Thrift 1 gateway changes a row by one cell, at its own time, where it checks or "
                "where all is to be done at once: use a Thrift 2 gateway",
                key=key,
            )

    def _change(self, change: Callable[..., None], table: bytes, *arguments: object) -> bool:
        try:
            self._pool.run_one(change, table, *arguments, repeat=False)
        except GatewayError as error:
            return refuse_change(table, error)
        return True


def _list_requests(
    make: Callable[..., list[Request[T]]], tables: Mapping[bytes, Any], *arguments: object
) -> list[Request[T]]:
    return [request for table, part in tables.items() for request in make(table, part, *arguments)]


def _bytes(keys: Iterable[Key]) -> int:
    """Return an upper estimate of the bytes of a request for these keys."""
    return 1_000 + sum(len(row + family + column) + 40 for row, family, column, _ in keys)


def _make_page_scan(wanted: ScanRange) -> PageScan:
    """Return the request for the next page of a range. A gateway includes the first bound and
    excludes the other, also in reverse. So a reverse page asks for one row more, down to a row
    slightly below the start; neither extra row belongs to the range."""
    table, start, stop, columns, exclude, is_reverse, limit = wanted
    sieve = None if exclude is None else places.write_filter(exclude) or None
    if not is_reverse:
        return PageScan(table, start, stop, columns, limit, sieve, is_reverse)
    first, last = stop, places.row_below(start)
    return PageScan(table, first, last, columns, limit + bool(stop), sieve, is_reverse)
