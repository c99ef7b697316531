"""A Hive metastore for tests: its server, from Spark's own jars, in the JVM of a Spark session.

Hive's own program listens on all addresses, so its parts are put together here. What it knows is in
memory, and other Spark sessions of this machine share it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

ENDS_WITHIN_S = 30


@dataclass(frozen=True, slots=True)
class Metastore:
    """A metastore that runs: where it listens, where its tables are, and its own interface."""

    uri: str
    warehouse: Path
    handler: Any

    @property
    def settings(self) -> dict[str, str]:
        """What makes a Spark session use it, as `enableHiveSupport()` does."""
        return {
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.hive.metastore.uris": self.uri,
            "spark.sql.warehouse.dir": str(self.warehouse),
        }

    def create_view(
        self, spark: SparkSession, name: str, columns: dict[str, str], sql: str
    ) -> None:
        """Make a view in the database `default`, as Hive itself does."""
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        api = jvm.org.apache.hadoop.hive.metastore.api
        stored = api.StorageDescriptor()
        stored.setCols([api.FieldSchema(column, kind, "") for column, kind in columns.items()])
        stored.setSerdeInfo(api.SerDeInfo(name, "", {}))
        view = api.Table()
        view.setDbName("default")
        view.setTableName(name)
        view.setTableType("VIRTUAL_VIEW")
        view.setViewOriginalText(sql)
        view.setViewExpandedText(sql)
        view.setSd(stored)
        view.setPartitionKeys([])
        view.setParameters({})
        self.handler.create_table(view)


@contextmanager
def metastore(spark: SparkSession, folder: Path) -> Iterator[Metastore]:
    """Serve a metastore on a free port of 127.0.0.1."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.java.lang.System.setProperty("derby.stream.error.file", str(folder / "derby.log"))
    settings = jvm.org.apache.hadoop.hive.conf.HiveConf()
    for name, value in {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:memory:{folder.name};create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": str(folder / "warehouse"),
    }.items():
        settings.set(name, value)
    hive, thrift = jvm.org.apache.hadoop.hive.metastore, jvm.org.apache.thrift
    handler = hive.HiveMetaStore.newRetryingHMSHandler("tests", settings, True)
    listening = thrift.transport.TServerSocket(jvm.java.net.InetSocketAddress("127.0.0.1", 0))
    details = getattr(thrift.server, "TThreadPoolServer$Args")(listening)
    server = thrift.server.TThreadPoolServer(
        details.processor(hive.TSetIpAddressProcessor(handler))
    )
    thread = threading.Thread(target=server.serve)
    thread.start()
    port = listening.getServerSocket().getLocalPort()
    try:
        yield Metastore(f"thrift://127.0.0.1:{port}", folder / "warehouse", handler)
    finally:
        server.stop()
        thread.join(ENDS_WITHIN_S)
        handler.shutdown()
