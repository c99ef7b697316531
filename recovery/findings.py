"""The kinds of findings: the meaning, the repair and the severity of each.

A finding is plain data, and may be outdated: `fsck.repair` reads again before it acts.
`judge` returns the finding for a transaction row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, assert_never

from recovery.scan import OnProgress, OnRow, newest_old_ms, trust_heartbeat
from txn.documents import Document
from txn.model import Key
from txn.protocol.row import RowState, TransactionRow
from txn.text import escape, key_text

GRACE_MS = 60_000
RETENTION_MS = 24 * 3_600_000
LONGEST_REQUEST_MS = 3_600_000
"""The longest life of a request: a gateway repeats one for 20 minutes, and its sender may have
been stopped. A shorter retention is safe only while no client is at work."""


class Severity(Enum):
    """What a finding requires."""

    CLEAN = "clean"  # nothing is wrong: repair removes garbage
    REPAIRABLE = "repairable"  # a client stopped half-way: repair finishes or undoes its work
    REPORT_ONLY = "report-only"  # a person has to decide: repair changes nothing


class Kind(Enum):
    """The kind of a finding: its word, its severity, its meaning for an operator, the repair."""

    UNDECIDED = (
        ("undecided", Severity.REPAIRABLE),
        "its owner has been silent for the grace and its lock TTL, and has not decided",
        "abort it and release its locks; it has written nothing",
    )
    DECIDED = (
        ("decided", Severity.REPAIRABLE),
        "it is committed, and its owner stopped before completing it",
        "roll it forward: put its values, clear its tags, release its locks",
    )
    ABORTING = (
        ("aborting", Severity.REPAIRABLE),
        "it will not commit, and some of its locks are not released",
        "release the rest of its locks",
    )
    EXPIRED = (
        ("expired", Severity.CLEAN),
        "it finished longer ago than the retention",
        "delete its row",
    )
    DEBRIS = (
        ("debris", Severity.CLEAN),
        "cells of a transaction row that was deleted longer ago than the retention",
        "delete them",
    )
    UNREADABLE = (
        ("unreadable", Severity.REPORT_ONLY),
        "its row does not decode, contradicts itself or a part, or is newer; it may be committed",
        "nothing: it is kept with its locks; a newer version may read it, `txn purge` deletes it",
    )
    EXPIRED_MARKER = (
        ("expired-marker", Severity.CLEAN),
        "a `once` token whose promised time, and the retention, have passed",
        "delete its marker: the token is forgotten",
    )
    ORPHAN_LOCK = (
        ("orphan-lock", Severity.REPAIRABLE),
        "a lock whose holder is finished or has no row",
        "release it; first mark a holder without a row as aborted",
    )
    STALE_TAG = (
        ("stale-tag", Severity.REPAIRABLE),
        "a tag that a finished transaction or a late request left",
        "empty it, at its own timestamp",
    )
    VACANT_KEY = (
        ("vacant-key", Severity.CLEAN),
        "the lock and tag of a key without a value, unchanged for longer than the retention",
        "retire the key: delete both under its lock",
    )
    FOREIGN_LOCK = (
        ("foreign-lock", Severity.REPORT_ONLY),
        "a lock of another database, which its holder's row key names after the `@`",
        "nothing: check that database, with `--transactions`",
    )
    FOREIGN_CELL = (
        ("foreign-cell", Severity.REPORT_ONLY),
        "a lock, tag or token marker with a value that the protocol never writes",
        "nothing: it may be application data",
    )
    FOREIGN_VERSION = (
        ("foreign-version", Severity.REPORT_ONLY),
        "the newest version is not the one that the last transaction on this key left",
        "nothing: another program wrote or deleted it, perhaps on purpose; the next commit ends it",
    )
    FOREIGN_ROW = (
        ("foreign-row", Severity.REPORT_ONLY),
        "a row of the transaction table that this library did not write",
        "nothing: it may be application data, written to this table by mistake",
    )
    FUTURE_CELL = (
        ("future-cell", Severity.REPORT_ONLY),
        "a timestamp or row key from the future: a clock was wrong, or this one is behind",
        "nothing: commits follow times up to 30 days ahead, refuse later ones; it ends at `until`",
    )

    severity: Severity
    meaning: str
    remedy: str

    def __new__(cls, named: tuple[str, Severity], meaning: str, remedy: str) -> Kind:
        kind = object.__new__(cls)
        kind._value_, kind.severity = named
        kind.meaning, kind.remedy = meaning, remedy
        return kind


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference from what finished transactions leave.

    transaction: the row key of the transaction, or of a lock's holder; None if there is none.
    key: the data key; None for findings in the transaction table.
    facts: what was seen, by name: text, numbers or bytes. Times are timestamps in ms.
    """

    kind: Kind
    transaction: bytes | None = None
    key: Key | None = None
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class InGrace:
    """Unfinished items within the grace period: not findings, since live clients leave them too.

    counts: by the kind of finding that they would be. oldest_ms: the longest silence among them.
    """

    counts: Counter[Kind] = field(default_factory=Counter)
    oldest_ms: int = 0

    def add(self, kind: Kind, silent_ms: int) -> None:
        self.counts[kind] += 1
        self.oldest_ms = max(self.oldest_ms, silent_ms)

    def merge(self, other: InGrace) -> None:
        self.counts.update(other.counts)
        self.oldest_ms = max(self.oldest_ms, other.oldest_ms)


