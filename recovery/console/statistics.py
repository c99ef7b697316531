"""Statistics of the last hour, minute by minute, estimated from a few rows of each.

The first and the last rows of a minute are read; the rest is assumed alike. A minute is final
once it is over and its transactions have ended; the last three are sampled again each time. A
transaction counts in the minute in which it began, by its owner's clock. A fenced database keeps no
rows of transactions of one row and family, so these are not counted. Nothing here writes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from typing import NamedTuple, TypeVar

from recovery.bounds import ReadLimits
from recovery.inspect import list_status_times
from recovery.scan import read_requests
from txn.errors import InvalidRequestError
from txn.locks.stored import OBJECTS, SESSIONS, TABLE
from txn.model import Key, Row
from txn.protocol.context import Context
from txn.protocol.listing import find_buckets, name_time, scan_transactions
from txn.protocol.row import FAMILY, TransactionRow, created_ms, decode_row, is_row_key, parent_of
from txn.protocol.statuses import Status
from txn.text import unescape

T = TypeVar("T")

MINUTE_MS = 60_000
MINUTES = 60
RECENT = 3
"""The number of minutes, including the present one, that are sampled again each time."""
OUTCOME_CELLS = [(FAMILY, name) for name in (b"status", b"reason", *(each.at for each in Status))]
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
OUTCOMES = COMMITTED, ABORTED, UNDECIDED = ("committed", "aborted", "undecided")

SAMPLED_ROWS = 200
"""How many rows of a minute are read for their statuses and reasons, over all salt buckets."""
WHOLE_ROWS = 40
WHOLE_BYTES = 256_000
"""How many rows of a minute, and bytes, are read for the keys of their requests."""
KEYS_OF_REQUEST = 100
LOCKS, LOCK_FAMILIES = TABLE.encode(), (OBJECTS.encode(), SESSIONS.encode())
KEPT_KEYS = 100
"""How many keys are counted of a request, and kept of a minute."""
MOST_NAMED = 20
"""How many keys, reasons and tables an hour names."""


Steps = tuple[Status, Status]
"""Two statuses that follow each other in a row; the time between them is a phase."""


class Latency(NamedTuple):
    """Percentiles (ms) of the time that a phase takes, and the number of times that they are of."""

    phase: str
    number: int
    p50: float
    p95: float
    p99: float


class Reason(NamedTuple):
    """The part of an abort's reason that is shared by others. table: of the conflict; None: there
    was none; empty: not known."""

    words: str
    table: bytes | None


@dataclass(frozen=True, slots=True)
class Minute:
    """The transactions that began in a minute, estimated from a sample, and their present states.

    taken_ms: when it was sampled. sampled: the number of rows read; is_whole: these were all.
    outcomes: how many committed, aborted, or may still go either way. statuses: how many have each
    now. reasons: why some were aborted, by the first words. conflicts: those that met another
    transaction, also by table, which is empty if the reason does not name it. keys: the most
    frequent ones in `whole_rows` requests, not estimated. phases: the times (ms) between the
    statuses of the committed ones in the sample.
    """

    began_ms: int
    taken_ms: int
    sampled: int
    is_whole: bool
    started: int
    outcomes: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    conflicts: int = 0
    conflicts_by_table: Counter[bytes] = field(default_factory=Counter)
    whole_rows: int = 0
    keys: Counter[Key] = field(default_factory=Counter)
    phases: Mapping[Steps, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hour:
    """The last hour, as far as it was sampled: the oldest minute first.

    as_of: the time of the last sample, by our clock. keys, reasons, conflicts_by_table: as in
    `Minute`, the most frequent first. phases: as in `Minute`, in order of time.
    """

    as_of: int
    minutes: Sequence[Minute] = ()
    keys: Sequence[tuple[Key, int]] = ()
    reasons: Sequence[tuple[str, int]] = ()
    conflicts_by_table: Sequence[tuple[bytes, int]] = ()
    phases: Mapping[Steps, Sequence[int]] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """Return the number of minutes that were not sampled yet."""
        return MINUTES - len(self.minutes)

    @property
    def whole_rows(self) -> int:
        return sum(minute.whole_rows for minute in self.minutes)

    @property
    def is_sampled(self) -> bool:
        """Return True if its numbers are estimates, because not all rows were read."""
        return not all(minute.is_whole for minute in self.minutes)


def sum_up(as_of: int, minutes: Sequence[Minute]) -> Hour:
    def rank(counts: Iterable[Counter[T]]) -> list[tuple[T, int]]:
        return sum(counts, Counter[T]()).most_common(MOST_NAMED)

    return Hour(
        as_of,
        minutes,
        rank(minute.keys for minute in minutes),
        rank(minute.reasons for minute in minutes),
        rank(minute.conflicts_by_table for minute in minutes),
        _join(minute.phases for minute in minutes),
    )


def _join(minutes: Iterable[Mapping[Steps, Sequence[int]]]) -> Mapping[Steps, Sequence[int]]:
    phases: dict[Steps, list[int]] = {}
    for steps, times in chain.from_iterable(each.items() for each in minutes):
        phases.setdefault(steps, []).extend(times)
    return {steps: phases[steps] for steps in sorted(phases, key=lambda pair: pair[0].value)}


def list_phases(rows: Iterable[TransactionRow]) -> Mapping[Steps, Sequence[int]]:
    """Return the times between the statuses of committed transactions, by the server's clock."""
    phases: dict[Steps, list[int]] = {}
    for row in rows:
        if row.status is not None and row.status.is_decided:
            for before, after in pairwise(list_status_times(row)):
                times = phases.setdefault((before.status, after.status), [])
                times.append(max(0, after.since - before.since))
    return phases


