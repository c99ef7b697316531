"""A job as its processes, to kill some or all of them without warning.

The job runs in its own session, which identifies its processes even after their parents have died.
They are found in /proc, so killing needs Linux.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any, Self

import txn
from txn.errors import TxnError, annotate

SILENCE_S = 900  # Spark takes minutes to start on a very busy machine
ENDS_WITHIN_S = 60
LOG_LINES = 30
WORKER = b"pyspark.daemon"
# Linux kills the process when its starter dies; its children end when their pipes break.
LAUNCH = """
import ctypes, runpy, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""

Line = dict[str, Any]


class JobError(TxnError):
    """The job failed by itself, or fell silent: see the end of its log."""

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(reason)
        self.log = log


class Job:
    """A Python module that runs in its own process and writes lines of JSON."""

    def __init__(self, module: str, arguments: Sequence[str], folder: Path) -> None:
        self._log = folder / "job.log"
        library = Path(txn.__file__).parent.parent
        path = os.pathsep.join(filter(None, [str(library), os.environ.get("PYTHONPATH")]))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", LAUNCH, module, *arguments],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._lines: Queue[bytes | None] = Queue()
        self._reader = Thread(target=self._listen, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def lines(self) -> Iterator[Line]:
        """Yield the job's lines until it ends. Raises JobError if it failed or fell silent."""
        try:
            while (line := self._lines.get(timeout=SILENCE_S)) is not None:
                if line.startswith(b"{"):
                    yield json.loads(line)
        except Empty:
            raise self._failure("the job is silent", seconds=SILENCE_S) from None
        code = self._process.wait(ENDS_WITHIN_S)
        if code != 0:
            raise self._failure("the job failed", code=code)

    def signal_workers(self, number: signal.Signals) -> int:
        """Signal the Python workers of Spark, the processes that its daemon has forked."""
        daemons = {pid for pid, _, command in self._processes() if WORKER in command}
        workers = [pid for pid, parent, _ in self._processes() if parent in daemons]
        _signal(workers, number)
        return len(workers)

    def kill(self) -> int:
        killed: set[int] = set()
        while found := [pid for pid, _, _ in self._processes()]:
            _signal(found, signal.SIGKILL)
            killed.update(found)
            if self._process.pid in found:
                self._process.wait()
        self._process.wait()
        self._reader.join()
        return len(killed)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            with self._process.stdout as out:
                for line in out:
                    self._lines.put(line)
        finally:
            self._lines.put(None)

    def _failure(self, what: str, **facts: object) -> JobError:
        log = self._log.read_text(errors="replace").splitlines()
        return JobError(annotate(what, **facts), "\n".join(log[-LOG_LINES:]))

    def _processes(self) -> list[tuple[int, int, bytes]]:
        """Return the living processes of the job's session: id, parent's id, command."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue  # it has just ended
            state, parent, session = fields[0], int(fields[1]), int(fields[3])
            if session == self._process.pid and state not in "ZX":
                found.append((int(folder.name), parent, command))
        return found


def _signal(processes: Sequence[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)