class Ages(NamedTuple):
    """How long a transaction must have been silent (an undecided one at least for its lock TTL),
    and how long finished rows are kept, in ms."""

    grace_ms: int = GRACE_MS
    retention_ms: int = RETENTION_MS


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """The ages by which a check judges, and its callbacks: see `fsck.check`."""

    ages: Ages
    on_row: OnRow = lambda table: None
    young: InGrace = field(default_factory=InGrace)
    on_progress: OnProgress = lambda table, row: None


def judge(
    row: TransactionRow, now_ms: int, grace_ms: int = GRACE_MS, retention_ms: int = RETENTION_MS
) -> Finding | None:
    at, age_ms, facts = find_alive_ms(row, now_ms, grace_ms), grace_ms, list_facts(row)
    if row.state is RowState.UNDECIDED:
        age_ms = find_silence_ms(grace_ms, row.lock_ttl_ms)
    match row.state:
        case RowState.FINISHED:
            kind, at, age_ms = Kind.EXPIRED, row.since, retention_ms
        case RowState.DEBRIS:
            kind, at, age_ms, facts = Kind.DEBRIS, row.newest, retention_ms, {"newest": row.newest}
        case RowState.UNREADABLE:
            kind = Kind.UNREADABLE
            facts |= list_owner(row) | {"status": str(row.stored_status), "cause": row.cause}
        case RowState.UNDECIDED | RowState.DECIDED | RowState.ABORTING as state:
            kind = Kind[state.name]
            facts |= list_owner(row) | {"silent_ms": max(0, now_ms - at)}
        case never:
            assert_never(never)
    is_old = at <= newest_old_ms(now_ms, age_ms)
    return Finding(kind, row.row_key, None, facts) if is_old else None


def find_silence_ms(grace_ms: int, lock_ttl_ms: int) -> int:
    """Return how long the owner of an undecided row must have been silent: for the longer of both,
    since a living one may be silent for its lock TTL. Without a grace, none is alive."""
    return max(grace_ms, lock_ttl_ms) if grace_ms else 0


def find_alive_ms(row: TransactionRow, now_ms: int, grace_ms: int) -> int:
    """Return the time of the last sign that the owner of an unfinished row is alive."""
    heartbeat = trust_heartbeat(row.heartbeat, now_ms, grace_ms)
    newest = row.newest if row.state is RowState.UNREADABLE else 0
    return max(row.since, heartbeat, newest)


def list_owner(row: TransactionRow | None) -> dict[str, object]:
    return {"owner": row.owner} if row is not None and row.owner else {}


def list_facts(row: TransactionRow) -> dict[str, object]:
    return {"status": str(row.status), "since": row.status_at, "heartbeat": row.heartbeat}


@dataclass(frozen=True, slots=True)
class _Result:
    why: str


class Repaired(_Result):
    """The finding is gone."""


class NothingToDo(_Result):
    """The finding was gone already, or its transaction had moved on by itself."""


class LeftAlone(_Result):
    """The finding cannot be repaired without guessing, and nothing was changed."""


