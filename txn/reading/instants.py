"""Reads by many clients, at different times, as of one instant.

A planner finds an instant at which it knows of every transaction whether it had decided, and
describes it by the servers' times. Each reader reads rows as they are, and then takes back what
later transactions did to them: their rows name the versions that they replaced. So a reader needs
older versions only of cells that were replaced since. docs/protocol.md, under "Many readers, one
instant", gives the argument.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from typing import NamedTuple
from zlib import crc32

from txn.errors import ConflictError, NotApplied
from txn.model import Cell, Edit, Key, Row, RowExclusion
from txn.protocol.codec import decode_status
from txn.protocol.context import Context, call_store
from txn.protocol.row import CLOCK_END, EARLY, FAMILY, column, created_ms, is_withheld
from txn.protocol.statuses import FENCED, Status
from txn.reading import feed
from txn.spans import Span

RANGES = b"ranges"
WRITTEN_AT, LOCKED_AT = Status.WRITTEN.at, Status.LOCKED.at
PLACED_BY = feed.COLUMNS | {(FAMILY, RANGES), (FAMILY, WRITTEN_AT), (FAMILY, LOCKED_AT)}
FINISHED = frozenset({Status.COMPLETE.encoded, Status.ABORTED.encoded})
OPEN = frozenset({Status.WRITTEN.encoded, Status.LOCKED.encoded})
LAST_CHOSEN_MS = FENCED.offsets_ms[Status.LOCKED]
NOT_PLACED = 1 << 63
"""A time after every instant."""

RECENT_MS = 2_000
"""How far a quick look goes back. It may miss rows, which costs a try."""

CHUNK_CELLS = 200_000
"""The cells that a reader keeps until it has looked for later changes of them, about 90 MB."""

GONE = (
    "a cell was replaced or deleted after the instant of the snapshot, and the store does not show "
    "the version from before: read again, or let the family keep more VERSIONS (of a deleted cell "
    "none is shown)"
)
ALL_VERSIONS = (1 << 31) - 1
KEYS_AT_ONCE = 500


class Instant(NamedTuple):
    """An instant between the call of `find_instant` and its end.

    splits, marks: the regions of the transaction table, and the server's time in each just after
    the instant. A transaction that decided by its mark did so before the instant, but for
    `undecided`: those that were undecided after it; `before` are others that had decided. low_ms:
    the earliest creation time of a transaction that decides later. recent_ms: the earliest of those
    that had no row yet. covered: a checksum of those before the instant, from recent_ms on.
    expires_ms: until when the rows of those that decide later are kept.
    """

    splits: tuple[bytes, ...]
    marks: tuple[int, ...]
    before: frozenset[bytes]
    undecided: frozenset[bytes]
    low_ms: int
    recent_ms: int
    covered: int
    expires_ms: int

    def find_mark(self, row_key: bytes) -> int:
        return self.marks[bisect_right(self.splits, row_key)]

    def covers(self, transaction: Placement) -> bool:
        """Whether the transaction had decided at the instant."""
        row_key, at_ms = transaction.row_key, transaction.at_ms
        if row_key in self.before:
            return True
        return 0 < at_ms <= self.find_mark(row_key) and row_key not in self.undecided


class Placement(NamedTuple):
    """A transaction that has decided, or still may.

    at_ms: its decision, by the server's time; 0: there is none, or its time is not known yet.
    placed_ms: the earliest time of its place in the order of transactions; 0: not known.
    """

    row_key: bytes
    at_ms: int
    is_decided: bool
    placed_ms: int


def find_instant(context: Context, bounds: feed.Bounds) -> Instant:
    """Return an instant during this call. Raise ConflictError if transactions decide so often that
    none was found at which each is known to have decided or not."""
    began_ms = context.clock.wall_ms()
    recent_ms = began_ms - bounds.lateness_ms
    unfinished = feed.list_decisions(
        context, 0, PLACED_BY, RowExclusion(FAMILY, feed.STATUS, FINISHED)
    )
    undecided = (created_ms(row.row) for row in unfinished if feed.find_decision(row) == 0)
    low_ms = min((recent_ms, *undecided))
    expires_ms = began_ms + bounds.retention_ms - bounds.margin_ms
    rows = list(_list_placements(context, low_ms))
    for turn in context.tries(most=context.policy.read_tries):
        before = frozenset(each.row_key for each in rows if each.is_decided)
        listings, all_marks = [_list_recent(context)], []
        for _ in range(turn):  # the more, the likelier is one between two decisions
            name = b"instant-%016x" % context.rng.getrandbits(64)
            all_marks.append(call_store(context, partial(_mark_regions, context, name)))
            context.clock.sleep_ms(2)  # so that the times of all later decisions are after it
            listings.append(_list_recent(context))
        rows = list(_list_placements(context, low_ms))
        for (splits, marks), (earlier, later) in zip(all_marks, pairwise(listings), strict=True):
            before |= earlier.decided
            found = Instant(splits, marks, before, frozenset(), low_ms, recent_ms, 0, expires_ms)
            if all(_is_certain(found, later, each) for each in rows):
                return _shorten(found, rows)
    raise ConflictError("transactions decide too often to find an instant between two of them")


class Listing(NamedTuple):
    """What a listing of the transactions created since `low_ms` found: those that had decided, and
    those that may have had their place."""

    low_ms: int
    decided: frozenset[bytes]
    placed: frozenset[bytes]


def _list_recent(context: Context) -> Listing:
    low_ms = context.clock.wall_ms() - RECENT_MS
    rows = [each for each in _list_placements(context, low_ms) if each.placed_ms != NOT_PLACED]
    decided = frozenset(each.row_key for each in rows if each.is_decided)
    return Listing(low_ms, decided, frozenset(each.row_key for each in rows))


def _is_certain(instant: Instant, later: Listing, each: Placement) -> bool:
    """Whether it is certain on which side of the instant the transaction has its place. `before`
    are those that were seen to have decided before the instant; the marks, and then `later`, are
    from after it."""
    mark = instant.find_mark(each.row_key)
    if each.row_key in instant.before or each.placed_ms > mark:
        return True
    had_no_place = created_ms(each.row_key) >= later.low_ms and each.row_key not in later.placed
    return had_no_place and not 0 < each.at_ms <= mark


def _shorten(instant: Instant, rows: Iterable[Placement]) -> Instant:
    """Return the same instant without the transactions that the marks tell of."""
    before = {each.row_key: each for each in rows if each.row_key in instant.before}
    open_rows = (each.row_key for each in rows if each.row_key not in before and not each.at_ms)
    short = instant._replace(before=frozenset(), undecided=frozenset(open_rows))
    others = frozenset(row_key for row_key, each in before.items() if not short.covers(each))
    short = short._replace(before=others)
    return short._replace(covered=_sum_covered(short, rows))


def _sum_covered(instant: Instant, rows: Iterable[Placement]) -> int:
    covered = (each.row_key for each in rows if instant.covers(each))
    recent = (row_key for row_key in covered if created_ms(row_key) >= instant.recent_ms)
    return sum((1 << 32) + crc32(row_key) for row_key in recent)


def _list_placements(context: Context, low_ms: int) -> Iterator[Placement]:
    """Yield the transactions created since `low_ms`, unless aborted."""
    for row in feed.list_decisions(context, low_ms, PLACED_BY):
        at_ms = feed.find_decision(row)
        if at_ms is not None:
            yield _describe(context, row, at_ms)


def _describe(context: Context, row: Row, at_ms: int) -> Placement:
    """A transaction that validates what it read has its place after it came to the status of its
    mark, any other at its decision, and each after its row was written. Steps of a fenced row are
    never dated before the time that its owner chose, so they count only if they are later; and
    nothing compares its first write, so a late duplicate gives it a new date, which never counts.
    """
    cells = {key.column: cell for key, cell in row.cells.items()}
    status, mark = cells.get(feed.STATUS), cells.get(RANGES)
    stored = b"" if status is None else status.value
    is_open = stored in OPEN
    if at_ms == 0 and is_open and not is_withheld(decode_status(stored), mark):
        return Placement(row.row, at_ms, False, NOT_PLACED)
    step = feed.DECIDED_AT if mark is None else WRITTEN_AT if mark.value == EARLY else LOCKED_AT
    if context.rules.offsets_ms:
        proof = {step} - {WRITTEN_AT}
        least_ms = created_ms(row.row) + LAST_CHOSEN_MS
    else:
        proof, least_ms = {step, WRITTEN_AT}, 0
    times = [cells[name].timestamp for name in proof if name in cells]
    placed_ms = max((ms for ms in times if ms > least_ms), default=0)
    return Placement(row.row, at_ms, at_ms > 0 or not is_open, placed_ms)


def _mark_regions(context: Context, name: bytes) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    """Return the splits of the transaction table, and the present time of the server of each
    region. It is that of a cell, which is written there and deleted."""
    store, table = context.store, context.table
    splits = store.find_splits(table, 0)
    keys = [column(table, start + CLOCK_END, name) for start in (b"", *splits)]
    store.write([Edit(key, name, None) for key in keys])
    marks = {key: cell.timestamp for key, cell in store.read(keys).items() if cell is not None}
    store.write([Edit(key, None, timestamp) for key, timestamp in marks.items()])
    if len(marks) < len(keys) or store.find_splits(table, 0) != splits:
        raise NotApplied("the regions of the transaction table have changed")
    return tuple(splits), tuple(marks[key] for key in keys)


def restore_rows(
    context: Context, spans: Sequence[Span], instant: Instant, rows: Iterable[Row]
) -> Iterator[Row]:
    """Yield the rows of spans as they were at the instant; those without cells have no value.

    spans: at least one, of one table, in order and apart from each other. rows: those of the
    spans, in order, read after the instant, each as of one instant. Raises
    ConflictError if a version that was replaced since is not kept, and ChangesLostError if what
    has changed since cannot be known any more.
    """
    later = LaterChanges(context, spans, instant)
    start = spans[0].start
    chunk: dict[bytes, dict[Key, Cell]] = {}
    size = 0
    for row in rows:
        chunk[row.row] = dict(row.cells)
        size += len(row.cells)
        if size >= CHUNK_CELLS:
            end = row.row + b"\0"
            yield from later.take_back(chunk, start, end)
            start, chunk, size = end, {}, 0
    yield from later.take_back(chunk, start, None)


class FirstChange(NamedTuple):
    """The commit timestamp of a key's first change since, and the version that it replaced."""

    timestamp: int
    replaced: int


