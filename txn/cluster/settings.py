"""The settings of a cluster: folder, mode, ports, memory and version.

A cluster keeps its chosen ports from one start to the next if they are free, so its addresses stay
the same. They lie below the range of ephemeral ports. Until its servers listen, a start claims its
ports by binding the UDP ports of the same numbers, which nothing else uses.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

from txn.cluster.jars import HBASE_VERSION, HBASE_VERSIONS
from txn.errors import TxnError

PORTS = (20_000, 32_000)
PORT_TRIES = 200
GATEWAYS = ("thrift1", "thrift2")
NATIVE = "native"  # the store that needs no gateway

_ALWAYS = ("zookeeper", "master", *GATEWAYS)
_HDFS = ("namenode", "namenode-http", "datanode", "datanode-http", "datanode-ipc")


class SettingsError(TxnError):
    """No cluster can have these settings: change the one named."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One cluster. Each cluster needs its own folder; memory is the heap of one process.

    bind: the address on which ZooKeeper, the master, the region servers and the gateways listen.
    version: HBase's version or a prefix of it; default: the folder's last, or `HBASE_VERSION`.
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
            problem = "one region server, or several in a distributed cluster: give --distributed"
            raise SettingsError(problem, region_servers=self.region_servers)
        if unknown := sorted(set(self.ports) - set(self.port_names())):
            raise SettingsError("no such ports", names=unknown)
        if self.version:
            find_version(self.version)

    def with_version(self, last: str | None) -> Settings:
        """Return the settings with a full version. last: the version of the folder's last start.
        Raises SettingsError if `last` is later: HBase does not read files of later versions."""
        version = find_version(self.version) if self.version else last or HBASE_VERSION
        if last is not None and _order(version) < _order(last):
            problem = "a folder cannot go back to an earlier HBase"
            raise SettingsError(problem, has=last, asked=version)
        return replace(self, version=version)

    @property
    def conf(self) -> Path:
        return self.folder / "conf"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def region_names(self) -> list[str]:
        return [f"region{number}" for number in range(1, self.region_servers + 1)]

    def port_names(self) -> tuple[str, ...]:
        return (*_ALWAYS, *self.region_names(), *(_HDFS if self.distributed else ()))

    def document(self) -> dict[str, object]:
        return {**asdict(self), "folder": str(self.folder)}


def find_version(name: str) -> str:
    """Return the latest version with this prefix. Raises SettingsError."""
    found = [each for each in HBASE_VERSIONS if f"{each}.".startswith(f"{name}.")]
    if not found:
        raise SettingsError("no such version of HBase here", version=name, known=HBASE_VERSIONS)
    return found[-1]


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@contextmanager
def claim_ports(
    settings: Settings, before: Mapping[str, int], rng: random.Random
) -> Iterator[dict[str, int]]:
    """Yield a port for each name: the given one, the one used before, or a free one. Other starts
    avoid the chosen ports until the block ends. Raises SettingsError if a given port is taken."""
    ports = dict(settings.ports)
    for name, port in ports.items():
        if not _is_free(port):
            raise SettingsError("the port is taken", name=name, port=port)
    taken = {*ports.values(), *before.values()}
    tried = iter([port for port in rng.sample(range(*PORTS), PORT_TRIES) if port not in taken])
    with ExitStack() as claims:
        for name in [each for each in settings.port_names() if each not in ports]:
            last = [before[name]] if name in before else []
            ports[name] = next(filter(partial(_claim, claims), chain(last, tried)), 0)
            if not ports[name]:
                raise SettingsError("no free ports", first=PORTS[0], last=PORTS[1])
        yield ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _claim(claims: ExitStack, port: int) -> bool:
    """Claim the UDP port; return False if another start has it or the TCP port is taken."""
    claim = claims.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    try:
        claim.bind(("127.0.0.1", port))
    except OSError:
        return False
    return _is_free(port)
