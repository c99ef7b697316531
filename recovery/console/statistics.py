"""Statistics of the last hour, minute by minute, estimated from a few rows of each.

The first rows of a minute are read; if there are more, the rest is assumed alike. A minute is final
once it is over and its transactions have ended; the last three are sampled again each time. A
transaction counts in the minute in which it began, by its owner's clock. A fenced database keeps no
rows of transactions of one row and family, so these are not counted. Nothing here writes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

from recovery.bounds import Budget, ReadLimits
from txn.errors import CorruptRowError, InvalidRequestError
from txn.model import Key, Row
from txn.protocol.codec import decode_buffer
from txn.protocol.context import Context, call_store
from txn.protocol.listing import find_buckets, name_time, scan_transactions
from txn.protocol.row import (
    FAMILY,
    TransactionRow,
    column,
    created_ms,
    decode_row,
    is_row_key,
    parent_of,
)
from txn.protocol.statuses import Status
from txn.request import Request
from txn.text import unescape

T = TypeVar("T")

MINUTE_MS = 60_000
MINUTES = 60
RECENT = 3
"""The number of minutes, including the present one, that are sampled again each time."""
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
"""The first words of a reason that names another transaction."""
OVERTAKEN = re.compile(
    r"assertion failed: assertion (?P<key>.+?) has (?:version \d+|no version), seen "
)
_KEY = re.compile(r": key (?P<key>.+?)(?:, holder .*)?\Z", re.DOTALL)
_MOST_WORDS = 80
NO_STATUS = "no status"


@dataclass(frozen=True, slots=True)
class SampleSize:
    """The limits of a minute's sample, over all buckets. rows: those whose status and reason are
    read; whole_rows, bytes_: those whose requests are read. most_keys: the keys counted per
    request; kept: the keys and reasons kept per minute; told: those reported for an hour."""

    rows: int = 200
    whole_rows: int = 40
    bytes_: int = 256_000
    most_keys: int = 100
    kept: int = 100
    told: int = 20


@dataclass(frozen=True, slots=True)
class Minute:
    """The transactions that began in a minute, estimated, and their present states.

    sampled: the number of rows read; is_whole: these were all. conflicts: the aborted ones that met
    another transaction, also by table, which is empty if the reason does not name it. undecided:
    these may go either way, or their state is unknown. statuses: how many have each now.
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

    as_of: the time of the last sample, by our clock. missing: minutes not sampled yet. keys: the
    most frequent ones in the requests that were read, from `whole_rows` rows. reasons: why
    transactions were aborted, by the first words, estimated. conflicts_by_table: estimated.
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
        """Return True if its numbers are estimates, because not all rows were read."""
        return not all(minute.is_whole for minute in self.minutes)


class Reason(NamedTuple):
    """The part of an abort's reason that is shared by others. table: of the conflict; None: there
    was none; empty: not known."""

    words: str
    table: bytes | None


@dataclass(frozen=True, slots=True)
class _Sample:
    """What was read of a minute, and when. reasons and tables are estimates for the whole minute;
    keys and whole_rows count only the requests that were read."""

    minute: Minute
    taken_ms: int
    reasons: Counter[str]
    whole_rows: int
    keys: Counter[Key]


