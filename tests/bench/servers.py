"""The HBase that is measured: the one that the environment names, else one that runs for this."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.integration.hbase import named_hbase
from txn.cluster.cluster import start
from txn.cluster.settings import Settings


@dataclass(frozen=True, slots=True)
class Servers:
    """The stores behind both gateways, and the processes behind them, where they are our own."""

    thrift1: str
    thrift2: str
    processes: tuple[int, ...] = ()


@contextmanager
def measured_hbase() -> Iterator[Servers]:
    """Give an HBase. Ours has memory to spare, and a Java that compiles as in production."""
    if named := named_hbase():
        yield Servers(named.thrift1, named.thrift2)
        return
    with tempfile.TemporaryDirectory(prefix="txn-bench-") as folder:
        cluster = start(Settings(Path(folder, "hbase"), memory_mb=1500, gateway_memory_mb=512))
        try:
            processes = tuple(process.pid for process in cluster.processes.values())
            yield Servers(cluster.uris["thrift1"], cluster.uris["thrift2"], processes)
        finally:
            cluster.stop(grace_ms=0)
