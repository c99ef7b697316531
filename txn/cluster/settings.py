"""What a cluster is to be: its folder, its kind, its ports and its memory.

Ports that nobody chose are kept from one start to the next where they are still free, so that the
addresses of a cluster stay the same. They are taken below the range that the system hands out to
outgoing connections, which would otherwise take one between our look and the server's start. Other
starts see until then that a port is taken by a claim: its namesake of UDP, which nobody else uses.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from txn.cluster.jars import HBASE_VERSION, HBASE_VERSIONS
from txn.errors import TxnError

PORTS_FROM, PORTS_TO = 20_000, 32_000
PORT_TRIES = 200
GATEWAYS = ("thrift1", "thrift2")
NATIVE = "native"  # the store that needs no gateway
UNRECORDED_VERSION = "2.6.1"  # when there was one version, it was not written down

_ALWAYS = ("zookeeper", "master", *GATEWAYS)
_HDFS = ("namenode", "namenode-http", "datanode", "datanode-http", "datanode-ipc")


class SettingsError(TxnError):
    """A cluster cannot be had in this way: change the setting that is named."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One cluster. Two clusters differ in their folder; memory is the heap of one process.

    bind: where ZooKeeper, the master, the region servers and the gateways listen.
    version: HBase's, in full or by its beginning; without one, the version of the folder's last
    start, and in a new folder the default.
    """

    folder: Path
    distributed: bool = False
    region_servers: int = 1
    memory_mb: int = 768
    gateway_memory_mb: int = 320
    bind: str = "127.0.0.1"
    ports: Mapping[str, int] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    java_options: Sequence[str] = ()
    version: str = ""

    def __post_init__(self) -> None:
        if not self.folder.is_absolute():
            raise SettingsError("not an absolute path", folder=str(self.folder))
        if self.region_servers < 1 or (self.region_servers > 1 and not self.distributed):
            raise SettingsError(
                "one region server, or several in a distributed cluster: give --distributed",
                region_servers=self.region_servers,
            )
        if unknown := sorted(set(self.ports) - set(self.port_names())):
            raise SettingsError("no such ports", names=unknown)
        if self.version:
            find_version(self.version)

    def with_version(self, last: str | None) -> Settings:
        """Return it with a version in full. last: of the folder's last start, if it had one.

        Raises SettingsError where that was a later one: HBase reads what an earlier version has
        written, and not the other way round.
        """
        version = find_version(self.version) if self.version else last or HBASE_VERSION
        if last is not None and _order(version) < _order(last):
            raise SettingsError(
                "a folder cannot go back to an earlier HBase", has=last, asked=version
            )
        return replace(self, version=version)

    def region_names(self) -> list[str]:
        return [f"region{number}" for number in range(1, self.region_servers + 1)]

    def port_names(self) -> tuple[str, ...]:
        return (*_ALWAYS, *self.region_names(), *(_HDFS if self.distributed else ()))

    def document(self) -> dict[str, object]:
        """Return it as what `from_document` takes."""
        return {**asdict(self), "folder": str(self.folder)}


def find_version(name: str) -> str:
    """Return the version that is named, in full or by its beginning. Raises SettingsError."""
    found = [each for each in HBASE_VERSIONS if f"{each}.".startswith(f"{name}.")]
    if not found:
        raise SettingsError("no such version of HBase here", version=name, known=HBASE_VERSIONS)
    return found[-1]


def from_document(document: Mapping[str, Any]) -> Settings:
    """Return the settings that were written down."""
    document = {"version": UNRECORDED_VERSION, **document}
    return Settings(**{**document, "folder": Path(document["folder"])})


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def choose_ports(
    settings: Settings, chosen: Mapping[str, int], before: Mapping[str, int], rng: random.Random
) -> dict[str, int]:
    """Return a port for each name: the chosen one, else the one used before, else a free one.

    Raises SettingsError where a chosen port is taken.
    """
    for name, port in chosen.items():
        if not _is_free(port):
            raise SettingsError("the port is taken", name=name, port=port)
    taken = {*chosen.values(), *before.values()}
    free = (port for port in _candidates(rng) if port not in taken)
    ports: dict[str, int] = {}
    for name in settings.port_names():
        last = before.get(name)
        ports[name] = chosen.get(name) or (last if last and _is_unclaimed(last) else next(free))
    return ports


@contextmanager
def claimed_ports(
    settings: Settings, before: Mapping[str, int], rng: random.Random
) -> Iterator[dict[str, int]]:
    """Choose ports for the settings, and keep other starts from them while the servers start."""
    for _ in range(PORT_TRIES):
        ports = choose_ports(settings, settings.ports, before, rng)
        with ExitStack() as claims:
            try:
                for name, port in ports.items():
                    if name not in settings.ports:
                        claims.enter_context(_claim(port))
            except OSError:
                continue  # another start has claimed it just now
            yield ports
            return
    raise SettingsError("no free ports", first=PORTS_FROM, last=PORTS_TO)


def _candidates(rng: random.Random) -> Iterator[int]:
    """Different free ports."""
    for port in rng.sample(range(PORTS_FROM, PORTS_TO), PORT_TRIES):
        if _is_unclaimed(port):
            yield port
    raise SettingsError("no free ports", first=PORTS_FROM, last=PORTS_TO)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _is_unclaimed(port: int) -> bool:
    try:
        _claim(port).close()
    except OSError:
        return False
    return _is_free(port)


def _claim(port: int) -> socket.socket:
    """Take the port of UDP. OSError where another start has it."""
    claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        claim.bind(("127.0.0.1", port))
    except OSError:
        claim.close()
        raise
    return claim
