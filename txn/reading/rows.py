"""Reads of ranges: rows in order, each resolved as an atomic read resolves it.

A row that nobody holds is taken as the store gives it, since its cells come from one instant; where
columns are named it is read without their tags, which only tell of rows that are held. So is one
whose holders have all not decided when their rows are looked at afterwards. Another row that is
held is looked at as `keys` looks at keys: the row, its holders, the row again, its holders again.
Every key that a transaction wrote has a lock and a tag in its row, for a day at least where it was
deleted, so nothing comes or goes in a range without being seen by a second look in minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice, takewhile

from txn.errors import ConflictError, InvalidRequestError
from txn.model import LOCK_SUFFIX, MAX_ROW, Cell, Key, Row, cell_bytes
from txn.protocol.attempt import Context, are_apart, call_store
from txn.protocol.lock_cells import holder_of
from txn.protocol.ranges import (
    RESERVED,
    Digest,
    is_telling,
    key_of_cell,
    keys_of_cells,
    list_lockable,
    stored_rows,
)
from txn.protocol.row_cells import read_rows
from txn.reading.holders import HolderRows
from txn.reading.keys import Snapshot, find_undecided
from txn.reading.look import (
    Cells,
    Look,
    find_holders,
    hides_values,
    list_values,
    value_of,
    were_at_once,
)
from txn.spans import Span

SNAPSHOT_ROWS = 10_000
PAGE_ROWS = 100

Locked = Callable[[Sequence[Key]], Snapshot]
"""Reads keys under their locks."""


# ------------------------------------------------------------------------------ row by row


def scan_rows(context: Context, wanted: Span, locked: Locked) -> Iterator[Row]:
    """Yield the span's rows, each as of one instant; one without cells has no value."""
    rows = stored_rows(context, wanted, cells=wanted.values)
    holder_rows = HolderRows(context, wanted.table)
    while page := list(islice(rows, PAGE_ROWS)):
        yield from _resolve_page(context, wanted, page, holder_rows, locked)


def _resolve_page(
    context: Context, wanted: Span, page: Sequence[Row], holder_rows: HolderRows, locked: Locked
) -> Iterator[Row]:
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
        if number > 1 or wanted.columns is not None:  # of which the tags were not read
            held = _read_again(context, wanted, held)
        found.update(_settle_rows(context, wanted, held, holder_rows))
        held = {name: cells for name, cells in held.items() if name not in found}
    for name, cells in held.items():
        found[name] = _read_under_locks(context, wanted, name, cells, locked)
    return (Row(row.row, found[row.row]) for row in page)


def _settle_rows(
    context: Context, wanted: Span, first: Mapping[bytes, Cells], holder_rows: HolderRows
) -> dict[bytes, dict[Key, Cell]]:
    """Return the values of those rows that were the same at both looks."""
    holders = {name: find_holders(cells) for name, cells in first.items()}
    began_ms = context.clock.monotonic_ms()
    rows = holder_rows.look(set().union(*holders.values()))
    second = _read_again(context, wanted, first)
    again = holder_rows.look_again(rows)
    if are_apart(context, began_ms):
        return {}
    rules, settled = context.rules, {}
    for name, cells in first.items():
        look = Look(rules, cells, holder_rows.take_shares(rows, holders[name], name))
        after = {holder: again[holder] for holder in holders[name]}
        if were_at_once(look, Look(rules, second[name], after)):
            values = list_values(look).items()
            settled[name] = {key: cell for key, cell in values if key in wanted}
    return settled


def _read_again(context: Context, wanted: Span, rows: Collection[bytes]) -> dict[bytes, Cells]:
    """Look at some rows of a page again."""
    start, last = min(rows), max(rows)
    stop = last + b"\0" if len(last) < MAX_ROW else wanted.stop
    part = takewhile(
        lambda row: row.row <= last, stored_rows(context, replace(wanted, start=start, stop=stop))
    )
    found: dict[bytes, Cells] = {row.row: row.cells for row in part if row.row in rows}
    return {name: found.get(name, {}) for name in rows}


