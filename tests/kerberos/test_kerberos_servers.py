"""The native store gets through to an HBase that asks for tickets of a Kerberos made for tests,
Hadoop's MiniKdc in a Java process. Nothing of the machine's own Kerberos is read or changed."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.secure import hbase_with
from txn import Key, Mutation, connect
from txn.clock import poll
from txn.cluster.cluster import Cluster
from txn.cluster.jars import fetch, parse_lock
from txn.cluster.settings import NATIVE
from txn.errors import NotApplied, TxnError
from txn.host.java import find_java_home
from txn.model import Cell
from txn.stores import open_store

pytestmark = pytest.mark.slow

REALM = "EXAMPLE.COM"
SERVER = "hbase/localhost"
CLIENT = "client"
MAIN = "org.apache.hadoop.minikdc.MiniKdc"
STARTED = "Do <CTRL-C> or kill <PID> to stop it"
STARTS_WITHIN_MS = 60_000
SETTINGS = {
    "org.name": "EXAMPLE",
    "org.domain": "COM",
    "kdc.bind.address": "localhost",
    "kdc.port": "0",
    "transport": "TCP",
    "instance": "tests",
    "max.ticket.lifetime": "86400000",
    "max.renewable.lifetime": "604800000",
    "debug": "false",
}
LOCK = Path(__file__).with_name("minikdc.lock")


@dataclass(frozen=True, slots=True)
class Kdc:
    """A realm. configuration: its krb5.conf. keytab: the keys of SERVER and of CLIENT."""

    configuration: Path
    keytab: Path

    @property
    def environ(self) -> dict[str, str]:
        """The variables with which a client that uses MIT's Kerberos gets tickets by itself."""
        return {
            "KRB5_CONFIG": str(self.configuration),
            "KRB5_CLIENT_KTNAME": f"FILE:{self.keytab}",
            "KRB5CCNAME": "MEMORY:",
        }


@contextmanager
def running_kdc(folder: Path) -> Iterator[Kdc]:
    """Give a realm with the principals SERVER and CLIENT, and end it. Raises TxnError."""
    folder.mkdir(parents=True, exist_ok=True)
    settings, said = folder / "minikdc.properties", folder / "minikdc.out"
    settings.write_text("".join(f"{name}={value}\n" for name, value in SETTINGS.items()))
    found = Kdc(folder / "krb5.conf", folder / "keytab")
    line: list[str | Path] = [find_java_home() / "bin" / "java", "-Xmx128m", "-cp"]
    line += [":".join(map(str, fetch(jars=parse_lock(LOCK.read_text())))), MAIN]
    line += [folder, settings, found.keytab, SERVER, CLIENT]
    with said.open("wb") as output:
        process = subprocess.Popen(line, stdout=output, stderr=output)
    try:
        _wait(process, said)
        yield found
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], said: Path) -> None:
    def is_over() -> bool:
        return STARTED in said.read_text(errors="replace") or process.poll() is not None

    if not poll(is_over, STARTS_WITHIN_MS) or process.poll() is not None:
        raise TxnError(f"no Kerberos here: {said.read_text(errors='replace')[-2000:]}")


def kerberos_properties(kdc: Kdc) -> dict[str, str]:
    """Return what makes servers and gateways show tickets of SERVER, and ask for tickets."""
    properties = {
        "hadoop.security.authentication": "kerberos",
        "hbase.security.authentication": "kerberos",
    }
    for name in ("master", "regionserver", "thrift"):
        properties[f"hbase.{name}.kerberos.principal"] = f"{SERVER}@{REALM}"
        properties[f"hbase.{name}.keytab.file"] = str(kdc.keytab)
    return properties


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of a realm, of which clients here get tickets."""
    with (
        running_kdc(tmp_path_factory.mktemp("kdc")) as kdc,
        hbase_with(
            tmp_path_factory.mktemp("hbase"),
            kerberos_properties(kdc),
            f"-Djava.security.krb5.conf={kdc.configuration}",
        ) as found,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in kdc.environ.items():
            patch.setenv(name, value)
        yield found


@pytest.mark.parametrize("principal", ["hbase/_HOST", f"{SERVER}@{REALM}"])
def test_the_native_store_commits_with_a_ticket(cluster: Cluster, principal: str) -> None:
    uri = f"{cluster.uris[NATIVE]}?auth=kerberos&principal={principal}"
    with connect(uri, table="proven") as engine:
        engine.ensure_table("proven", ["d"])
        key = Key("a", "d", principal)
        done = engine.commit([Mutation(key, b"1")])
        assert engine.read([key]) == {key: Cell(b"1", done.timestamp)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "Authentication is required|closed"),
        ("&auth=kerberos&principal=nobody/_HOST", "Kerberos.*not found"),
    ],
)
def test_a_native_store_that_is_not_let_in_says_why(
    cluster: Cluster, options: str, message: str
) -> None:
    store = open_store(f"{cluster.uris[NATIVE]}?timeout_ms=3000{options}")
    with pytest.raises(NotApplied, match=message):
        store.read([Key("a", "d", "x", "proven")])
    store.close()
