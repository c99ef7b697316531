"""The settings of a console: its stores, its address, and its token."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from txn.errors import InvalidRequestError
from txn.request import TRANSACTIONS
from txn.stores.options import hide_login

PORT = 8611


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """store, transactions, locks, leases: as in `txn console`. Without locks, the store's own lock
    table is shown, if it has one. leases None: none are shown.

    token: what a visitor must show to write, or to read from another machine. servers: `/metrics`
    addresses of `txn serve --metrics`, which count the conflicts of their clients.
    """

    store: str = field(repr=False)
    token: str = field(repr=False)
    transactions: str = TRANSACTIONS
    locks: str | None = field(default=None, repr=False)
    leases: str | None = field(default=None, repr=False)
    bind: str = "127.0.0.1"
    port: int = PORT
    tls_cert: Path | None = None
    tls_key: Path | None = None
    servers: Sequence[str] = ()

    def __post_init__(self) -> None:
        if (self.tls_cert is None) is not (self.tls_key is None):
            words = "TLS takes a certificate and its key: give both --tls-cert and --tls-key"
            raise InvalidRequestError(words)

    @property
    def store_name(self) -> str:
        """Return the store without its login and its options, which may name a token file."""
        return hide_login(self.store).partition("?")[0]

    @property
    def address(self) -> str:
        host = f"[{self.bind}]" if ":" in self.bind else self.bind
        return f"{'http' if self.tls_cert is None else 'https'}://{host}:{self.port}/"

    @property
    def is_local(self) -> bool:
        return is_loopback(self.bind)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
