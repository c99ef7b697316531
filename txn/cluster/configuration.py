"""The configuration files of a cluster, filled in from the templates beside this module."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from string import Template
from xml.sax.saxutils import escape

from txn.cluster.settings import Settings

# A killed region server is noticed after this time; a busy machine must not lose a living one.
SESSION_MS = 6_000
STANDALONE_SESSION_MS = 90_000

FILES = ("hbase-site.xml", "core-site.xml", "hdfs-site.xml", "log4j.properties")
# Security is asked for here as well as in hbase-site.xml, which Hadoop's part of HBase never reads.
HADOOP = "hadoop."


def conf_folder(settings: Settings) -> Path:
    return settings.folder / "conf"


def logs_folder(settings: Settings) -> Path:
    return settings.folder / "logs"


def write_configuration(settings: Settings) -> None:
    """Write the configuration into the cluster's folder, with the folders that it names."""
    conf = conf_folder(settings)
    for folder in (conf, logs_folder(settings), settings.folder / "tmp"):
        folder.mkdir(parents=True, exist_ok=True)
    for page in ("hdfs", "datanode"):  # HDFS looks for its web pages and starts on empty ones, too
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
    given = settings.properties.items()
    return "\n".join(_property(*item) for item in given if item[0].startswith(HADOOP) == of_hadoop)


def _property(name: str, value: str) -> str:
    return f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
