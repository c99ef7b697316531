"""Starting, looking at, hurting and ending a cluster.

`cluster.json` in the cluster's folder says which processes were started; it is written before and
after each of them, so that a start that was cut short can be stopped like any other. One start or
stop at a time works on a folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import secrets
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from txn.clock import Clock, SystemClock
from txn.cluster import configuration, probe
from txn.cluster.jars import fetch, read_locked
from txn.cluster.processes import ClusterError, Process, end, identify, launch, log_tail
from txn.cluster.roles import NAMENODE, Role, class_path, command, roles
from txn.cluster.settings import GATEWAYS, NATIVE, Settings, claimed_ports, from_document
from txn.host.java import find_java_home

RECORD = "cluster.json"
LOCK = "lock"
LOOK_EACH_MS = 200
READY_WITHIN_MS = 180_000
# Standalone, ZooKeeper may end before the region server, which then asks for it for 20 s and more.
GRACE_MS = 90_000

Said = Callable[[str], None]
Fetched = Callable[[int, int], None]


class Cluster:
    """A cluster in a folder, and the processes that were started for it."""

    def __init__(
        self, settings: Settings, processes: Mapping[str, Process], clock: Clock | None = None
    ) -> None:
        self.settings = settings
        self._processes = dict(processes)
        self._clock = clock or SystemClock()

    @property
    def processes(self) -> Mapping[str, Process]:
        """What was started, by name, in the order of starting."""
        return dict(self._processes)

    @property
    def uris(self) -> dict[str, str]:
        """The names of its stores: HBase's own protocol, by way of ZooKeeper, and the gateways."""
        ports = self.settings.ports
        gateways = {name: f"hbase+{name}://127.0.0.1:{ports[name]}" for name in GATEWAYS}
        return {NATIVE: f"hbase://127.0.0.1:{ports['zookeeper']}", **gateways}

    @property
    def log_folder(self) -> Path:
        return configuration.logs_folder(self.settings)

    def is_ready(self) -> bool:
        """Return whether both gateways get answers from the master."""
        return all(probe.gateway_answers(name, self.settings.ports[name]) for name in GATEWAYS)

    def kill(self, name: str) -> None:
        """End a process with SIGKILL, and return once it has ended."""
        end([self._process(name)], self._clock, grace_ms=0)

    def restart(self, name: str, *, within_ms: int = READY_WITHIN_MS) -> None:
        """Start a process that has ended, and return once it answers. Raises ClusterError."""
        if self._process(name).is_alive:
            raise ClusterError("the process is still running", name=name)
        role = next(role for role in roles(self.settings) if role.name == name)
        jars = fetch(jars=read_locked(self.settings.version))
        self._launch(role, find_java_home() / "bin" / "java", jars)
        self._wait_for(name, partial(self._answers, name), within_ms, watched=(name,))

    def stop(self, *, grace_ms: int = GRACE_MS) -> list[Process]:
        """End every process and return those that had to be killed; data stays in the folder.

        grace_ms: the time they have to write down what they hold in memory; 0 kills them at once.
        """
        killed = []
        with _alone(self.settings.folder):
            self._processes = _read_record(self.settings.folder)[1]  # others may have begun some
            for group in _groups(list(self._processes.values())):
                killed += end(group, self._clock, grace_ms=grace_ms)
            # What was found by its mark may have been the shell that had just started it.
            killed += end(_read_record(self.settings.folder)[1].values(), self._clock, grace_ms=0)
        return killed if grace_ms else []

    def _process(self, name: str) -> Process:
        try:
            return self._processes[name]
        except KeyError:
            raise ClusterError("no such process", name=name, names=list(self._processes)) from None

    def start_processes(self, java: Path, jars: Sequence[Path], said: Said) -> None:
        """Start all of them, and return once the cluster answers. Raises ClusterError."""
        if self.settings.distributed and not (self.settings.folder / "namenode").exists():
            said("formatting the name node")
            self._format(java, jars)
        for role in roles(self.settings):
            said(f"starting {role.name}")
            self._launch(role, java, jars)
            if role.name == "datanode":
                said("waiting for HDFS")
                port = self.settings.ports["namenode-http"]
                self._wait_for("namenode", partial(probe.data_node_is_known, port))
        said("waiting for HBase")
        zookeeper = self.settings.ports["zookeeper"]
        self._wait_for("master", partial(probe.port_answers, zookeeper))
        for name in GATEWAYS:
            self._wait_for(name, partial(self._answers, name))

    def _format(self, java: Path, jars: Sequence[Path]) -> None:
        role = Role("format", NAMENODE, ("-format", "-nonInteractive"), 192)
        line = command(role, self.settings, java, secrets.token_hex(8))
        env = self._environ(jars)
        done = subprocess.run(line, capture_output=True, text=True, env=env, check=False)
        if done.returncode != 0:
            raise ClusterError("cannot format the name node", done.stdout + done.stderr)

    def _launch(self, role: Role, java: Path, jars: Sequence[Path]) -> None:
        mark, port = secrets.token_hex(8), self.settings.ports[role.name]
        self._processes[role.name] = Process(role.name, 0, mark, port)
        self._write()
        self._processes[role.name] = launch(
            role.name,
            command(role, self.settings, java, mark),
            port=port,
            mark=mark,
            logs=self.log_folder,
            env=self._environ(jars),
        )
        self._write()

    def _environ(self, jars: Sequence[Path]) -> dict[str, str]:
        return {**os.environ, "CLASSPATH": class_path(self.settings, jars)}

    def _answers(self, name: str) -> bool:
        port = self._processes[name].port
        return probe.gateway_answers(name, port) if name in GATEWAYS else probe.port_answers(port)

    def _wait_for(
        self,
        name: str,
        is_there: Callable[[], bool],
        within_ms: int = READY_WITHIN_MS,
        watched: Sequence[str] = (),
    ) -> None:
        """Wait until something is there; the end of a watched process, or of any, is an error."""
        deadline = self._clock.monotonic_ms() + within_ms
        while not is_there():
            for process in map(self._process, watched or self._processes):
                if not process.is_alive:
                    self._fail("a process has ended", process.name)
            if self._clock.monotonic_ms() > deadline:
                self._fail("a process does not answer", name)
            self._clock.sleep_ms(LOOK_EACH_MS)

    def _fail(self, reason: str, name: str) -> None:
        tail = log_tail(name, self.log_folder)
        raise ClusterError(reason, tail, name=name, log=str(self.log_folder / f"{name}.log"))

    def _write(self) -> None:
        document = {
            "settings": self.settings.document(),
            "processes": [asdict(process) for process in self._processes.values()],
        }
        path = self.settings.folder / RECORD
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(document, indent=2))
        os.replace(temporary, path)


