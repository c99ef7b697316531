"""The HBase that tests use: one that is named, else one from Docker, else one of our own.

HBASE_TXN_TEST_THRIFT1 and HBASE_TXN_TEST_THRIFT2 (each `host:port`) name the gateways of a running
one, and HBASE_TXN_TEST_NATIVE what follows `hbase://` in its native store's name, without which the
tests of that one are skipped. Where a Docker engine answers, the image of `docker/` runs; else
`txn hbase` does, in the version HBASE_TXN_TEST_VERSION. It starts on first use, is shared by all
tests and all workers of a run, and ends with the last of them. Tests therefore make tables of their
own, under names of their own.
"""

from __future__ import annotations

import fcntl
import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

from txn.clock import SystemClock
from txn.cluster.cluster import Cluster, open_cluster, start
from txn.cluster.processes import gateway_answers
from txn.cluster.settings import GATEWAYS, NATIVE, Settings, claim_ports
from txn.errors import TxnError

VARIABLES = {"thrift1": "HBASE_TXN_TEST_THRIFT1", "thrift2": "HBASE_TXN_TEST_THRIFT2"}
NATIVE_VARIABLE = "HBASE_TXN_TEST_NATIVE"
VERSION_VARIABLE = "HBASE_TXN_TEST_VERSION"
PORTS_IN_IMAGE = dict(thrift1=9090, thrift2=9091, zookeeper=2181, master=16000, region1=16020)
CONTAINER_DATA = "/data/hbase"
IMAGE_ANSWERS_WITHIN_MS = 180_000
# Java then compiles once and simply: half the processor time to start, fewer requests a second.
QUICK_JAVA = "-XX:TieredStopAtLevel=1"
DOCKER_SOCKET = Path("/var/run/docker.sock")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class HBase:
    """The stores of one HBase; cluster is None unless it is our own.

    direct: the native store, where HBase's own servers can be reached and not only its gateways.
    """

    thrift1: str
    thrift2: str
    cluster: Cluster | None = None
    direct: str | None = None

    @property
    def native(self) -> str:
        """The native store; without one a test is skipped, which CI does not accept."""
        if self.direct is None:
            pytest.skip(f"no way to HBase but its gateways: set {NATIVE_VARIABLE}=ZOOKEEPER:PORT")
        return self.direct


@pytest.fixture(scope="session")
def hbase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HBase]:
    """An HBase with both gateways; without one a test is skipped, which CI does not accept."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "hbase"
    with ExitStack() as stack:
        try:
            found = stack.enter_context(some_hbase(folder))
        except TxnError as error:
            pytest.skip(f"no HBase: {error}")
        yield found


@contextmanager
def some_hbase(folder: Path) -> Iterator[HBase]:
    """Give the HBase that there is, else start one in the folder."""
    if named := named_hbase():
        yield named
    elif engine := _docker_engine():
        with _from_docker(engine, folder) as found:
            yield found
    else:
        version = os.environ.get(VERSION_VARIABLE, "")
        with shared(Settings(folder, java_options=[QUICK_JAVA], version=version)) as cluster:
            yield _on_this_machine(cluster.settings.ports, cluster)


@contextmanager
def shared(settings: Settings) -> Iterator[Cluster]:
    """Start a cluster for the first who asks, and end it, data and all, after the last."""
    folder = settings.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    users = folder.with_suffix(".users")
    with _counted(users) as count:
        cluster = open_cluster(folder) if count else start(settings)
        users.write_text(str(count + 1))
    try:
        yield cluster
    finally:
        with _counted(users) as count:
            users.write_text(str(count - 1))
            if count == 1:
                cluster.stop(grace_ms=0)


@contextmanager
def _counted(path: Path) -> Iterator[int]:
    """How many use it; nobody else starts or ends meanwhile."""
    with path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield int(path.read_text()) if path.exists() else 0


def _on_this_machine(ports: Mapping[str, int], cluster: Cluster | None = None) -> HBase:
    """The HBase at these ports, in a container or not."""
    uris = Cluster(Settings(ROOT, ports=ports), {}).uris
    return HBase(uris["thrift1"], uris["thrift2"], cluster, uris[NATIVE])


def named_hbase() -> HBase | None:
    """The HBase that the environment names, if it does."""
    given = {name: os.environ.get(variable, "") for name, variable in VARIABLES.items()}
    if not any(given.values()):
        return None
    if not all(given.values()):
        raise pytest.UsageError(f"set both or none of {', '.join(VARIABLES.values())}")
    thrift1, thrift2 = (f"hbase+{name}://{given[name]}" for name in GATEWAYS)
    native = os.environ.get(NATIVE_VARIABLE)
    return HBase(thrift1, thrift2, direct=f"hbase://{native}" if native else None)


def _docker_engine() -> Any:
    """The client of a Docker engine that answers, or None."""
    if "DOCKER_HOST" not in os.environ and not DOCKER_SOCKET.exists():
        return None
    docker: Any = importlib.import_module("docker")  # the folder of that name is no module
    try:
        return docker.from_env(timeout=5)
    except docker.errors.DockerException:
        return None


@contextmanager
def _from_docker(engine: Any, folder: Path) -> Iterator[HBase]:
    """The image, at ports that are the same inside and outside, as its servers tell clients."""
    image, _ = engine.images.build(path=str(ROOT), dockerfile="docker/hbase/Dockerfile", rm=True)
    with claim_ports(Settings(folder), {}, SystemRandom()) as ports:
        container = engine.containers.run(
            image,
            start_in_container(ports),
            detach=True,
            init=True,
            ports={f"{port}/tcp": ("127.0.0.1", port) for port in ports.values()},
            remove=True,
        )
    try:
        _wait_until_ready({name: ports[name] for name in GATEWAYS})
        yield _on_this_machine(ports)
    finally:
        container.kill()


def start_in_container(ports: Mapping[str, int]) -> list[str]:
    """The command of the image, at these ports."""
    line = ["txn", "hbase", "start", "--foreground", "--data", CONTAINER_DATA, "--bind", "0.0.0.0"]
    for name in PORTS_IN_IMAGE:
        line += [f"--{'region' if name == 'region1' else name}-port", str(ports[name])]
    return line


def _wait_until_ready(ports: dict[str, int]) -> None:
    clock = SystemClock()
    deadline = clock.monotonic_ms() + IMAGE_ANSWERS_WITHIN_MS
    while not all(gateway_answers(name, port) for name, port in ports.items()):
        if clock.monotonic_ms() > deadline:
            raise TxnError(f"the container does not answer ports={ports}")
        clock.sleep_ms(500)
