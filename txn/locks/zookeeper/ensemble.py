"""The address and credentials of a ZooKeeper ensemble, from a URI.

zookeeper://user:password@zk1:2181,zk2:2181/base?tls=on&ca=file&certificate=file&key=file

With a user (digest authentication), all created nodes belong to that user alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import SplitResult, unquote

from txn.errors import InvalidRequestError
from txn.stores.options import (
    Option,
    file,
    hide_login,
    one_of,
    parse_address,
    read_options,
)

_OPTIONS: dict[str, Option] = {
    "ca": file,
    "certificate": file,
    "key": file,
    "tls": one_of("off", "on"),
}
ZOOKEEPER_PORT = 2181


@dataclass(frozen=True, slots=True)
class Credentials:
    """user, password: for digest authentication, if any. certificate: shown to the server, with its
    key, which may be in a file of its own. ca: signs the server's certificate, besides the
    authorities that this machine trusts."""

    user: str = ""
    password: str = field(default="", repr=False)
    tls: str = "off"
    ca: str = ""
    certificate: str = ""
    key: str = ""


class Ensemble(NamedTuple):
    """hosts: `host:port,host:port`. base: the folder of the locks; empty: the default."""

    hosts: str
    base: str
    credentials: Credentials


def parse_ensemble(parts: SplitResult) -> Ensemble:
    """Parse a URI. Raises InvalidRequestError, whose message never shows the password."""
    login, at, hosts = parts.netloc.rpartition("@")
    shown = hide_login(parts.geturl())
    if not hosts or parts.fragment:
        raise InvalidRequestError("write zookeeper://host:port/base", uri=shown)
    for each in hosts.split(","):
        parse_address(each, ZOOKEEPER_PORT)
    folders = unquote(parts.path).strip("/")
    if any(each in ("", ".", "..") or "\0" in each for each in folders.split("/") if folders):
        raise InvalidRequestError("not a base path", base=folders, uri=shown)
    options = read_options(parts, _OPTIONS)
    if files := options.keys() - {"tls"}:
        if options.get("tls") == "off" or (files >= {"key"} and "certificate" not in files):
            raise InvalidRequestError(
                "files are for tls=on, and a key is for its certificate", options=options, uri=shown
            )
        options["tls"] = "on"
    if at:
        user, _, password = map(unquote, login.partition(":"))
        if not user or not password or ":" in user or "@" in login:
            raise InvalidRequestError(
                "write zookeeper://user:password@host:port/base, with %40 for an @", uri=shown
            )
        options |= {"user": user, "password": password}
    return Ensemble(hosts, f"/{folders}" if folders else "", Credentials(**options))
