"""The coordinates of charts, which templates write as SVG. They contain no text of users."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, zip_longest
from typing import NamedTuple

from recovery.inspect import Explanation
from recovery.text import duration_text, time_text
from txn.protocol.statuses import Status

WIDTH = 960
LEAST = 70  # the least width of a phase, enough for its name
BARS_HEIGHT = 120

DONE_AFTER = {
    Status.PART: "wait for its transaction",
    Status.WRITTEN: "lock",
    Status.LOCKED: "assert",
    Status.ASSERTED: "put",
    Status.PUT: "clean",
    Status.CLEANING: "unlock, wait",
    Status.ABORTING: "unlock",
}
"""The work that is done while a row has a status. After the unlock the row waits for a request that
completes many rows at once."""

TONES = {
    Status.ASSERTED: "other",
    Status.PUT: "other",
    Status.CLEANING: "other",
    Status.COMPLETE: "good",
    Status.ABORTING: "bad",
    Status.ABORTED: "bad",
}


class Segment(NamedTuple):
    x: float
    width: float
    name: str
    duration: str
    tone: str
    is_open: bool


class Mark(NamedTuple):
    x: float
    name: str
    at: str
    tone: str


class Timeline(NamedTuple):
    marks: Sequence[Mark]
    segments: Sequence[Segment]
    summary: str


class Bar(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    tone: str


def draw_timeline(found: Explanation, now_ms: int) -> Timeline | None:
    """Return the statuses of a transaction as marks on a line, with the work between them; None for
    a row without a status. The last phase of an unfinished transaction ends now."""
    times = found.statuses
    if not times:
        return None
    is_open = not times[-1].status.is_finished
    ends = [*(each.since for each in times[1:]), *([now_ms] if is_open else [])]
    lengths = [max(0, end - each.since) for each, end in zip(times, ends, strict=False)]
    # Each phase gets the least width, and the rest is shared by duration.
    rest = max(0, WIDTH - 120 - LEAST * len(lengths))
    shares = lengths if any(lengths) else [1] * len(lengths)
    widths = [LEAST + rest * share / sum(shares) for share in shares]
    x, marks, segments = 10.0, list[Mark](), list[Segment]()
    for each, after, length, width in zip_longest(times, times[1:], lengths, widths):
        tone = TONES.get(each.status, "warn")
        marks.append(Mark(x, str(each.status), time_text(each.since), tone))
        if width is not None:
            work = name_work(each.status, after.status if after else None)
            segments.append(Segment(x, width, work, duration_text(length), tone, after is None))
            x += width
    summary = ", ".join(f"{each.status} at {time_text(each.since)}" for each in times)
    return Timeline(marks, segments, summary)


def name_work(status: Status, following: Status | None) -> str:
    if status is Status.WRITTEN and following is Status.ASSERTED:
        return "lock, assert"
    if status is Status.ASSERTED and following is Status.COMPLETE:
        return "put, unlock, wait"
    if following is Status.ABORTING:
        return "abort"
    return DONE_AFTER.get(status, "")


def draw_bars(
    columns: Sequence[Sequence[float]], tones: Sequence[str], width: int = 720
) -> tuple[list[Bar], list[tuple[float, float]]]:
    """Return columns of stacked bars, from left to right, and the values and positions of the
    chart's horizontal lines; the last one is its top."""
    top = round_up(max((sum(column) for column in columns), default=0))
    step = width / max(1, len(columns))
    bars = []
    for index, column in enumerate(columns):
        base = float(BARS_HEIGHT)
        for value, tone in zip(column, tones, strict=True):
            height = BARS_HEIGHT * value / top
            if height:
                base -= height
                bars.append(Bar(index * step, base, step * 0.8, height, tone))
    return bars, [(top * part, BARS_HEIGHT * (1 - part)) for part in (0.0, 0.5, 1.0)]


def round_up(value: float) -> float:
    """Return the least of 1, 2, 5, 10, 20 and so on that is not below the value."""
    sizes = (first * 10.0**power for power in count() for first in (1, 2, 5))
    return next(size for size in sizes if size >= value)
