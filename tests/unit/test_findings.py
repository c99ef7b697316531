"""The kinds of findings: each is explained, in the code and to the operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.findings import EXPLAINED, Kind, Severity

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def test_every_kind_is_explained() -> None:
    """The table is what commands and documents print from."""
    assert set(EXPLAINED) == set(Kind)


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_in_the_operators_page(kind: Kind) -> None:
    """Whoever finds it at three in the morning looks it up there."""
    lines = OPERATIONS.read_text().splitlines()
    (line,) = [line for line in lines if f"| `{kind.value}` |" in line]
    assert kind.meaning in line
    assert kind.remedy in line
    assert kind.severity.value in line


def test_what_is_not_repaired_says_so() -> None:
    """A remedy that promises nothing must not be mistaken for one that was tried."""
    for kind in Kind:
        assert kind.remedy.startswith("nothing") == (kind.severity is Severity.REPORT_ONLY)
