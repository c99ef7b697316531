"""From one protocol to the other: what stands in the way, and the change.

The name of a database's protocol is changed while nobody is connected, no transaction has a row and
no lock is held: so nothing of the old protocol can be late, or be met. Then what the old one keeps
beside values is deleted; a conversion that stopped before that end is begun again by the same call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice

from recovery.fsck import RETENTION_MS, require_tables
from recovery.scan import MARKERS, Looked, list_rows, newest_old_ms, transactions
from txn.errors import InvalidRequestError
from txn.model import LOCK_SUFFIX, TAG_SUFFIX, Cell, Check, Edit, Key
from txn.protocol.clocks import check_clock
from txn.protocol.context import Context, call_store
from txn.protocol.locks import ROW_LOCK, holder_of
from txn.protocol.protocols import protocol_key, require_features
from txn.protocol.ranges import stored_rows
from txn.protocol.row import FREE, parent_of
from txn.protocol.statuses import PROTOCOLS, ProtocolName, Rules
from txn.spans import Span
from txn.text import key_text

BATCH = 500


def find_obstacles(
    context: Context,
    tables: Collection[bytes] = (),
    *,
    retention_ms: int = RETENTION_MS,
    looked: Looked = lambda table: None,
) -> Iterator[str]:
    """Yield why a database cannot be converted now, each with what to do about it.

    tables: all data tables that transactions write to. retention_ms: for how long none of their
    locks may have changed, since not every transaction has a row; longer than any request can be
    under way. Raises InvalidRequestError for an absent table.
    """
    yield from _list_rows_in_the_way(context)
    require_tables(context, tables)
    for span in _list_spans(context, tables):
        yield from list_cells_in_the_way(context, span, retention_ms, looked)


def _list_rows_in_the_way(context: Context) -> Iterator[str]:
    # The rows of its parts follow that of a transaction, if it is there.
    rows = groupby(transactions(context), lambda row: parent_of(row.row_key) or row.row_key)
    counts = Counter(all(row.is_over for row in alike) for _, alike in rows)
    unfinished, ended = counts[False], counts[True]
    if unfinished:
        yield (
            f"{unfinished} transactions are not finished: txn fsck --repair --grace 0s, when every "
            "client is stopped"
        )
    if ended:
        yield (
            f"{ended} transactions have rows, and requests of theirs may be on their way: wait for "
            "the retention, and let txn fsck --repair delete them"
        )


def list_cells_in_the_way(
    context: Context, span: Span, retention_ms: int, looked: Looked
) -> Iterator[str]:
    """Yield what is wrong with a table: keys that are held or written, locks and tags that changed
    not long ago, cells from the future."""
    name, held, young, ahead = span.table.decode(errors="replace"), _Seen(), _Seen(), _Seen()
    for row in list_rows(context, span, looked):
        now_ms = context.clock.wall_ms()
        old_ms = newest_old_ms(now_ms, retention_ms)
        for key, cell in row.cells.items():
            guards = _is_guard(key)
            held.note(key, guards and holder_of(key, cell) != FREE)
            young.note(key, guards and cell.timestamp > old_ms)
            ahead.note(key, cell.timestamp >= now_ms)
    if held.count:
        yield f"locks or tags in {name}: {held}: txn fsck --repair --scan {name}"
    if young.count:
        yield f"locks or tags of {name} are younger than the retention: {young}: wait for it"
    if ahead.count:
        yield f"cells of {name} lie ahead of the clock: {ahead}: set it, or wait for it"


def convert(context: Context, wanted: ProtocolName, tables: Collection[bytes] = ()) -> int:
    """Change the protocol of a database in whose way nothing stands, and delete what the other one
    has left beside values; return how many cells that were. Where it has the protocol already, only
    that is done.

    No client may be connected. Raises InvalidRequestError where the store cannot do the protocol,
    or somebody else has changed it meanwhile, and AbortedError where this machine's clock is wrong,
    by which `find_obstacles` judges.
    """
    require_features(context, PROTOCOLS[wanted])
    check_clock(context)
    if context.rules.name != wanted:
        _rename(context, wanted)
    return _clear(context, PROTOCOLS[wanted], tables)


def _rename(context: Context, wanted: ProtocolName) -> None:
    key = protocol_key(context.table)
    old = call_store(context, lambda: context.store.read([key]))[key]
    check = Check(key, old.value if old else FREE, ((key, wanted.encode()),))
    if old is None or old.value == context.rules.name.encode():
        call_store(context, lambda: context.store.check_and_put([check]))
    found = call_store(context, lambda: context.store.read([key]))[key]
    if found is None or found.value != wanted.encode():
        raise InvalidRequestError(
            "somebody else changes the protocol", found=found and found.value, wanted=wanted
        )


@dataclass(slots=True)
class _Seen:
    """How many cells there are of a kind, and one of them."""

    count: int = 0
    last: Key | None = None

    def note(self, key: Key, is_one: bool) -> None:
        """Count a cell if it is one."""
        if is_one:
            self.count += 1
            self.last = key

    def __str__(self) -> str:
        return f"{self.count}, such as {key_text(self.last)}" if self.last else "none"


def _clear(context: Context, rules: Rules, tables: Iterable[bytes]) -> int:
    """Delete the free locks and empty tags that a protocol does not know; what the other one never
    writes there stays, it may be somebody's data."""
    count = 0
    for span in _list_spans(context, tables):
        cells = (
            item
            for row in stored_rows(context, span)
            for item in row.cells.items()
            if _is_left(rules, *item)
        )
        while some := list(islice(cells, BATCH)):
            edits = [Edit(key, None, cell.timestamp) for key, cell in some]
            call_store(context, lambda: context.store.write(edits))  # noqa: B023
            count += len(some)
    return count


def _is_left(rules: Rules, key: Key, cell: Cell) -> bool:
    is_own = (key.column == ROW_LOCK) is rules.locks_rows
    return _is_guard(key) and not is_own and holder_of(key, cell) == FREE


def _is_guard(key: Key) -> bool:
    return key.column.endswith((LOCK_SUFFIX, TAG_SUFFIX)) and key.column != TAG_SUFFIX


def _list_spans(context: Context, tables: Iterable[bytes]) -> list[Span]:
    return [Span(context.table, *MARKERS), *map(Span, dict.fromkeys(tables))]
