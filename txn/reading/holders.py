"""The transactions that hold rows of a scan, of which one may hold very many.

What a transaction has decided changes no more. So its request is read and decoded once for many
pages, and divided by rows; only how far it has got is read for each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from txn.protocol.attempt import Context
from txn.protocol.phases import Status
from txn.protocol.row import Buffer, RowState, TransactionRow, status_key
from txn.protocol.row_cells import decode_rows, read_row_cells, read_rows
from txn.request import Request

MOST_KEPT = 100_000
"""Mutations of the transactions that are kept, which take some 40 MB as Python has them."""

NOT_YET_PUT = (Status.PART.encoded, Status.ASSERTED.encoded)
"""Statuses of one that was decided, by which its values need not be there."""

Holders = Mapping[bytes, TransactionRow]


@dataclass(frozen=True, slots=True)
class DecidedHolder:
    """A decided transaction, and where in its request the mutations of each row are."""

    whole: TransactionRow
    places: Mapping[bytes, Collection[int]]

    def take_share(self, row: bytes) -> TransactionRow:
        """Return the transaction as if it had only its mutations of one row."""
        buffer, plan, places = self.whole.buffer, self.whole.plan, self.places.get(row, ())
        assert buffer is not None and plan is not None
        mutations = tuple(buffer.request.mutations[place] for place in places)
        replaced = tuple(plan.replaced[place] for place in places)
        return replace(
            self.whole,
            buffer=Buffer(Request(mutations), buffer.lease_ms),
            plan=replace(plan, replaced=replaced),
        )


class HolderRows:
    """The transaction rows of those that hold rows of a table, for one reader."""

    def __init__(self, context: Context, table: bytes) -> None:
        self._context = context
        self._table = table
        self._kept: dict[bytes, DecidedHolder] = {}
        self._size = 0

    def look(self, holders: Collection[bytes]) -> Holders:
        """Return the rows as they are now."""
        kept = [holder for holder in holders if holder in self._kept]
        others = [holder for holder in holders if holder not in self._kept]
        status_of = {holder: status_key(self._context.table, holder) for holder in kept}
        cells = read_row_cells(self._context, others, list(status_of.values()))
        rows = decode_rows(self._context, others, cells)
        gone = []
        for holder, key in status_of.items():
            status = cells[key]
            if status is not None and status.value in NOT_YET_PUT:
                self._kept[holder] = decided = self._kept.pop(holder)  # the last that was needed
                rows[holder] = decided.whole
            else:
                self._forget(holder)
                gone.append(holder)
        if gone:
            rows.update(read_rows(self._context, gone))
        for row in rows.values():
            self._keep(row)
        return rows

    def look_again(self, first: Holders) -> Holders:
        """Return the rows after another look at those that could still go either way."""
        open_ones = [h for h, row in first.items() if not row.status or not row.status.is_decided]
        again = read_rows(self._context, open_ones) if open_ones else {}
        return {**first, **again}

    def take_shares(self, rows: Holders, holders: Iterable[bytes], row: bytes) -> Holders:
        """Return some of the rows, with no more than concerns one row of the table."""
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
