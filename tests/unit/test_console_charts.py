"""Where the marks of the console's pictures go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from recovery.console.charts import BARS_HEIGHT, LEAST, WIDTH, draw_bars, draw_timeline, round_up
from recovery.inspect import Explanation, explain
from tests.unit.worlds import World, X, Y, after_status
from txn.model import Mutation
from txn.protocol.statuses import ProtocolName, Status
from txn.testing.faulty import Crash, Fault, Reply

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (1, 1), (1.1, 2), (3, 5), (7, 10), (101, 200), (5_000, 5_000)]
)
def test_a_scale_ends_with_a_round_number(value: float, top: float) -> None:
    assert round_up(value) == top


def test_bars_stand_on_each_other_and_within_the_picture() -> None:
    bars, lines = draw_bars([(1, 1, 0), (0, 0, 0), (0, 0, 1)], ("good", "bad", "warn"), width=30)
    assert [(bar.x, bar.y, bar.height, bar.tone) for bar in bars] == [
        (0, BARS_HEIGHT / 2, BARS_HEIGHT / 2, "good"),
        (0, 0, BARS_HEIGHT / 2, "bad"),
        (20, BARS_HEIGHT / 2, BARS_HEIGHT / 2, "warn"),
    ]
    assert lines == [(0, BARS_HEIGHT), (1, BARS_HEIGHT / 2), (2, 0)]


def explain_stopped(world: World, status: Status) -> Explanation:
    after_status(world, status, Fault(reply=Reply.CRASH))
    with pytest.raises(Crash):
        world.engine.commit([Mutation(X, b"1")])
    (row,) = world.rows()
    found = explain(world.client().context, row.row_key)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("protocol", "names"),
    [
        ("six-phase", ["lock", "assert", "put", "clean", "unlock, wait"]),
        ("fenced", ["lock, assert", "put, unlock, wait"]),
    ],
)
def test_a_finished_transaction_is_a_closed_line(
    protocol: ProtocolName, names: Sequence[str]
) -> None:
    world = World(protocol=protocol)
    done = world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    found = explain(world.engine.context, done.transaction)
    assert found is not None
    drawn = draw_timeline(found, world.clock.wall_ms() + 60_000)
    assert drawn is not None
    assert [mark.name for mark in drawn.marks] == [str(each.status) for each in found.statuses]
    ends = [each.x + each.width for each in drawn.segments]
    assert ends == pytest.approx([mark.x for mark in drawn.marks[1:]])
    assert not any(each.is_open for each in drawn.segments)
    assert [each.name for each in drawn.segments] == names


def test_what_is_unfinished_goes_on_until_now() -> None:
    world = World()
    found = explain_stopped(world, Status.LOCKED)
    drawn = draw_timeline(found, found.statuses[-1].since + 3_600_000)
    assert drawn is not None
    assert [each.is_open for each in drawn.segments] == [False, True]
    assert drawn.segments[-1].duration == "1 h 0 m"
    assert drawn.segments[0].width >= LEAST
    assert drawn.segments[-1].x + drawn.segments[-1].width < WIDTH


def test_a_row_without_a_status_has_no_line() -> None:
    world = World()
    found = explain_stopped(world, Status.WRITTEN)
    assert draw_timeline(replace(found, statuses=()), 0) is None
