"""How clients write their history down, and how it is read back."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.history.events import Deletion, Ending, Missing, Read, Transaction, Value, Write

Line = dict[str, Any]
KINDS = {kind.__name__.lower(): kind for kind in (Read, Missing, Write, Deletion)}


class Recorder:
    """Takes down what one or more clients do. tell: takes each line; now: a clock they share."""

    def __init__(
        self, tell: Callable[[Line], object], now: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.now = now
        self._tell = tell

    def begin(self, name: str, events: Sequence[Read | Write], start: int | None = None) -> None:
        told = [[type(e).__name__.lower(), *e] for e in events]
        start = self.now() if start is None else start
        self._tell({"name": name, "start": start, "events": told})

    def end(self, name: str, ending: Ending, at: int | None = None, end: int | None = None) -> None:
        moment = self.now() if end is None else end
        self._tell({"name": name, "end": moment, "ending": ending.value, "at": at})

    def did(
        self, name: str, events: Sequence[Read | Write], start: int, end: int | None = None
    ) -> None:
        self.begin(name, events, start)
        self.end(name, Ending.COMMITTED, end=end)


def to_file(path: Path) -> Callable[[Line], object]:
    """Return what appends lines to a file, each in a single write."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    return lambda line: os.write(file, f"{json.dumps(line)}\n".encode())


def load(folder: Path) -> list[Transaction]:
    """Read back the lines that are whole: of another its client had not gone on."""
    texts = [path.read_text() for path in sorted(folder.glob("*.jsonl"))]
    lines = (line for text in texts for line in text.splitlines(keepends=True))
    return history(json.loads(line) for line in lines if line.endswith("\n"))


def history(lines: Iterable[Line]) -> list[Transaction]:
    found: dict[str, Transaction] = {}
    for line in lines:
        name = line["name"]
        if "start" in line:
            events = tuple(_event(*event) for event in line["events"])
            found[name] = Transaction(name, events, line["start"], None, Ending.UNKNOWN)
        else:
            known = found[name]
            events = tuple(_dated(event, line["at"]) for event in known.events)
            ending = Ending(line["ending"])
            found[name] = replace(known, events=events, end=line["end"], ending=ending)
    return list(found.values())


def _event(kind: str, key: str, value: Value, at: int | None) -> Read | Write:
    known = tuple(value) if isinstance(value, list) else value
    return KINDS[kind](key, known, at)


def _dated(event: Read | Write, at: int | None) -> Read | Write:
    return event._replace(at=at) if isinstance(event, Write) and at is not None else event
