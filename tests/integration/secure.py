"""HBase that asks its clients for TLS, with the certificate of tests/integration/tls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.hbase import QUICK_JAVA
from txn.cluster.cluster import Cluster, start
from txn.cluster.settings import Settings

CONTROLLER = "org.apache.hadoop.hbase.security.access.AccessController"
ACCESS = {
    "hbase.security.authorization": "true",
    "hbase.security.exec.permission.checks": "true",
    **{f"hbase.coprocessor.{where}.classes": CONTROLLER for where in ("region", "master")},
}
"""Users other than the one who starts it need permissions: rows of the table `hbase:acl`."""
TLS = Path(__file__).with_name("tls")
CERTIFICATE, KEY = TLS / "certificate.pem", TLS / "key.pem"


def tls_properties(folder: Path, *, ask_clients: bool = False) -> dict[str, str]:
    """Return what makes servers and clients speak TLS, clients with a certificate if so told."""
    keys, trusted = folder / "keys.pem", folder / "trusted.pem"
    folder.mkdir(parents=True, exist_ok=True)
    keys.write_text(KEY.read_text() + CERTIFICATE.read_text())
    trusted.write_text(CERTIFICATE.read_text())
    return {
        "hbase.server.netty.tls.enabled": "true",
        "hbase.server.netty.tls.supportplaintext": "false",
        "hbase.server.netty.tls.client.auth.mode": "need" if ask_clients else "none",
        "hbase.client.netty.tls.enabled": "true",
        "hbase.rpc.tls.keystore.location": str(keys),
        "hbase.rpc.tls.keystore.type": "PEM",
        "hbase.rpc.tls.truststore.location": str(trusted),
        "hbase.rpc.tls.truststore.type": "PEM",
    }


@contextmanager
def hbase_with(folder: Path, properties: dict[str, str], *java_options: str) -> Iterator[Cluster]:
    """Give a standalone cluster with these properties, and end it."""
    options = (QUICK_JAVA, *java_options)
    cluster = start(Settings(folder / "hbase", properties=properties, java_options=options))
    try:
        yield cluster
    finally:
        cluster.stop(grace_ms=0)
