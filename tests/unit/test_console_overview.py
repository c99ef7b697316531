"""The overview of the console, where it tells of unfinished transactions and their owners."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from recovery.console.pages import describe_owner
from recovery.console.rendering import (
    ENVIRONMENT,
    label_cells,
    latency_text,
    name_number,
    time_tag,
)
from recovery.console.statistics import Hour, Minute
from tests.unit.worlds import World, stopped_at
from txn.protocol.statuses import Status


@pytest.mark.parametrize(
    ("beyond_ms", "words"), [(0, "alive: within its lock TTL"), (1, "dead: lock TTL expired")]
)
def test_an_owner_is_late_once_its_lease_has_expired(beyond_ms: int, words: str) -> None:
    world = World()
    stopped_at(world, Status.LOCKED)
    row = world.rows()[-1]
    assert row.buffer is not None
    since_ms, lock_ttl_ms = max(row.since, row.heartbeat), row.buffer.lock_ttl_ms
    found = describe_owner(row, since_ms + lock_ttl_ms + beyond_ms)
    assert found == (lock_ttl_ms + beyond_ms, 1, words)
    assert describe_owner(row, since_ms - 1)[0] == 0
    fast = replace(row, heartbeat=since_ms + 3_600_000)
    assert describe_owner(fast, since_ms + lock_ttl_ms + beyond_ms) == found


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (68_731, "68,731"), (12.34, "12.3")])
def test_a_lower_bound_says_so(number: float, text: str) -> None:
    assert name_number(number) == text
    assert name_number(number, is_least=True) == f"at least {text}"


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "under 1 ms"),
        (0.31, "0.3 ms"),
        (12, "12 ms"),
        (1_234, "1.2 s"),
        (math.inf, "over 10 s"),
    ],
)
def test_a_latency_has_the_digits_that_are_known(duration_ms: float, text: str) -> None:
    assert latency_text(duration_ms) == text


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_lower_bound_never_says_none(is_whole: bool) -> None:
    minute = Minute(0, 0, None if is_whole else b"x", 70_000, Counter(committed=70_000))
    hour = Hour(60_000, [minute] * 60)
    facts = {
        **{"trouble": None, "unfinished": None, "oldest": [], "servers": None, "waiting": []},
        **{"hour": hour, "is_partial": hour.is_partial, "last": minute, "minutes": [minute]},
        **{"funnel": [], "bars": [], "lines": [], "began": 0, "shown": 10, "now": 0},
        **{"left": None, "waiting_for": [], "latencies": []},
    }
    page = ENVIRONMENT.get_template("overview_part.html").render(facts)
    assert ("at least 1,166.7" in page) is not is_whole
    assert ("None" in page) is is_whole


@pytest.mark.parametrize(
    ("precise", "shown"), [(False, "1970-01-01 00:00:01"), (True, "1970-01-01 00:00:01.234Z")]
)
def test_a_time_is_an_element_that_a_script_reads(precise: bool, shown: str) -> None:
    tag = time_tag(1_234, precise=precise)
    assert tag.startswith('<time datetime="1970-01-01T00:00:01.234Z"')
    assert tag.endswith(f">{shown}</time>")


def test_a_time_that_no_year_can_hold_is_a_number() -> None:
    assert time_tag(10**18) == f"{10**18}"


def test_each_cell_of_a_row_gets_its_heading() -> None:
    rows = '<tr class="x"><th scope="row">a</th><td>&lt;td</td></tr><tr><th>b</th><td></td></tr>'
    labelled = label_cells(rows, ["Name", "#<b>"])
    cells = '<th role="rowheader" data-label="Name"', '<td role="cell" data-label="&lt;b&gt;"'
    assert [labelled.count(cell) for cell in cells] == [2, 2]
    assert labelled.count('<tr role="row"') == 2
    assert label_cells(rows, []) == rows
