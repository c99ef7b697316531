"""Statistics of the last hour, minute by minute, counted in steps.

A step reads STEP_ROWS of a minute. Until its end is reached, its numbers are lower bounds. A minute
is final once it is over and its transactions have ended; the last three are counted again each
time. A transaction counts in the minute in which it began, by its owner's clock. A fenced database
keeps no rows of transactions within one region, so these are not counted. Nothing here writes.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
RECENT = 3  # the number of minutes, including the present one, that are counted again each time
OUTCOME_CELLS = [(FAMILY, name) for name in (b"status", b"reason", *(each.at for each in Status))]
CONFLICTS = (
    *("key is locked", "key of a scanned range is locked", "scanned rows keep changing"),
    *("deadline passed waiting for a lock", "others are always faster"),
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
SAMPLED_ROWS, SAMPLED_OF_HOUR = 200, 2_000  # of a minute; of an hour, for its phases
WHOLE_ROWS = 40
WHOLE_BYTES = 256_000  # rows of a minute, and bytes, that are read for the keys of their requests
KEYS_OF_REQUEST = 100
LOCKS, LOCK_FAMILIES = TABLE.encode(), (OBJECTS.encode(), SESSIONS.encode())
KEPT_KEYS = 100  # how many keys are counted of a request, and kept of a minute
MOST_NAMED = 20  # how many keys, reasons and tables an hour names

Steps = tuple[Status, Status]  # they follow each other in a row; the time between is a phase


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


@dataclass(slots=True)
class Minute:
    """The transactions that began in a minute, and their present states, as far as they were read.

    taken_ms: when counting began. position: where it goes on; None: all rows were read, otherwise
    each number is a lower bound. outcomes: how many committed, aborted, or may still go either way.
    statuses: how many have each now. reasons: why some were aborted, by the first words.
    conflicts_by_table: those that met another transaction; the table is empty if the reason does
    not name it. keys: the most frequent ones in `whole_rows` requests of a sample. sample: rows,
    each as likely as any other.
    """

    began_ms: int
    taken_ms: int
    position: bytes | None = None
    started: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    conflicts_by_table: Counter[bytes] = field(default_factory=Counter)
    whole_rows: int = 0
    keys: Counter[Key] = field(default_factory=Counter)
    sample: list[TransactionRow] = field(default_factory=list, compare=False)

    @property
    def is_whole(self) -> bool:
        return self.position is None

    @property
    def conflicts(self) -> int:
        return self.conflicts_by_table.total()

    def copy(self) -> Minute:
        """Return one that later rows do not change."""
        names = ("outcomes", "statuses", "reasons", "conflicts_by_table", "keys", "sample")
        return replace(self, **{name: getattr(self, name).copy() for name in names})

    def add(self, row: TransactionRow, rng: Random) -> None:
        self.started += 1
        is_decided = row.status is not None and row.status.is_decided
        outcome = COMMITTED if is_decided else UNDECIDED
        if row.status in (Status.ABORTED, Status.ABORTING):
            outcome = ABORTED
        self.outcomes[outcome] += 1
        self.statuses[str(row.status or NO_STATUS)] += 1
        if row.reason is not None and outcome == ABORTED:
            reason = read_reason(row.reason)
            self.reasons[reason.words] += 1
            if reason.table is not None:
                self.conflicts_by_table[reason.table] += 1
        if len(self.sample) < SAMPLED_ROWS:
            self.sample.append(row)
        elif (place := rng.randrange(self.started)) < SAMPLED_ROWS:
            self.sample[place] = row


@dataclass(frozen=True, slots=True)
class Hour:
    """The last hour, as far as it was counted: the oldest minute first.

    as_of: the time of the last step, by our clock. keys, reasons, conflicts_by_table: as in
    `Minute`, the most frequent first. phases: see `list_phases`, in order of time.
    """

    as_of: int
    minutes: Sequence[Minute] = ()
    keys: Sequence[tuple[Key, int]] = ()
    reasons: Sequence[tuple[str, int]] = ()
    conflicts_by_table: Sequence[tuple[bytes, int]] = ()
    phases: Mapping[Steps, Sequence[int]] = field(default_factory=dict)

    @property
    def last(self) -> Minute | None:
        """Return the newest minute that is over."""
        now = self.as_of // MINUTE_MS
        return next((m for m in reversed(self.minutes) if m.began_ms // MINUTE_MS < now), None)

    @property
    def missing(self) -> int:
        return MINUTES - len(self.minutes)

    @property
    def is_partial(self) -> bool:
        """Return True if its numbers are lower bounds, because not all rows were read."""
        return not all(minute.is_whole for minute in self.minutes)


def sum_up(as_of: int, minutes: Sequence[Minute]) -> Hour:
    def rank(counts: Iterable[Counter[T]]) -> list[tuple[T, int]]:
        return sum(counts, Counter[T]()).most_common(MOST_NAMED)

    rows = list(chain.from_iterable(minute.sample for minute in minutes))
    return Hour(
        as_of,
        minutes,
        rank(minute.keys for minute in minutes),
        rank(minute.reasons for minute in minutes),
        rank(minute.conflicts_by_table for minute in minutes),
        list_phases(rows[:: 1 + len(rows) // SAMPLED_OF_HOUR]),
    )


def list_phases(rows: Iterable[TransactionRow]) -> Mapping[Steps, Sequence[int]]:
    """Return the times (ms) between statuses of committed transactions, by the server's clock."""
    phases: dict[Steps, list[int]] = {}
    for row in rows:
        if row.status is not None and row.status.is_decided:
            for before, after in pairwise(list_status_times(row)):
                times = phases.setdefault((before.status, after.status), [])
                times.append(max(0, after.since - before.since))
    return {steps: phases[steps] for steps in sorted(phases, key=lambda pair: pair[0].value)}


