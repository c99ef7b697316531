"""Where the marks of a picture go: numbers that a template writes as SVG. Nothing here is text of
a user's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from recovery.inspect import Explanation
from recovery.text import duration_text, time_text
from txn.protocol.phases import Status

WIDTH = 960
LEAST = 70
"""How wide a phase is at least: to have room for its name, and to be seen at all."""

DONE_AFTER = {
    Status.PART: "wait for its transaction",
    Status.WRITTEN: "lock",
    Status.LOCKED: "assert",
    Status.ASSERTED: "put",
    Status.PUT: "clean",
    Status.CLEANING: "unlock",
    Status.ABORTING: "unlock",
}
"""What is done while a row has a status, until it has the next one."""

TONES = {
    Status.ASSERTED: "other",
    Status.PUT: "other",
    Status.CLEANING: "other",
    Status.COMPLETE: "good",
    Status.ABORTING: "bad",
    Status.ABORTED: "bad",
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """The time between two statuses. x and width in the picture's units; tone: a class."""

    x: float
    width: float
    name: str
    told: str
    tone: str
    is_open: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """A status that was reached."""

    x: float
    name: str
    at: str
    tone: str
    is_first_line: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """The life of a transaction, from left to right. `told` says the same in a sentence."""

    marks: Sequence[Mark]
    stretches: Sequence[Stretch]
    told: str


def draw_timeline(found: Explanation, now_ms: int) -> Timeline | None:
    """Return the statuses of a transaction as marks on a line, and what was done between them; None
    for a row without a status. Of what is not finished the last stretch is open, until now."""
    times = found.statuses
    if not times:
        return None
    lengths = [later.since - each.since for each, later in pairwise(times)]
    is_open = not times[-1].status.is_finished
    if is_open:
        lengths.append(max(0, now_ms - times[-1].since))
    widths = _share(lengths)
    left = 10.0
    marks, stretches = [], []
    for index, each in enumerate(times):
        tone = TONES.get(each.status, "warn")
        marks.append(Mark(left, str(each.status), time_text(each.since), tone, index % 2 == 0))
        if index < len(widths):
            name = _name_work(
                each.status, times[index + 1].status if index + 1 < len(times) else None
            )
            ends_open = is_open and index == len(times) - 1
            told = duration_text(max(0, lengths[index]))
            stretches.append(Stretch(left, widths[index], name, told, tone, ends_open))
            left += widths[index]
    sentence = ", ".join(f"{each.status} at {time_text(each.since)}" for each in times)
    return Timeline(marks, stretches, sentence)


def _share(lengths: Sequence[int]) -> list[float]:
    """Divide the width: each its least, and the rest by how long it took."""
    rest = max(0, WIDTH - 120 - LEAST * len(lengths))
    lengths = [max(0, length) for length in lengths]
    if not any(lengths):
        lengths = [1] * len(lengths)
    return [LEAST + rest * length / sum(lengths) for length in lengths]


def _name_work(status: Status, following: Status | None) -> str:
    if status is Status.WRITTEN and following is Status.ASSERTED:
        return "lock, assert"
    if status is Status.ASSERTED and following is Status.COMPLETE:
        return "put, unlock"
    if following is Status.ABORTING:
        return "given up"
    return DONE_AFTER.get(status, "")


BARS_HEIGHT = 120


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of a column of bars."""

    x: float
    y: float
    width: float
    height: float
    tone: str


@dataclass(frozen=True, slots=True)
class Bars:
    """Columns from left to right, each of stretches upon each other, and their scale: the value
    that is as high as the picture, and the values of the lines."""

    bars: Sequence[Bar]
    top: float
    lines: Sequence[tuple[float, float]]


def draw_bars(columns: Sequence[Sequence[float]], tones: Sequence[str], width: int = 720) -> Bars:
    """Return columns of bars; of each column the values stand on each other, in these tones."""
    top = find_round(max((sum(column) for column in columns), default=0))
    step = width / max(1, len(columns))
    bars = []
    for index, column in enumerate(columns):
        base = float(BARS_HEIGHT)
        for value, tone in zip(column, tones, strict=True):
            height = BARS_HEIGHT * value / top
            if height:
                base -= height
                bars.append(Bar(index * step, base, step * 0.8, height, tone))
    lines = [(top * part, BARS_HEIGHT * (1 - part)) for part in (0.0, 0.5, 1.0)]
    return Bars(bars, top, lines)


def find_round(value: float) -> float:
    """Return the least of 1, 2 and 5 with zeros, that is no less; at least 1."""
    size = 1.0
    while True:
        for first in (1, 2, 5):
            if first * size >= value:
                return first * size
        size *= 10
