"""Statistics of the last hour, minute by minute, counted in steps.

A step reads STEP_ROWS of a minute. Until its end is reached, its numbers are lower bounds. A minute
is final once it is over and its transactions have ended; the last three are counted again each
time. A transaction counts in the minute in which it began, by its owner's clock. A fenced database
keeps no rows of transactions of one row and family, so these are not counted. Nothing here writes.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from random import Random
from typing import NamedTuple, TypeVar

from recovery.bounds import ReadLimits
from recovery.inspect import list_status_times
from recovery.scan import read_requests
from txn.errors import InvalidRequestError
from txn.locks.stored import OBJECTS, SESSIONS, TABLE
from txn.model import Key
from txn.protocol.context import Context
from txn.protocol.listing import find_buckets, name_time, scan_transactions, strip_bucket
from txn.protocol.row import FAMILY, TransactionRow, decode_row, is_row_key, parent_of
from txn.protocol.statuses import Status
from txn.text import unescape

T = TypeVar("T")

MINUTE_MS = 60_000
MINUTES = 60
RECENT = 3
"""The number of minutes, including the present one, that are counted again each time."""
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

STEP_ROWS = 2_000
SAMPLED_ROWS = 200
"""How many rows of a minute are kept for the times of their phases."""
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
    """The transactions that began in a minute, and their present states.

    taken_ms: when counting began. is_whole: all rows were read; otherwise each number is a lower
    bound. outcomes: how many committed, aborted, or may still go either way. statuses: how many
    have each now. reasons: why some were aborted, by the first words. conflicts: those that met
    another transaction, also by table, which is empty if the reason does not name it. keys: the
    most frequent ones in `whole_rows` requests of a sample. phases: the times (ms) between the
    statuses of the committed ones in a sample.
    """

    began_ms: int
    taken_ms: int
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
    """The last hour, as far as it was counted: the oldest minute first.

    as_of: the time of the last step, by our clock. keys, reasons, conflicts_by_table: as in
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
        """Return the number of minutes of which nothing was read yet."""
        return MINUTES - len(self.minutes)

    @property
    def whole_rows(self) -> int:
        return sum(minute.whole_rows for minute in self.minutes)

    @property
    def is_partial(self) -> bool:
        """Return True if its numbers are lower bounds, because not all rows were read."""
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


@dataclass(slots=True)
class _Count:
    """A count of a minute. position: where it goes on. sample: rows, each as likely as another."""

    began_ms: int
    taken_ms: int
    position: bytes
    started: int = 0
    statuses: Counter[Status | None] = field(default_factory=Counter)
    reasons: Counter[Reason] = field(default_factory=Counter)
    sample: list[TransactionRow] = field(default_factory=list)
    requests: Sequence[Sequence[Key]] = ()

    def add(self, row: TransactionRow, rng: Random) -> None:
        self.started += 1
        self.statuses[row.status] += 1
        if row.reason is not None and _find_outcome(row.status) == ABORTED:
            self.reasons[read_reason(row.reason)] += 1
        if len(self.sample) < SAMPLED_ROWS:
            self.sample.append(row)
        elif (place := rng.randrange(self.started)) < SAMPLED_ROWS:
            self.sample[place] = row

    def sum_up(self, *, is_whole: bool) -> Minute:
        outcomes, statuses, words = Counter[str](), Counter[str](), Counter[str]()
        tables, keys = Counter[bytes](), Counter(chain.from_iterable(self.requests))
        for status, number in self.statuses.items():
            outcomes[_find_outcome(status)] += number
            statuses[str(status or NO_STATUS)] += number
        for reason, number in self.reasons.items():
            words[reason.words] += number
            if reason.table is not None:
                tables[reason.table] += number
        return Minute(
            self.began_ms,
            self.taken_ms,
            is_whole,
            self.started,
            outcomes,
            statuses,
            words,
            tables.total(),
            tables,
            len(self.requests),
            Counter(dict(keys.most_common(KEPT_KEYS))),
            list_phases(self.sample),
        )


class Sampler:
    """The last hour of a store, counted again and again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._minutes: dict[int, Minute] = {}
        self._counts: dict[int, _Count] = {}

    def refresh(self, ms: int = 1_000) -> Hour:
        """Read a step of each of the last minutes, and, for about this time (ms), of others that
        are not final: at least of one, the newest of the unread first."""
        clock = self._context.clock
        due_ms = clock.monotonic_ms() + ms
        now = clock.wall_ms() // MINUTE_MS
        salt_buckets = find_buckets(self._context)
        minutes = [at * MINUTE_MS for at in range(now, now - MINUTES, -1)]
        self._minutes = {at: self._minutes[at] for at in minutes if at in self._minutes}
        self._counts = {at: self._counts[at] for at in minutes if at in self._counts}
        later = sorted(filter(self._is_due, minutes[RECENT:]), key=self._minutes.__contains__)
        queue = deque([*minutes[:RECENT], *later])
        steps = 0
        while queue and (steps <= RECENT or clock.monotonic_ms() < due_ms):
            steps += 1
            if not self._read_step(at := queue.popleft(), salt_buckets):
                queue.append(at)
        return sum_up(clock.wall_ms(), [self._minutes[at] for at in sorted(self._minutes)])

    def _is_due(self, at: int) -> bool:
        """Return True unless a minute was counted to its end after its transactions had ended."""
        known = self._minutes.get(at)
        return not (known and known.is_whole and known.taken_ms >= at + RECENT * MINUTE_MS)

    def _read_step(self, at: int, salt_buckets: Sequence[bytes]) -> bool:
        """Count on in a minute; return True at its end. A higher number stays until then."""
        context = self._context
        count = self._counts.pop(at, None) or _Count(at, context.clock.wall_ms(), name_time(at))
        end = name_time(at + MINUTE_MS)
        listed = scan_transactions(
            context,
            count.position,
            end,
            cells=OUTCOME_CELLS,
            with_parts=False,
            reverse=False,
            salt_buckets=salt_buckets,
        )
        some = list(islice(listed, STEP_ROWS))
        for row in some:
            if is_row_key(row.row) and parent_of(row.row) is None:
                count.add(decode_row(row), context.rng)
        if not count.requests:
            rows = [row.row_key for row in count.sample[:WHOLE_ROWS]]
            count.requests = list(self._read_keys(rows))
        is_whole, known = len(some) < STEP_ROWS, self._minutes.get(at)
        if not is_whole:
            count.position = strip_bucket(some[-1].row) + b"\0"
            self._counts[at] = count
        if is_whole or known is None or known.started <= count.started:
            self._minutes[at] = count.sum_up(is_whole=is_whole)
        return is_whole

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
