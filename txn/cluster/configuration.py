"""The configuration files of a cluster, and its processes in start order.

In standalone mode, the master's process contains the region server and ZooKeeper, and writes to the
local file system. In distributed mode, each is a process of its own, on HDFS. The files are filled
in from the templates beside this module.
"""

from __future__ import annotations

from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import NamedTuple

from txn.cluster.processes import MARK_PROPERTY
from txn.cluster.settings import GATEWAYS, Settings

# The time after which a killed region server is noticed. A slow machine must not lose a living one.
SESSION_MS = 6_000
STANDALONE_SESSION_MS = 90_000

FILES = ("hbase-site.xml", "core-site.xml", "hdfs-site.xml", "log4j.properties")
# Hadoop's part of HBase never reads hbase-site.xml: its properties belong in core-site.xml.
HADOOP = "hadoop."

SMALL_HEAP_MB = 1024
NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"

_HBASE = "org.apache.hadoop.hbase"
_OPENED = (
    *("java.io", "java.lang", "java.lang.reflect", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "jdk.internal.ref", "sun.nio.ch"),
)


def write_configuration(settings: Settings) -> None:
    conf = settings.conf
    for folder in (conf, settings.logs, settings.folder / "tmp"):
        folder.mkdir(parents=True, exist_ok=True)
    for page in ("hdfs", "datanode"):  # HDFS requires folders for its web pages; they may be empty
        (conf / "webapps" / page).mkdir(parents=True, exist_ok=True)
    names = _names(settings)
    for name in FILES:
        text = files("txn.cluster").joinpath("conf", name).read_text()
        if settings.distributed or name != "hdfs-site.xml":
            is_template = name.endswith(".xml")
            (conf / name).write_text(Template(text).substitute(names) if is_template else text)


def _names(settings: Settings) -> dict[str, object]:
    folder = escape(str(settings.folder))
    namenode = f"hdfs://localhost:{settings.ports.get('namenode')}"
    return {
        "folder": folder,
        "bind": escape(settings.bind),
        "distributed": str(settings.distributed).lower(),
        "file_system": namenode if settings.distributed else "file:///",
        "root": f"{namenode}/hbase" if settings.distributed else f"file://{folder}/hbase",
        "session_timeout": SESSION_MS if settings.distributed else STANDALONE_SESSION_MS,
        "master_port": settings.ports["master"],
        "region_servers": settings.region_servers,
        "region_port": settings.ports["region1"],
        "hadoop_properties": _properties(settings, of_hadoop=True),
        "properties": _properties(settings, of_hadoop=False),
        **{
            f"{name.replace('-', '_')}_port": port
            for name, port in settings.ports.items()
            if name not in settings.region_names()
        },
    }


def _properties(settings: Settings, *, of_hadoop: bool) -> str:
    return "\n".join(
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
        for name, value in settings.properties.items()
        if name.startswith(HADOOP) == of_hadoop
    )


class Role(NamedTuple):
    name: str
    main: str
    arguments: tuple[str, ...]
    memory_mb: int


def list_roles(settings: Settings) -> list[Role]:
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


def make_command(role: Role, settings: Settings, java: Path, mark: str) -> list[str]:
    logs = settings.logs
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
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
        "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        f"-Djava.io.tmpdir={settings.folder / 'tmp'}",
        "-Djava.net.preferIPv4Stack=true",
        f"-Dhadoop.log.dir={logs}",
        f"-Dhbase.log.dir={logs}",
        "-Dlog4j.configuration=log4j.properties",
        f"-Dtxn.log={logs / f'{role.name}.log'}",
        role.main,
        *role.arguments,
    ]
