"""A real ZooKeeper for tests: from the jars of `txn hbase`, on 127.0.0.1, killed by process id.

It can be killed and started again on the same port and data. Its tick is short, so that sessions
of a second can be had.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from txn.cluster.jars import fetch
from txn.errors import TxnError
from txn.host.java import find_java_home

TLS = Path(__file__).parent / "tls"
CERTIFICATE, KEY = TLS / "certificate.pem", TLS / "key.pem"
MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
JAVA = ("-Xmx192m", "-XX:TieredStopAtLevel=1", "-Dzookeeper.admin.enableServer=false")
ANSWERS_WITHIN_S = 120
TICK_MS = 250
# Below those that the system hands out, and not those of `txn hbase`: while the server is away
# nobody else gets its port, not even as the near end of a connection.
PORTS = range(10_000, 20_000)


class ZooKeeper:
    """A server of this test run."""

    def __init__(self, folder: Path, *, sync: bool = True, tls: bool = False) -> None:
        """tls: whether it has another port for TLS, where clients show a certificate."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port = _free_port()
        self.tls_port = _free_port() if tls else None
        self._sync = sync
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it on its port and data, and wait until it answers."""
        configuration = self._folder / "zoo.cfg"
        settings = {
            "tickTime": TICK_MS,
            "dataDir": self._folder / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": 0,
            "minSessionTimeout": 500,
            "maxSessionTimeout": 60_000,
            "forceSync": "yes" if self._sync else "no",
        }
        if self.tls_port:
            store = self._folder / "both.pem"
            store.write_bytes(CERTIFICATE.read_bytes() + KEY.read_bytes())
            settings |= {
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "secureClientPort": self.tls_port,
                "secureClientPortAddress": "127.0.0.1",
                "ssl.keyStore.location": store,
                "ssl.trustStore.location": CERTIFICATE,
                "ssl.clientAuth": "need",
                "ssl.hostnameVerification": "false",
            }
        configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        java = find_java_home() / "bin" / "java"
        # Of Netty's there are two versions, and TLS takes the newer one.
        jars = [jar for jar in fetch() if not jar.name.startswith("netty-all-")]
        command = [str(java), *JAVA, "-cp", ":".join(map(str, jars)), MAIN, str(configuration)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait()

    def kill(self) -> None:
        """Let it die as in a power failure."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + ANSWERS_WITHIN_S
        while time.monotonic() < deadline and self._process.poll() is None:
            client = KazooClient(self.hosts, timeout=5)
            try:
                client.start(timeout=5)
            except (KazooTimeoutError, KazooException):
                continue
            else:
                return
            finally:
                client.stop()
                client.close()
        self.kill()
        said = (self._folder / "log").read_text(errors="replace")[-2000:]
        raise TxnError(f"ZooKeeper does not answer log={said!r}")


def _free_port() -> int:
    for port in SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise TxnError(f"no free port first={PORTS[0]} last={PORTS[-1]}")


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """A ZooKeeper for all tests of a worker; each has a base path of its own."""
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    try:
        server.start()
    except TxnError as error:
        pytest.skip(f"no ZooKeeper: {error}")
    yield server
    server.kill()
