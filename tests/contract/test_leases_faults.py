"""The lease service when commits fail, replies are lost, processes fork and settings are odd.

The faults are put where SQLAlchemy commits: before it, so that nothing is done, or behind it, so
that what is done is not reported.
"""

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

import psycopg
import pytest
from sqlalchemy import Connection, Engine, event, insert, make_url, text, update
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from tests.integration.postgresql import PostgreSQL
from txn.clock import ManualClock, poll
from txn.errors import MaybeApplied, NotApplied, StoreClosedError, StoreError
from txn.leases import (
    LeaseAlreadyExistsError,
    LeaseNotFoundError,
    exclusive,
    open_leases,
    path,
    shared,
)
from txn.leases.service import LeaseService
from txn.leases.tables import leases, now

LONG_S = 3_600
WAIT_MS = 300_000


@pytest.fixture
def one(database_url: str) -> Iterator[LeaseService]:
    with open_leases(database_url, place_s=LONG_S) as found:
        yield found


class Commits:
    """What becomes of the next commits; those after them are done and reported."""

    def __init__(self) -> None:
        self.next: list[Literal["done", "not done", "not reported"]] = []

    def around(self, commit: Callable[..., None], error: Callable[[], Exception]) -> Any:
        def do_commit(dialect: Any, connection: Any) -> None:
            fate = self.next.pop(0) if self.next else "done"
            if fate != "not done":
                commit(dialect, connection)
            if fate != "done":
                raise error()

        return do_commit


def busy() -> Exception:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return error


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    found = Commits()
    for dialect, error in (
        (SQLiteDialect_pysqlite, busy),
        (PGDialect_psycopg, lambda: psycopg.OperationalError("connection lost")),
    ):
        monkeypatch.setattr(dialect, "do_commit", found.around(dialect.do_commit, error))
    return found


def wait_until_somebody_waits(connection: Connection) -> None:
    """Until a session of this database has asked for a lock that another one has."""
    waiting = text(
        "SELECT 1 FROM pg_locks JOIN pg_database ON database = pg_database.oid"
        " WHERE NOT granted AND datname = current_database()"
    )
    assert poll(lambda: connection.execute(waiting).first() is not None, WAIT_MS)


def ids(service: LeaseService) -> list[int]:
    return [lease.lease_id for lease in service.list_lease()]


@pytest.mark.parametrize("fate", ["not done", "not reported"])
def test_what_failed_or_whose_reply_was_lost_is_done_once(
    one: LeaseService, commits: Commits, fate: Literal["not done", "not reported"]
) -> None:
    """A grab would else be in its own way, under an id that nobody knows."""
    commits.next = [fate, fate]
    lease_id = one.grab_lease([exclusive("d/t"), shared("d/u")], LONG_S)
    assert ids(one) == [lease_id] * 2
    commits.next = [fate]
    end = one.extend_lease(lease_id, duration_s=2 * LONG_S)
    assert [lease.end_utc for lease in one.list_lease()] == [end, end]
    commits.next = [fate]
    one.drop_lease(lease_id)
    assert ids(one) == []


def test_a_place_whose_reply_was_lost_is_found_again(one: LeaseService, commits: Commits) -> None:
    """A second place would stay, in the way of those who come later, or of its own request."""
    held = one.grab_lease([shared("d/t")], LONG_S)
    commits.next = ["not reported", "not done", "not reported"]
    with pytest.raises(LeaseAlreadyExistsError):
        one.grab_lease([exclusive("d/t")], LONG_S, 0.2)
    assert ids(one) == [held]
    assert one.drop_lease(one.grab_lease([shared("d/t")], LONG_S)) == 1


@pytest.mark.parametrize("wait_s", [0, 60])
def test_what_a_grab_that_failed_may_have_written_is_given_back(
    database_url: str, commits: Commits, wait_s: float
) -> None:
    """The database went away for longer than we wait; nobody knows the id."""
    with open_leases(database_url, clock=ManualClock()) as service:
        held = service.grab_lease([shared("d/t")], LONG_S) if wait_s else 0
        commits.next = ["not reported"] * 10_000
        with pytest.raises(StoreError):
            service.grab_lease([exclusive("d/t"), exclusive("d/u")], LONG_S, wait_s)
        commits.next = []
        later = service.grab_lease([shared("d/t")], LONG_S)
        assert ids(service) == ([held, later] if held else [later])


