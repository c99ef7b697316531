"""Open the leases of a database; missing tables are created."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txn.arguments import check_calls
from txn.errors import InvalidRequestError
from txn.host.extras import require_extra

if TYPE_CHECKING:
    from sqlalchemy import URL

    from txn.leases.service import LeaseService

VARIABLE = "TXN_LEASES"
FILE = "leases.sqlite"
MACHINE = Path("/var/lib/hbase-txn")
"""An administrator creates this folder for the leases of all users of a machine."""


@check_calls
def default_url(environ: Mapping[str, str] = os.environ) -> str:
    """Return the default URL: `TXN_LEASES`, else the machine's leases, else the user's. The machine
    has leases if an administrator created their folder (docs/leases.md). The user's leases exclude
    no other user. InvalidRequestError: this user may not write the machine's leases."""
    if found := environ.get(VARIABLE):
        return found
    if not MACHINE.is_dir():
        return user_url(environ)
    if not os.access(MACHINE, os.W_OK | os.X_OK):
        message = f"leases of this machine are not for this user: join the group, or set {VARIABLE}"
        raise InvalidRequestError(message, folder=str(MACHINE))
    return f"sqlite:///{MACHINE / FILE}"


def user_url(environ: Mapping[str, str] = os.environ) -> str:
    """Return the URL of this user's own leases, a file in the user's data folder."""
    home = Path(environ.get("HOME") or "~", ".local", "share").expanduser()
    return f"sqlite:///{Path(environ.get('XDG_DATA_HOME') or home, 'hbase-txn', FILE)}"


def open_leases(url: str | None = None, **details: Any) -> LeaseService:
    """Open the leases in `sqlite:////path` or `postgresql+psycopg://user@host/database`.

    url: by default `default_url()`, which may be for the programs of one user only. details:
    max_lease_s (default: a week), place_s, clock, rng.
    """
    url = default_url() if url is None else url
    with require_extra("leases"):
        from txn.leases.service import LeaseService  # noqa: PLC0415

        service = LeaseService(parse_url(url), **details)
    try:
        service.connections.create_tables()
    except BaseException:
        service.close()
        raise
    return service


def parse_url(url: str) -> URL:
    """Parse a database URL. Errors do not show it, since it may contain a password."""
    from sqlalchemy import make_url  # noqa: PLC0415
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415

    try:
        found = make_url(url)
        found.get_dialect()
    except (ArgumentError, ValueError) as error:
        raise InvalidRequestError("not the URL of a database, such as sqlite:////path") from error
    if "@" in f"{found.host}{'' if found.drivername.startswith('sqlite') else found.database}":
        raise InvalidRequestError("an @ behind the login: write %40 for it")
    if found.port is not None and not 0 < found.port < 65_536:
        raise InvalidRequestError("not a port", port=found.port)
    return found
