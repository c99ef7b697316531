"""A Kerberos for tests, Hadoop's MiniKdc in a Java process, and an HBase that asks for it.

The realm, its principals and their keys are made anew each time. Nothing of the machine's own
Kerberos is read or changed: servers and clients are told the file with the realm's address.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tests.integration.secure import hbase_with
from txn.cluster.cluster import Cluster
from txn.cluster.jars import fetch, parse_lock
from txn.errors import TxnError
from txn.host.java import find_java_home

REALM = "EXAMPLE.COM"
SERVER = "hbase/localhost"
CLIENT = "client"
MAIN = "org.apache.hadoop.minikdc.MiniKdc"
STARTED = "Do <CTRL-C> or kill <PID> to stop it"
STARTS_WITHIN_S = 60
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
    deadline = time.monotonic() + STARTS_WITHIN_S
    while STARTED not in said.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise TxnError(f"no Kerberos here: {said.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)


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


@contextmanager
def hbase_with_kerberos(
    folder: Path, kdc: Kdc, properties: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Cluster]:
    """Give a cluster whose master and region server take clients with a ticket alone.

    properties: further ones, such as `tls_properties(folder)`, or hbase.rpc.protection.
    """
    option = f"-Djava.security.krb5.conf={kdc.configuration}"
    with hbase_with(folder, {**kerberos_properties(kdc), **properties}, option) as cluster:
        yield cluster
