"""The supervisor of several workers, whatever they are at."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

SCRIPT = """
    import logging, os, signal, sys, time
    from txn.clock import SystemClock
    from txn.emulator.workers import Supervisor

    def start():
        {work}
        os.write(1, b"s")
        return lambda: None

    def ready():
        os.write(1, b"r")

    Supervisor(start, 2, 600_000, SystemClock(), logging.getLogger()).run(ready, lambda: 1_000)
"""


def supervised(work: str) -> subprocess.Popen[bytes]:
    lines = SCRIPT.format(work=work).splitlines()
    script = "\n".join(line.removeprefix("    ") for line in lines)
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)


def hear(process: subprocess.Popen[bytes], count: int) -> bytes:
    assert process.stdout is not None
    return b"".join(sorted(process.stdout.read(1) for _ in range(count)))


@pytest.mark.parametrize(
    ("work", "told"),
    [
        ('os.write(1, b"."); time.sleep(1_000)', b".."),
        ('os.write(1, b"."); os._exit(1)', b"....r"),  # two, and two in their places
        ("pass", b"rss"),
    ],
    ids=["a worker that does not come to serve", "workers that end at once", "workers that serve"],
)
def test_a_signal_that_asks_for_the_end_is_heard_whatever_workers_do(
    work: str, told: bytes
) -> None:
    """A start may wait long for a store: until then neither the supervisor nor the worker would
    end, within whatever grace requests under way are given."""
    with supervised(work) as process:
        assert hear(process, len(told)) == told
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert time.monotonic() - asked < 100
