"""Opening the leases of a database, whose tables are made or brought up to date where needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txn.errors import InvalidRequestError, describe

if TYPE_CHECKING:
    from txn.leases.service import LeaseService

VARIABLE = "TXN_LEASES"


def default_url(environ: Mapping[str, str] = os.environ) -> str:
    """Return what `TXN_LEASES` names, else a file in the user's data folder."""
    if found := environ.get(VARIABLE):
        return found
    home = Path(environ.get("HOME") or "~", ".local", "share").expanduser()
    return f"sqlite:///{Path(environ.get('XDG_DATA_HOME') or home, 'hbase-txn', 'leases.sqlite')}"


def open_leases(url: str | None = None, **details: Any) -> LeaseService:
    """Open the leases in `sqlite:///path` or `postgresql+psycopg://user@host/database`.

    details: max_lease_s (a week unless it is given), place_s, clock, chance.
    """
    url = default_url() if url is None else url
    try:
        # Both drivers are extras.
        from sqlalchemy import make_url  # noqa: PLC0415
        from sqlalchemy.exc import ArgumentError  # noqa: PLC0415

        from txn.leases.migrations import prepare  # noqa: PLC0415
        from txn.leases.service import LeaseService  # noqa: PLC0415

        try:
            service = LeaseService(make_url(url), **details)
        except ArgumentError as error:
            raise InvalidRequestError(
                "not the URL of a database, such as sqlite:////path"
            ) from error
    except ModuleNotFoundError as error:
        extra = "postgresql" if error.name == "psycopg" else "leases"
        raise InvalidRequestError(
            describe(f"install hbase-txn[{extra}]", missing=error.name)
        ) from error
    try:
        prepare(service.connections)
    except BaseException:
        service.close()
        raise
    return service
