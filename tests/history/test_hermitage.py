"""The anomalies of Hermitage, told at each level: raw reads, `read`, and transactions.

One test a cell of the table in docs/isolation.md. Each story interleaves sessions by hand so that
the anomaly happens if it can; the checker then names what it finds. Where a level permits an
anomaly, the test shows it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import get_args

import pytest

from tests.history.anomalies import Kind
from tests.history.stories import ITEMS, Level, Story
from tests.simulation.puppets import Puppet, asks_for, reads_row
from tests.simulation.world import key
from txn import InvalidRequestError, Mutation
from txn.model import Edit
from txn.policy import Checking
from txn.protocol.statuses import ProtocolName, Status
from txn.testing.faulty import NO_FAULT, Call, Fault, Reply

pytestmark = [pytest.mark.fast, pytest.mark.usefixtures("rows_for_all")]

X, Y = key("x"), key("y")
RAW, READ, BLOCK = Level.RAW, Level.READ, Level.BLOCK
A, B, _ = ITEMS


@pytest.fixture(autouse=True, params=product(get_args(ProtocolName), get_args(Checking)), ids=str)
def of_both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the database's protocol, and whether what is only read is locked or validated, an
    anomaly is prevented, or permitted, all the same."""
    protocol, assertions = request.param
    monkeypatch.setattr(Story, "protocol", protocol)
    monkeypatch.setattr(Story, "policy", replace(Story.policy, assertions=assertions))


# ------------------------------------------------------------------------------- the stories


def write_cycle(level: Level) -> Story:
    story = Story(level)
    one, two = story.session("one"), story.session("two")
    for each, value in ((one, "1"), (two, "2")):
        each.put(X, value)
        each.put(Y, value)
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
    writer.put(X, "1")
    writer.until(asks_for(Status.ASSERTED))
    assert reader.get(X) == ["0"]
    story.world.mend()
    assert not writer.commit()
    assert reader.commit()
    return story


def intermediate_read(level: Level) -> Story:
    story = Story(level, x="0")
    writer = story.session("writer", BLOCK)
    writer.put(X, "1")
    writer.put(X, "2")
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
    one.put(X, "1")
    two.put(Y, "2")
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
    writer.put(X, "1")
    writer.put(Y, "1")
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
    writer.put(A, "1")
    assert writer.commit()
    reader.scan()
    reader.commit()
    return story


def lost_update(level: Level) -> Story:
    story = Story(level, x="0")
    one, two = story.session("one"), story.session("two")
    for each in (one, two):
        assert each.get(X) == ["0"]
        each.put(X, each.name)
    assert one.commit()
    two.commit()
    return story


def skewed_read(level: Level) -> Story:
    story = Story(level, x="0", y="0")
    reader, writer = story.session("reader"), story.session("writer")
    assert reader.get(X) == ["0"]
    writer.put(X, "1")
    writer.put(Y, "1")
    assert writer.commit()
    assert reader.get(Y) == ["1"]
    reader.commit()
    return story


def skewed_writes(level: Level) -> Story:
    story = Story(level, x="0", y="0")
    one, two = story.session("one"), story.session("two")
    for each, target in ((one, X), (two, Y)):
        assert each.get(X, Y) == ["0", "0"]
        each.put(target, each.name)
    one.until(asks_for(Status.ASSERTED))
    two.commit()
    one.commit()
    return story


def skewed_by_phantoms(level: Level) -> Story:
    story = Story(level)
    one, two = story.session("one"), story.session("two")
    for each, target in ((one, A), (two, B)):
        assert each.scan() == set()
        each.put(target, each.name)
    one.until(asks_for(Status.ASSERTED))
    two.commit()
    one.commit()
    return story


# ------------------------------------------------------------------------------- G0: write cycles


def test_raw_reads_prevent_g0() -> None:
    assert write_cycle(RAW).kinds() == set()


def test_reads_prevent_g0() -> None:
    assert write_cycle(READ).kinds() == set()


def test_blocks_prevent_g0() -> None:
    assert write_cycle(BLOCK).kinds() == set()


# ----------------------------------------------------------------------------- G1a: aborted reads


def test_raw_reads_prevent_g1a() -> None:
    assert aborted_read(RAW).kinds() == set()


def test_reads_prevent_g1a() -> None:
    assert aborted_read(READ).kinds() == set()


def test_blocks_prevent_g1a() -> None:
    assert aborted_read(BLOCK).kinds() == set()


# ------------------------------------------------------------------------ G1b: intermediate reads


def test_raw_reads_prevent_g1b() -> None:
    assert intermediate_read(RAW).kinds() == set()


def test_reads_prevent_g1b() -> None:
    assert intermediate_read(READ).kinds() == set()