@pytest.mark.parametrize(
    ("name", "password", "database", "said"),
    [
        ("ann", "wrong", None, "password authentication failed"),
        (None, None, "none", "does not exist"),
    ],
)
def test_what_will_not_pass_is_told_at_once(
    postgresql: PostgreSQL,
    name: str | None,
    password: str | None,
    database: str | None,
    said: str,
) -> None:
    with postgresql.connect() as session:
        session.execute("DROP ROLE IF EXISTS ann")
        session.execute("CREATE ROLE ann LOGIN PASSWORD 'right'")
    url = make_url(postgresql.new_database())
    url = url.set(
        username=name or url.username, password=password, database=database or url.database
    )
    clock = ManualClock()
    began_ms = clock.monotonic_ms()
    with pytest.raises(StoreError, match=said):
        open_leases(url.render_as_string(hide_password=False), clock=clock)
    assert clock.monotonic_ms() == began_ms  # nobody has slept between tries


SETTINGS = [
    "IntervalStyle = 'sql_standard'",
    "TimeZone = 'Asia/Kathmandu'",
    "standard_conforming_strings = 'off'",
    "lock_timeout = '1ms'",
    "statement_timeout = '1ms'",
    "idle_in_transaction_session_timeout = '1ms'",
    "default_transaction_read_only = 'on'",
    "extra_float_digits = '-15'",
    "quote_all_identifiers = 'on'",
]


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
@pytest.mark.parametrize("dates", ["German, DMY", "SQL, MDY"])
def test_a_role_may_have_settings_of_its_own(
    postgresql: PostgreSQL, dates: str, encoding: str
) -> None:
    url = make_url(postgresql.new_database())
    encoded = (f"DateStyle = '{dates}'", f"client_encoding = '{encoding}'")
    with postgresql.connect() as session:
        for setting in (*SETTINGS, *encoded):
            session.execute(f'ALTER DATABASE "{url.database}" SET {setting}')
    options = "&prepare_threshold=0&application_name=a%20b&keepalives_count=1"  # of the driver
    with open_leases(url.render_as_string(hide_password=False) + options) as service:
        lease_id = service.grab_lease([exclusive("d/t")], 1234.5678901, user="grüße\\'x ☃")
        (lease,) = service.list_lease()
        assert lease.user == "grüße\\'x ☃"
        moment, minute = timedelta(microseconds=2), timedelta(minutes=1)
        assert abs(lease.end_utc - lease.start_utc - timedelta(seconds=1234.5678901)) < moment
        for name in ("idle_in_transaction_session_timeout", "lock_timeout"):
            shown = text(f"SHOW {name}")
            found = service.connections.run(lambda each: each.execute(shown).scalar_one())  # noqa: B023
            assert found == "15s"  # a stopped client keeps its turn for no longer
        until = service.extend_lease(lease_id)
        assert timedelta(0) <= service.now() + timedelta(seconds=1234.5678901) - until < minute
        assert service.drop_lease(lease_id) == 1


def test_an_outage_ends_and_errors_say_whether_it_happened(
    database_url: str, commits: Commits
) -> None:
    with open_leases(database_url, clock=ManualClock()) as service:
        commits.next = ["not reported"] * 10_000
        with pytest.raises(MaybeApplied):
            service.drop_lease(1)
        commits.next = []

        def fail(connection: Connection) -> None:
            connection.execute(text("SELECT 1 FROM nowhere"))

        with pytest.raises(NotApplied, match="nowhere"):
            service.connections.run(fail)
        commits.next = ["not done"] * 10_000
        with pytest.raises(StoreError, match="the database of the leases failed url='"):
            service.grab_lease([exclusive("d/t")], LONG_S)
        commits.next = []
        assert ids(service) == []
    with pytest.raises(StoreClosedError):
        service.list_lease()


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_a_turn_shows_what_was_decided_before_it(postgresql: PostgreSQL, level: str) -> None:
    """A snapshot from before the wait for the turn would not show what was granted meanwhile."""
    url = postgresql.new_database()
    by_default = f"&options=-c default_transaction_isolation={level.replace(' ', '%5C ')}"
    with (
        open_leases(url) as first,
        open_leases(url + by_default) as second,
        ThreadPoolExecutor() as pool,
    ):
        database = first.connections.database

        def overtake(connection: Any) -> Any:
            database.take_turn(connection, [path("d/t")])
            grabbing = pool.submit(second.grab_lease, [exclusive("d/t")], LONG_S)
            wait_until_somebody_waits(connection)
            at = connection.execute(now().select()).scalar_one()
            names = {"object": "d/t", "user_name": "ann", "db_name": "d", "table_name": "t"}
            times = {"start_utc": at, "end_utc": at + timedelta(seconds=LONG_S)}
            claim = {"lease_type": "x", "granted": True, "duration_s": LONG_S, "claims": 1}
            number = database.next_id(connection)
            row = names | times | claim | {"lease_id": number, "partition_name": "", "token": ""}
            connection.execute(insert(leases).values(row))
            return grabbing

        with pytest.raises(LeaseAlreadyExistsError, match="by ann"):
            first.connections.run(overtake).result()


