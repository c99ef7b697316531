"""Processes beside a test: forked, which tell how far they have come, or started anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from txn.clock import poll

Tell = Callable[[bytes], object]


class Child:
    """A forked process; what it writes to its pipe tells how far it has come."""

    def __init__(self, body: Callable[[Tell], object]) -> None:
        self._pipe, child_end = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self._pipe)
            try:
                body(lambda told: os.write(child_end, told))
                os._exit(0)
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(child_end)

    def hear(self, size: int) -> bytes:
        """Return the next bytes that it tells, fewer only if it has ended."""
        heard = b""
        while len(heard) < size and (more := os.read(self._pipe, size - len(heard))):
            heard += more
        return heard

    def wait_until_it_waits(self) -> None:
        """Wait until it does nothing by itself, as what waits for a lock."""
        state = Path(f"/proc/{self.pid}/stat")
        assert poll(lambda: state.read_text().rpartition(")")[2].split()[0] == "S", 60_000)

    def wait_until_stopped(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def kill(self) -> bytes:
        """Kill it, if it lives, and return all that it told."""
        os.kill(self.pid, signal.SIGKILL)
        rest = self.hear(1 << 30)
        self._reap()
        return rest

    def join(self) -> None:
        """Wait for its end, which must be a good one."""
        rest = self.hear(1 << 30)
        assert self._reap() == 0, rest

    def _reap(self) -> int:
        os.close(self._pipe)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def start(body: Callable[[Tell], object]) -> Child:
    """Return a forked process that has told a byte."""
    child = Child(body)
    assert child.hear(1)
    return child


def wait_for_ever() -> None:
    signal.pause()


@contextmanager
def other_readers(path: str, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Started, not forked, processes inside read transactions: a fork would close our files."""
    script = """
        import signal, sys
        from txn.tables.kv.lmdb import LmdbStore
        store = LmdbStore(sys.argv[1], sync=False)
        store.read(lambda reader: (print("inside", flush=True), signal.pause()))
    """
    command = [sys.executable, "-c", textwrap.dedent(script), path]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"inside\n"
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def run(script: str, *arguments: str) -> str:
    """Return what a new interpreter prints."""
    line = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
