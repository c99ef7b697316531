"""`python -m tests.bench native --peers FOLDER`, or `embedded`: other programs in the same run.

The folder has a plain Java client, Omid, Tephra and ScalarDB. Each has a program that reads lines
on standard input, `CASE WORK THREADS SECONDS WARM ROUND`, and answers with a line of JSON and
`DONE`. The folder is made elsewhere, with its libraries in place; `prep.sh` there compiles the
programs and writes configurations for the HBase that is measured, `servers.sh` starts what Omid and
Tephra need. The programs run for all of the bench, are warmed first, and take turns with our cases.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

from tests.bench.measuring import Case, Measured
from txn.cluster.cluster import open_cluster

CASES = {"java": "raw-java-floor", "omid": "omid-lowlat", "tephra": "tephra-0.16.0"}
MAINS = {
    **{"java": "RawW", "omid": "OmidBench", "tephra": "TephraBench"},
    "scalardb": "ScalarBench",
}
NEED_SERVERS = {"omid", "tephra"}
CLASSES = {
    "java": ("raw/classes", "common"),
    "omid": ("omid/classes", "conf", "common", "omid/lib/*"),
    "tephra": (
        *("tephra/classes", "tephra/shimc", "conf", "common", "tephra/lib/*", "tephra/hbjars/*"),
    ),
    "scalardb": ("scalardb/classes", "scalardb/lib/*"),
}
WARM_S = 20.0
SETTLE_S = 0.7
"""For how long threads run before what they do counts."""
SILENCE_S = 120.0
"""A program whose answer is so much later than the end of its work is killed."""


class Peer:
    """Another program, running."""

    silence_s = SILENCE_S

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self._name, self._round = name, 0
        self._errors = (folder / f"bench-{name}.err").open("w")
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        environment = {**os.environ, "PEERS": str(folder)}
        self._process = subprocess.Popen(
            command, cwd=folder, env=environment, stderr=self._errors, text=True, **pipes
        )
        self._read_until("READY", 0)

    def measure(self, case: Case, seconds: float) -> Measured:
        """Let it work for so long."""
        assert self._process.stdin is not None
        self._round += 1
        line = (
            f"{case_of(case)} {work_of(case)} {case.clients} {seconds:g} {SETTLE_S} {self._round}"
        )
        print(line, file=self._process.stdin, flush=True)
        return read_figures(json.loads(self._read_until("DONE", seconds)[-1]))

    def close(self) -> None:
        """End it."""
        try:
            self._process.communicate("quit\n", timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._errors.close()

    def _read_until(self, end: str, seconds: float) -> list[str]:
        """Return the lines of JSON before this one, which must come within the seconds of its work
        and those of `silence_s`."""
        assert self._process.stdout is not None
        lines: list[str] = []
        limit = Timer(seconds + self.silence_s, self._process.kill)
        limit.start()
        try:
            for line in self._process.stdout:
                if line.strip() == end:
                    return lines
                if line.startswith("{"):
                    lines.append(line)
        finally:
            limit.cancel()
        raise RuntimeError(f"{self._name} ended, or was silent; see {self._errors.name}")


def case_of(case: Case) -> str:
    """Return how a program calls what it does of this case."""
    if case.program != "scalardb":
        return CASES[case.program]
    sync = "OFF" if case.transport == "unsynced" else "FULL"
    return f"scalardb-{sync}/{'cc-serializable' if case.batch else 'floor'}"


def work_of(case: Case) -> str:
    """Return how the other programs call the work."""
    if case.work == "ten cells":
        return "W3"
    return "W2" if case.accounts == 10 else "W1"


def read_figures(told: Mapping[str, Any]) -> Measured:
    """Return what another program has told of itself."""
    if told["errors"]:
        print(f"{told['peer']}: {told['errors']} errors", file=sys.stderr)
    return Measured(
        per_second=told["tps"],
        call_ms=told["p50_ms"],
        slow_ms=told["p99_ms"],
        attempts=1 + told["aborts"] / max(1, told["commits"]),
        requests=0,
        client_us=told["cpu_client_ms_per_txn"] * 1000,
        server_us=told["cpu_servers_ms_per_txn"] * 1000,
        sum_diff=told.get("sum_diff", 0),
    )


@contextmanager
def running_peers(
    folder: Path, cluster: Path | None, names: Sequence[str]
) -> Iterator[dict[str, Callable[[Case, float], Measured]]]:
    """Start the programs of these names, on the HBase in a folder if they use one; warm them."""
    project = Path(sys.prefix).parent  # whose .venv the scripts use
    jars = folder / "jars"  # env.sh puts those of the HBase there
    environment = {
        **os.environ,
        **{"PEERS": str(folder), "HBDATA": str(cluster or folder), "PROJECT": str(project)},
    }
    shell = partial(_run_shell, folder, environment)
    shell("./prep.sh >&2")
    options = shell(". ./env.sh; echo $JOPTS").split()
    with ExitStack() as stack:
        if NEED_SERVERS.intersection(names):
            shell("./servers.sh start >&2")
            stack.callback(shell, "./servers.sh stop >&2")
        found = {}
        for name in names:
            command = _command(name, folder, cluster, jars, options)
            found[name] = stack.enter_context(_closing(Peer(name, command, folder)))
        for name, peer in found.items():
            warm = Case("transfer", 1, 16, program=name)  # type: ignore[arg-type]
            peer.measure(warm, WARM_S)
        yield {name: peer.measure for name, peer in found.items()}


@contextmanager
def _closing(peer: Peer) -> Iterator[Peer]:
    try:
        yield peer
    finally:
        peer.close()


def _run_shell(folder: Path, environment: Mapping[str, str], line: str) -> str:
    """Run a line of bash in the folder; return what it says."""
    log = folder / "bench.log"
    with log.open("a") as errors:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{line!r} failed; see {log}")
    return done.stdout


def _command(
    name: str, folder: Path, cluster: Path | None, jars: Path, options: Sequence[str]
) -> list[str]:
    """Return how a program is started."""
    given = _list_properties(name, folder, cluster) if cluster else []
    places = [str(folder / place) for place in CLASSES[name]]
    if name == "java":
        places.append(f"{jars}/*")
    fixed = ["-Xmx1g", *options, "-Ddaemon=true", "-Dout=/dev/null"]
    return ["java", *fixed, *given, "-cp", ":".join(places), MAINS[name]]


def _list_properties(name: str, folder: Path, cluster: Path) -> list[str]:
    hbase = open_cluster(cluster)
    pids = ",".join(str(process.pid) for process in hbase.processes.values())
    given = [f"-Dpids={pids}"]
    match name:
        case "java":
            given += [f"-Dzkport={hbase.settings.ports['zookeeper']}"]
        case "omid":
            given += [f"-Dzkport={hbase.settings.ports['zookeeper']}"]
            given += [f"-Dtso2={(folder / 'omid/tso.pid').read_text().strip()}"]
        case _:
            given += [f"-Dcpjar=file://{folder}/tephra/cp.jar", f"-Dtxsnap={folder}/tephra/snap"]
            given += [f"-Dtxpid={(folder / 'tephra/tx.pid').read_text().strip()}"]
    return given
