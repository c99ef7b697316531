"""The supervisor of several workers, whatever they are at."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from textwrap import dedent

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


BUSY = """
    import logging, os, sys, threading, time
    threading.Thread(target=time.sleep, args=(1_000,), daemon=True).start()  # blocks no signal
    from txn.clock import SystemClock
    from txn.emulator.workers import Supervisor, serve_here

    def say(*words):  # at once: lines of several processes must not mix
        os.write(1, (" ".join(map(str, words)) + "\\n").encode())

    def start():
        say("starts", os.getpid())
        return lambda: say("stopped")

    def ready():
        say("ready")

    def chore():
        say("busy")
        time.sleep(2)
        say("rests")
        return 600_000

    {serve}
"""
HERE = "serve_here(start, ready, chore)"
TWO = "Supervisor(start, 2, 600_000, SystemClock(), logging.getLogger()).run(ready, chore)"


@contextmanager
def busy(serve: str) -> Iterator[tuple[subprocess.Popen[str], Callable[[str], list[str]]]]:
    """Serve beside a thread from before, as one that sends traces; give what reads lines to one."""
    script = dedent(BUSY).format(serve=serve)
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as p:
        assert p.stdout is not None
        out = p.stdout

        def read_to(last: str) -> list[str]:
            lines = [out.readline().strip()]
            while not lines[-1].startswith(last):
                assert lines[-1], "it has ended"
                lines.append(out.readline().strip())
            return lines

        try:
            yield p, read_to
        finally:
            p.kill()


@pytest.mark.parametrize(("serve", "count"), [(HERE, 1), (TWO, 2)], ids=["alone", "with workers"])
def test_a_signal_that_a_thread_from_before_takes_ends_it_in_order(serve: str, count: int) -> None:
    """The system gives it to any thread that does not block it, while the main one is at work: by
    default that kills, and what was under way is lost, with the spans of it."""
    with busy(serve) as (process, read_to):
        read_to("busy")
        process.send_signal(signal.SIGTERM)
        for _ in range(count):
            read_to("stopped")
        assert process.wait(120) == 0
