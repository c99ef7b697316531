"""Processes that do one thing, for tests that race and kill them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

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
