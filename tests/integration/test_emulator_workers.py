"""The supervisor of several workers, whatever they are at."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from textwrap import dedent

import pytest

SCRIPT = """
    import logging, os, sys, threading, time
    {before}
    from txn.clock import SystemClock
    from txn.emulator.workers import Supervisor, serve_here

    def start():
        {work}
        os.write(1, b"s")
        return lambda: os.write(1, b"e")

    def ready():
        os.write(1, b"r")

    def chore():
        {chore}
        return 1_000

    {serve}
"""
HERE = "serve_here(start, ready, chore)"
TWO = "Supervisor(start, 2, 600_000, SystemClock(), logging.getLogger()).run(ready, chore)"
A_THREAD = "threading.Thread(target=time.sleep, args=(1_000,), daemon=True).start()"
BUSY = 'os.write(1, b"b"); time.sleep(2)'


@pytest.mark.parametrize(
    ("serve", "is_busy", "work", "told", "ended"),
    [
        (TWO, False, 'os.write(1, b"."); time.sleep(1_000)', b"..", 0),
        (TWO, False, 'os.write(1, b"."); os._exit(1)', b"....r", 0),  # two, and in their places
        (TWO, False, "pass", b"rss", 2),
        (HERE, True, "pass", b"brs", 1),
        (TWO, True, "pass", b"brss", 2),
    ],
    ids=[
        *("a worker that does not come to serve", "workers that end at once", "workers that serve"),
        *("alone beside a thread", "with workers beside a thread"),
    ],
)
def test_a_signal_that_asks_for_the_end_is_heard_whatever_workers_do(
    serve: str, is_busy: bool, work: str, told: bytes, ended: int
) -> None:
    """A start may wait long for a store: until then neither the supervisor nor the worker would
    end, within whatever grace requests under way are given. And the system gives the signal to any
    thread that does not block it, as one from before that sends traces, while the main one is at
    work: by default that kills, and what was under way is lost."""
    before, chore = (A_THREAD, BUSY) if is_busy else ("pass", "pass")
    script = dedent(SCRIPT).format(serve=serve, before=before, work=work, chore=chore)
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert b"".join(sorted(process.stdout.read(1) for _ in told)) == told
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert time.monotonic() - asked < 100
        assert process.stdout.read().count(b"e") == ended
