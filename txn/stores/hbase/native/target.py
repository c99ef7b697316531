"""The cluster that a URI names, and how to connect to it.

hbase://zk1,zk2:2181/hbase?user=alice      by its ZooKeeper and HBase's node there
hbase://?registry=master1:16000,master2    by its masters (from HBase 2.5: any of its servers)

Further options: timeout_ms=30000 for a call with all retries, connect_ms=5000, connections=1 to
each server; tls=on, ca=file and the client's certificate=file (with its key, or key=file);
auth=kerberos, and principal=hbase/_HOST@REALM of the servers.
"""

from __future__ import annotations

import getpass
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, unquote

from txn.errors import InvalidRequestError
from txn.stores.options import (
    Option,
    file,
    hide_login,
    number,
    one_of,
    parse_address,
    read_options,
    word,
)

ZOOKEEPER_PORT = 2181
MASTER_PORT = 16_000

Address = tuple[str, int]


def _current_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        return "unknown"


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster's addresses and options. `registry`, if given, replaces `zookeeper`."""

    zookeeper: tuple[Address, ...] = ()
    znode: str = "/hbase"
    registry: tuple[Address, ...] = ()
    user: str = field(default_factory=_current_user)
    timeout_ms: int = 30_000
    connect_ms: int = 5_000
    connections: int = 1
    tls: Literal["off", "on"] = "off"
    ca: str = ""
    certificate: str = ""
    key: str = ""
    auth: Literal["simple", "kerberos"] = "simple"
    principal: str = "hbase/_HOST"

    def __str__(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.zookeeper or self.registry)


def parse_target(parts: SplitResult) -> Target:
    """Return the cluster of a URI; InvalidRequestError says what is wrong with a bad one."""
    uri = hide_login(parts.geturl())
    options = read_options(parts, _OPTIONS)
    masters = options.pop("registry", "")
    is_bad = "@" in parts.netloc or (masters and parts.path.strip("/"))
    if is_bad or bool(parts.netloc) == bool(masters):
        raise InvalidRequestError(
            "write hbase://zk1,zk2:2181/znode, or hbase://?registry=host:port,host:port", uri=uri
        )
    if "ca" in options or "certificate" in options:
        options["tls"] = "on"
    if masters:
        return Target(registry=_addresses(masters, MASTER_PORT), **options)
    znode = unquote(parts.path).rstrip("/") or "/hbase"
    return Target(_addresses(parts.netloc, ZOOKEEPER_PORT), znode, **options)


def _addresses(text: str, usual_port: int) -> tuple[Address, ...]:
    found: list[Address] = []
    port = usual_port
    for part in reversed(text.split(",")):
        host, port = parse_address(part, port)
        found.append((host, port))
    return tuple(reversed(found))


_OPTIONS: dict[str, Option] = {
    "auth": one_of("simple", "kerberos"),
    "ca": file,
    "certificate": file,
    "connect_ms": number,
    "connections": number,
    "key": file,
    "principal": word,
    "registry": word,
    "timeout_ms": number,
    "tls": one_of("off", "on"),
    "user": word,
}
