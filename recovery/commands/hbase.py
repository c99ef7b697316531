"""`txn hbase`: a real HBase on this machine, with nothing installed by hand."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer import Option

from recovery.commands import common
from txn.clock import SystemClock
from txn.cluster.cluster import Cluster, open_cluster, start
from txn.cluster.jars import HBASE_VERSION, fetch, read_locked
from txn.cluster.processes import ClusterError
from txn.cluster.settings import NATIVE, Settings, find_version

POLL_EACH_MS = 500

app = typer.Typer(help="Run a real HBase on this machine.", no_args_is_help=True)


def _default_data() -> Path:
    home = os.environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()
    return Path(home, "hbase-txn", "hbase")


DataOption = Annotated[
    Path,
    typer.Option(
        "--data",
        envvar="TXN_HBASE_DATA",
        default_factory=_default_data,
        help="The cluster's folder; each folder is a cluster of its own.",
        show_default=False,
        metavar="DIR",
    ),
]
VersionOption = Annotated[
    str | None,
    typer.Option("--version", metavar="VERSION", help=f"Such as {HBASE_VERSION} or 2.5."),
]
PortOption = Annotated[
    int | None,
    typer.Option(min=1, max=65535, metavar="PORT", help="Its port; by default, a free one."),
]


@app.command("start")
def start_command(
    *,
    data: DataOption,
    version: VersionOption = None,
    distributed: bool = Option(
        False, "--distributed", help="Run HDFS, and each server in its own process."
    ),
    region_servers: int = Option(
        1, min=1, max=9, metavar="N", help="Their number; several need --distributed."
    ),
    memory: int = Option(768, min=256, help="Heap of a region server in megabytes.", metavar="MB"),
    gateway_memory: int = Option(320, min=64, help="Heap of a gateway in megabytes.", metavar="MB"),
    thrift1_port: PortOption = None,
    thrift2_port: PortOption = None,
    zookeeper_port: PortOption = None,
    master_port: PortOption = None,
    region_port: PortOption = None,
    bind: common.BindOption = "127.0.0.1",
    properties: list[str] | None = Option(
        None, "--set", help="A setting, as in hbase-site.xml; repeatable.", metavar="NAME=VALUE"
    ),
    java_options: list[str] | None = Option(
        None, "--java-option", help="An option of Java for all; repeatable.", metavar="OPTION"
    ),
    foreground: bool = Option(
        False, "--foreground", help="Keep running, and stop HBase at the end."
    ),
    as_json: common.JsonOption = False,
) -> None:
    """Start HBase with both Thrift gateways, and return once it answers.

    It fetches the jars that this user's cache lacks, and picks the ports that are not given. A
    folder keeps its version until a later one is asked for.

    Example: txn hbase start --version 2.5 --thrift2-port 9090
    """
    services = ("thrift1", "thrift2", "zookeeper", "master", "region1")
    given = (thrift1_port, thrift2_port, zookeeper_port, master_port, region_port)
    ports = {name: port for name, port in zip(services, given, strict=True) if port is not None}
    settings = Settings(
        folder=data.expanduser().absolute(),
        distributed=distributed,
        region_servers=region_servers,
        memory_mb=memory,
        gateway_memory_mb=gateway_memory,
        bind=bind,
        ports=ports,
        properties=dict(map(common.parse_setting, properties or [])),
        java_options=tuple(java_options or ()),
        version=version or "",
    )
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # stops what it started
    screen = Console(stderr=True) if as_json else common.console()
    try:
        with common.row_bar(screen, "fetching jars", unit="jars", hidden=False) as bar:
            cluster = start(settings, on_step=bar.say, on_progress=bar.reach)
    except ClusterError as error:
        if error.log:  # the end of a server's log, above the error that it explains
            typer.echo(error.log, err=True)
        raise
    asked: list[int] = []
    if foreground:  # before others can know that it is up
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: asked.append(number))
    _print_cluster(cluster, as_json)
    if foreground:  # until a signal asks for the end, or a server ends by itself
        processes = cluster.processes.values()
        while not asked and all(process.is_alive for process in processes):
            SystemClock().sleep_ms(POLL_EACH_MS)
        ended = [name for name, process in cluster.processes.items() if not process.is_alive]
        cluster.stop()
        if ended:
            raise ClusterError("a process has ended", names=ended)


@app.command("fetch")
def fetch_command(*, version: VersionOption = None) -> None:
    """Fetch the jars that this user's cache lacks, and start nothing.

    Example: txn hbase fetch --version 2.5
    """
    screen, version = common.console(), find_version(version or HBASE_VERSION)
    with common.row_bar(screen, "fetching jars", unit="jars", hidden=False) as bar:
        jars = fetch(on_progress=bar.reach, jars=read_locked(version))
    screen.print(f"HBase {version}: {len(jars)} jars in {jars[0].parent}")


@app.command("stop")
def stop_command(
    *,
    data: DataOption,
    now: bool = Option(False, "--now", help="Kill the processes; the last writes may be lost."),
    as_json: common.JsonOption = False,
) -> None:
    """End exactly the processes that `start` started; the data stays.

    Example: txn hbase stop
    """
    cluster = open_cluster(data.expanduser().absolute())
    running = [each.name for each in cluster.processes.values() if each.is_alive]
    screen = Console(stderr=True) if as_json else common.console()
    with screen.status("stopping HBase") if screen.is_terminal else nullcontext():
        killed = [each.name for each in (cluster.stop(grace_ms=0) if now else cluster.stop())]
    if as_json:
        common.print_json({"stopped": running, "killed": killed}, pretty=True)
    elif running:
        screen.print(f"stopped: {', '.join(running)}")
        if killed:
            screen.print(f"had to be killed: {', '.join(killed)}")
    else:
        screen.print("it was not running")


@app.command("status")
def status_command(*, data: DataOption, as_json: common.JsonOption = False) -> None:
    """Show the processes, their ports and the URIs of the stores; exit code 1 if not all are up.

    Example: txn hbase status
    """
    if not _print_cluster(open_cluster(data.expanduser().absolute()), as_json):
        raise typer.Exit(common.FOUND)


def _print_cluster(cluster: Cluster, as_json: bool) -> bool:
    """Print the processes; return True if all of them run and answer."""
    alive = {name: process.is_alive for name, process in cluster.processes.items()}
    ready = all(alive.values()) and cluster.is_ready()
    if as_json:
        document = {
            "ready": ready,
            "version": cluster.settings.version,
            "data": str(cluster.settings.folder),
            "logs": str(cluster.settings.logs),
            "distributed": cluster.settings.distributed,
            "uris": cluster.uris,
            "ports": cluster.settings.ports,
            "processes": [
                {"name": name, "pid": process.pid, "port": process.port, "alive": alive[name]}
                for name, process in cluster.processes.items()
            ],
        }
        common.print_json(document, pretty=True)
        return ready
    store_of = {"zookeeper" if cluster.settings.distributed else "master": cluster.uris[NATIVE]}
    store_of |= cluster.uris
    typer.echo(f"HBase {cluster.settings.version} in {cluster.settings.folder}")
    rows = []
    for name, process in cluster.processes.items():
        state = "up" if alive[name] else "ended"
        rows.append((name, state, str(process.pid), str(process.port), store_of.get(name, "")))
    common.print_table(("process", "state", "pid", "port", "store"), rows)
    typer.echo(f"logs: {cluster.settings.logs}")
    if all(alive.values()) and not ready:
        words = "the processes run, but a gateway does not answer"
        common.console().print(words, style="red")
    return ready
