"""The sentences in which `txn demo flights` tells what happened."""

from __future__ import annotations

from collections import Counter

import pytest

from recovery.commands.flights import Report, describe_crash, describe_end
from recovery.findings import Kind, Repaired, Tally, tally_document
from txn.demo.data import tables_named

pytestmark = pytest.mark.fast


def report(forward: int, back: int) -> Report:
    kinds = {Kind.DECIDED: forward, Kind.UNDECIDED: back}
    found = Tally(counts=Counter({(kind, None): number for kind, number in kinds.items()}))
    repaired = Tally(counts=Counter({(kind, Repaired): number for kind, number in kinds.items()}))
    repair = {
        "found": tally_document(found, 0)["kinds"],
        "repaired": tally_document(repaired, 0),
        "left": {},
    }
    return Report(tables_named("flights"), 842, {}, (), repair=repair)


@pytest.mark.parametrize(
    ("forward", "back", "said"),
    [
        (0, 1, "Killed with 1 transaction half done: 0 rolled forward, 1 rolled back, and all "),
        (33, 1, "Killed with 34 transactions half done: 33 rolled forward, 1 rolled back, and "),
        (0, 0, "Killed part way, with no transaction half done: all 842 flights are there "),
    ],
)
def test_the_last_sentence_counts_what_was_repaired(forward: int, back: int, said: str) -> None:
    """It is what a reader remembers."""
    assert describe_end(report(forward, back)).startswith(said)


@pytest.mark.parametrize(
    ("transactions", "parts", "said"),
    [(597, 0, "597 of 842 transactions."), (1, 23, "1 transaction and begun 23 of 842 parts.")],
)
def test_the_total_of_a_killed_job_is_of_its_parts(
    transactions: int, parts: int, said: str
) -> None:
    """All flights written atomically are one transaction: `1 of 34 transactions` was wrong."""
    crash = {"transactions": transactions, "workers": 2, "processes": 5, "parts": parts}
    assert describe_crash(crash, 842).endswith(f"after it had reported {said}")