def start(
    settings: Settings,
    *,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    said: Said = lambda step: None,
    fetched: Fetched = lambda done, total: None,
) -> Cluster:
    """Start a cluster and return once both gateways answer; on a failure nothing stays behind.

    settings.ports: the ones to use; the others are chosen. said: told what is being done. fetched:
    told how many of the missing jars are there. Raises ClusterError and its like.
    """
    java = find_java_home() / "bin" / "java"
    settings.folder.mkdir(parents=True, exist_ok=True)
    with _alone(settings.folder):
        before = _before(settings)
        last = before.ports if before else {}
        settings = settings.with_version(before.version if before else None)
        jars = fetch(fetched=fetched, jars=read_locked(settings.version))
        with claimed_ports(settings, last, rng or random.SystemRandom()) as ports:
            cluster = Cluster(replace(settings, ports=ports), {}, clock)
            configuration.write_configuration(cluster.settings)
            try:
                cluster.start_processes(java, jars, said)
            except BaseException:
                end(map(identify, cluster.processes.values()), clock or SystemClock(), grace_ms=0)
                raise
            return cluster


def open_cluster(folder: Path, clock: Clock | None = None) -> Cluster:
    """Return the cluster that was started in the folder, whether or not it runs.

    Raises ClusterError where none ever was.
    """
    return Cluster(*_read_record(folder), clock)


def _read_record(folder: Path) -> tuple[Settings, dict[str, Process]]:
    try:
        document = json.loads((folder / RECORD).read_text())
    except FileNotFoundError:
        raise ClusterError("no cluster was started here", folder=str(folder)) from None
    processes = [identify(Process(**process)) for process in document["processes"]]
    return from_document(document["settings"]), {each.name: each for each in processes}


def _before(settings: Settings) -> Settings | None:
    """The settings of the last start in this folder. Raises ClusterError where it must not be."""
    folder = settings.folder
    if not (folder / RECORD).exists():
        if any(path.name != LOCK for path in folder.iterdir()):
            raise ClusterError("the folder is not a cluster's", folder=str(folder))
        return None
    cluster = open_cluster(folder)
    if running := [each.name for each in cluster.processes.values() if each.is_alive]:
        raise ClusterError("it is running: stop it first", names=running)
    if cluster.settings.distributed != settings.distributed:
        kind = "distributed" if cluster.settings.distributed else "standalone"
        raise ClusterError("the folder is of the other kind", kind=kind)
    return cluster.settings


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep others from starting and stopping the cluster. Raises ClusterError if one is at it."""
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(
                "another start or stop is at work here", folder=str(folder)
            ) from None
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a child on its way to another program has it, too


def _groups(processes: Sequence[Process]) -> list[list[Process]]:
    """Who ends together: the gateways, HBase's servers, and then what those stand on."""
    base = ("namenode", "datanode", "zookeeper")
    return [
        [each for each in processes if each.name in GATEWAYS],
        [each for each in processes if each.name not in (*GATEWAYS, *base)],
        [each for each in processes if each.name in base],
    ]