def test_blocks_prevent_g1b() -> None:
    assert intermediate_read(BLOCK).kinds() == set()


def test_a_request_that_writes_a_key_twice_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        Story(RAW).world.engine().commit([Mutation(X, "1"), Mutation(X, "2")])


# ----------------------------------------------------------------- G1c: circular information flow


def test_raw_reads_prevent_g1c() -> None:
    assert circular_flow(RAW).kinds() == set()


def test_reads_prevent_g1c() -> None:
    assert circular_flow(READ).kinds() == set()


def test_blocks_prevent_g1c() -> None:
    assert circular_flow(BLOCK).kinds() == set()


# ------------------------------------------------------------- OTV: observed transaction vanishes


def test_raw_reads_permit_otv() -> None:
    assert vanishing(RAW).kinds() == {Kind.G_SINGLE}


def test_reads_prevent_otv() -> None:
    assert vanishing(READ).kinds() == set()


def test_blocks_prevent_otv() -> None:
    assert vanishing(BLOCK).kinds() == set()


# ------------------------------------------------------------------ PMP: predicate-many-preceders


def test_raw_reads_permit_pmp() -> None:
    assert phantom(RAW).kinds() == {Kind.G_SINGLE}


def test_reads_permit_pmp() -> None:
    assert phantom(READ).kinds() == {Kind.G_SINGLE}


def test_blocks_prevent_pmp() -> None:
    assert phantom(BLOCK).kinds() == set()


# -------------------------------------------------------------------------------- P4: lost update


def test_raw_reads_permit_p4() -> None:
    assert lost_update(RAW).kinds() == {Kind.LOST_UPDATE}


def test_reads_permit_p4() -> None:
    assert lost_update(READ).kinds() == {Kind.LOST_UPDATE}


def test_blocks_prevent_p4() -> None:
    assert lost_update(BLOCK).kinds() == set()


# ---------------------------------------------------------------------------- G-single: read skew


def test_raw_reads_permit_g_single() -> None:
    assert skewed_read(RAW).kinds() == {Kind.G_SINGLE}


def test_reads_permit_g_single() -> None:
    assert skewed_read(READ).kinds() == {Kind.G_SINGLE}


def test_blocks_prevent_g_single() -> None:
    assert skewed_read(BLOCK).kinds() == set()


def test_one_read_prevents_g_single() -> None:
    story = Story(READ, x="0", y="0")
    reader = Puppet(story.world, lambda engine: engine.read([X, Y]), by_row=True)
    reader.until(reads_row(Y))
    writer = story.session("writer")
    writer.put(X, "1")
    writer.put(Y, "1")
    assert writer.commit()
    assert {cell.value for cell in reader.finish().values() if cell} == {b"1"}


# ---------------------------------------------------------------------------- G2-item: write skew


def test_raw_reads_permit_g2_item() -> None:
    assert skewed_writes(RAW).kinds() == {Kind.G2_ITEM}


def test_reads_permit_g2_item() -> None:
    assert skewed_writes(READ).kinds() == {Kind.G2_ITEM}


def test_blocks_prevent_g2_item() -> None:
    assert skewed_writes(BLOCK).kinds() == set()


# ----------------------------------------------------- G2: anti-dependency cycles with predicates


def test_raw_reads_permit_g2() -> None:
    assert skewed_by_phantoms(RAW).kinds() == {Kind.G2}


def test_reads_permit_g2() -> None:
    assert skewed_by_phantoms(READ).kinds() == {Kind.G2}


def test_blocks_prevent_g2() -> None:
    assert skewed_by_phantoms(BLOCK).kinds() == set()


def overtaken_look(finishes: bool) -> Story:
    """Somebody adds to a range after a block has looked at it under its locks, and before the block
    decides. A third one, which only reads, sees that; does it see what the block replaces?"""
    story = Story(BLOCK, y="0")
    scanning, adding = story.session("scanning"), story.session("adding")
    assert scanning.scan() == set()
    scanning.put(Y, "1")
    scanning.until(asks_for(Status.ASSERTED))
    adding.put(A, "2")
    assert adding.commit()
    reader = story.session("reader")
    if finishes:
        reader.sleeping(scanning.commit)
    assert reader.get(A, Y) == ["2", "1" if finishes else "0"]
    assert reader.commit()
    assert scanning.commit() is finishes
    return story


def test_blocks_prevent_g2_where_a_third_one_only_reads() -> None:
    """A range is not locked, and comes before what is added to it after that look."""
    assert overtaken_look(finishes=True).kinds() == set()


def test_blocks_prevent_g2_where_the_one_that_scans_has_died() -> None:
    assert overtaken_look(finishes=False).kinds() == set()
