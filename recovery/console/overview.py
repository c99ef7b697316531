"""The overview: committed and unfinished transactions, and conflicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from recovery.console.charts import TONES, draw_bars
from recovery.console.rendering import render, respond
from recovery.console.state import Console
from recovery.console.statistics import MINUTE_MS, MINUTES, Hour, Minute, find_last_minute
from recovery.console.unfinished import UNKNOWN, Unfinished
from txn.protocol.row import TransactionRow
from txn.protocol.statuses import FENCED_STEPS, STEPS, Status

SHOWN = 10
BAR_TONES = ("good", "bad", "warn")
BESIDE = (Status.PART, Status.ABORTING, Status.ABORTED)
"""Statuses that are not on the way of a transaction to its commit."""


class Step(NamedTuple):
    """A line of the funnel: how many of the hour's transactions have reached a status, and which
    share."""

    name: str
    number: int
    part: float
    tone: str


class Owned(NamedTuple):
    """An unfinished transaction: how long it has been silent, how many keys it locks (if its row
    says so), and whether its owner counts as alive."""

    row: TransactionRow
    silent_ms: int
    keys: int | None
    owner: str


def show_overview(request: Request) -> Response:
    return respond("overview.html", request, {"part": render_overview(request)})


def render_overview(request: Request) -> str:
    console: Console = request.app.state.console
    found = console.background
    found.visit()
    hour, unfinished = found.hour, found.unfinished
    minutes = fill_hour(hour)
    columns = [(m.committed, m.aborted, m.undecided) if m else (0, 0, 0) for m in minutes]
    facts = {
        "hour": hour,
        "is_sampled": hour.is_sampled,
        "last": find_last_minute(hour),
        "bars": draw_bars([[each / 60 for each in column] for column in columns], BAR_TONES),
        "minutes": [each for each in reversed(minutes) if each],
        "began": (hour.as_of // MINUTE_MS - MINUTES + 1) * MINUTE_MS,
        "funnel": make_funnel(hour, list_path(console)),
        "unfinished": unfinished,
        "waiting": list_waiting(console, unfinished),
        "unknown": UNKNOWN,
        "oldest": [describe_owner(row, console.context.clock.wall_ms()) for row in found.oldest],
        "shown": SHOWN,
        "servers": found.servers.read(),
        "trouble": found.trouble,
    }
    return render("overview_part.html", request, facts)


def describe_owner(row: TransactionRow, now_ms: int) -> Owned:
    """Return an unfinished row with what is known of its owner. now_ms: by our clock."""
    silent_ms = max(0, now_ms - max(row.since, row.heartbeat))
    if row.buffer is None:
        return Owned(row, silent_ms, None, "not known: the row does not decode")
    is_late = silent_ms > row.buffer.lock_ttl_ms
    keys = len(row.buffer.request.keys)
    return Owned(
        row, silent_ms, keys, "its lock TTL has passed" if is_late else "within its lock TTL"
    )


def fill_hour(hour: Hour) -> list[Minute | None]:
    """Return the last hour, the oldest minute first; None for minutes without a sample."""
    known = {each.began_ms // MINUTE_MS: each for each in hour.minutes}
    now = hour.as_of // MINUTE_MS
    return [known.get(at) for at in range(now - MINUTES + 1, now + 1)]


def list_path(console: Console) -> list[Status]:
    if console.context.rules.locks_rows:  # 1-LOCKED needs validated ranges
        return [each for each in FENCED_STEPS if each not in (*BESIDE, Status.LOCKED)]
    return [each for each in STEPS if each not in BESIDE]


def make_funnel(hour: Hour, path: Sequence[Status]) -> list[Step]:
    """Return how many of the hour's transactions reached each status of a path, or left it."""
    counts: Counter[str] = Counter()
    for minute in hour.minutes:
        counts.update(minute.statuses)
    begun = max(1, sum(counts.values()))
    steps = []
    for index, status in enumerate(path):
        reached = sum(counts[str(each)] for each in path[index:])
        number = reached if index else sum(counts.values())
        steps.append(Step(str(status), number, number / begun, TONES.get(status, "warn")))
    left = counts[str(Status.ABORTING)] + counts[str(Status.ABORTED)]
    return [*steps, Step(str(Status.ABORTED), left, left / begun, "bad")]


def list_waiting(console: Console, unfinished: Unfinished | None) -> Sequence[tuple[str, int]]:
    if unfinished is None:
        return ()
    steps = FENCED_STEPS if console.context.rules.locks_rows else STEPS
    order = [str(each) for each in Status if each in steps and not each.is_finished]
    known = [(name, unfinished.statuses.get(name, 0)) for name in order]
    return [*known, *((n, c) for n, c in unfinished.statuses.items() if n not in order)]
