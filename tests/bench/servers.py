"""The HBase that is measured: the one that the environment names, else one that runs for this."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.hbase import named_hbase
from txn.cluster.cluster import Cluster, open_cluster, start
from txn.cluster.settings import NATIVE, Settings

RUNNING = "HBASE_TXN_BENCH_DATA"


@dataclass(frozen=True, slots=True)
class Servers:
    """The stores behind both gateways, and by HBase's own protocol. processes, the folder of
    the cluster, and the processes by their names: where it is our own."""

    thrift1: str
    thrift2: str
    native: str
    processes: tuple[int, ...] = ()
    folder: Path | None = None
    names: Mapping[str, int] = field(default_factory=dict)


@contextmanager
def measured_hbase(region_servers: int = 1) -> Iterator[Servers]:
    """Give an HBase. Ours has memory to spare, and a Java that compiles as in production; of
    several region servers each is a process. HBASE_TXN_BENCH_DATA is the folder of a cluster that
    runs already."""
    if (running := os.environ.get(RUNNING)) and _has(running, region_servers):
        yield servers_of(open_cluster(Path(running)))
        return
    if (named := named_hbase()) and region_servers == 1:
        yield Servers(named.thrift1, named.thrift2, named.direct or named.thrift2)
        return
    with tempfile.TemporaryDirectory(prefix="txn-bench-") as folder:
        settings = Settings(
            Path(folder, "hbase"),
            distributed=region_servers > 1,
            region_servers=region_servers,
            memory_mb=1500,
            gateway_memory_mb=512,
        )
        cluster = start(settings)
        try:
            yield servers_of(cluster)
        finally:
            cluster.stop(grace_ms=0)


def _has(folder: str, region_servers: int) -> bool:
    return open_cluster(Path(folder)).settings.region_servers == region_servers


def servers_of(cluster: Cluster) -> Servers:
    """Return the servers of a cluster on this machine."""
    names = {name: process.pid for name, process in cluster.processes.items()}
    uris = cluster.uris
    return Servers(
        uris["thrift1"],
        uris["thrift2"],
        uris[NATIVE],
        processes=tuple(names.values()),
        folder=cluster.settings.folder,
        names=names,
    )
