"""The documentation names files and tests; each of them is there."""

import re
from pathlib import Path

import pytest

from tests.simulation.mutants import list_mutants

ROOT = Path(__file__).parents[2]
MOST_WORDS = 40_000
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / ".github").glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
NOT_OF_ONE_RULE = {"test_teeth_power", "test_teeth_simulation"}
"""Tests of deferred writes, which have a table of their own, and of the simulation itself."""

pytestmark = pytest.mark.fast
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@every_page
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    text = re.sub(r"^```python.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`?\b(test_\w+)\b(?!\.py)", text))
    missing = {name for name in named if f"def {name}(" not in TESTS and not _is_file(name)}
    assert not missing


def test_the_protocol_names_the_test_of_every_safeguard() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text()
    files = (ROOT / "tests" / "simulation").glob("test_teeth_*.py")
    text = "".join(path.read_text() for path in files if path.stem not in NOT_OF_ONE_RULE)
    tests = re.findall(r"^def (test_\w+)", text, flags=re.MULTILINE)
    assert tests and [name for name in tests if f"`{name}`" not in page] == []


@every_page
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@every_page
def test_a_page_has_a_section_once(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^##? .+", text, flags=re.MULTILINE)
    assert [head for head in set(heads) if heads.count(head) > 1] == []


def test_the_documentation_stays_short() -> None:
    """It grew to 82,000 words once, and nobody read it. Replace a sentence rather than add one."""
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    assert sum(len(page.read_text().split()) for page in pages) <= MOST_WORDS


def _is_file(name: str) -> bool:
    return any((ROOT / "tests").rglob(f"{name}.py"))


def test_each_mutant_finds_the_text_of_its_rule() -> None:
    lost = [m.rule for m in list_mutants() if (ROOT / m.path).read_text().count(m.old) != 1]
    assert lost == []
