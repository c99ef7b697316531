"""Processes that do one thing, for tests that race and kill them, and the logs they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

Start = Callable[..., "subprocess.Popen[str]"]


@contextmanager
def starting(module: str) -> Iterator[Start]:
    """Start processes that run this module; those that are left are killed at the end."""
    with ExitStack() as stack:

        def started(*arguments: object) -> subprocess.Popen[str]:
            worker = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, arguments)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(worker)
            stack.callback(worker.kill)
            return worker

        yield started


class Log:
    """A file that many processes append to. A kill may cut short what is just being written, so
    each entry has a line of its own between two ends of lines."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def add(self, **facts: Any) -> None:
        os.write(self._file, b"\n%b\n" % json.dumps(facts).encode())


def told(path: Path) -> list[dict[str, Any]]:
    """Return the entries that are whole; who was killed while it told one did nothing after it."""
    return [facts for line in path.read_text().splitlines() if (facts := _whole(line))]


def _whole(line: str) -> dict[str, Any] | None:
    try:
        facts: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        return None
    return facts