RESULTS = (Repaired, NothingToDo, LeftAlone)
Result = Repaired | NothingToDo | LeftAlone  # why: what was done, or why nothing was
FindingResult = tuple[Finding, Result | None]  # None: no repair was wanted


@dataclass(slots=True)
class Tally:
    """The totals of a check or repair.

    rows: how many rows were read. counts: the number of findings by kind and result; the result
    None means that no repair was wanted. young: unfinished items within the grace period. left_old:
    unfinished transactions that were silent for longer, and were not repaired.
    """

    rows: int = 0
    counts: Counter[tuple[Kind, type[Result] | None]] = field(default_factory=Counter)
    young: InGrace = field(default_factory=InGrace)
    left_old: InGrace = field(default_factory=InGrace)

    def add(self, finding: Finding, result: Result | None = None) -> None:
        self.counts[finding.kind, type(result) if result else None] += 1
        silent_ms = finding.facts.get("silent_ms")
        if isinstance(silent_ms, int) and (result is None or isinstance(result, LeftAlone)):
            self.left_old.add(finding.kind, silent_ms)

    @property
    def is_repair(self) -> bool:
        return any(result for _, result in self.counts)

    @property
    def found(self) -> int:
        return self.counts.total()

    @property
    def rolled_forward(self) -> int:
        return self.counts[Kind.DECIDED, Repaired]

    @property
    def rolled_back(self) -> int:
        return self.counts[Kind.UNDECIDED, Repaired] + self.counts[Kind.ABORTING, Repaired]

    @property
    def cleaned_up(self) -> int:
        """Return how many locks were released, tags emptied and rows deleted."""
        return self.repaired - self.rolled_forward - self.rolled_back

    @property
    def repaired(self) -> int:
        return self._count(Repaired)

    @property
    def moved_on(self) -> int:
        return self._count(NothingToDo)

    @property
    def left(self) -> int:
        return self._count(None) + self._count(LeftAlone)

    def count_kinds(self) -> dict[Kind, int]:
        """Return the number of findings of each kind, in the order of Kind."""
        kinds: Counter[Kind] = Counter()
        for (kind, _), count in dict(self.counts).items():  # another thread may add
            kinds[kind] += count
        return {kind: kinds[kind] for kind in Kind if kinds[kind]}

    def count_repairable(self) -> dict[Kind, int]:
        """Return how many findings of each kind a repair would act on."""
        kinds = self.count_kinds().items()
        return {kind: n for kind, n in kinds if kind.severity is not Severity.REPORT_ONLY}

    def _count(self, wanted: type[Result] | None) -> int:
        counts = dict(self.counts).items()
        return sum(count for (_, result), count in counts if result is wanted)


def finding_document(finding: Finding) -> Document:
    return {
        "kind": finding.kind.value,
        "severity": finding.kind.severity.value,
        "transaction": escape(finding.transaction) if finding.transaction else None,
        "key": key_text(finding.key) if finding.key else None,
        "meaning": finding.kind.meaning,
        "remedy": finding.kind.remedy,
        "facts": {
            name: escape(fact) if isinstance(fact, bytes) else fact
            for name, fact in finding.facts.items()
        },
    }


def tally_document(tally: Tally, grace_ms: int) -> Document:
    """Return the last line of `txn fsck --json`; no finding has its kind, `summary`."""
    unfinished = tally.young.counts + tally.left_old.counts
    return {
        "kind": "summary",
        "rows": tally.rows,
        "found": tally.found,
        "kinds": {kind.value: count for kind, count in tally.count_kinds().items()},
        "rolled_forward": tally.rolled_forward,
        "rolled_back": tally.rolled_back,
        "cleaned_up": tally.cleaned_up,
        "moved_on": tally.moved_on,
        "left": tally.left,
        "unfinished": {kind.value: unfinished[kind] for kind in Kind if unfinished[kind]},
        "oldest_ms": max(tally.young.oldest_ms, tally.left_old.oldest_ms),
        "grace_ms": grace_ms,
    }


def result_document(result: Result) -> Document:
    words = {Repaired: "repaired", NothingToDo: "nothing-to-do", LeftAlone: "left-alone"}
    return {"result": words[type(result)], "why": result.why}