def measure_latency(phase: str, times: Sequence[int]) -> Latency:
    """Return the percentiles of at least one time: each is one of them."""
    order, number = sorted(times), len(times)
    p50, p95, p99 = (order[-(-share * number // 100) - 1] for share in (50, 95, 99))
    return Latency(phase, number, p50, p95, p99)


class Sampler:
    """The last hour of a store, counted again and again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._minutes: dict[int, Minute] = {}
        self._begun: dict[int, Minute] = {}

    def refresh(self, ms: int = 1_000) -> Hour:
        """Read a step of each of the last minutes, and, for about this time (ms), of others that
        are not final: at least of one, the newest of the unread first."""
        clock = self._context.clock
        due_ms = clock.monotonic_ms() + ms
        now = clock.wall_ms() // MINUTE_MS
        salt_buckets = find_buckets(self._context)
        minutes = [at * MINUTE_MS for at in range(now, now - MINUTES, -1)]
        self._minutes = {at: self._minutes[at] for at in minutes if at in self._minutes}
        self._begun = {at: self._begun[at] for at in minutes if at in self._begun}
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
        found = self._begun.pop(at, None) or Minute(at, context.clock.wall_ms(), name_time(at))
        listed = scan_transactions(
            context,
            found.position or b"",
            name_time(at + MINUTE_MS),
            cells=OUTCOME_CELLS,
            with_parts=False,
            reverse=False,
            salt_buckets=salt_buckets,
        )
        rows = list(islice(listed, STEP_ROWS))
        for row in rows:
            if is_row_key(row.row) and parent_of(row.row) is None:
                found.add(decode_row(row), context.rng)
        if not found.whole_rows:
            requests = list(self._read_keys([row.row_key for row in found.sample[:WHOLE_ROWS]]))
            keys = Counter(chain.from_iterable(requests))
            found.whole_rows, found.keys = len(requests), Counter(dict(keys.most_common(KEPT_KEYS)))
        found.position = strip_bucket(rows[-1].row) + b"\0" if len(rows) == STEP_ROWS else None
        if not found.is_whole:
            self._begun[at] = found
        known = self._minutes.get(at)
        if found.is_whole or known is None or known.started <= found.started:
            self._minutes[at] = found.copy()
        return found.is_whole

    def _read_keys(self, row_keys: Sequence[bytes]) -> Iterator[Sequence[Key]]:
        """Yield the first keys of each row's request, without our own (the markers of tokens, the
        queues of locks), up to the limit of bytes."""
        limits, own = ReadLimits(len(row_keys) + 1, WHOLE_BYTES), self._context.table
        for _, buffer in read_requests(self._context, row_keys, limits):
            if buffer is not None:
                keys = [k for k in buffer.request.keys[:KEYS_OF_REQUEST] if k.table != own]
                yield [k for k in keys if k.table != LOCKS or k.family not in LOCK_FAMILIES]


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
