"""The kinds of findings: each is explained, in the code and to the operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.findings import (
    Finding,
    Kind,
    LeftAlone,
    NothingToDo,
    Repaired,
    Severity,
    Tally,
)

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_in_the_operators_page(kind: Kind) -> None:
    lines = OPERATIONS.read_text().splitlines()
    (line,) = [line for line in lines if f"| `{kind.value}` |" in line]
    assert kind.meaning in line
    assert kind.remedy in line
    assert kind.severity.value in line
    assert kind.remedy.startswith("nothing") == (kind.severity is Severity.REPORT_ONLY)


def test_a_tally_tells_what_became_of_findings() -> None:
    tally = Tally()
    tally.add(Finding(Kind.DECIDED))
    assert (tally.left, tally.is_repair, tally.rolled_forward) == (1, False, 0)
    tally = Tally()
    for kind, result in (
        (Kind.DECIDED, Repaired("rolled forward")),
        (Kind.UNDECIDED, Repaired("rolled back")),
        (Kind.ABORTING, Repaired("rolled back")),
        (Kind.ORPHAN_LOCK, Repaired("freed")),
        (Kind.UNDECIDED, NothingToDo("its owner has moved on")),
        (Kind.UNREADABLE, LeftAlone("it does not decode")),
    ):
        tally.add(Finding(kind), result)
    assert (tally.rolled_forward, tally.rolled_back, tally.cleaned_up) == (1, 2, 1)
    assert (tally.found, tally.moved_on, tally.left, tally.is_repair) == (6, 1, 1, True)
    assert tally.count_kinds()[Kind.UNDECIDED] == 2
