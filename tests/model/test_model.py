"""The formal model of the protocol holds in every world, and without a safeguard it does not."""

import re

import pytest

from tests.model.spin import MODEL, properties, safeguards, search
from tests.model.worlds import (
    CASES,
    HARMLESS_ALONE,
    HARMLESS_FENCED,
    SHAPES,
    WITHOUT,
    WORLDS,
    named,
)

worlds = pytest.mark.parametrize(
    ("world", "shape"), CASES, ids=[f"{world}-{SHAPES[shape]}" for world, shape in CASES]
)
NEVER_SMALLER = 30_000


@pytest.mark.slow
@worlds
def test_every_property_holds_in_every_state(world: str, shape: int) -> None:
    found = search([f"SHAPE={shape}", *WORLDS[world]])
    assert found.violated is None, found.story
    assert found.states > NEVER_SMALLER, "so few states that something can never happen"


@pytest.mark.parametrize("case", WITHOUT, ids=named)
def test_without_a_safeguard_a_property_is_violated(case: str) -> None:
    flags, violated = WITHOUT[case]
    assert search(flags, only=violated).violated == violated


@pytest.mark.long
@pytest.mark.parametrize("safeguard", HARMLESS_ALONE)
def test_the_second_line_of_defence_is_enough_alone(safeguard: str) -> None:
    """The check under the locks makes harmless what either of two other rules prevents."""
    assert search(["SHAPE=1", safeguard]).violated is None


@pytest.mark.parametrize("choice", HARMLESS_FENCED, ids=named)
def test_a_choice_of_the_fenced_protocol_is_harmless_either_way(choice: str) -> None:
    assert search(["FENCED", *HARMLESS_FENCED[choice].split()]).violated is None


def test_every_safeguard_of_the_model_is_taken_out_once() -> None:
    used = {flag for flags, _ in WITHOUT.values() for flag in flags if flag.startswith("WITHOUT_")}
    assert used == safeguards()


def test_every_property_is_violated_once() -> None:
    assert {violated for _, violated in WITHOUT.values()} == set(properties().values())


def test_the_page_tells_what_each_rule_keeps() -> None:
    page = (MODEL / "README.md").read_text()
    rows = re.findall(r"^\| ([^|`]+?) \| (?:`(\w+)`|-) \| (?:`(\w+)`|-) \|$", page, re.MULTILINE)
    told = {rule: six_phase for rule, six_phase, _ in rows if six_phase}
    told |= {f"fenced: {rule}": fenced for rule, _, fenced in rows if fenced}
    assert told == {rule: violated for rule, (_, violated) in WITHOUT.items()}
    assert all(f"| `{name}` |" in page for name in properties().values())
