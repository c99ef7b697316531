"""Range reads: rows in order, each resolved as in an atomic read.

A row that no transaction holds is taken from the store as it is, because its cells are of one
instant. If columns are named, it is read without tags, which matter only for held rows. A row is
also taken as it is if all its holders were undecided after the read. Any other row is read again
with its holders. A transaction may hold many rows of a scan, and its decided content never changes,
so its request is decoded once for many pages and divided by rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice, takewhile
from typing import NamedTuple

from txn.errors import ConflictError, InvalidRequestError
from txn.model import LOCK_SUFFIX, MAX_ROW, RESERVED, Cell, Key, Row, RowCells, cell_bytes
from txn.protocol.codec import Buffer
from txn.protocol.context import Context, are_apart, call_store
from txn.protocol.locks import holder_of
from txn.protocol.ranges import (
    Digest,
    is_meaningful,
    key_of_cell,
    keys_of_cells,
    list_lockable,
    stored_rows,
)
from txn.protocol.row import (
    RowState,
    TransactionRow,
    decode_rows,
    read_row_cells,
    read_rows,
    status_key,
)
from txn.protocol.statuses import Status
from txn.reading.snapshot import (
    Cells,
    Observation,
    Snapshot,
    find_holders,
    find_undecided,
    hides_values,
    list_values,
    value_of,
    were_at_once,
)
from txn.request import Request
from txn.spans import Span

MOST_KEPT = 100_000
"""The most mutations of holders kept in memory, about 40 MB in Python."""

NOT_YET_PUT = (Status.PART.encoded, Status.ASSERTED.encoded)
"""The statuses of a decided transaction whose values may not be put yet."""

Holders = Mapping[bytes, TransactionRow]


class DecidedHolder(NamedTuple):
    """A decided transaction, with the place of each row's mutations in its request."""

    whole: TransactionRow
    places: Mapping[bytes, Collection[int]]

    def take_share(self, row: bytes) -> TransactionRow:
        buffer, plan, places = self.whole.buffer, self.whole.plan, self.places.get(row, ())
        assert buffer is not None and plan is not None
        mutations = tuple(buffer.request.mutations[place] for place in places)
        replaced = tuple(plan.replaced[place] for place in places)
        return replace(
            self.whole,
            buffer=Buffer(Request(mutations), buffer.lock_ttl_ms),
            plan=replace(plan, replaced=replaced),
        )


@dataclass(eq=False)
class HolderRows:
    """One reader's cache of transaction rows that hold rows of a table."""

    _context: Context
    _table: bytes
    _kept: dict[bytes, DecidedHolder] = field(default_factory=dict)
    _size: int = 0

    def read(self, holders: Collection[bytes]) -> Holders:
        kept = [holder for holder in holders if holder in self._kept]
        others = [holder for holder in holders if holder not in self._kept]
        status_of = {holder: status_key(self._context.table, holder) for holder in kept}
        cells = read_row_cells(self._context, others, list(status_of.values()))
        rows = decode_rows(self._context, others, cells)
        gone = []
        for holder, key in status_of.items():
            status = cells[key]
            if status is not None and status.value in NOT_YET_PUT:
                # moves it to the end, as the most recently used
                self._kept[holder] = decided = self._kept.pop(holder)
                rows[holder] = decided.whole
            else:
                self._forget(holder)
                gone.append(holder)
        if gone:
            rows.update(read_rows(self._context, gone))
        for row in rows.values():
            self._keep(row)
        return rows

    def take_shares(self, rows: Holders, holders: Iterable[bytes], row: bytes) -> Holders:
        """Return some of the rows, reduced to one row of the table."""
        return {
            holder: self._kept[holder].take_share(row)
            if rows[holder].status is Status.ASSERTED and holder in self._kept
            else rows[holder]
            for holder in holders
        }

    def _keep(self, row: TransactionRow) -> None:
        is_readable = row.status is Status.ASSERTED and row.state is RowState.DECIDED
        if row.row_key in self._kept or not is_readable or row.buffer is None:
            return
        places: dict[bytes, list[int]] = {}
        mutations = row.buffer.request.mutations
        for place, mutation in enumerate(mutations):
            if mutation.key.table == self._table:
                places.setdefault(mutation.key.row, []).append(place)
        while self._kept and self._size + len(mutations) > MOST_KEPT:
            self._forget(next(iter(self._kept)))
        self._kept[row.row_key] = DecidedHolder(row, places)
        self._size += len(mutations)

    def _forget(self, holder: bytes) -> None:
        buffer = self._kept.pop(holder).whole.buffer
        assert buffer is not None
        self._size -= len(buffer.request.mutations)


