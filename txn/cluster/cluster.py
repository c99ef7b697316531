"""Start, observe, damage and stop a cluster.

`cluster.json` in the cluster's folder lists the started processes. It is written before and after
each start, so an interrupted start can be stopped too. A lock allows one start or stop at a time.
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
from dataclasses import replace
from functools import partial
from pathlib import Path

from txn.clock import SystemClock
from txn.cluster.configuration import NAMENODE, Role, list_roles, make_command, write_configuration
from txn.cluster.jars import fetch, read_locked
from txn.cluster.processes import (
    ClusterError,
    Process,
    data_node_is_known,
    end,
    gateway_answers,
    identify,
    launch,
    log_tail,
    port_answers,
)
from txn.cluster.settings import GATEWAYS, NATIVE, Settings, claim_ports
from txn.host.java import find_java_home

RECORD = "cluster.json"
LOCK = "lock"
POLL_EACH_MS = 200
READY_WITHIN_MS = 180_000
# Standalone, ZooKeeper may end before the region server, which then retries for over 20 s.
GRACE_MS = 90_000

OnStep = Callable[[str], None]


class Cluster:
    """The processes of an HBase on this machine, started for one folder."""

    def __init__(self, settings: Settings, processes: Mapping[str, Process]) -> None:
        self.settings = settings
        self.processes = dict(processes)  # by name, in start order
        self._clock = SystemClock()

    @property
    def uris(self) -> dict[str, str]:
        """The store URIs by name: `native` (through ZooKeeper) and the two gateways."""
        ports = self.settings.ports
        gateways = {name: f"hbase+{name}://127.0.0.1:{ports[name]}" for name in GATEWAYS}
        return {NATIVE: f"hbase://127.0.0.1:{ports['zookeeper']}", **gateways}

    def is_ready(self) -> bool:
        return all(gateway_answers(name, self.settings.ports[name]) for name in GATEWAYS)

    def kill(self, name: str) -> None:
        end([self._process(name)], self._clock, grace_ms=0)

    def restart(self, name: str) -> None:
        """Start a process that has ended, and wait until it answers. Raises ClusterError."""
        if self._process(name).is_alive:
            raise ClusterError("the process is still running", name=name)
        role = next(role for role in list_roles(self.settings) if role.name == name)
        jars = fetch(jars=read_locked(self.settings.version))
        self._launch(role, find_java_home() / "bin" / "java", jars)
        self._wait_for(name, partial(self._answers, name), watched=(name,))

    def stop(self, *, grace_ms: int = GRACE_MS) -> list[Process]:
        """Stop every process and return those that had to be killed; data stays in the folder.
        grace_ms: time for the processes to flush their memory; 0 kills them at once."""
        killed = []
        with _lock_folder(self.settings.folder):
            self.processes = _read_record(self.settings.folder)[1]  # others may have started some
            base = ("namenode", "datanode", "zookeeper")
            servers = self.processes.keys() - {*GATEWAYS, *base}
            for names in (GATEWAYS, servers, base):  # each before those that it needs
                group = [each for name, each in self.processes.items() if name in names]
                killed += end(group, self._clock, grace_ms=grace_ms)
            # A process identified by its mark may have been the shell that started it.
            killed += end(_read_record(self.settings.folder)[1].values(), self._clock, grace_ms=0)
        return killed if grace_ms else []

    def _process(self, name: str) -> Process:
        try:
            return self.processes[name]
        except KeyError:
            raise ClusterError("no such process", name=name, names=list(self.processes)) from None

    def start_processes(self, java: Path, jars: Sequence[Path], on_step: OnStep) -> None:
        """Start all processes and wait until the cluster answers. Raises ClusterError."""
        if self.settings.distributed and not (self.settings.folder / "namenode").exists():
            on_step("formatting the name node")
            role = Role("format", NAMENODE, ("-format", "-nonInteractive"), 192)
            line = make_command(role, self.settings, java, secrets.token_hex(8))
            env = self._environ(jars)
            done = subprocess.run(line, capture_output=True, text=True, env=env, check=False)
            if done.returncode != 0:
                raise ClusterError("cannot format the name node", done.stdout + done.stderr)
        for role in list_roles(self.settings):
            on_step(f"starting {role.name}")
            self._launch(role, java, jars)
            if role.name == "datanode":
                on_step("waiting for HDFS")
                port = self.settings.ports["namenode-http"]
                self._wait_for("namenode", partial(data_node_is_known, port))
        on_step("waiting for HBase")
        self._wait_for("master", partial(port_answers, self.settings.ports["zookeeper"]))
        for name in GATEWAYS:
            self._wait_for(name, partial(self._answers, name))

    def _launch(self, role: Role, java: Path, jars: Sequence[Path]) -> None:
        mark, port = secrets.token_hex(8), self.settings.ports[role.name]
        self.processes[role.name] = Process(role.name, 0, mark, port)
        self._write()
        self.processes[role.name] = launch(
            role.name,
            make_command(role, self.settings, java, mark),
            port=port,
            mark=mark,
            logs=self.settings.logs,
            env=self._environ(jars),
        )
        self._write()

    def _environ(self, jars: Sequence[Path]) -> dict[str, str]:
        # As an option, the class path would flood `ps`.
        return {**os.environ, "CLASSPATH": ":".join(map(str, [self.settings.conf, *jars]))}

    def _answers(self, name: str) -> bool:
        port = self.processes[name].port
        return gateway_answers(name, port) if name in GATEWAYS else port_answers(port)

    def _wait_for(
        self, name: str, is_there: Callable[[], bool], watched: Sequence[str] = ()
    ) -> None:
        """Wait until `is_there()`; fail if a watched process ends (by default, any process)."""
        deadline = self._clock.monotonic_ms() + READY_WITHIN_MS
        while not is_there():
            for process in map(self._process, watched or self.processes):
                if not process.is_alive:
                    self._fail("a process has ended", process.name)
            if self._clock.monotonic_ms() > deadline:
                self._fail("a process does not answer", name)
            self._clock.sleep_ms(POLL_EACH_MS)

    def _fail(self, reason: str, name: str) -> None:
        tail = log_tail(name, self.settings.logs)
        raise ClusterError(reason, tail, name=name, log=str(self.settings.logs / f"{name}.log"))

    def _write(self) -> None:
        document = {
            "settings": self.settings.document(),
            "processes": [process._asdict() for process in self.processes.values()],
        }
        path = self.settings.folder / RECORD
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(document, indent=2))
        os.replace(temporary, path)


def start(
    settings: Settings,
    *,
    on_step: OnStep = lambda step: None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Cluster:
    """Start a cluster and return once both gateways answer; after a failure no process is left.

    settings.ports: fixed ports; the others are chosen. on_step: receives the name of each step.
    on_progress: receives the number of fetched jars and of missing jars. Raises ClusterError,
    JarError, SettingsError and JavaNotFoundError.
    """
    java = find_java_home() / "bin" / "java"
    settings.folder.mkdir(parents=True, exist_ok=True)
    with _lock_folder(settings.folder):
        before = _read_last_settings(settings)
        last = before.ports if before else {}
        settings = settings.with_version(before.version if before else None)
        jars = fetch(on_progress=on_progress, jars=read_locked(settings.version))
        with claim_ports(settings, last, random.SystemRandom()) as ports:
            cluster = Cluster(replace(settings, ports=ports), {})
            write_configuration(cluster.settings)
            try:
                cluster.start_processes(java, jars, on_step)
            except BaseException:
                end(map(identify, cluster.processes.values()), SystemClock(), grace_ms=0)
                raise
            return cluster


def open_cluster(folder: Path) -> Cluster:
    """Return the cluster of a folder, running or not. Raises ClusterError if it never had one."""
    return Cluster(*_read_record(folder))


def _read_record(folder: Path) -> tuple[Settings, dict[str, Process]]:
    try:
        document = json.loads((folder / RECORD).read_text())
    except FileNotFoundError:
        raise ClusterError("no cluster was started here", folder=str(folder)) from None
    processes = [identify(Process(**process)) for process in document["processes"]]
    settings = {**document["settings"], "folder": Path(document["settings"]["folder"])}
    return Settings(**settings), {each.name: each for each in processes}


def _read_last_settings(settings: Settings) -> Settings | None:
    """Return the settings of the folder's last start, None if it is new. Raises ClusterError."""
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
def _lock_folder(folder: Path) -> Iterator[None]:
    """Allow one start or stop at a time. Raises ClusterError if another one is running."""
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = "another start or stop is at work here"
            raise ClusterError(problem, folder=str(folder)) from None
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a child between fork and exec holds the lock as well
