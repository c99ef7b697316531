"""What is searched: the shapes and worlds that must hold, and what each safeguard's absence breaks.

`python -m tests.model` searches all of it and prints the tables of docs/model/README.md.
"""

from __future__ import annotations

SHAPES = {
    1: "both put both",
    2: "write skew",
    3: "delete and put",
    4: "a key each",
    5: "delete, put, of one key",
    6: "delete and put, alone",
    7: "put both, also blindly",
    8: "three, put both, put, delete",
    9: "three, put, put, delete, of one key",
}
WORLDS: dict[str, list[str]] = {
    "commits": [],
    "reads": ["READS"],
    "ranges": ["READS", "RANGES"],
    "loses": ["LOSES"],
    "reads, losing": ["READS", "LOSES", "NO_DELETED_ROWS"],
    "ranges, losing": ["READS", "RANGES", "LOSES", "NO_DELETED_ROWS"],
    "validates": ["READS", "KEYS"],
    "validates each other's": ["READS", "KEYS", "MUTUAL", "NO_DELETED_ROWS"],
    "validates, losing": ["READS", "KEYS", "LOSES", "NO_DELETED_ROWS"],
    "retires": ["RETIRES"],
    "reads beside a retirer": ["READS", "RETIRES"],
    "fenced commits": ["FENCED"],
    "fenced commits, owners free nothing": ["FENCED", "NO_OWN_RELEASE"],
    "fenced commits, and rows stay": ["FENCED", "NO_DELETED_ROWS"],
    "fenced commits, waiting": ["FENCED", "WAITS"],
    "fenced commits of one unit": ["FENCED", "SINGLES"],
    "fenced retires": ["FENCED", "RETIRES"],
    "fenced retires, one unit": ["FENCED", "RETIRES", "SINGLES"],
    "fenced loses": ["FENCED", "LOSES"],
    "fenced reads": ["FENCED", "READS"],
    "fenced reads of one row": ["FENCED", "READS", "ONE_ROW"],
    "fenced reads beside one unit": ["FENCED", "READS", "SINGLES"],
    "fenced validates": ["FENCED", "READS", "KEYS"],
    "fenced validates each other's": ["FENCED", "READS", "KEYS", "MUTUAL"],
    "fenced validates, losing": ["FENCED", "READS", "KEYS", "LOSES"],
}
CASES = [
    *(("commits", shape) for shape in (1, 2, 3, 4)),
    ("reads", 4),
    ("ranges", 4),
    ("validates", 4),
    ("validates each other's", 4),
    *(("loses", shape) for shape in (4, 5)),
    ("retires", 5),
    ("reads beside a retirer", 6),
    *(("fenced commits", shape) for shape in (1, 2, 3, 4, 7)),
    ("fenced commits, waiting", 1),
    ("fenced commits of one unit", 8),
    ("fenced retires", 5),
    ("fenced retires, one unit", 9),
    *(("fenced loses", shape) for shape in (1, 3)),
    *(("fenced reads", shape) for shape in (1, 2, 3, 4)),
    ("fenced reads of one row", 1),
    ("fenced reads beside one unit", 8),
    ("fenced validates", 4),
    ("fenced validates each other's", 4),
    ("fenced validates, losing", 4),
]
# Too large for every run of the tests: `make model` searches them as well.
LARGE_CASES = [
    *(("reads", shape) for shape in (1, 2, 3)),
    ("loses", 3),
    ("reads, losing", 4),
    ("ranges, losing", 4),
    ("validates, losing", 4),
    ("fenced commits, and rows stay", 8),
    ("fenced commits, owners free nothing", 9),
    ("fenced reads", 8),
]