@contextmanager
def just_before(statement: str, what: Callable[[], object]) -> Iterator[None]:
    """Do something when a statement like this is about to be sent for the first time."""
    left = [what]

    def look(*facts: Any) -> None:
        if statement in facts[2] and left:
            left.pop()()

    event.listen(Engine, "before_cursor_execute", look)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", look)
    assert not left, "no such statement was sent"


@pytest.mark.parametrize("dropped", [["d/t"], ["d/t", "d/u"]])
def test_a_lease_that_is_dropped_while_it_is_extended_is_not_extended(
    postgresql: PostgreSQL, dropped: list[str]
) -> None:
    url = postgresql.new_database()
    with open_leases(url) as one, open_leases(url) as two:
        held = one.grab_lease([exclusive("d/t"), exclusive("d/u")], LONG_S)
        before = {lease.path: lease.end_utc for lease in one.list_lease()}
        with (
            just_before("UPDATE txn_leases", lambda: two.drop_lease(held, dropped)),
            pytest.raises(LeaseNotFoundError),
        ):
            one.extend_lease(held, duration_s=2 * LONG_S)
        after = {lease.path: lease.end_utc for lease in one.list_lease()}
        assert after == {at: end for at, end in before.items() if str(at) not in dropped}


def test_a_grab_waits_for_an_extension_that_is_under_way(postgresql: PostgreSQL) -> None:
    """It would see the lease ended, and be granted beside it."""
    url = postgresql.new_database()
    with open_leases(url) as one, open_leases(url) as two, ThreadPoolExecutor() as pool:
        held = one.grab_lease([exclusive("d/t")], LONG_S)
        grabbing: list[Future[int]] = []

        def let_it_end() -> None:
            ended = update(leases).values(end_utc=now())
            two.connections.run(lambda each: each.execute(ended))
            event.listen(Engine, "commit", grab, once=True)

        def grab(_: Connection) -> None:
            grabbing.append(pool.submit(two.grab_lease, [exclusive("d/t")], LONG_S))
            one.connections.run(wait_until_somebody_waits)

        with just_before("UPDATE txn_leases", let_it_end):
            one.extend_lease(held)
        with pytest.raises(LeaseAlreadyExistsError):
            grabbing[0].result()
        assert ids(one) == [held]


LONG_S = 3_600
WITHIN_S = 120
LEFT_BEHIND = """
import os, sys
from txn.leases import exclusive, open_leases

leases = open_leases(sys.argv[1])
leases.grab_lease([exclusive("d/of_the_parent")], 3600)
reading, writing = os.pipe()
if os.fork():
    os.read(reading, 1)
    if sys.argv[2] == "closes":
        leases.close()
    print("left", flush=True)
    os._exit(0)
leases.grab_lease([exclusive("d/of_the_child")], 3600)
os.write(writing, b"!")
sys.stdin.readline()
leases.grab_lease([exclusive("d/of_the_orphan")], 3600)
print("granted", flush=True)
"""


@pytest.mark.parametrize("how", ["closes", "dies"])
def test_what_a_fork_is_granted_outlives_its_parent(database_url: str, how: str) -> None:
    """A program goes into the background. SQLite's locks on its files are not inherited."""
    with subprocess.Popen(
        [sys.executable, "-c", LEFT_BEHIND, database_url, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == "left\n"
        assert parent.wait(WITHIN_S) == 0
        with open_leases(database_url) as other:
            other.grab_lease([exclusive("d/of_another")], LONG_S)
            parent.stdin.write("\n")
            parent.stdin.flush()
            assert parent.stdout.readline() == "granted\n"
            found = other.list_lease()
    with open_leases(database_url) as later:
        assert later.list_lease() == found
    assert sorted((lease.lease_id, lease.table_name) for lease in found) == [
        (1, "of_the_parent"),
        (2, "of_the_child"),
        (3, "of_another"),
        (4, "of_the_orphan"),
    ]
