"""Opening the leases of a database, whose tables are created if they are missing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txn.errors import InvalidRequestError
from txn.host.extras import require_extra

if TYPE_CHECKING:
    from sqlalchemy import URL

    from txn.leases.service import LeaseService

VARIABLE = "TXN_LEASES"
FILE = "leases.sqlite"
MACHINE = Path("/var/lib/hbase-txn")
"""A folder that an administrator makes for the leases of all users of a machine."""


def default_url(environ: Mapping[str, str] = os.environ) -> str:
    """Return which leases are meant where none are named: those of `TXN_LEASES`; else those of this
    machine, where an administrator has made the folder for them (docs/leases.md); else those of
    this user, which keep no other user out.

    InvalidRequestError: the machine has leases, which this user may not write.
    """
    if found := environ.get(VARIABLE):
        return found
    if not MACHINE.is_dir():
        return user_url(environ)
    if not os.access(MACHINE, os.W_OK | os.X_OK):
        message = f"leases of this machine are not for this user: join the group, or set {VARIABLE}"
        raise InvalidRequestError(message, folder=str(MACHINE))
    return f"sqlite:///{MACHINE / FILE}"


def user_url(environ: Mapping[str, str] = os.environ) -> str:
    """Return where leases are that are of this user alone: a file in the user's data folder."""
    home = Path(environ.get("HOME") or "~", ".local", "share").expanduser()
    return f"sqlite:///{Path(environ.get('XDG_DATA_HOME') or home, 'hbase-txn', FILE)}"


def open_leases(url: str | None = None, **details: Any) -> LeaseService:
    """Open the leases in `sqlite:////path` or `postgresql+psycopg://user@host/database`.

    url: else `default_url()`. Unless `TXN_LEASES` is set, or the machine has a place for all,
    that is for the programs of one user and keeps no other user out.
    details: max_lease_s (a week unless it is given), place_s, clock, chance.
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
    """Return the parts of a database's URL. An error does not show it: a password may be in it."""
    from sqlalchemy import make_url  # noqa: PLC0415
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415

    try:
        found = make_url(url)
        found.get_dialect()
    except (ArgumentError, ValueError) as error:
        raise InvalidRequestError("not the URL of a database, such as sqlite:////path") from error
    if found.port is not None and not 0 < found.port < 65_536:
        raise InvalidRequestError("not a port", port=found.port)
    return found