@dataclass(eq=False)
class LaterChanges:
    """The changes of spans by transactions that decided after an instant, as far as known."""

    _context: Context
    _spans: Sequence[Span]
    _instant: Instant
    _known: set[bytes] = field(default_factory=set)
    _first: dict[Key, FirstChange] = field(default_factory=dict)

    def take_back(
        self, chunk: dict[bytes, dict[Key, Cell]], start: bytes, stop: bytes | None
    ) -> Iterator[Row]:
        """Yield the rows between start and stop as of the instant. chunk: as they were read.

        Of a key's changes the first is taken back. If the key was read after it, the listing sees
        it. If not, the listing may have passed it while it was undecided and see a later one. A
        cell older than that one shows it. An absent one does not, so the task lists again: whatever
        precedes a change of the first listing had decided before it, and the second one sees it.
        """
        self._read_changes()
        found = {
            key: chunk.setdefault(key.row, {}).get(key)
            for key in self._first
            if start <= key.row and (stop is None or key.row < stop)
        }
        changed = [key for key, cell in found.items() if not _precedes(cell, self._first[key])]
        if any(found[key] is None and self._first[key].replaced for key in changed):
            self._read_changes()
        replaced = {key: self._first[key].replaced for key in changed}
        old = self._read_versions({key: version for key, version in replaced.items() if version})
        for key in changed:
            chunk[key.row].pop(key, None)
        for key, cell in old.items():
            chunk[key.row][key] = cell
        for name in sorted(chunk):
            yield Row(name, dict(sorted(chunk[name].items())))

    def _read_changes(self) -> None:
        context, instant = self._context, self._instant
        seen = list(_list_placements(context, instant.low_ms))
        if context.clock.wall_ms() > instant.expires_ms:
            raise feed.ChangesLostError("the snapshot is older than transaction rows are kept for")
        if _sum_covered(instant, seen) != instant.covered:
            raise feed.ChangesLostError(
                "transaction rows from before the snapshot were deleted, or a server's clock was "
                "set back: read again"
            )
        new = [
            feed.Decided(each.at_ms, each.row_key)
            for each in seen
            if each.is_decided and each.row_key not in self._known and not instant.covers(each)
        ]
        for change in feed.read_changes(context, sorted(new), tables={self._spans[0].table}):
            place = bisect_right(self._spans, change.key.row, key=lambda span: span.start) - 1
            if place >= 0 and change.key in self._spans[place]:
                this = FirstChange(change.timestamp, change.replaced)
                self._first[change.key] = min(self._first.get(change.key, this), this)
        self._known.update(each.row_key for each in new)

    def _read_versions(self, wanted: Mapping[Key, int]) -> dict[Key, Cell]:
        keys, context = iter(wanted), self._context
        found: dict[Key, Cell] = {}
        while some := list(islice(keys, KEYS_AT_ONCE)):
            read = partial(context.store.read_versions, some, ALL_VERSIONS)
            for key, cells in call_store(context, read).items():
                cell = next((cell for cell in cells if cell.timestamp == wanted[key]), None)
                if cell is None:
                    raise ConflictError(GONE, key=key)
                found[key] = cell
        return found


def _precedes(cell: Cell | None, change: FirstChange) -> bool:
    return cell is not None and cell.timestamp < change.timestamp
