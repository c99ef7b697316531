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
}
WORLDS: dict[str, list[str]] = {
    "commits": [],
    "reads": ["READS"],
    "ranges": ["READS", "RANGES"],
    "retires": ["RETIRES"],
    "reads beside a retirer": ["READS", "RETIRES"],
}
CASES = [
    *((world, shape) for world in ("commits", "reads") for shape in (1, 2, 3, 4)),
    ("ranges", 4),
    ("retires", 5),
    ("reads beside a retirer", 6),
]

WITHOUT: dict[str, tuple[list[str], str]] = {
    "a status is compared": (["SHAPE=1", "WITHOUT_COMPARED_STATUS"], "SERIALISABLE"),
    "an owner compares where the row was deleted": (
        ["SHAPE=1", "WITHOUT_COMPARED_OWNER"],
        "RECOVERABLE",
    ),
    "a helper compares where the row was deleted": (
        ["SHAPE=1", "WITHOUT_COMPARED_HELP"],
        "RECOVERABLE",
    ),
    "unlock is a compare-and-set": (["SHAPE=1", "WITHOUT_COMPARED_UNLOCK"], "HOLDS_ITS_LOCKS"),
    "one row key, one attempt": (["SHAPE=1", "WITHOUT_NEW_ROW_KEYS"], "HOLDS_ITS_LOCKS"),
    "the row is written before the first lock": (
        ["SHAPE=1", "WITHOUT_WRITE_BEFORE_LOCKS"],
        "SERIALISABLE",
    ),
    "the row's first write is timely": (["SHAPE=1", "WITHOUT_TIMELY_WRITES"], "HOLDS_ITS_LOCKS"),
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
    "ranges are looked at again": (["SHAPE=4", "READS", "RANGES", "WITHOUT_LOOK"], "RANGES_HOLD"),
    "ranges are looked at after 1-LOCKED": (
        ["SHAPE=4", "READS", "RANGES", "WITHOUT_LOOK_AFTER_STEP"],
        "RANGES_HOLD",
    ),
    "readers wait for who has looked at ranges": (
        ["SHAPE=4", "READS", "RANGES", "WITHOUT_WAITING_READERS"],
        "RANGES_HOLD",
    ),
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
}
HARMLESS_ALONE = ("WITHOUT_EMPTY_VALUES", "WITHOUT_LATEST_TIMESTAMP", "WITHOUT_LOCK_CHECK")


def named(case: str) -> str:
    """Return a test's name for a safeguard."""
    return case.replace(" ", "-").replace(",", "")
