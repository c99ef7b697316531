"""The settings of a console: the stores that it shows, its address, and its token."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from txn.errors import InvalidRequestError
from txn.request import TRANSACTIONS

PORT = 8611


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """store, transactions: as `--store` and `--transactions` take them. locks: the URI of a lock
    manager; None: the store's own table of locks, if it has one. leases: the URL of a database of
    leases; None: none are shown.

    token: what a visitor must show to write, or to read from elsewhere. servers: addresses of
    `/metrics` of servers (`txn serve --metrics`), which count the conflicts of their clients.
    """

    store: str
    token: str
    transactions: str = TRANSACTIONS
    locks: str | None = None
    leases: str | None = None
    bind: str = "127.0.0.1"
    port: int = PORT
    tls_cert: Path | None = None
    tls_key: Path | None = None
    servers: Sequence[str] = ()

    def __post_init__(self) -> None:
        if (self.tls_cert is None) is not (self.tls_key is None):
            raise InvalidRequestError(
                "TLS takes a certificate and its key: give both --tls-cert and --tls-key"
            )

    @property
    def store_name(self) -> str:
        """The store as it is shown: without its options, which may name the file of a token."""
        return self.store.partition("?")[0]

    @property
    def address(self) -> str:
        """The address for a browser."""
        host = f"[{self.bind}]" if ":" in self.bind else self.bind
        return f"{'http' if self.tls_cert is None else 'https'}://{host}:{self.port}/"

    @property
    def is_local(self) -> bool:
        """Whether it listens on the loopback alone."""
        return is_loopback(self.bind)


def is_loopback(host: str) -> bool:
    """Return whether a host, as a name or an address, is this machine by itself."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
