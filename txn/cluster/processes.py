"""Server processes that outlive the program that starts them, and checks of whether they answer.

A process is identified by its process id and a random mark on its command line. Process ids are
reused, so only a process whose command line shows the mark is ever signalled. The servers are not
our children, so a dead one never remains as a zombie that looks alive.

A gateway is probed with a call that only an initialized master can answer. The call is one
handwritten message of Thrift's binary protocol, so it needs no driver and no client.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple

from txn.clock import Clock, SystemClock
from txn.errors import TxnError
from txn.host.extras import require_extra

MARK_PROPERTY = "txn.process"
POLL_MS = 50
STATE_READS = 1_000
LOG_LINES = 40
LOG_BYTES = 64 * 1024
KERNEL = 2  # the parent of kernel threads, which have no command line either

TIMEOUT_S = 3

_CALL, _REPLY = 0x80010001, 0x80010002
_QUESTIONS = {"thrift1": "getTableNames", "thrift2": "listNamespaceDescriptors"}
_LIVE_NODES = "jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
_SUCCESS_LIST = b"\x0f\x00\x00"

# The shell exits at once, so the server is orphaned; the server keeps the session id.
_DETACH = 'out=$1; shift; "$@" </dev/null >>"$out" 2>&1 & echo $!'


class ClusterError(TxnError):
    """A cluster operation failed; `log` is the end of the server's log."""

    def __init__(self, reason: str, tail: str = "", **facts: object) -> None:
        super().__init__(reason, **facts)
        self.log = tail


class ProcessState(Enum):
    """RUNNING: the mark is visible. ENDING: its memory is freed, but perhaps not its ports."""

    RUNNING = auto()
    ENDING = auto()
    GONE = auto()


class Process(NamedTuple):
    """A server that was started and may have ended. pid: 0 while unknown."""

    name: str
    pid: int
    mark: str
    port: int

    @property
    def is_alive(self) -> bool:
        return _find_state(self) is ProcessState.RUNNING

    def signal(self, number: int) -> bool:
        """Send a signal; return False if the process has ended."""
        if not self.is_alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def launch(
    name: str, command: Sequence[str], *, port: int, mark: str, logs: Path, env: Mapping[str, str]
) -> Process:
    """Start a server whose command line contains the mark; its output goes to `NAME.out`."""
    started = subprocess.run(
        ["/bin/sh", "-c", _DETACH, "sh", str(logs / f"{name}.out"), *command],
        stdout=subprocess.PIPE,
        env=env,
        start_new_session=True,
        check=True,
    )
    return Process(name, int(started.stdout), mark, port)


def identify(process: Process) -> Process:
    """Return the process with its id, which is found by its mark if unknown."""
    if process.pid:
        return process
    import psutil  # noqa: PLC0415

    there = (process._replace(pid=pid) for pid in reversed(psutil.pids()))
    return next((each for each in there if each.is_alive), process)


def end(processes: Iterable[Process], clock: Clock, *, grace_ms: int) -> list[Process]:
    """Terminate the processes, kill those that are left after the grace, and return these."""
    processes = list(processes)
    if grace_ms:
        for process in processes:
            process.signal(signal.SIGTERM)
        _wait(processes, clock, grace_ms)
    killed = [process for process in processes if process.signal(signal.SIGKILL)]
    if left := _wait(processes, clock, 30_000):
        raise ClusterError("a killed process does not end", names=[p.name for p in left])
    return killed


def log_tail(name: str, logs: Path) -> str:
    lines: list[str] = []
    for path in (logs / f"{name}.log", logs / f"{name}.out"):
        with suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            lines += file.read().decode(errors="replace").splitlines()[-LOG_LINES:]
    return "\n".join(lines)


def _wait(processes: list[Process], clock: Clock, limit_ms: int) -> list[Process]:
    """Wait until the processes have ended and freed their ports and locks; return the rest."""
    deadline = clock.monotonic_ms() + limit_ms
    while processes := [each for each in processes if _find_state(each) is not ProcessState.GONE]:
        if clock.monotonic_ms() > deadline:
            break
        clock.sleep_ms(POLL_MS)
    return processes


def _find_state(process: Process) -> ProcessState:
    clock = SystemClock()
    for _ in range(STATE_READS):
        if (found := _read_state(process)) is not None:
            return found
        clock.sleep_ms(1)
    return ProcessState.GONE  # a process that hides its command line is not ours


def _read_state(process: Process) -> ProcessState | None:
    """Read the state once; None means that it must be read again. During `exec` a process has no
    command line for a moment. A process that is ending has no executable either."""
    with require_extra("cluster"):  # imported here: most users of the package start no cluster
        import psutil  # noqa: PLC0415
    try:
        found = psutil.Process(process.pid)
        if found.status() == psutil.STATUS_ZOMBIE:  # perhaps only its first thread
            return ProcessState.ENDING if found.num_threads() > 1 else ProcessState.GONE
        if line := found.cmdline():
            is_ours = f"-D{MARK_PROPERTY}={process.mark}" in line
            return ProcessState.RUNNING if is_ours else ProcessState.GONE
        if found.exe():
            return None
        return ProcessState.GONE if found.ppid() == KERNEL else ProcessState.ENDING
    except psutil.ZombieProcess:  # since its status was read
        return None
    except psutil.Error:
        return ProcessState.GONE


def port_answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S):
            return True
    except OSError:
        return False


def gateway_answers(kind: str, port: int) -> bool:
    """Return True if a gateway, "thrift1" or "thrift2", gets an answer from the master."""
    name = _QUESTIONS[kind].encode()
    message = name + struct.pack(">I", 1)
    expected = struct.pack(">II", _REPLY, len(name)) + message + _SUCCESS_LIST
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
            connection.sendall(struct.pack(">II", _CALL, len(name)) + message + b"\0")
            with connection.makefile("rb") as received:
                return received.read(len(expected)) == expected
    except OSError:
        return False


def data_node_is_known(namenode_http_port: int) -> bool:
    """Return True if HDFS can take data: its name node knows a data node."""
    from urllib.error import HTTPError  # noqa: PLC0415 -- loads http, ssl and email
    from urllib.request import urlopen  # noqa: PLC0415

    url = f"http://127.0.0.1:{namenode_http_port}/{_LIVE_NODES}"
    try:
        with urlopen(url, timeout=TIMEOUT_S) as answer:
            beans = json.load(answer)["beans"]
    except HTTPError as error:
        error.close()  # an HTTPError is a response that must be closed
        return False
    except (OSError, ValueError):
        return False
    return any(bean.get("NumLiveDataNodes", 0) > 0 for bean in beans)