def measure_latency(phase: str, times: Sequence[int]) -> Latency:
    """Return the percentiles of at least one time: each is one of them."""
    order, number = sorted(times), len(times)
    p50, p95, p99 = (order[-(-share * number // 100) - 1] for share in (50, 95, 99))
    return Latency(phase, number, p50, p95, p99)


class Sampler:
    """The last hour of a store, sampled again and again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._minutes: dict[int, Minute] = {}

    def refresh(self, ms: int = 1_000) -> Hour:
        """Sample the last minutes, and, for about this time (ms), minutes that were not sampled
        yet: at least one, the newest first."""
        clock = self._context.clock
        due_ms = clock.monotonic_ms() + ms
        now = clock.wall_ms() // MINUTE_MS
        salt_buckets = find_buckets(self._context)
        minutes = [at * MINUTE_MS for at in range(now, now - MINUTES, -1)]
        self._minutes = {at: self._minutes[at] for at in minutes if at in self._minutes}
        for at in minutes[:RECENT]:
            self._minutes[at] = self._sample(at, salt_buckets)
        for at in minutes[RECENT:]:
            kept = self._minutes.get(at)
            if kept is None or kept.taken_ms < at + RECENT * MINUTE_MS:  # it was not final
                self._minutes[at] = self._sample(at, salt_buckets)
                if clock.monotonic_ms() >= due_ms:
                    break
        return sum_up(clock.wall_ms(), [self._minutes[at] for at in sorted(self._minutes)])

    def _list_rows(
        self, began_ms: int, taken_ms: int, salt_buckets: Sequence[bytes]
    ) -> tuple[Sequence[Row], float | None]:
        """Return the first and the last rows of a minute, of which only a part may have passed,
        and how many rows of the minute each stands for; None: these are all rows."""
        half = SAMPLED_ROWS // 2

        def take(reverse: bool) -> list[Row]:
            listed = scan_transactions(
                self._context,
                name_time(began_ms),
                name_time(began_ms + MINUTE_MS),
                cells=OUTCOME_CELLS,
                with_parts=False,
                reverse=reverse,
                salt_buckets=salt_buckets,
            )
            wanted = (row for row in listed if is_row_key(row.row) and parent_of(row.row) is None)
            return list(islice(wanted, half + 1))

        first = take(reverse=False)
        if len(first) <= half:
            return first, None
        last = take(reverse=True)
        if first[half].row in {row.row for row in last}:
            return list({row.row: row for row in chain(first, reversed(last))}.values()), None
        end_ms = max(min(taken_ms, began_ms + MINUTE_MS), created_ms(last[0].row))
        between_ms = created_ms(last[half].row) - created_ms(first[half].row)
        spent_ms = end_ms - began_ms
        return first[:half] + last[:half], spent_ms / max(1, spent_ms - between_ms)

    def _sample(self, began_ms: int, salt_buckets: Sequence[bytes]) -> Minute:
        taken_ms = self._context.clock.wall_ms()
        rows, estimated = self._list_rows(began_ms, taken_ms, salt_buckets)
        scale = estimated or 1

        def estimate(names: Iterable[T]) -> Counter[T]:
            return Counter({name: round(scale * n) for name, n in Counter(names).items()})

        found = list(map(decode_row, rows))
        aborted = (row for row in found if _find_outcome(row.status) == ABORTED)
        reasons = [read_reason(row.reason) for row in aborted if row.reason is not None]
        tables = [reason.table for reason in reasons if reason.table is not None]
        requests = list(self._read_keys([row.row for row in rows[:WHOLE_ROWS]]))
        keys = Counter(chain.from_iterable(requests))
        return Minute(
            began_ms,
            taken_ms,
            len(rows),
            estimated is None,
            started=round(scale * len(rows)),
            outcomes=estimate(_find_outcome(row.status) for row in found),
            statuses=estimate(str(row.status or NO_STATUS) for row in found),
            reasons=estimate(reason.words for reason in reasons),
            conflicts=round(scale * len(tables)),
            conflicts_by_table=estimate(tables),
            whole_rows=len(requests),
            keys=Counter(dict(keys.most_common(KEPT_KEYS))),
            phases=list_phases(found),
        )

    def _read_keys(self, row_keys: Sequence[bytes]) -> Iterator[Sequence[Key]]:
        """Yield the first keys of each row's request, without our own, up to the limit of bytes."""
        limits = ReadLimits(len(row_keys) + 1, WHOLE_BYTES)
        for _, buffer in read_requests(self._context, row_keys, limits):
            if buffer is not None:
                keys = buffer.request.keys[:KEYS_OF_REQUEST]
                yield [key for key in keys if not is_internal(self._context, key)]


def is_internal(context: Context, key: Key) -> bool:
    """Return True for a key of this library itself: the marker of a token, or a queue of locks."""
    is_lock = key.table == LOCKS and key.family in LOCK_FAMILIES
    return is_lock or key.table == context.table


def find_last_minute(hour: Hour) -> Minute | None:
    now = hour.as_of // MINUTE_MS
    return next((m for m in reversed(hour.minutes) if m.began_ms // MINUTE_MS < now), None)


def read_reason(reason: str) -> Reason:
    words = reason.partition(":")[0]
    if is_outdated := OVERTAKEN.match(reason):
        return Reason("value changed after read", _find_table(is_outdated["key"]))
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


def _find_outcome(status: Status | None) -> str:
    if status is None:
        return UNDECIDED
    if status is Status.ABORTED or status is Status.ABORTING:
        return ABORTED
    return COMMITTED if status.is_decided else UNDECIDED
