"""The owners of unfinished transactions: which are dead, and which transaction waits for which.

The lock TTL and the keys of a transaction are in its request, which may have ten megabytes. So each
refresh reads some requests within limits, and keeps what it needs of them. Nothing here writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from recovery.bounds import ReadLimits
from recovery.console.search import Unfinished
from recovery.findings import GRACE_MS, Kind, find_silence_ms
from recovery.inspect import read_available
from recovery.scan import BY_VALUE, Head, read_requests
from txn.model import Key
from txn.policy import Policy
from txn.protocol.context import Context, call_store
from txn.protocol.locks import holder_of
from txn.protocol.row import is_row_key, parent_of, status_key
from txn.protocol.statuses import Status
from txn.protocol.transaction import Transaction

QUICK_MS = 1_000  # requests of transactions that are younger in their status are not read
LIMITS = ReadLimits(rows=200, bytes_=4_000_000, ms=300)
MOST_WAITERS = 100
KEYS_OF_WAITER = 20  # read of each of the MOST_WAITERS that are known at once
LOCKING = (Status.WRITTEN, Status.PART)  # the statuses of a transaction that takes its locks


@dataclass(frozen=True, slots=True)
class LeftTransactions:
    """The unfinished transactions whose owner is dead: a check would find them.

    kinds: their number, by what `fsck` calls them. as_of: when the count of the unfinished began.
    since: the last sign of life of the oldest. is_estimate: whether there may be more, or some have
    a lock TTL that was not read.
    """

    kinds: Mapping[Kind, int]
    as_of: int
    since: int
    is_estimate: bool

    @property
    def total(self) -> int:
        return sum(self.kinds.values())


@dataclass(slots=True, eq=False)
class WaitingTransaction:
    """A transaction, and those that wait for it.

    status: None if its row has none. key, holder: the lock that it waits for, and the transaction
    that holds it; None if it waits for none. is_left: whether its owner is dead. closes_cycle:
    whether its holder is among those that wait for it.
    """

    row_key: bytes
    status: Status | None
    is_left: bool
    key: Key | None = None
    holder: bytes | None = None
    closes_cycle: bool = False
    waiters: list[WaitingTransaction] = field(default_factory=list)


class Owners:
    """left, waiting: what the last refresh found; of those that wait, the ones that wait for none
    come first, and each contains its waiters."""

    def __init__(self, context: Context) -> None:
        self.left: LeftTransactions | None = None
        self.waiting: Sequence[WaitingTransaction] = ()
        self._context = context
        self._ttls: dict[bytes, int | None] = {}
        self._keys: dict[bytes, Sequence[Key]] = {}

    def refresh(self, unfinished: Unfinished) -> None:
        """Judge the owners by the time when the count began, since later heartbeats may not have
        been read; and find who waits by the present locks."""
        now_ms, as_of = self._context.clock.wall_ms(), unfinished.as_of
        heads = {head.row_key: head for head in unfinished.heads}
        self._ttls = {row_key: ttl for row_key, ttl in self._ttls.items() if row_key in heads}
        old = [head for head in heads.values() if head.since <= now_ms - QUICK_MS]
        old.sort(key=lambda head: head.since)
        self._read_requests(heads, old, as_of)
        left = {head.row_key for head in old if self._is_left(heads, head, as_of)}
        alone = (head for head in old if parent_of(head.row_key) not in heads)
        counted = [head for head in alone if head.row_key in left]
        kinds = Counter[Kind]()
        for status in (head.status for head in counted):
            begun = Kind.DECIDED if status.is_decided else Kind.ABORTING
            kinds[Kind.UNDECIDED if status.is_undecided else begun] += 1
        is_exact = unfinished.has_all and all(self._ttls.get(head.row_key) for head in counted)
        since_ms = min((head.find_alive_ms(as_of, GRACE_MS) for head in counted), default=as_of)
        self.left = LeftTransactions(kinds, as_of, since_ms, not is_exact)
        keys = self._keys.items()
        self._keys = {row: some for row, some in keys if row in heads and row not in left}
        waiters = self._find_waiters()
        holders = {each.holder for each in waiters if each.holder} - {w.row_key for w in waiters}
        statuses = self._read_statuses(holders)
        others = (
            WaitingTransaction(row_key, statuses.get(row_key), row_key in left)
            for row_key in sorted(holders)
        )
        self.waiting = make_trees([*others, *waiters])

    def _read_requests(self, heads: Mapping[bytes, Head], old: Sequence[Head], as_of: int) -> None:
        unread = [head.row_key for head in old if head.row_key not in self._ttls]
        for row_key, buffer in read_requests(self._context, unread[: LIMITS.rows], LIMITS):
            self._ttls[row_key] = buffer.lock_ttl_ms if buffer else None
            head = heads[row_key]
            may_wait = head.status in LOCKING and not self._is_left(heads, head, as_of)
            if buffer and may_wait and len(self._keys) < MOST_WAITERS:
                t = Transaction(row_key, buffer.request, lock_of=self._context.rules.lock_of)
                self._keys[row_key] = sorted(t.taken_keys)[:KEYS_OF_WAITER]

    def _is_left(self, heads: Mapping[bytes, Head], head: Head, as_of: int) -> bool:
        """Return True if a check with its usual grace would find the transaction. The heartbeats of
        a part are in the row of its transaction. A TTL that was not read counts as usual."""
        both = head, heads.get(parent_of(head.row_key) or b"", head)
        alive_ms = max(each.find_alive_ms(as_of, GRACE_MS) for each in both)
        ttl_ms = max(self._ttls.get(each.row_key) or Policy().lock_ttl_ms for each in both)
        is_undecided = head.status.is_undecided
        return as_of - alive_ms >= (find_silence_ms(GRACE_MS, ttl_ms) if is_undecided else GRACE_MS)

    def _find_waiters(self) -> list[WaitingTransaction]:
        """Return the transactions that wait: for the first of their locks, in the order of keys,
        that another transaction holds. Statuses are read after the locks, so one that still takes
        its locks did so when these were read."""
        if not self._keys:
            return []
        lock_of = self._context.rules.lock_of
        locks = {lock_of(key) for keys in self._keys.values() for key in keys}
        cells = read_available(self._context, locks, self._context.store.read)
        statuses = self._read_statuses(self._keys)
        waiters = []
        for row_key, keys in self._keys.items():
            status = statuses.get(row_key)
            holders = ((key, holder_of(lock_of(key), cells.get(lock_of(key)))) for key in keys)
            key, holder = next(((k, h) for k, h in holders if h != row_key), (None, b""))
            if status in LOCKING and is_row_key(holder):
                waiters.append(WaitingTransaction(row_key, status, False, key, holder))
        return waiters

    def _read_statuses(self, row_keys: Collection[bytes]) -> Mapping[bytes, Status]:
        if not row_keys:
            return {}
        wanted = [status_key(self._context.table, row_key) for row_key in row_keys]
        cells = call_store(self._context, partial(self._context.store.read, wanted))
        return {
            key.row: BY_VALUE[cell.value]
            for key, cell in cells.items()
            if cell is not None and cell.value in BY_VALUE
        }


def make_trees(found: Sequence[WaitingTransaction]) -> list[WaitingTransaction]:
    """Put each transaction among the waiters of its holder, and return the others. A cycle begins
    with one of its transactions, which `closes_cycle`."""
    known = {each.row_key: each for each in found}
    for each in found:
        if each.holder is not None:
            known[each.holder].waiters.append(each)
    roots = [each for each in found if each.holder is None]
    reached = _list_names(roots)
    for each in found:
        if each.row_key not in reached:
            first, passed = each, set[bytes]()
            while first.row_key not in passed:  # then it is on the cycle that this one waits for
                passed.add(first.row_key)
                first = known[first.holder or b""]
            first.closes_cycle = True
            known[first.holder or b""].waiters.remove(first)
            roots.append(first)
            reached |= _list_names([first])
    return roots


def _list_names(roots: Sequence[WaitingTransaction]) -> set[bytes]:
    names, due = set[bytes](), [*roots]
    while due:
        each = due.pop()
        names.add(each.row_key)
        due += each.waiters
    return names
