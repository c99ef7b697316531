"""The processes that a cluster consists of, in the order in which they start.

Standalone, the master's process holds the region server and ZooKeeper as well, and writes to the
local file system. Distributed, each is a process of its own, on HDFS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from txn.cluster.configuration import conf_folder, logs_folder
from txn.cluster.processes import MARK_PROPERTY
from txn.cluster.settings import GATEWAYS, Settings

SMALL_HEAP_MB = 1024
NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"

_HBASE = "org.apache.hadoop.hbase"
_OPENED = (
    "java.io",
    "java.lang",
    "java.lang.reflect",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "jdk.internal.ref",
    "sun.nio.ch",
)
_KERBEROS = "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED"


@dataclass(frozen=True, slots=True)
class Role:
    """One process: its name, its class, what the class is told, its heap."""

    name: str
    main: str
    arguments: tuple[str, ...]
    memory_mb: int


def roles(settings: Settings) -> list[Role]:
    """Return the processes of a cluster, each after those that it needs."""
    gateways = [
        Role(
            name,
            f"{_HBASE}.{package}.ThriftServer",
            ("start", "-p", str(settings.ports[name]), "--bind", settings.bind),
            settings.gateway_memory_mb,
        )
        for name, package in zip(GATEWAYS, ("thrift", "thrift2"), strict=True)
    ]
    if not settings.distributed:
        master = Role("master", f"{_HBASE}.master.HMaster", ("start",), settings.memory_mb)
        return [master, *gateways]
    regions = [
        Role(
            name,
            f"{_HBASE}.regionserver.HRegionServer",
            ("-D", f"hbase.regionserver.port={settings.ports[name]}", "start"),
            settings.memory_mb,
        )
        for name in settings.region_names()
    ]
    return [
        Role("namenode", NAMENODE, (), 192),
        Role("datanode", "org.apache.hadoop.hdfs.server.datanode.DataNode", (), 192),
        Role("zookeeper", f"{_HBASE}.zookeeper.HQuorumPeer", ("start",), 128),
        Role("master", f"{_HBASE}.master.HMaster", ("start",), 384),
        *regions,
        *gateways,
    ]


def class_path(settings: Settings, jars: Sequence[Path]) -> str:
    """Return the variable CLASSPATH: as an option it would fill the screen of every `ps`."""
    return ":".join(map(str, [conf_folder(settings), *jars]))


def command(role: Role, settings: Settings, java: Path, mark: str) -> list[str]:
    """Return the command line of a process."""
    logs, temporary = logs_folder(settings), settings.folder / "tmp"
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    collector = ["-XX:+UseSerialGC"] if role.memory_mb < SMALL_HEAP_MB else []
    return [
        str(java),
        f"-D{MARK_PROPERTY}={mark}",
        f"-Xmx{role.memory_mb}m",
        *collector,
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        f"-XX:ErrorFile={logs / f'{role.name}.crash'}",
        *settings.java_options,
        *opened,
        _KERBEROS,
        f"-Djava.io.tmpdir={temporary}",
        "-Djava.net.preferIPv4Stack=true",
        f"-Dhadoop.log.dir={logs}",
        f"-Dhbase.log.dir={logs}",
        "-Dlog4j.configuration=log4j.properties",
        f"-Dtxn.log={logs / f'{role.name}.log'}",
        role.main,
        *role.arguments,
    ]