class Sampler:
    """The last hour of a store. `hour` is the result of the last `refresh`."""

    def __init__(self, context: Context, size: SampleSize | None = None) -> None:
        self.hour = Hour(context.clock.wall_ms())
        self._context = context
        self._size = size or SampleSize()
        self._samples: dict[int, _Sample] = {}

    def refresh(self, ms: int = 1_000) -> Hour:
        """Sample the last minutes, and, for about this time (ms), minutes that were not sampled
        yet: at least one, the newest first."""
        clock = self._context.clock
        due_ms = clock.monotonic_ms() + ms
        now = clock.wall_ms() // MINUTE_MS
        salt_buckets = find_buckets(self._context)
        minutes = [at * MINUTE_MS for at in range(now, now - MINUTES, -1)]
        self._samples = {at: self._samples[at] for at in minutes if at in self._samples}
        for at in minutes[:RECENT]:
            self._samples[at] = self._sample(at, salt_buckets)
        for at in minutes[RECENT:]:
            if not self._has_settled(at):
                self._samples[at] = self._sample(at, salt_buckets)
                if clock.monotonic_ms() >= due_ms:
                    break
        self.hour = self._sum_up(clock.wall_ms())
        return self.hour

    def _has_settled(self, began_ms: int) -> bool:
        sample = self._samples.get(began_ms)
        return sample is not None and sample.taken_ms >= began_ms + RECENT * MINUTE_MS

    def _sample(self, began_ms: int, salt_buckets: Sequence[bytes]) -> _Sample:
        taken_ms = self._context.clock.wall_ms()
        listed = scan_transactions(
            self._context,
            name_time(began_ms),
            name_time(began_ms + MINUTE_MS),
            cells=OUTCOME_CELLS,
            with_parts=False,
            reverse=False,
            salt_buckets=salt_buckets,
        )
        wanted = (row for row in listed if is_row_key(row.row) and parent_of(row.row) is None)
        rows = list(islice(wanted, self._size.rows + 1))
        is_whole = len(rows) <= self._size.rows
        covered_ms = MINUTE_MS if is_whole else created_ms(rows.pop().row) - began_ms
        scale = MINUTE_MS / max(1, covered_ms)
        reasons, minute = _make_minute(began_ms, is_whole, scale, list(map(decode_row, rows)))
        keys: Counter[Key] = Counter()
        whole_rows = 0
        row_keys = [row.row for row in rows[: self._size.whole_rows]]
        for request in self._read_requests(row_keys):
            whole_rows += 1
            keys.update(islice(request.keys, self._size.most_keys))
        kept = self._size.kept
        return _Sample(
            minute,
            taken_ms,
            Counter(dict(reasons.most_common(kept))),
            whole_rows,
            Counter(dict(keys.most_common(kept))),
        )

    def _read_requests(self, row_keys: Sequence[bytes]) -> Iterator[Request]:
        """Yield the requests of these rows, up to the limit of bytes. The first reads are small,
        since one request may have ten megabytes."""
        budget = Budget(self._context.clock, ReadLimits(len(row_keys) + 1, self._size.bytes_))
        for some in budget.divide(row_keys):
            if budget.over:
                break
            asked = [column(self._context.table, row, b"buffer") for row in some]
            cells = call_store(self._context, partial(self._context.store.read, asked))
            for key, cell in cells.items():
                if cell is not None:
                    budget.spend(Row(key.row, {key: cell}))
                    with suppress(CorruptRowError):  # `fsck` reports it
                        yield decode_buffer(cell.value).request

    def _sum_up(self, now_ms: int) -> Hour:
        samples = [self._samples[at] for at in sorted(self._samples)]
        keys: Counter[Key] = Counter()
        reasons: Counter[str] = Counter()
        tables: Counter[bytes] = Counter()
        for each in samples:
            keys.update(each.keys)
            reasons.update(each.reasons)
            tables.update(each.minute.conflicts_by_table)
        most = self._size.told
        return Hour(
            now_ms,
            tuple(each.minute for each in samples),
            MINUTES - len(samples),
            sum(each.whole_rows for each in samples),
            tuple(keys.most_common(most)),
            tuple(reasons.most_common(most)),
            tuple(tables.most_common(most)),
        )


def find_last_minute(hour: Hour) -> Minute | None:
    now = hour.as_of // MINUTE_MS
    return next((m for m in reversed(hour.minutes) if m.began_ms // MINUTE_MS < now), None)


def read_reason(reason: str) -> Reason:
    words = reason.partition(":")[0]
    if is_outdated := OVERTAKEN.match(reason):
        return Reason("what was read has changed", _find_table(is_outdated["key"]))
    if words not in CONFLICTS:
        return Reason(words[:_MOST_WORDS], None)
    match = _KEY.search(reason)
    return Reason(words, _find_table(match["key"]) if match else b"")


def _find_table(key: str) -> bytes:
    table, slash, _ = key.partition("/")
    try:
        return unescape(table) if slash else b""
    except InvalidRequestError:  # not a key
        return b""


def _make_minute(
    began_ms: int, is_whole: bool, scale: float, rows: Sequence[TransactionRow]
) -> tuple[Counter[str], Minute]:
    def estimate(counts: Mapping[T, int]) -> Counter[T]:
        return Counter({name: round(scale * number) for name, number in counts.items()})

    outcomes = [_find_outcome(row.status) for row in rows]
    found = estimate(Counter(outcomes))
    reasons = [
        read_reason(row.reason)
        for row, outcome in zip(rows, outcomes, strict=True)
        if outcome == "aborted" and row.reason is not None
    ]
    tables = [reason.table for reason in reasons if reason.table is not None]
    minute = Minute(
        began_ms,
        len(rows),
        is_whole,
        started=round(scale * len(rows)),
        committed=found["committed"],
        aborted=found["aborted"],
        undecided=found["undecided"],
        conflicts=round(scale * len(tables)),
        conflicts_by_table=estimate(Counter(tables)),
        statuses=estimate(Counter(str(row.status or NO_STATUS) for row in rows)),
    )
    return estimate(Counter(reason.words for reason in reasons)), minute


def _find_outcome(status: Status | None) -> str:
    if status is None:
        return "undecided"
    if status is Status.ABORTED or status is Status.ABORTING:
        return "aborted"
    return "committed" if status.is_decided else "undecided"
