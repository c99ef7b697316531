"""What is searched: the shapes and worlds that must hold, and what breaks without each rule."""

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
    10: "four, put both, put, delete, put",
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
    "snapshots": ["SNAPSHOTS"],
    "instants": ["SNAPSHOTS", "PLANS"],
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
    "fenced instants": ["FENCED", "SNAPSHOTS", "PLANS"],
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
    ("snapshots", 10),
    ("instants", 8),
    ("fenced instants", 8),
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

Rules = dict[str, dict[str, tuple[str, str]]]
"""By world: its rules, each with its flags without `WITHOUT_`, and the property that it keeps."""

RULES: Rules = {
    "SHAPE=5": {
        "a status step compares": ("COMPARED_STATUS", "SERIALISABLE"),
        "an owner compares after its row was deleted": ("COMPARED_OWNER", "RECOVERABLE"),
        "a helper compares after the row was deleted": ("COMPARED_HELP", "RECOVERABLE"),
        "an unlock compares": ("COMPARED_UNLOCK", "HOLDS_ITS_LOCKS"),
        "an absent row is poisoned before its lock is released": ("POISON", "HOLDS_ITS_LOCKS"),
        "poison compares": ("COMPARED_POISON", "RECOVERABLE"),
        "the first write of a row is bounded in time": ("TIMELY_WRITES", "HOLDS_ITS_LOCKS"),
        "a poisoned row means unknown": ("UNKNOWN_POISON", "TRUE_REPORT"),
        "3-PUT comes before the first unlock": ("PUT_BEFORE_RELEASE", "RECOVERABLE"),
    },
    "SHAPE=1": {
        "each attempt has a new row key": ("NEW_ROW_KEYS", "HOLDS_ITS_LOCKS"),
        "a free lock is an empty value, and locks are checked": (
            "EMPTY_VALUES LOCK_CHECK",
            "HOLDS_ITS_LOCKS",
        ),
        "a lock is never older than its cell, and locks are checked": (
            "LATEST_TIMESTAMP LOCK_CHECK",
            "HOLDS_ITS_LOCKS",
        ),
        "a lost decision is unknown": ("UNKNOWN_OUTCOMES", "TRUE_REPORT"),
        "the plan is written with the decision": ("PLAN_AT_DECISION", "RECOVERABLE"),
        "a decided holder is rolled forward": ("ROLLING_FORWARD", "KEEPS_ITS_LOCKS"),
    },
    "SHAPE=5 LOSES": {
        "3-PUT is synced": ("SYNCED_PUT", "RECOVERABLE"),
        "the decision is synced": ("SYNCED_DECISION", "RECOVERABLE"),
        "an abort is synced": ("SYNCED_ABORT", "HOLDS_ITS_LOCKS"),
        "poison is synced": ("SYNCED_POISON", "HOLDS_ITS_LOCKS"),
        "locks are synced": ("SYNCED_LOCKS", "HOLDS_ITS_LOCKS"),
    },
    "SHAPE=4 READS RANGES LOSES NO_DELETED_ROWS": {
        "1-LOCKED is synced if ranges were scanned": ("SYNCED_STEP", "RANGES_HOLD"),
    },
    "SHAPE=2": {
        "a refused decision is read": ("READING_A_NO", "TRUE_REPORT"),
        "an absent row means unknown": ("UNKNOWN_ROWS", "TRUE_REPORT"),
    },
    "SHAPE=3": {
        "the tag of a delete counts": ("TAGS", "LAST_COMMIT_SEEN"),
        "a commit lies above all that it read": ("READ_TIMESTAMPS", "ABOVE_ALL"),
        "delete markers outlive late puts": ("KEPT_MARKERS", "RECOVERABLE"),
        "rolling forward begins at the status seen": ("PHASE_SEEN", "RECOVERABLE"),
    },
    "SHAPE=1 READS": {
        "a value older than its tag is read again": ("WITNESS", "ATOMIC_READ"),
        "the buffer counts at 2-ASSERTED only": ("ONLY_AT_2", "ATOMIC_READ"),
    },
    "SHAPE=4 READS": {
        "one look is enough only if holders are undecided": ("UNDECIDED", "ATOMIC_READ"),
        "cells or locks are read twice": ("C2", "ATOMIC_READ"),
        "rows of holders are read twice": ("S2", "ATOMIC_READ"),
        "rows outlive a read": ("BOUNDED_LOOKS", "ATOMIC_READ"),
    },
    "SHAPE=4 READS RANGES": {
        "ranges are validated": ("VALIDATION", "RANGES_HOLD"),
        "ranges are validated after 1-LOCKED": ("STEP_AT_VALIDATION", "RANGES_HOLD"),
        "readers wait for a transaction that validates ranges": ("WAITING_READERS", "RANGES_HOLD"),
    },
    "SHAPE=4 READS KEYS": {
        "keys are validated": ("VALIDATION", "RANGES_HOLD"),
        "readers wait for a transaction that validates keys": ("WAITING_READERS", "RANGES_HOLD"),
        "keys are validated after all locks are held": ("LOCKS_AT_VALIDATION", "RANGES_HOLD"),
        "keys are validated after the row is written": ("ROW_AT_VALIDATION", "RANGES_HOLD"),
        "a validated key is free": ("FREE_AT_VALIDATION", "RANGES_HOLD"),
        "readers wait at 0-WRITTEN already": ("WAITING_AT_0", "RANGES_HOLD"),
    },
    "SHAPE=4 READS KEYS MUTUAL": {
        "two that validate keys of each other find a lock": ("FREE_AT_VALIDATION", "RANGES_HOLD"),
    },
    "SHAPE=4 READS KEYS LOSES NO_DELETED_ROWS": {
        "the row of a validating transaction is synced": ("SYNCED_WRITE", "RANGES_HOLD"),
    },
    "SHAPE=5 RETIRES": {
        "a key is retired under its lock": ("RETIRING_UNDER_LOCK", "KEEPS_ITS_LOCKS"),
    },
    "SHAPE=5 RETIRES NO_DELETED_ROWS": {
        "the marker of a retired lock lies above the tag": ("MARKER_ABOVE_TAG", "ABOVE_ALL"),
    },
    "SHAPE=6 READS RETIRES NO_DELETED_ROWS": {
        "only old keys are retired": ("RETENTION", "ATOMIC_READ"),
        "the looks of a read lie close together": ("BOUNDED_LOOKS", "ATOMIC_READ"),
    },
    "SHAPE=10 SNAPSHOTS": {
        "a task lists after it reads": ("LISTING_AFTER", "INSTANT"),
        "older cells stay": ("OLDER_CELLS", "INSTANT"),
        "absent keys are listed twice": ("SECOND_LISTING", "INSTANT"),
        "the second listing adds no keys": ("KEYS_FOUND_FIRST", "INSTANT"),
    },
    "SHAPE=8 SNAPSHOTS PLANS": {
        "each transaction is before or after an instant": ("CERTAINTY", "INSTANT"),
        "validating transactions have earlier places": ("PLACES_BEFORE_DECISIONS", "INSTANT"),
        "undecided transactions are remembered": ("REMEMBERED_UNDECIDED", "INSTANT"),
    },
}
FENCED_RULES: Rules = {
    "FENCED SHAPE=4 READS KEYS": {
        "keys are validated": ("VALIDATION", "RANGES_HOLD"),
        "readers wait for a transaction that validates keys": ("WAITING_READERS", "RANGES_HOLD"),
        "keys are validated after all locks are held": ("LOCKS_AT_VALIDATION", "RANGES_HOLD"),
        "keys are validated after the row is written": ("ROW_AT_VALIDATION", "RANGES_HOLD"),
        "a validated key is free": ("FREE_AT_VALIDATION", "RANGES_HOLD"),
        "a validated lock has the count that was read": ("COUNT_AT_VALIDATION", "RANGES_HOLD"),
    },
    "FENCED SHAPE=4 READS KEYS MUTUAL": {
        "two that validate keys of each other find a lock": ("FREE_AT_VALIDATION", "RANGES_HOLD"),
    },
    "FENCED SHAPE=4 READS KEYS LOSES": {
        "the row of a validating transaction is synced": ("SYNCED_WRITE", "RANGES_HOLD"),
    },
    "FENCED SHAPE=5": {
        "a lock counts its acquisitions": ("COUNTER", "HOLDS_ITS_LOCKS"),
        "a release leaves the count raised": ("COUNTING_RELEASE", "HOLDS_ITS_LOCKS"),
        "a lock lies above the lock that was read": ("TIMESTAMP_OF_LOCK", "HOLDS_ITS_LOCKS"),
        "a commit lies above all that it read": ("TIMESTAMPS_READ", "ABOVE_ALL"),
        "only the owner finishes without comparing": ("ONLY_OWN_FINISH", "LAST_COMMIT_SEEN"),
        "delete markers outlive late puts": ("LASTING_MARKERS", "LAST_COMMIT_SEEN"),
        "the first write of a row is bounded in time": ("BOUNDED_WRITE", "HOLDS_ITS_LOCKS"),
        "a row is deleted at t0 + 7": ("ROW_MARKER", "HOLDS_ITS_LOCKS"),
        "values and free lock are one mutation": ("VALUE_AND_LOCK_TOGETHER", "RECOVERABLE"),
        "an absent row is poisoned before its lock is released": ("POISON", "HOLDS_ITS_LOCKS"),
        "poison lies at t0 + 7": ("POISON_ABOVE", "HOLDS_ITS_LOCKS"),
        "poison compares": ("COMPARED_POISON", "RECOVERABLE"),
        "a poisoned row means unknown": ("UNKNOWN_POISON", "TRUE_REPORT"),
        "the decision compares": ("COMPARED_DECISION", "HOLDS_ITS_LOCKS"),
        "status k lies at t0 + k": ("STATUS_TIMES", "KEEPS_ITS_LOCKS"),
        "each attempt has a new row key": ("NEW_ROW_KEY", "ABOVE_ALL"),
        "an undecided holder is aborted before its lock is released": (
            "ABORT_BEFORE_RELEASE",
            "HOLDS_ITS_LOCKS",
        ),
        "a decided holder is rolled forward": ("FINISHING_THE_DECIDED", "KEEPS_ITS_LOCKS"),
        "5-COMPLETE comes after every finish": ("FINISH_BEFORE_COMPLETE", "RECOVERABLE"),
        "a repeated lock request evaluates again": ("EVALUATING_AGAIN", "SERIALISABLE"),
        "a repeated lock request raises its timestamp": ("RAISING_AGAIN", "HOLDS_ITS_LOCKS"),
        "a refused decision is read": ("READING_FENCED_NO", "TRUE_REPORT"),
        "a lost decision is unknown": ("UNKNOWN_FENCED", "TRUE_REPORT"),
    },
    "FENCED SHAPE=5 LOSES": {
        "an abort is synced": ("SYNCED_ABORT", "HOLDS_ITS_LOCKS"),
        "poison is synced": ("SYNCED_POISON", "HOLDS_ITS_LOCKS"),
    },
    "FENCED SHAPE=1": {
        "every lock is granted before the decision": ("EVERY_LOCK", "HOLDS_ITS_LOCKS"),
    },
    "FENCED SHAPE=7": {
        "a blind put repeats its request only above the lock": (
            "LOOKING_AT_NEW_TIMESTAMP",
            "HOLDS_ITS_LOCKS",
        ),
    },
    "FENCED SHAPE=1 WAITS": {
        "transactions that wait take locks in order": ("UNIT_ORDER", "NO_CIRCLE"),
    },
    "FENCED SHAPE=5 SINGLES": {
        "a commit of one unit leaves its name": ("NAMES", "TRUE_REPORT"),
        "a unit that others changed since means unknown": ("UNKNOWN_SINGLES", "TRUE_REPORT"),
    },
    "FENCED SHAPE=4 READS": {
        "cells or locks are read twice": ("SECOND_LOOK", "ATOMIC_READ"),
        "rows of holders are read twice": ("SECOND_S2", "ATOMIC_READ"),
    },
    "FENCED SHAPE=4 READS ONE_ROW": {
        "one look is enough only if holders are undecided": ("LOOK_WHERE_HELD", "ATOMIC_READ"),
    },
    "FENCED SHAPE=1 READS ONE_ROW": {
        "rows outlive a read": ("BOUNDED_LOOKS", "ATOMIC_READ"),
    },
    "FENCED SHAPE=9 SINGLES RETIRES": {
        "a retired lock is requested soon after its read": ("TIMELY_LOCKS", "ABOVE_ALL"),
        "no clock lags by the retention": ("CLOCK_OF_TODAY", "ABOVE_ALL"),
    },
    "FENCED SHAPE=8 SNAPSHOTS PLANS": {
        "a chosen time proves nothing": ("TIMES_OF_SERVERS", "INSTANT"),
        "a first write's date proves nothing": ("UNTRUSTED_FIRST_WRITES", "INSTANT"),
    },
}


def _list_worlds(rules: Rules, prefix: str = "") -> dict[str, tuple[list[str], str]]:
    return {
        prefix + rule: ([*world.split(), *(f"WITHOUT_{flag}" for flag in flags.split())], violated)
        for world, some in rules.items()
        for rule, (flags, violated) in some.items()
    }


WITHOUT = {**_list_worlds(RULES), **_list_worlds(FENCED_RULES, "fenced: ")}
"""By rule: the flags of a world that lacks it, and the property that is violated there."""

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
    return case.replace(" ", "-").replace(",", "")