def _read_under_locks(
    context: Context, wanted: Span, name: bytes, cells: Cells, locked: Locked
) -> dict[Key, Cell]:
    """Return the values of a row that never stands still. Locks keep its known keys from changing;
    a key that was new to the row meanwhile shows in a look at it afterwards."""
    for _ in range(context.policy.read_tries):
        keys, began_ms = list_lockable(cells), context.clock.monotonic_ms()
        values = locked(keys)
        cells = _read_again(context, wanted, [name])[name]
        if values.keys() >= set(keys_of_cells(cells)) and not are_apart(context, began_ms):
            return {key: cell for key, cell in values.items() if cell is not None}
    raise ConflictError("row keeps growing", key=keys[-1])


# ---------------------------------------------------------------------- all of it at once


def read_view(
    context: Context,
    keys: Sequence[Key],
    spans: Sequence[Span],
    locked: Locked,
    most_bytes: int | None = None,
) -> tuple[Snapshot, list[dict[Key, Cell]]] | None:
    """Return the cells of the keys, and those of each span, as of one instant, or None if writers
    left no such instant. Raise InvalidRequestError where too many rows of a span have a value, or
    all spans together more than so many bytes."""
    for _ in context.tries(most=context.policy.read_tries):
        began_ms = context.clock.monotonic_ms()
        before, after = (_look(context, keys, spans, most_bytes) for _ in range(2))
        if are_apart(context, began_ms):
            continue
        if were_at_once(before, after):
            values = list_values(before)
            return {key: value_of(key, before) for key in keys}, [
                {key: cell for key, cell in values.items() if key in part} for part in spans
            ]
        rows = after.rows.items()
        hiding = {h for h, row in rows if hides_values(context.rules, row, after.cells)}
        _wait_for_holders(after.cells, hiding, locked)
    return None


def _wait_for_holders(cells: Cells, holders: Collection[bytes], locked: Locked) -> None:
    """Wait until each of these holders has let go of a key: then it has decided, or never will."""
    for holder in holders:
        locks = (key for key in cells if key.column.endswith(LOCK_SUFFIX))
        held = (key_of_cell(lock) for lock in locks if holder_of(lock, cells[lock]) == holder)
        locked([next(held)])


def group_by_row(cells: Mapping[Key, Cell]) -> Iterator[Row]:
    """Yield the rows of cells that are in order."""
    for name, keys in groupby(cells, lambda key: key.row):
        yield Row(name, {key: cells[key] for key in keys})


def _look(
    context: Context, keys: Sequence[Key], spans: Sequence[Span], most_bytes: int | None
) -> Look:
    """Look at keys and spans, and then at the holders. Of the spans it keeps what tells something,
    and a digest of the rest: its memory is that of values and holders."""
    wanted = [cell for key in keys for cell in (key, *context.rules.guards_of(key))]
    cells = call_store(context, lambda: context.store.read(wanted)) if wanted else {}
    rest = Digest()
    size = 0
    for part in spans:
        for telling in _look_at_span(context, part, rest):
            cells.update(telling)
            size += sum(cell_bytes(key, cell.value) for key, cell in telling.items())
            if most_bytes is not None and size > most_bytes:
                raise InvalidRequestError(
                    "too many bytes for a snapshot", limit=most_bytes, table=part.table
                )
    holders = find_holders(cells)
    rows = read_rows(context, holders) if holders else {}
    return Look(context.rules, cells, rows, rest.value)


def _look_at_span(context: Context, part: Span, rest: Digest) -> Iterator[dict[Key, Cell]]:
    """Yield what tells something of each row."""
    rows = 0
    for row in stored_rows(context, part):
        telling = {key: cell for key, cell in row.cells.items() if is_telling(key, cell)}
        rest.add({key: cell for key, cell in row.cells.items() if key not in telling})
        yield telling
        rows += bool(telling)
        if rows > SNAPSHOT_ROWS:
            raise InvalidRequestError(
                "too many rows for a snapshot",
                limit=SNAPSHOT_ROWS,
                table=part.table,
                start=part.start,
                stop=part.stop,
            )
