"""Where a ZooKeeper is and how it lets us in: what a URI says.

zookeeper://user:password@zk1:2181,zk2:2181/base?tls=on&ca=file&certificate=file&key=file

With a user, by digest authentication, all that is made belongs to that user alone.
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
    """user and password: for digest authentication, if any. certificate: with its key, which may be
    in a file of its own, and is shown to the server. ca: signs the server's, beside those that this
    machine trusts."""

    user: str = ""
    password: str = field(default="", repr=False)
    tls: str = "off"
    ca: str = ""
    certificate: str = ""
    key: str = ""


class Ensemble(NamedTuple):
    """hosts: `host:port,host:port`. base: the folder of the locks; empty: the usual one."""

    hosts: str
    base: str
    credentials: Credentials


def parse_ensemble(parts: SplitResult) -> Ensemble:
    """Return the place of a URI; InvalidRequestError says what is wrong with a bad one, and never
    shows its password."""
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
