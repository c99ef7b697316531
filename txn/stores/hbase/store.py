"""The store contract over either Thrift gateway of HBase.

A dialect makes the single requests. This module has the common rules: what is refused before it is
sent, what is sent in parallel or retried, and what an error means. A checked write is never retried
here, since the retry answers "no" where the first try answered "yes".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from txn.clock import Clock
from txn.errors import InvalidRequestError, MaybeApplied, TableUnavailable, TxnError, annotate
from txn.model import (
    Cell,
    Check,
    Columns,
    Edit,
    Family,
    Key,
    Row,
    RowExclusion,
    check_count,
    check_exclusion,
    check_targets,
    plain_table,
)
from txn.stores.base import Feature
from txn.stores.gateway import AHEAD_BYTES, GatewayError, Job, Pool
from txn.stores.hbase.places import (
    KeysByRow,
    check_place,
    complete,
    complete_versions,
    find_absent,
    first_line,
    group_by_table,
    is_final,
    is_legal,
    keep_between,
    keep_last,
    list_targets,
    make_refusal,
    row_after,
    row_below,
    write_filter,
)
from txn.stores.hbase.schema import make_table, refuse_change

T = TypeVar("T")

ROWS_A_REQUEST = 1_000
BYTES_A_REQUEST = 1_500_000  # a framed gateway accepts 2 MB by default
ASKED_WITHIN_MS = 2_000  # for the reason of a failure
PAGE_ROWS = 500
FIRST_PAGE_ROWS = 32
PAGE_BYTES = 1_000_000
AHEAD = 16  # so many replies, even errors, fit into an unread socket


class PageScan(NamedTuple):
    """A request for one page: rows of a table from `first` up to `last` (excluded; empty: no
    limit). reverse: `first` is the greater row, and the rows come from last to first. sieve: an
    HBase filter that the rows must pass."""

    table: bytes
    first: bytes
    last: bytes
    rows: int
    sieve: bytes | None
    reverse: bool


class Dialect(Protocol):
    """The requests of one kind of gateway. Nothing is sent before a job runs."""

    features: frozenset[Feature]

    def read(self, table: bytes, rows: KeysByRow) -> list[Job[dict[Key, Cell]]]:
        """Return jobs that read the newest versions and together find all existing keys."""

    def read_versions(
        self, table: bytes, rows: KeysByRow, count: int
    ) -> list[Job[dict[Key, list[Cell]]]]:
        """Return jobs that read up to `count` versions and together find all existing keys."""

    def write(self, table: bytes, edits: Sequence[Edit], by_row: bool) -> list[Job[None]]:
        """Return jobs that put and mark; no cell has two edits of one kind and timestamp."""

    def check(self, check: Check) -> Job[bool]: ...

    def page(self, scan: PageScan, columns: Columns) -> Job[list[Row]]:
        """Return the job that gets the first rows of a range, fewer only at its end."""

    def list_tables(self) -> Job[list[bytes]]: ...

    def describe(self, table: bytes) -> Job[dict[bytes, Family]]:
        """Return the job that gets the families' settings; it fails for an absent table."""

    def starts(self, table: bytes) -> Job[list[bytes]]:
        """Return the job that gets the first rows of all regions."""

    def is_enabled(self, table: bytes) -> Job[bool]:
        """Return the job that tells whether an existing table can be used."""

    def create(
        self, table: bytes, families: Mapping[bytes, Family], splits: Sequence[bytes]
    ) -> Job[None]:
        """Return the job that creates a table and its namespace."""

    def add(self, table: bytes, name: bytes, family: Family) -> Job[None]: ...


class _Explaining:
    """A block that translates failures; a generator would cost three times as much per call."""

    __slots__ = ("_raise_meaning",)

    def __init__(self, raise_meaning: Callable[[BaseException], None]) -> None:
        self._raise_meaning = raise_meaning

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self._raise_meaning(error)


