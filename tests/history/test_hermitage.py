"""The anomalies of Hermitage at each level."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from tests.history.anomalies import Kind
from tests.history.stories import ITEMS, Level, Story
from tests.simulation.calls import asks_for, reads_row
from tests.simulation.puppets import Puppet
from tests.simulation.world import key
from txn.model import Edit
from txn.policy import Checking
from txn.protocol.statuses import ProtocolName, Status
from txn.testing.faulty import NO_FAULT, Call, Fault, Reply

pytestmark = [pytest.mark.fast, pytest.mark.usefixtures("rows_for_all")]

X, Y = key("x"), key("y")
RAW, READ, BLOCK = Level.RAW, Level.READ, Level.BLOCK
A, B, _ = ITEMS


@pytest.fixture(params=product(get_args(ProtocolName), get_args(Checking)), ids=str)
def each_database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol, assertions = request.param
    monkeypatch.setattr(Story, "protocol", protocol)
    monkeypatch.setattr(Story, "policy", replace(Story.policy, assertions=assertions))


of_both = pytest.mark.usefixtures("each_database")


def write_cycle(level: Level) -> Story:
    story = Story(level)
    one, two = story.session("one"), story.session("two")
    for each, value in ((one, "1"), (two, "2")):
        each.put(value, X, Y)
    one.until(asks_for(Status.ASSERTED))
    assert not two.commit()
    assert one.commit()
    last = story.session("last")
    assert last.get(X, Y) == ["1", "1"]
    assert last.commit()
    return story


def aborted_read(level: Level) -> Story:
    story = Story(level, x="0")
    writer, reader = story.session("writer"), story.session("reader")
    writer.put("1", X)
    writer.until(asks_for(Status.ASSERTED))
    assert reader.get(X) == ["0"]
    story.world.mend()
    assert not writer.commit()
    assert reader.commit()
    return story


def intermediate_read(level: Level) -> Story:
    story = Story(level, x="0")
    writer = story.session("writer", BLOCK)
    writer.put("1", X)
    writer.put("2", X)
    steps = (Status.WRITTEN, Status.ASSERTED, Status.PUT, Status.CLEANING, Status.COMPLETE)
    rules = story.world.engine().context.rules
    for number, status in enumerate(step for step in steps if step in rules.steps):
        writer.until(asks_for(status))
        reader = story.session(f"reader-{number}")
        assert reader.get(X)[0] in ("0", "2")
        assert reader.commit()
    assert writer.commit()
    return story


def circular_flow(level: Level) -> Story:
    story = Story(level, x="0", y="0")
    one, two = story.session("one"), story.session("two")
    one.put("1", X)
    two.put("2", Y)
    two.get(X)
    two.until(asks_for(Status.COMPLETE))
    assert one.get(Y) == ["2"]
    one.commit()
    two.commit()
    return story


def torn(call: Call) -> Fault:
    edits = [(i, item.key.row) for i, item in enumerate(call.items) if isinstance(item, Edit)]
    of_x = frozenset(i for i, row in edits if row == X.row)
    return Fault(of_x, Reply.CRASH) if of_x else NO_FAULT


def vanishing(level: Level) -> Story:
    """Somebody has decided to replace both keys and has put one."""
    story = Story(level, x="0", y="0")
    writer = story.session("writer", faults=torn)
    writer.put("1", X, Y)
    assert not writer.commit()
    reader = story.session("reader")
    assert reader.get(X) == ["1"]
    reader.get(Y)
    assert reader.commit()
    return story


def phantom(level: Level) -> Story:
    story = Story(level)
    reader, writer = story.session("reader"), story.session("writer")
    assert reader.scan() == set()
    writer.put("1", A)
    assert writer.commit()
    reader.scan()
    reader.commit()
    return story


def lost_update(level: Level) -> Story:
    story = Story(level, x="0")
    one, two = story.session("one"), story.session("two")
    for each in (one, two):
        assert each.get(X) == ["0"]
        each.put(each.name, X)
    assert one.commit()
    two.commit()
    return story


def skewed_read(level: Level) -> Story:
    story = Story(level, x="0", y="0")
    reader, writer = story.session("reader"), story.session("writer")
    assert reader.get(X) == ["0"]
    writer.put("1", X, Y)
    assert writer.commit()
    assert reader.get(Y) == ["1"]
    reader.commit()
    return story


def skewed_writes(level: Level) -> Story:
    story = Story(level, x="0", y="0")
    one, two = story.session("one"), story.session("two")
    for each, target in ((one, X), (two, Y)):
        assert each.get(X, Y) == ["0", "0"]
        each.put(each.name, target)
    one.until(asks_for(Status.ASSERTED))
    two.commit()
    one.commit()
    return story


def skewed_by_phantoms(level: Level) -> Story:
    story = Story(level)
    one, two = story.session("one"), story.session("two")
    for each, target in ((one, A), (two, B)):
        assert each.scan() == set()
        each.put(each.name, target)
    one.until(asks_for(Status.ASSERTED))
    two.commit()
    one.commit()
    return story


MANY = {RAW: {Kind.G_SINGLE}, READ: {Kind.G_SINGLE}}
ANOMALIES: dict[str, tuple[Callable[[Level], Story], dict[Level, set[Kind]]]] = {
    "G0": (write_cycle, {}),
    "G1a": (aborted_read, {}),
    "G1b": (intermediate_read, {}),
    "G1c": (circular_flow, {}),
    "OTV": (vanishing, {RAW: {Kind.G_SINGLE}}),
    "PMP": (phantom, MANY),
    "P4": (lost_update, {RAW: {Kind.LOST_UPDATE}, READ: {Kind.LOST_UPDATE}}),
    "G-single": (skewed_read, MANY),
    "G2-item": (skewed_writes, {RAW: {Kind.G2_ITEM}, READ: {Kind.G2_ITEM}}),
    "G2": (skewed_by_phantoms, {RAW: {Kind.G2}, READ: {Kind.G2}}),
}
"""How each is staged, and what a level shows of it that permits it."""


@of_both
@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("name", ANOMALIES)
def test_each_level_prevents_an_anomaly_or_permits_it(name: str, level: Level) -> None:
    stage, permitted = ANOMALIES[name]
    assert stage(level).kinds() == permitted.get(level, set())


def test_the_page_tells_what_each_level_permits() -> None:
    page = (Path(__file__).parents[2] / "docs" / "isolation.md").read_text()
    rows = re.findall(r"^\| ([GOP][\w-]+) \|[^|]*\|(.*)\|(.*)\|(.*)\|$", page, re.MULTILINE)
    told = {name: ["permits" in cell for cell in cells] for name, *cells in rows}
    assert told == {
        name: [level in permitted for level in Level] for name, (_, permitted) in ANOMALIES.items()
    }


@of_both
def test_one_read_prevents_g_single() -> None:
    story = Story(READ, x="0", y="0")
    reader = Puppet(story.world, lambda engine: engine.read([X, Y]), by_row=True)
    reader.until(reads_row(Y))
    writer = story.session("writer")
    writer.put("1", X, Y)
    assert writer.commit()
    assert {cell.value for cell in reader.finish().values() if cell} == {b"1"}


def overtaken_look(finishes: bool) -> Story:
    """Somebody adds to a range after a block has looked at it. What does a third one see?"""
    story = Story(BLOCK, y="0")
    scanning, adding = story.session("scanning"), story.session("adding")
    assert scanning.scan() == set()
    scanning.put("1", Y)
    scanning.until(asks_for(Status.ASSERTED))
    adding.put("2", A)
    assert adding.commit()
    reader = story.session("reader")
    if finishes:
        reader.sleeping(scanning.commit)
    assert reader.get(A, Y) == ["2", "1" if finishes else "0"]
    assert reader.commit()
    assert scanning.commit() is finishes
    return story


@of_both
@pytest.mark.parametrize("finishes", [True, False])
def test_blocks_prevent_g2_where_a_third_one_only_reads(finishes: bool) -> None:
    """It waits until the block has decided, or aborts it after its lease if it has died."""
    assert overtaken_look(finishes).kinds() == set()