PAGE_ROWS = 100

Locked = Callable[[Sequence[Key]], Snapshot]
"""Reads keys under their locks."""


def scan_rows(context: Context, wanted: Span, locked: Locked) -> Iterator[Row]:
    """Yield the span's rows, each as of one instant; a row without cells has no value."""
    rows = stored_rows(context, wanted, cells=wanted.values)
    holder_rows = HolderRows(context, wanted.table)
    while page := list(islice(rows, PAGE_ROWS)):
        yield from resolve_page(context, wanted, page, holder_rows, locked)


def resolve_page(
    context: Context, wanted: Span, page: Sequence[Row], holder_rows: HolderRows, locked: Locked
) -> Iterator[Row]:
    """Yield rows that were read with their locks, each as of one instant."""
    holders = {row.row: find_holders(row.cells) for row in page}
    undecided = find_undecided(context, set().union(*holders.values()))
    held: dict[bytes, Cells] = {row.row: row.cells for row in page if holders[row.row] - undecided}
    found = {
        row.row: {key: cell for key, cell in row.cells.items() if not key.column.endswith(RESERVED)}
        for row in page
        if row.row not in held
    }
    tries = context.tries(most=context.policy.read_tries)
    while held and (number := next(tries, 0)):
        if number > 1 or wanted.columns is not None:  # then the tags have not been read
            held = _read_again(context, wanted, held)
        found.update(_resolve_rows(context, wanted, held, holder_rows))
        held = {name: cells for name, cells in held.items() if name not in found}
    for name, cells in held.items():
        found[name] = _read_under_locks(context, wanted, name, cells, locked)
    return (Row(row.row, found[row.row]) for row in page)


def _resolve_rows(
    context: Context, wanted: Span, first: Mapping[bytes, Cells], holder_rows: HolderRows
) -> dict[bytes, dict[Key, Cell]]:
    holders = {name: find_holders(cells) for name, cells in first.items()}
    began_ms = context.clock.monotonic_ms()
    rows = holder_rows.read(set().union(*holders.values()))
    second = _read_again(context, wanted, first)
    open_ones = [h for h, row in rows.items() if not row.status or not row.status.is_decided]
    again = {**rows, **(read_rows(context, open_ones) if open_ones else {})}
    if are_apart(context, began_ms):
        return {}
    rules, resolved = context.rules, {}
    for name, cells in first.items():
        read = Observation(rules, cells, holder_rows.take_shares(rows, holders[name], name))
        after = {holder: again[holder] for holder in holders[name]}
        if were_at_once(read, Observation(rules, second[name], after)):
            values = list_values(read).items()
            resolved[name] = {key: cell for key, cell in values if key in wanted}
    return resolved


def _read_again(context: Context, wanted: Span, rows: Collection[bytes]) -> dict[bytes, Cells]:
    start, last = min(rows), max(rows)
    stop = last + b"\0" if len(last) < MAX_ROW else wanted.stop
    span = takewhile(
        lambda row: row.row <= last, stored_rows(context, replace(wanted, start=start, stop=stop))
    )
    found: dict[bytes, Cells] = {row.row: row.cells for row in span if row.row in rows}
    return {name: found.get(name, {}) for name in rows}


