"""Statistics of the last hour, minute by minute, estimated from a few rows of each.

Of a minute the first rows are read; if there are more, the minute is taken to go on as it began. A
minute that is over, and whose transactions have ended, is sampled once and kept; the last three
are sampled again each time. A transaction counts in the minute in which it was begun by its owner's
clock. A fenced database keeps no rows of transactions of one row and family: these are not counted.
Nothing here writes.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from recovery.bounds import Budget, LookLimits
from txn.errors import CorruptRowError, InvalidRequestError
from txn.model import Key, Row
from txn.protocol.attempt import Context, call_store
from txn.protocol.listing import find_buckets, name_time, scan_transactions
from txn.protocol.phases import Status
from txn.protocol.row import (
    FAMILY,
    TransactionRow,
    column,
    created_ms,
    decode_buffer,
    decode_row,
    is_row_key,
    whole_of,
)
from txn.text import unescape

T = TypeVar("T")

MINUTE_MS = 60_000
MINUTES = 60
RECENT = 3
"""So many minutes, with the one under way, are sampled again each time."""
OUTCOME_CELLS = [(FAMILY, b"status"), (FAMILY, b"reason")]
CONFLICTS = frozenset(
    {
        "key is locked",
        "key of a scanned range is locked",
        "scanned rows keep changing",
        "deadline passed waiting for a lock",
        "others are always faster",
    }
)
"""With which words a reason begins where another transaction was in the way."""
OVERTAKEN = re.compile(
    r"assertion failed: assertion (?P<key>.+?) has (?:version \d+|no version), seen "
)
_KEY = re.compile(r": key (?P<key>.+?)(?:, holder .*)?\Z", re.DOTALL)
_MOST_WORDS = 80
NO_STATUS = "no status"


@dataclass(frozen=True, slots=True)
class SampleSize:
    """How much is read of a minute, in all buckets: rows of which the status and the reason, and
    rows whose requests are read, up to these bytes. most_keys: how many keys of a request count;
    kept: how many keys and reasons are kept of a minute, and told of an hour."""

    rows: int = 200
    whole_rows: int = 40
    bytes_: int = 256_000
    most_keys: int = 100
    kept: int = 100
    told: int = 20


@dataclass(frozen=True, slots=True)
class Minute:
    """What was begun in a minute, estimated, and what has become of it since.

    sampled: how many rows were read for that; is_whole: they were all that there are. conflicts: of
    the aborted those that met another transaction, and by the table where they did, which is
    empty where the reason does not name it. undecided: they may go either way, or nobody knows.
    statuses: how many have each by now.
    """

    began_ms: int
    sampled: int
    is_whole: bool
    started: int
    committed: int
    aborted: int
    undecided: int
    conflicts: int
    conflicts_by_table: Mapping[bytes, int]
    statuses: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Hour:
    """The last hour, as far as it was sampled: the oldest minute first.

    as_of: when it was sampled last, by our clock. missing: how many minutes were not sampled yet.
    keys: which were named most often, in the requests that were read, whole_rows of them. reasons:
    why transactions were aborted, estimated, by the first words. conflicts_by_table: estimated.
    """

    as_of: int
    minutes: tuple[Minute, ...] = ()
    missing: int = MINUTES
    whole_rows: int = 0
    keys: tuple[tuple[Key, int], ...] = ()
    reasons: tuple[tuple[str, int], ...] = ()
    conflicts_by_table: tuple[tuple[bytes, int], ...] = ()

    @property
    def is_sampled(self) -> bool:
        """Whether it has rows that were not read, so that its numbers are estimates."""
        return self.missing > 0 or not all(minute.is_whole for minute in self.minutes)


class Reason(NamedTuple):
    """Why a transaction was aborted, in the words that it has in common with others; table: where
    it met another one; None: it did not, and empty: nobody knows where."""

    words: str
    table: bytes | None


def _make_weights() -> defaultdict[Any, float]:
    return defaultdict(float)


@dataclass(slots=True)
class _Sample:
    """What was read of a minute. The counts are estimates for all of it."""

    began_ms: int
    taken_ms: int
    sampled: int = 0
    whole_rows: int = 0
    is_whole: bool = True
    outcomes: defaultdict[str, float] = field(default_factory=_make_weights)
    statuses: defaultdict[str, float] = field(default_factory=_make_weights)
    tables: defaultdict[bytes, float] = field(default_factory=_make_weights)
    reasons: defaultdict[str, float] = field(default_factory=_make_weights)
    keys: Counter[Key] = field(default_factory=Counter)

    def trim(self, kept: int) -> None:
        """Keep what came most often."""
        self.reasons = defaultdict(float, _list_most(self.reasons, kept))
        self.keys = Counter(dict(self.keys.most_common(kept)))


class Sampler:
    """The last hour of a store. `hour` is what the last `refresh` has found."""

    def __init__(self, context: Context, size: SampleSize | None = None) -> None:
        self.hour = Hour(context.clock.wall_ms())
        self._context = context
        self._size = size or SampleSize()
        self._samples: dict[int, _Sample] = {}

    def refresh(self, ms: int = 1_000) -> Hour:
        """Sample the last minutes, and for about this time those that were not sampled yet, the
        newest first; at least one of these."""
        clock = self._context.clock
        due_ms = clock.monotonic_ms() + ms
        now = clock.wall_ms() // MINUTE_MS
        buckets = find_buckets(self._context)
        minutes = [at * MINUTE_MS for at in range(now, now - MINUTES, -1)]
        self._samples = {at: self._samples[at] for at in minutes if at in self._samples}
        for at in minutes[:RECENT]:
            self._samples[at] = self._sample(at, buckets)
        for at in minutes[RECENT:]:
            if not self._has_settled(at):
                self._samples[at] = self._sample(at, buckets)
                if clock.monotonic_ms() >= due_ms:
                    break
        self.hour = self._sum_up(clock.wall_ms())
        return self.hour

    def _has_settled(self, began_ms: int) -> bool:
        sample = self._samples.get(began_ms)
        return sample is not None and sample.taken_ms >= began_ms + RECENT * MINUTE_MS

    # ------------------------------------------------------------------------------ sampling

    def _sample(self, began_ms: int, buckets: Sequence[bytes]) -> _Sample:
        found = _Sample(began_ms, self._context.clock.wall_ms())
        low, high = name_time(began_ms), name_time(began_ms + MINUTE_MS)
        listed = scan_transactions(
            self._context,
            low,
            high,
            cells=OUTCOME_CELLS,
            with_parts=False,
            reverse=False,
            buckets=buckets,
        )
        wanted = (row for row in listed if is_row_key(row.row) and whole_of(row.row) is None)
        rows = list(islice(wanted, self._size.rows + 1))
        found.is_whole = len(rows) <= self._size.rows
        covered_ms = MINUTE_MS if found.is_whole else created_ms(rows.pop().row) - began_ms
        found.sampled = len(rows)
        for row in map(decode_row, rows):
            _count_outcome(found, row, MINUTE_MS / max(1, covered_ms))
        row_keys = [row.row for row in rows[: self._size.whole_rows]]
        self._sample_requests(found, row_keys, self._size.bytes_)
        found.trim(self._size.kept)
        return found

    def _sample_requests(self, found: _Sample, row_keys: Sequence[bytes], bytes_: int) -> None:
        """Count what the requests of these rows name, until there are so many bytes: few of them
        are read at first, since one may have ten megabytes."""
        budget = Budget(self._context.clock, LookLimits(len(row_keys) + 1, bytes_))
        for some in budget.divide(row_keys):
            if budget.over:
                break
            asked = [column(self._context.table, row, b"buffer") for row in some]
            cells = call_store(self._context, partial(self._context.store.read, asked))
            for key, cell in cells.items():
                if cell is not None:
                    budget.spend(Row(key.row, {key: cell}))
                    self._count_request(found, cell.value)

    def _count_request(self, found: _Sample, encoded: bytes) -> None:
        try:
            request = decode_buffer(encoded).request
        except CorruptRowError:  # `fsck` tells of it
            return
        found.whole_rows += 1
        found.keys.update(islice(request.keys, self._size.most_keys))

    # ------------------------------------------------------------------------------- results

    def _sum_up(self, now_ms: int) -> Hour:
        samples = [self._samples[at] for at in sorted(self._samples)]
        keys: Counter[Key] = Counter()
        reasons: defaultdict[str, float] = _make_weights()
        tables: defaultdict[bytes, float] = _make_weights()
        for each in samples:
            keys.update(each.keys)
            _add_weights(reasons, each.reasons)
            _add_weights(tables, each.tables)
        told = self._size.told
        return Hour(
            now_ms,
            tuple(map(_make_minute, samples)),
            MINUTES - len(samples),
            sum(each.whole_rows for each in samples),
            tuple(keys.most_common(told)),
            tuple((words, round(number)) for words, number in _list_most(reasons, told)),
            tuple((table, round(number)) for table, number in _list_most(tables, told)),
        )


def find_last_minute(hour: Hour) -> Minute | None:
    """Return the last minute that is over; None where none was sampled yet."""
    now = hour.as_of // MINUTE_MS
    return next((m for m in reversed(hour.minutes) if m.began_ms // MINUTE_MS < now), None)


def read_reason(reason: str) -> Reason:
    """Return what a reason, as rows keep it, has in common with others."""
    words = reason.partition(":")[0]
    if overtaken := OVERTAKEN.match(reason):
        return Reason("what was read has changed", _find_table(overtaken["key"]))
    if words not in CONFLICTS:
        return Reason(words[:_MOST_WORDS], None)
    match = _KEY.search(reason)
    return Reason(words, _find_table(match["key"]) if match else b"")


def _find_table(key: str) -> bytes:
    table, slash, _ = key.partition("/")
    try:
        return unescape(table) if slash else b""
    except InvalidRequestError:  # it is no key
        return b""


def _count_outcome(found: _Sample, row: TransactionRow, scale: float) -> None:
    name = _find_outcome(row.status)
    found.outcomes["started"] += scale
    found.outcomes[name] += scale
    found.statuses[str(row.status or NO_STATUS)] += scale
    if name != "aborted" or row.reason is None:
        return
    reason = read_reason(row.reason)
    found.reasons[reason.words] += scale
    if reason.table is not None:
        found.outcomes["conflicts"] += scale
        found.tables[reason.table] += scale


def _add_weights(total: defaultdict[T, float], some: Mapping[T, float]) -> None:
    for name, number in some.items():
        total[name] += number


def _list_most(weights: Mapping[T, float], most: int) -> list[tuple[T, float]]:
    return heapq.nlargest(most, weights.items(), key=itemgetter(1))


def _find_outcome(status: Status | None) -> str:
    if status is None:
        return "undecided"
    if status is Status.ABORTED or status is Status.ABORTING:
        return "aborted"
    return "committed" if status.is_decided else "undecided"


def _make_minute(sample: _Sample) -> Minute:
    told = {name: round(number) for name, number in sample.outcomes.items()}
    return Minute(
        sample.began_ms,
        sample.sampled,
        sample.is_whole,
        started=told.get("started", 0),
        committed=told.get("committed", 0),
        aborted=told.get("aborted", 0),
        undecided=told.get("undecided", 0),
        conflicts=told.get("conflicts", 0),
        conflicts_by_table={table: round(number) for table, number in sample.tables.items()},
        statuses={name: round(number) for name, number in sample.statuses.items()},
    )
