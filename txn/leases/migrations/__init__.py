"""The tables of the leases, from version to version, by alembic; each version is one file.

They are brought up to date in one transaction, in a turn of their own, so that of many processes
which open a new database at once one makes the tables and the others find them.
"""

from __future__ import annotations

import threading
from pathlib import Path as File

from sqlalchemy import Connection, inspect, text

from txn.errors import StoreError
from txn.leases.connections import Connections
from txn.leases.tables import VERSION, VERSION_TABLE
from txn.locks.requests import Path

ALEMBIC = threading.Lock()
"""What alembic works on is known to all threads of a process."""


def prepare(connections: Connections) -> None:
    """Make sure that the tables are of this version."""

    def work(connection: Connection) -> None:
        if _version(connection) != VERSION:
            connections.database.take_turn(connection, [Path((VERSION_TABLE,))])
            _upgrade(connection)

    connections.run(work)


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()


def _upgrade(connection: Connection) -> None:
    # Alembic takes long to import, and is needed once in the life of a database.
    from alembic.command import upgrade  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(File(__file__).parent).replace("%", "%%"))
    try:
        with ALEMBIC:
            upgrade(config, "head")
    except CommandError as error:
        raise StoreError(
            "the tables of the leases are of another version", known=VERSION
        ) from error
