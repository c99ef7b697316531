"""Server processes that outlive the program that starts them, known by process id and mark; and
whether they answer.

Each carries a random mark on its command line, and nothing is ever signalled whose command line
does not show it: a process id may long belong to somebody else. The servers are not our children,
so a dead one never stays behind as a zombie that looks alive.

A gateway is asked for something that only an initialized master can tell, in one message of the
binary protocol of Thrift, written out by hand: no driver is needed for it, and no client is kept.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from txn.clock import Clock, SystemClock
from txn.errors import TxnError
from txn.host.extras import require_extra

MARK_PROPERTY = "txn.process"
POLL_MS = 50
STATE_READS = 1_000
LOG_LINES = 40
LOG_BYTES = 64 * 1024
KERNEL = 2  # the parent of threads of the kernel, which have no command line either

TIMEOUT_S = 3

_CALL, _REPLY = 0x80010001, 0x80010002
_QUESTIONS = {"thrift1": "getTableNames", "thrift2": "listNamespaceDescriptors"}
_LIVE_NODES = "jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
_SUCCESS_LIST = b"\x0f\x00\x00"

# The shell ends at once and leaves the server to the system; the server keeps the session's id.
_DETACH = 'out=$1; shift; "$@" </dev/null >>"$out" 2>&1 & echo $!'


class ClusterError(TxnError):
    """The cluster could not do what it was asked; `log` is the end of what the server said."""

    def __init__(self, reason: str, tail: str = "", **facts: object) -> None:
        super().__init__(reason, **facts)
        self.log = tail


class ProcessState(Enum):
    """Running: the mark is seen. Ending: its memory is gone already, its ports perhaps not."""

    RUNNING = auto()
    ENDING = auto()
    GONE = auto()


@dataclass(frozen=True, slots=True)
class Process:
    """A server that was started; it may have ended since. pid: 0 while it is not known yet."""

    name: str
    pid: int
    mark: str
    port: int

    @property
    def is_alive(self) -> bool:
        return _find_state(self) is ProcessState.RUNNING

    def signal(self, number: int) -> bool:
        """Send a signal, and return whether the process was still there to get it."""
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
    """Start a server whose command line holds the mark; what it prints goes to `NAME.out`."""
    said = subprocess.run(
        ["/bin/sh", "-c", _DETACH, "sh", str(logs / f"{name}.out"), *command],
        stdout=subprocess.PIPE,
        env=env,
        start_new_session=True,
        check=True,
    )
    return Process(name, int(said.stdout), mark, port)


def identify(process: Process) -> Process:
    """Return it with its id, by its mark where its starter did not get to know that."""
    if process.pid:
        return process
    import psutil  # noqa: PLC0415

    there = (replace(process, pid=pid) for pid in reversed(psutil.pids()))
    return next((each for each in there if each.is_alive), process)


def end(processes: Iterable[Process], clock: Clock, *, grace_ms: int) -> list[Process]:
    """Ask the processes to end, kill those that have not within the grace, and return these."""
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
    """Return the end of a server's log, and of what it printed beside it."""
    return "\n".join(line for suffix in ("log", "out") for line in _tail(logs / f"{name}.{suffix}"))


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            return file.read().decode(errors="replace").splitlines()[-LOG_LINES:]
    except FileNotFoundError:
        return []


def _wait(processes: list[Process], clock: Clock, limit_ms: int) -> list[Process]:
    """Wait until the processes are gone, with their ports and locks; return those that are not."""
    deadline = clock.monotonic_ms() + limit_ms
    left = processes
    while left := [process for process in left if _find_state(process) is not ProcessState.GONE]:
        if clock.monotonic_ms() > deadline:
            break
        clock.sleep_ms(POLL_MS)
    return left


def _find_state(process: Process) -> ProcessState:
    clock = SystemClock()
    for _ in range(STATE_READS):
        if (found := _read_state(process)) is not None:
            return found
        clock.sleep_ms(1)
    return ProcessState.GONE  # a process that hides its command line is not ours


def _read_state(process: Process) -> ProcessState | None:
    """Read the state once; None: read it again.

    A process that becomes another program, as a script does by `exec`, has no command line for a
    moment. One that is ending has no command line and no program.
    """
    with require_extra("cluster"):  # imported here: most users of the package start no cluster
        import psutil  # noqa: PLC0415
    try:
        found = psutil.Process(process.pid)
        if found.status() == psutil.STATUS_ZOMBIE:  # of its threads the first has ended, or all
            return ProcessState.ENDING if found.num_threads() > 1 else ProcessState.GONE
        if line := found.cmdline():
            is_ours = f"-D{MARK_PROPERTY}={process.mark}" in line
            return ProcessState.RUNNING if is_ours else ProcessState.GONE
        if found.exe():
            return None
        return ProcessState.GONE if found.ppid() == KERNEL else ProcessState.ENDING
    except psutil.ZombieProcess:  # since the look at its status
        return None
    except psutil.Error:
        return ProcessState.GONE


# ---------------------------------------------------------------------------------------- answers


def port_answers(port: int) -> bool:
    """Return whether something accepts connections there."""
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S):
            return True
    except OSError:
        return False


def gateway_answers(kind: str, port: int) -> bool:
    """Return whether a gateway, "thrift1" or "thrift2", gets an answer from the master."""
    name = _QUESTIONS[kind].encode()
    head = struct.pack(">II", _CALL, len(name)) + name
    answer = struct.pack(">II", _REPLY, len(name)) + name
    sequence = struct.pack(">I", 1)
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
            connection.sendall(head + sequence + b"\0")
            expected = answer + sequence + _SUCCESS_LIST
            return _receive(connection, len(expected)) == expected
    except OSError:
        return False


def data_node_is_known(namenode_http_port: int) -> bool:
    """Return whether HDFS can take data: its name node has heard of a data node."""
    url = f"http://127.0.0.1:{namenode_http_port}/{_LIVE_NODES}"
    try:
        with urlopen(url, timeout=TIMEOUT_S) as answer:
            beans = json.load(answer)["beans"]
    except HTTPError as error:
        error.close()  # it is an answer, with a connection and a file
        return False
    except (OSError, ValueError):
        return False
    return any(bean.get("NumLiveDataNodes", 0) > 0 for bean in beans)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size and (part := connection.recv(size - len(received))):
        received += part
    return received