VALIDATING = {
    "keys are validated": ["WITHOUT_VALIDATION"],
    "readers wait for a transaction that validates keys": ["WITHOUT_WAITING_READERS"],
    "keys are validated once all locks are held": ["WITHOUT_LOCKS_AT_VALIDATION"],
    "keys are validated once the row is there": ["WITHOUT_ROW_AT_VALIDATION"],
    "a validated key is free": ["WITHOUT_FREE_AT_VALIDATION"],
    "two that validate each other's keys find a lock": ["MUTUAL", "WITHOUT_FREE_AT_VALIDATION"],
}
WITHOUT: dict[str, tuple[list[str], str]] = {
    "a status is compared": (["SHAPE=5", "WITHOUT_COMPARED_STATUS"], "SERIALISABLE"),
    "an owner compares where the row was deleted": (
        ["SHAPE=5", "WITHOUT_COMPARED_OWNER"],
        "RECOVERABLE",
    ),
    "a helper compares where the row was deleted": (
        ["SHAPE=5", "WITHOUT_COMPARED_HELP"],
        "RECOVERABLE",
    ),
    "unlock is a compare-and-set": (["SHAPE=5", "WITHOUT_COMPARED_UNLOCK"], "HOLDS_ITS_LOCKS"),
    "one row key, one attempt": (["SHAPE=1", "WITHOUT_NEW_ROW_KEYS"], "HOLDS_ITS_LOCKS"),
    "an absent row is poisoned before its lock is freed": (
        ["SHAPE=5", "WITHOUT_POISON"],
        "HOLDS_ITS_LOCKS",
    ),
    "poison compares": (["SHAPE=5", "WITHOUT_COMPARED_POISON"], "RECOVERABLE"),
    "the row's first write is timely": (["SHAPE=5", "WITHOUT_TIMELY_WRITES"], "HOLDS_ITS_LOCKS"),
    "poison is unknown": (["SHAPE=5", "WITHOUT_UNKNOWN_POISON"], "TRUE_REPORT"),
    "no lock is freed before 3-PUT": (["SHAPE=5", "WITHOUT_PUT_BEFORE_RELEASE"], "RECOVERABLE"),
    "3-PUT is synced": (["SHAPE=5", "LOSES", "WITHOUT_SYNCED_PUT"], "RECOVERABLE"),
    "the decision is synced": (["SHAPE=5", "LOSES", "WITHOUT_SYNCED_DECISION"], "RECOVERABLE"),
    "an abort is synced": (["SHAPE=5", "LOSES", "WITHOUT_SYNCED_ABORT"], "HOLDS_ITS_LOCKS"),
    "poison is synced": (["SHAPE=5", "LOSES", "WITHOUT_SYNCED_POISON"], "HOLDS_ITS_LOCKS"),
    "locks are synced": (["SHAPE=5", "LOSES", "WITHOUT_SYNCED_LOCKS"], "HOLDS_ITS_LOCKS"),
    "1-LOCKED is synced where there are ranges": (
        ["SHAPE=4", "READS", "RANGES", "LOSES", "NO_DELETED_ROWS", "WITHOUT_SYNCED_STEP"],
        "RANGES_HOLD",
    ),
    "free is an empty value, and locks are checked": (
        ["SHAPE=1", "WITHOUT_EMPTY_VALUES", "WITHOUT_LOCK_CHECK"],
        "HOLDS_ITS_LOCKS",
    ),
    "a lock is never older than its cell, and locks are checked": (
        ["SHAPE=1", "WITHOUT_LATEST_TIMESTAMP", "WITHOUT_LOCK_CHECK"],
        "HOLDS_ITS_LOCKS",
    ),
    "a no to the decision is read": (["SHAPE=2", "WITHOUT_READING_A_NO"], "TRUE_REPORT"),
    "a lost decision is unknown": (["SHAPE=1", "WITHOUT_UNKNOWN_OUTCOMES"], "TRUE_REPORT"),
    "an absent row is unknown": (["SHAPE=2", "WITHOUT_UNKNOWN_ROWS"], "TRUE_REPORT"),
    "the plan comes with the decision": (
        ["SHAPE=1", "WITHOUT_PLAN_AT_DECISION"],
        "RECOVERABLE",
    ),
    "the empty tag is a witness": (["SHAPE=3", "WITHOUT_TAGS"], "LAST_COMMIT_SEEN"),
    "a commit lies above all it found": (["SHAPE=3", "WITHOUT_READ_TIMESTAMPS"], "ABOVE_ALL"),
    "who is decided is finished": (["SHAPE=1", "WITHOUT_ROLLING_FORWARD"], "KEEPS_ITS_LOCKS"),
    "markers are kept": (["SHAPE=3", "WITHOUT_KEPT_MARKERS"], "RECOVERABLE"),
    "rolling forward begins at the phase seen": (
        ["SHAPE=3", "WITHOUT_PHASE_SEEN"],
        "RECOVERABLE",
    ),
    "the tag is a reader's witness": (["SHAPE=1", "READS", "WITHOUT_WITNESS"], "ATOMIC_READ"),
    "a holder is undecided": (["SHAPE=4", "READS", "WITHOUT_UNDECIDED"], "ATOMIC_READ"),
    "the second look at the cells": (["SHAPE=4", "READS", "WITHOUT_C2"], "ATOMIC_READ"),
    "the second look at the holders": (["SHAPE=4", "READS", "WITHOUT_S2"], "ATOMIC_READ"),
    "ranges are validated": (["SHAPE=4", "READS", "RANGES", "WITHOUT_VALIDATION"], "RANGES_HOLD"),
    "ranges are validated after 1-LOCKED": (
        ["SHAPE=4", "READS", "RANGES", "WITHOUT_STEP_AT_VALIDATION"],
        "RANGES_HOLD",
    ),
    "readers wait for a transaction that validates ranges": (
        ["SHAPE=4", "READS", "RANGES", "WITHOUT_WAITING_READERS"],
        "RANGES_HOLD",
    ),
    **{
        f"{protocol}{rule}": ([*flags, "SHAPE=4", "READS", "KEYS", *without], "RANGES_HOLD")
        for protocol, flags in (("", []), ("fenced: ", ["FENCED"]))
        for rule, without in VALIDATING.items()
    },
    "readers wait at 0 already": (
        ["SHAPE=4", "READS", "KEYS", "WITHOUT_WAITING_AT_0"],
        "RANGES_HOLD",
    ),
    "a row that validates is synced": (
        ["SHAPE=4", "READS", "KEYS", "LOSES", "NO_DELETED_ROWS", "WITHOUT_SYNCED_WRITE"],
        "RANGES_HOLD",
    ),
    "a fenced row that validates is synced": (
        ["FENCED", "SHAPE=4", "READS", "KEYS", "LOSES", "WITHOUT_SYNCED_WRITE"],
        "RANGES_HOLD",
    ),
    "a validated fenced lock is as it was read": (
        ["FENCED", "SHAPE=4", "READS", "KEYS", "WITHOUT_COUNT_AT_VALIDATION"],
        "RANGES_HOLD",
    ),
    "rows outlive a read": (["SHAPE=4", "READS", "WITHOUT_BOUNDED_LOOKS"], "ATOMIC_READ"),
    "the buffer speaks at 2-ASSERTED only": (
        ["SHAPE=1", "READS", "WITHOUT_ONLY_AT_2"],
        "ATOMIC_READ",
    ),
    "a key is retired under its lock": (
        ["SHAPE=5", "RETIRES", "WITHOUT_RETIRING_UNDER_LOCK"],
        "KEEPS_ITS_LOCKS",
    ),
    "the lock's marker lies above the tag": (
        ["SHAPE=5", "RETIRES", "NO_DELETED_ROWS", "WITHOUT_MARKER_ABOVE_TAG"],
        "ABOVE_ALL",
    ),
    "only old keys are retired": (
        ["SHAPE=6", "READS", "RETIRES", "NO_DELETED_ROWS", "WITHOUT_RETENTION"],
        "ATOMIC_READ",
    ),
    "a read's looks lie close together": (
        ["SHAPE=6", "READS", "RETIRES", "NO_DELETED_ROWS", "WITHOUT_BOUNDED_LOOKS"],
        "ATOMIC_READ",
    ),
    "a fenced lock counts": (["FENCED", "SHAPE=5", "WITHOUT_COUNTER"], "HOLDS_ITS_LOCKS"),
    "an abort's release leaves the counter raised": (
        ["FENCED", "SHAPE=5", "WITHOUT_COUNTING_RELEASE"],
        "HOLDS_ITS_LOCKS",
    ),
    "a fenced lock lies above the one it read": (
        ["FENCED", "SHAPE=5", "WITHOUT_TIMESTAMP_OF_LOCK"],
        "HOLDS_ITS_LOCKS",
    ),
    "a fenced commit lies above all it read": (
        ["FENCED", "SHAPE=5", "WITHOUT_TIMESTAMPS_READ"],
        "ABOVE_ALL",
    ),
    "only the owner finishes without comparing": (
        ["FENCED", "SHAPE=5", "WITHOUT_ONLY_OWN_FINISH"],
        "LAST_COMMIT_SEEN",
    ),
    "the owner's finish lands before a marker is dropped": (
        ["FENCED", "SHAPE=5", "WITHOUT_LASTING_MARKERS"],
        "LAST_COMMIT_SEEN",
    ),
    "the row is sent again for a bounded time": (
        ["FENCED", "SHAPE=5", "WITHOUT_BOUNDED_WRITE"],
        "HOLDS_ITS_LOCKS",
    ),
    "rows are deleted at t0 + 7": (["FENCED", "SHAPE=5", "WITHOUT_ROW_MARKER"], "HOLDS_ITS_LOCKS"),
    "values and free lock are one mutation": (
        ["FENCED", "SHAPE=5", "WITHOUT_VALUE_AND_LOCK_TOGETHER"],
        "RECOVERABLE",
    ),
    "an absent fenced row is poisoned before its lock is freed": (
        ["FENCED", "SHAPE=5", "WITHOUT_POISON"],
        "HOLDS_ITS_LOCKS",
    ),
    "fenced poison lies at t0 + 7": (
        ["FENCED", "SHAPE=5", "WITHOUT_POISON_ABOVE"],
        "HOLDS_ITS_LOCKS",
    ),
    "fenced poison compares": (["FENCED", "SHAPE=5", "WITHOUT_COMPARED_POISON"], "RECOVERABLE"),
    "fenced poison is unknown": (["FENCED", "SHAPE=5", "WITHOUT_UNKNOWN_POISON"], "TRUE_REPORT"),
    "a fenced abort is synced": (
        ["FENCED", "SHAPE=5", "LOSES", "WITHOUT_SYNCED_ABORT"],
        "HOLDS_ITS_LOCKS",
    ),
    "fenced poison is synced": (
        ["FENCED", "SHAPE=5", "LOSES", "WITHOUT_SYNCED_POISON"],
        "HOLDS_ITS_LOCKS",
    ),
    "the fenced decision is compared": (
        ["FENCED", "SHAPE=5", "WITHOUT_COMPARED_DECISION"],
        "HOLDS_ITS_LOCKS",
    ),
    "every fenced lock is granted": (
        ["FENCED", "SHAPE=1", "WITHOUT_EVERY_LOCK"],
        "HOLDS_ITS_LOCKS",
    ),
    "a status lies at t0 + k": (["FENCED", "SHAPE=5", "WITHOUT_STATUS_TIMES"], "KEEPS_ITS_LOCKS"),
    "a fenced retry has a new row key": (["FENCED", "SHAPE=5", "WITHOUT_NEW_ROW_KEY"], "ABOVE_ALL"),
    "a holder at 0 is aborted before its lock is freed": (
        ["FENCED", "SHAPE=5", "WITHOUT_ABORT_BEFORE_RELEASE"],
        "HOLDS_ITS_LOCKS",
    ),
    "a fenced holder at 2 is finished": (
        ["FENCED", "SHAPE=5", "WITHOUT_FINISHING_THE_DECIDED"],
        "KEEPS_ITS_LOCKS",
    ),
    "complete comes after every finish": (
        ["FENCED", "SHAPE=5", "WITHOUT_FINISH_BEFORE_COMPLETE"],
        "RECOVERABLE",
    ),
    "who asks again evaluates again": (
        ["FENCED", "SHAPE=5", "WITHOUT_EVALUATING_AGAIN"],
        "SERIALISABLE",
    ),
    "who asks again goes above": (
        ["FENCED", "SHAPE=5", "WITHOUT_RAISING_AGAIN"],
        "HOLDS_ITS_LOCKS",
    ),
    "a blind put asks again only from above": (
        ["FENCED", "SHAPE=7", "WITHOUT_LOOKING_AT_NEW_TIMESTAMP"],
        "HOLDS_ITS_LOCKS",
    ),
    "a no to the fenced decision is read": (
        ["FENCED", "SHAPE=5", "WITHOUT_READING_FENCED_NO"],
        "TRUE_REPORT",
    ),
    "a lost fenced decision is unknown": (
        ["FENCED", "SHAPE=5", "WITHOUT_UNKNOWN_FENCED"],
        "TRUE_REPORT",
    ),
    "who waits asks in the order of units": (
        ["FENCED", "SHAPE=1", "WAITS", "WITHOUT_UNIT_ORDER"],
        "NO_CIRCLE",
    ),
    "a commit of one unit leaves its name": (
        ["FENCED", "SHAPE=5", "SINGLES", "WITHOUT_NAMES"],
        "TRUE_REPORT",
    ),
    "one unit that others have changed since is unknown": (
        ["FENCED", "SHAPE=5", "SINGLES", "WITHOUT_UNKNOWN_SINGLES"],
        "TRUE_REPORT",
    ),
    "the second look at fenced locks": (
        ["FENCED", "SHAPE=4", "READS", "WITHOUT_SECOND_LOOK"],
        "ATOMIC_READ",
    ),
    "the second look at two holders": (
        ["FENCED", "SHAPE=4", "READS", "WITHOUT_SECOND_S2"],
        "ATOMIC_READ",
    ),
    "one look at one row only where nobody has decided": (
        ["FENCED", "SHAPE=4", "READS", "ONE_ROW", "WITHOUT_LOOK_WHERE_HELD"],
        "ATOMIC_READ",
    ),
    "rows outlive a read of one row": (
        ["FENCED", "SHAPE=1", "READS", "ONE_ROW", "WITHOUT_BOUNDED_LOOKS"],
        "ATOMIC_READ",
    ),
    "who asks for a retired lock has read it lately": (
        ["FENCED", "SHAPE=9", "SINGLES", "RETIRES", "WITHOUT_TIMELY_LOCKS"],
        "ABOVE_ALL",
    ),
    "no clock lies behind by the retention": (
        ["FENCED", "SHAPE=9", "SINGLES", "RETIRES", "WITHOUT_CLOCK_OF_TODAY"],
        "ABOVE_ALL",
    ),
}
HARMLESS_FENCED = {
    "the free lock at C": ["FENCED", "SHAPE=3", "FREE_AT_C"],
    "an owner that read its decision finishes without comparing, in time": [
        "FENCED",
        "SHAPE=3",
        "OWN_READ_IS_YES",
    ],
    "a reader takes the buffer at 5": ["FENCED", "SHAPE=4", "READS", "BUFFER_AT_5"],
}
HARMLESS_ALONE = ("WITHOUT_EMPTY_VALUES", "WITHOUT_LATEST_TIMESTAMP", "WITHOUT_LOCK_CHECK")


def named(case: str) -> str:
    """Return a test's name for a safeguard."""
    return case.replace(" ", "-").replace(",", "")