class HBaseStore:
    """Tables of HBase behind a gateway. Each call is durable, even with durable=False."""

    def __init__(self, pool: Pool, dialect: Dialect, clock: Clock) -> None:
        self.features = dialect.features
        self._pool = pool
        self._dialect = dialect
        self._clock = clock

    def read(
        self, *groups: Collection[Key], beside: Callable[[], None] | None = None
    ) -> dict[Key, Cell | None]:
        """Read each group with one request per table, or a few for many rows; a row is never
        divided. Two groups share a connection without a wait in between if each needs one request
        and the second is small. `beside` runs while requests are in flight."""
        tables = [group_by_table(keys) for keys in groups]
        keys = groups[0] if len(groups) == 1 else [key for part in groups for key in part]
        read, run = self._dialect.read, self._pool.run
        found: list[dict[Key, Cell]] = []
        if beside is not None:
            early = self._pool.run_beside(_list_jobs(read, tables[0]), beside)
            if early is not None:
                found, tables = early, tables[1:]
        with self._explain(keys):
            if len(tables) == len(groups) > 1 and self._fits_one_connection(groups, tables):
                jobs = lambda: [job for part in tables for job in _list_jobs(read, part)]  # noqa: E731
                return complete(keys, run(jobs, repeat=True, ahead=AHEAD, connections=1))
            for part in tables:
                found += run(lambda: _list_jobs(read, part), repeat=True)  # noqa: B023
        return complete(keys, found)

    def _fits_one_connection(
        self, groups: Sequence[Collection[Key]], tables: Sequence[Mapping[bytes, KeysByRow]]
    ) -> bool:
        is_one_each = all(len(_list_jobs(self._dialect.read, part)) == 1 for part in tables)
        return is_one_each and all(_bytes(group) <= AHEAD_BYTES for group in groups[1:])

    def read_versions(self, keys: Collection[Key], count: int) -> dict[Key, list[Cell]]:
        """Read with the requests of `read`; Thrift 1 needs one for each key."""
        check_count(count)
        tables, read = group_by_table(keys), self._dialect.read_versions
        with self._explain(keys):
            found = self._pool.run(lambda: _list_jobs(read, tables, count), repeat=True)
        return complete_versions(keys, found)

    def write(self, edits: Sequence[Edit], *, durable: bool = True, by_row: bool = False) -> None:
        """Write everything in parallel: no edit depends on the order."""
        if by_row:
            self._require_row_mutations(edits[0].key if edits else None)
        tables: dict[bytes, list[Edit]] = {}
        for edit in keep_last(edits):
            tables.setdefault(edit[0][3] or b"", []).append(edit)

        write = self._dialect.write
        with self._explain(edit.key for edit in edits):
            self._pool.run(lambda: _list_jobs(write, tables, by_row), repeat=True)

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        """Send the checks of different rows in parallel, and those of one row in order."""
        for check in checks:
            check_place(check[0])
            check_targets(check)
            if check.edits:
                self._require_row_mutations(check.key)
        with self._explain(list_targets(checks)):
            if len(checks) == 1:  # nine times in ten
                return [self._pool.run_one(lambda: self._dialect.check(checks[0]), repeat=False)]
            return self._check_rows(checks)

    def _check_rows(self, checks: Sequence[Check]) -> list[bool]:
        rows: dict[tuple[bytes | None, bytes], list[int]] = {}
        for position, check in enumerate(checks):
            row, _, _, table = check[0]
            rows.setdefault((table, row), []).append(position)
        if len(rows) == len(checks):
            return self._pool.run(
                lambda: [*map(self._dialect.check, checks)], repeat=False, ahead=AHEAD
            )

        def in_turn(positions: Sequence[int]) -> Job[list[bool]]:
            answers = []
            for position in positions:
                answers.append((yield from self._dialect.check(checks[position])))
            return answers

        answers = [False] * len(checks)
        found = self._pool.run(
            lambda: [in_turn(positions) for positions in rows.values()], repeat=False
        )
        for positions, part in zip(rows.values(), found, strict=True):
            for position, answer in zip(positions, part, strict=True):
                answers[position] = answer
        return answers

    def scan(
        self,
        table: bytes,
        start: bytes = b"",
        stop: bytes | None = None,
        columns: Columns = None,
        exclude: RowExclusion | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[Row]:
        """Yield the rows page by page; the gateway keeps no state between pages. If so many rows
        are excluded that a page does not come in time, the gateway sends these rows too."""
        check_exclusion(columns, exclude)
        wanted = None if columns is None else list(columns)
        limit = FIRST_PAGE_ROWS
        named = [Key(b"-", family, column, table) for family, column in columns or ()]
        named += [Key(b"-", exclude.family, exclude.column, table)] if exclude else []
        sieve = None if exclude is None else write_filter(exclude) or None
        while not stop or start < stop:
            scan = _make_page_scan(table, (start, stop or b""), limit, sieve, reverse)
            try:
                with self._explain(named, table):
                    page = self._one(lambda: self._dialect.page(scan, wanted))  # noqa: B023
            except MaybeApplied as error:
                if sieve is None or not isinstance(error.__cause__, TimeoutError):
                    raise
                sieve = None
                continue
            rows = page if exclude is None else [row for row in page if not exclude.matches(row)]
            if reverse:
                rows = [row for row in rows if start <= row.row and not (stop and stop <= row.row)]
            yield from rows
            if len(page) < scan.rows:
                return
            if reverse:
                stop = page[-1].row
            else:
                start = row_after(page[-1].row)
            limit = _next_limit(page, limit)

    def atomically(self, work: Callable[[], None]) -> None:
        """Run the function; HBase cannot make its calls one transaction."""
        work()

    def list_tables(self) -> list[bytes]:
        try:
            return sorted(map(plain_table, self._one(self._dialect.list_tables)))
        except GatewayError as error:
            raise self._make_unexplained(error, None) from error

    def describe(self, table: bytes) -> Mapping[bytes, Family] | None:
        if not is_legal(table):
            return None  # there can be no such table, but gateways fail at the question
        try:
            return self._one(lambda: self._dialect.describe(table))
        except GatewayError as error:
            if is_absence(error, table):
                return None
            if "nvalid method name" in str(error):
                raise InvalidRequestError(
                    "the gateway is of the other kind, Thrift 1 or 2, or too old",
                    gateway=str(self._pool.gateway),
                    cause=first_line(error),
                ) from error
            raise self._make_unexplained(error, table) from error

    def ensure_table(
        self, table: bytes, families: Mapping[bytes, Family], splits: Sequence[bytes] = ()
    ) -> None:
        """Create missing parts with the lifetime of delete markers that the protocol needs."""
        make_table(self, self._clock, table, families, splits)

    def create(
        self, table: bytes, families: Mapping[bytes, Family], splits: Sequence[bytes]
    ) -> bool:
        return self._change(table, lambda: self._dialect.create(table, families, splits))

    def add(self, table: bytes, name: bytes, family: Family) -> bool:
        return self._change(table, lambda: self._dialect.add(table, name, family))

    def find_splits(
        self, table: bytes, count: int, start: bytes = b"", stop: bytes | None = None
    ) -> list[bytes]:
        with self._explain((), table):
            return keep_between(self._one(lambda: self._dialect.starts(table)), start, stop)

    def compact(self, table: bytes, purge_before_ms: int) -> None:
        """Do nothing: HBase purges markers by the setting that `ensure_table` gives a family."""

    def close(self) -> None:
        self._pool.close()

    def _explain(self, keys: Iterable[Key], table: bytes = b"") -> _Explaining:
        return _Explaining(partial(self._raise_meaning, keys, table))

    def _raise_meaning(self, keys: Iterable[Key], table: bytes, error: BaseException) -> None:
        """Raise the error that a failure means for a request on these keys, if it is another one.
        Most gateway errors name a missing part in no fixed way, and HBase tries to write to a
        disabled table for longer than we wait."""
        if isinstance(error, GatewayError):
            gone = self._find_obstacle(list(keys), table)
            raise gone or self._make_unexplained(error, error.table) from error
        if isinstance(error, MaybeApplied) and isinstance(error.__cause__, TimeoutError):
            gone = self._find_disabled({table, *(key.table or b"" for key in keys)})
            if gone is not None:
                raise gone from error

    def _find_obstacle(self, keys: Collection[Key], table: bytes) -> TableUnavailable | None:
        with suppress(GatewayError, TxnError):
            gone = find_absent(self.describe, keys, table)
            return gone or self._find_disabled({table, *(key.table or b"" for key in keys)})
        return None

    def _find_disabled(self, tables: Iterable[bytes]) -> TableUnavailable | None:
        with suppress(GatewayError, TxnError):
            for name in sorted(filter(None, tables)):
                if not self._one(lambda: self._dialect.is_enabled(name), ASKED_WITHIN_MS):  # noqa: B023
                    return TableUnavailable(annotate("the table is disabled", table=name), name)
        return None

    def _make_unexplained(self, error: GatewayError, table: bytes | None) -> MaybeApplied:
        if is_final(error, getattr(error.__cause__, "canRetry", None)):
            return make_refusal(table or b"", error)
        return MaybeApplied(
            "the gateway answered with an error",
            gateway=str(self._pool.gateway),
            cause=first_line(error),
        )

    def _require_row_mutations(self, key: Key | None) -> None:
        if "row_mutations" not in self.features:
            raise InvalidRequestError(
                "a Thrift 1 gateway changes a row by one cell, at its own time, where it checks or "
                "where all is to be done at once: use a Thrift 2 gateway",
                key=key,
            )

    def _one(self, job: Callable[[], Job[T]], within_ms: int | None = None) -> T:
        return self._pool.run_one(job, repeat=True, within_ms=within_ms)

    def _change(self, table: bytes, change: Callable[[], Job[None]]) -> bool:
        try:
            self._pool.run_one(change, repeat=False)
        except GatewayError as error:
            return refuse_change(table, error)
        return True


def _list_jobs(
    make: Callable[..., list[Job[T]]], tables: Mapping[bytes, Any], *arguments: object
) -> list[Job[T]]:
    return [job for table, part in tables.items() for job in make(table, part, *arguments)]


def is_absence(error: GatewayError, table: bytes) -> bool:
    """Return True if the gateway says, perhaps by the bare name, that the table does not exist."""
    line = first_line(error)
    return line == table.decode(errors="replace") or "TableNotFound" in line


def _bytes(keys: Iterable[Key]) -> int:
    """Return an upper estimate of the bytes of a request for these keys."""
    return 1_000 + sum(len(row) + len(family) + len(column) + 40 for row, family, column, _ in keys)


def _make_page_scan(
    table: bytes, limits: tuple[bytes, bytes], rows: int, sieve: bytes | None, reverse: bool
) -> PageScan:
    """Return the request for the next page of a range. A gateway includes the first bound and
    excludes the other, also in reverse. So a reverse page asks for one row more, down to a row
    slightly below the start; neither extra row belongs to the range."""
    start, stop = limits
    if not reverse:
        return PageScan(table, start, stop, rows, sieve, reverse)
    return PageScan(table, stop, row_below(start), rows + bool(stop), sieve, reverse)


def _next_limit(page: Sequence[Row], limit: int) -> int:
    size = sum(len(key.column) + len(cell.value) for row in page for key, cell in row.cells.items())
    fitting = PAGE_BYTES * len(page) // max(size, 1)
    return max(1, min(fitting, 4 * limit, PAGE_ROWS))
