"""`python -m tests.bench.leases`: grabbing and dropping leases beside a bare insert and delete.

Each client grabs a table of its own for a minute and drops it, so that nobody waits; or all of them
grab one table as shared, where their turns come one after the other. Beside it the floor: a row is
inserted and deleted in the same database, by its driver alone, each in a transaction of its own.
PostgreSQL runs on this machine, on a Unix socket; both databases wait for the disk at each commit.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import psycopg

from tests.bench.cycles import PATIENCE_S, Bench, Case, Cycle, Uris
from tests.integration.postgresql import PostgreSQL
from txn.leases import exclusive, open_leases, shared
from txn.leases.service import LeaseService

LEASE_S = 60
OWN, SAME, FLOOR = WORKS = ("a table of its own", "one table, shared", "insert and delete")


def opened(case: Case, uris: Uris, clients: Sequence[int], stack: ExitStack) -> list[Cycle]:
    """What clients do; those of a process share a service, and have a bare connection each."""
    url = uris[case.subject]
    if case.work == FLOOR:
        return [insert_and_delete(stack.enter_context(closing(bare(url))), one) for one in clients]
    leases = stack.enter_context(open_leases(url))
    return [grab_and_drop(leases, case.work, one) for one in clients]


def grab_and_drop(leases: LeaseService, work: str, client: int) -> Cycle:
    wanted = [exclusive(f"d/t{client}") if work == OWN else shared("d/t")]
    return lambda: leases.drop_lease(leases.grab_lease(wanted, LEASE_S))


def insert_and_delete(connection: Any, client: int) -> Cycle:
    def run() -> None:
        connection.execute(f"INSERT INTO bare VALUES ({client})")
        connection.execute(f"DELETE FROM bare WHERE client = {client}")

    return run


def bare(url: str) -> Any:
    """A connection without SQLAlchemy, on which each statement is a transaction."""
    if url.startswith("postgresql"):
        return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
    connection = sqlite3.connect(
        url.removeprefix("sqlite:///"), PATIENCE_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


@contextmanager
def serving() -> Iterator[Uris]:
    server = PostgreSQL()
    with ExitStack() as stack:
        stack.callback(server.remove)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server.start()
        urls = {"SQLite": f"sqlite:///{folder}/leases", "PostgreSQL": server.new_database()}
        for url in urls.values():
            open_leases(url).close()
            with closing(bare(url)) as connection:
                connection.execute("CREATE TABLE bare (client INTEGER PRIMARY KEY)")
        yield urls


BENCH = Bench("pairs", ("SQLite", "PostgreSQL"), WORKS, (1, 16), serving, opened)

if __name__ == "__main__":
    BENCH.main(__doc__)