def _read_under_locks(
    context: Context, wanted: Span, name: bytes, cells: Cells, locked: Locked
) -> dict[Key, Cell]:
    """Return the values of a row that keeps changing. Locks keep its known keys unchanged; a key
    added meanwhile shows in a later read."""
    for _ in range(context.policy.read_tries):
        keys, began_ms = list_lockable(cells), context.clock.monotonic_ms()
        values = locked(keys)
        cells = _read_again(context, wanted, [name])[name]
        if values.keys() >= set(keys_of_cells(cells)) and not are_apart(context, began_ms):
            return {key: cell for key, cell in values.items() if cell is not None}
    raise ConflictError("row keeps growing", key=keys[-1])


def read_view(
    context: Context,
    keys: Sequence[Key],
    spans: Sequence[Span],
    locked: Locked,
    most_bytes: int | None = None,
) -> tuple[Snapshot, list[dict[Key, Cell]]] | None:
    """Return the cells of the keys, and those of each span, as of one instant; None if writers left
    no such instant. Raise InvalidRequestError if too many rows of a span have a value, or all spans
    together exceed `most_bytes`."""
    for _ in context.tries(most=context.policy.read_tries):
        began_ms = context.clock.monotonic_ms()
        before, after = (_observe(context, keys, spans, most_bytes) for _ in range(2))
        if are_apart(context, began_ms):
            continue
        if were_at_once(before, after):
            values = list_values(before)
            return {key: value_of(key, before) for key in keys}, [
                {key: cell for key, cell in values.items() if key in span} for span in spans
            ]
        rows = after.rows.items()
        hiding = [h for h, row in rows if hides_values(context.rules, row, after.cells)]
        locks = [key for key in after.cells if key.column.endswith(LOCK_SUFFIX)]
        for holder in hiding:  # wait until it has released a key: it has then decided or aborted
            held = (lock for lock in locks if holder_of(lock, after.cells[lock]) == holder)
            locked([key_of_cell(next(held))])
    return None


def group_by_row(cells: Mapping[Key, Cell]) -> Iterator[Row]:
    for name, keys in groupby(cells, lambda key: key.row):
        yield Row(name, RowCells({key: cells[key] for key in keys}))


def _observe(
    context: Context, keys: Sequence[Key], spans: Sequence[Span], most_bytes: int | None
) -> Observation:
    """Read keys and spans, and then their holders. Only values and held locks are kept, and a
    digest of the rest, to bound the memory."""
    wanted = [cell for key in keys for cell in (key, *context.rules.guards_of(key))]
    cells = call_store(context, lambda: context.store.read(wanted)) if wanted else {}
    rest = Digest()
    size = 0
    for span in spans:
        for meaningful in _observe_span(context, span, rest):
            cells.update(meaningful)
            size += sum(cell_bytes(key, cell.value) for key, cell in meaningful.items())
            if most_bytes is not None and size > most_bytes:
                message = "too many bytes for a snapshot"
                raise InvalidRequestError(message, limit=most_bytes, table=span.table)
    holders = find_holders(cells)
    rows = read_rows(context, holders) if holders else {}
    return Observation(context.rules, cells, rows, rest.value)


def _observe_span(context: Context, span: Span, rest: Digest) -> Iterator[dict[Key, Cell]]:
    rows = 0
    for row in stored_rows(context, span):
        meaningful = {key: cell for key, cell in row.cells.items() if is_meaningful(key, cell)}
        rest.add({key: cell for key, cell in row.cells.items() if key not in meaningful})
        yield meaningful
        rows += bool(meaningful)
        if rows > context.policy.snapshot_rows:
            raise InvalidRequestError(
                "too many rows for a snapshot",
                limit=context.policy.snapshot_rows,
                table=span.table,
                start=span.start,
                stop=span.stop,
            )
