"""Transactions on the database of the leases, and the differences between databases.

Work is retried for a bounded time if that may help. It may run several times, even after a run
whose commit took effect unreported, and must be correct then too.

`take_turn` makes decisions about leases safe. Until the transaction ends, no other transaction
decides about the same tables, and its reads show all earlier decisions. On SQLite this is the write
lock, which covers all tables. On PostgreSQL it is an advisory lock per table, under READ COMMITTED,
where a statement sees all that was committed before it began.

A forked process gets its own connections. It does not touch inherited PostgreSQL connections.
Inherited SQLite connections are unsafe: a fork copies SQLite's knowledge of its files, but not its
file locks. The child would believe in locks that end with its parent, and write to files that
others have deleted. So a fork waits until no transaction runs and closes the connections, which are
reopened at their next use. If a transaction runs for too long, the child cannot use that database.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path as File
from stat import S_ISGID
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, text
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from txn.clock import Clock, poll
from txn.errors import (
    CorruptRowError,
    InvalidRequestError,
    MaybeApplied,
    NotApplied,
    StoreClosedError,
    StoreError,
    TxnError,
)
from txn.host.folders import make_folder
from txn.host.forks import Forked
from txn.host.lending import Lender, Loan
from txn.leases.tables import IDS, leases, metadata
from txn.locks.model import Path
from txn.policy import Backoff

T = TypeVar("T")

RETRYING = Backoff(first_ms=20, longest_ms=200)
FORK_WITHIN_S = 10.0

TIMEOUT_S = 15
"""How long a statement waits for a lock, and the server for a client within a transaction."""

SQLITE_BUSY, SQLITE_LOCKED = 5, 6
KEEPALIVE = {
    "connect_timeout": f"{TIMEOUT_S}",
    "tcp_user_timeout": f"{TIMEOUT_S * 1000}",
    "keepalives_idle": f"{TIMEOUT_S // 3}",
    "keepalives_interval": f"{TIMEOUT_S // 3}",
    "keepalives_count": "2",
}
"""Defaults that detect a server that vanished from the network; the URL may override them."""

TRANSIENT_CLASSES = frozenset({"08", "40", "53", "55", "57"})
"""Lost connections; serialization and deadlocks; resources; lock time-outs; shutdown."""

PERMANENT = (
    *("password authentication failed", "no password supplied", "no pg_hba.conf entry"),
    *("does not exist", "invalid ", "unrecognized configuration parameter"),
)
"""Parts of messages without an error code: the server refuses the login or an option."""

SESSION_SETTINGS = {
    "client_encoding": "UTF8",
    "datestyle": "ISO, MDY",
    "default_transaction_read_only": "off",
    "extra_float_digits": "1",
    "idle_in_transaction_session_timeout": f"{TIMEOUT_S}s",
    "intervalstyle": "postgres",
    "lock_timeout": f"{TIMEOUT_S}s",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "timezone": "UTC",
    "transaction_timeout": "0",
}
"""Settings that the code relies on, whatever a role or a database sets. The time-outs bound how
long others wait for a client that was stopped while it held a table lock."""


class _SqliteConnection(sqlite3.Connection):
    def close(self) -> None:
        """Roll back first: else an interrupted thread's statement may keep the locks."""
        with suppress(sqlite3.ProgrammingError):  # it was closed before
            self.rollback()
        super().close()


class Sqlite:
    """A file on this machine, with the machine's clock."""

    clients = 1
    """Most connections of one service. Threads take turns; SQLite's lock is granted at random."""

    can_be_forked = False
    """True if a child may abandon inherited connections."""

    def engine(self, url: URL) -> Engine:
        """Return an engine whose connections are ready for the methods below."""
        if url.database in {None, "", ":memory:"}:
            raise InvalidRequestError("name a file: sqlite:///path")
        if url.query or url.host or url.username or url.password or url.port:
            message = "write sqlite:///path: a file has no host, user or options"
            raise InvalidRequestError(message, given=hide_password(url))
        try:
            _make_file(File(str(url.database)))
        except OSError as error:
            raise StoreError("no place for the leases", url=str(url), reason=str(error)) from error
        # With the driver in autocommit mode, a transaction begins only where take_turn begins it.
        options = {"factory": _SqliteConnection, "isolation_level": None, "timeout": TIMEOUT_S}
        engine = create_engine(
            url.set(drivername="sqlite"), connect_args=options, poolclass=NullPool
        )
        event.listen(engine, "connect", _prepare_sqlite)
        return engine

    def take_turn(self, connection: Connection, names: Sequence[Path]) -> None:
        """Lock these tables until the transaction ends. One lock order prevents deadlocks."""
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def next_id(self, connection: Connection) -> int:
        """Return a number greater than all before it, committed or not."""
        found = connection.execute(text(f"UPDATE {IDS} SET last = last + 1 RETURNING last"))
        return int(found.scalar_one())

    def is_transient(self, error: BaseException) -> bool:
        """Return True if a retry may help; the work may have taken effect. error: the driver's."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return code in {SQLITE_BUSY, SQLITE_LOCKED}


class Postgresql:
    """A server for many machines, with the server's clock."""

    clients = 16
    can_be_forked = True

    def engine(self, url: URL) -> Engine:
        url = url.set(drivername="postgresql+psycopg")
        options = {**KEEPALIVE, **url.query}
        arguments = {}
        if "prepare_threshold" in options:  # an option of psycopg, not of libpq
            given = str(options.pop("prepare_threshold"))
            if not (given.isdecimal() and given.isascii()) and given.lower() != "none":
                words = "prepare_threshold is a whole number, or none"
                raise InvalidRequestError(words, given=given)
            arguments["prepare_threshold"] = int(given) if given.isdecimal() else None
        driver: Any = url.get_dialect().import_dbapi()
        known = {each.keyword.decode() for each in driver.pq.Conninfo.get_defaults()}
        if unknown := sorted(set(options) - known):
            message = "unknown options of PostgreSQL"
            raise InvalidRequestError(message, options=unknown, url=hide_password(url))
        try:
            engine = create_engine(
                url.set(query=options),
                connect_args=arguments,
                isolation_level="READ COMMITTED",  # whatever the server's default is: see above
                poolclass=NullPool,
            )
        except ArgumentError as error:
            message = "not the URL of a PostgreSQL"
            raise InvalidRequestError(message, url=hide_password(url), cause=str(error)) from error
        # Insert before SQLAlchemy's own first query, which does not support every encoding.
        event.listen(engine, "connect", _prepare_postgresql, insert=True)
        return engine

    def take_turn(self, connection: Connection, names: Sequence[Path]) -> None:
        for key in sorted({_make_lock_key(name) for name in names}):
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})

    def next_id(self, connection: Connection) -> int:
        return int(connection.execute(text(f"SELECT nextval('{IDS}')")).scalar_one())

    def is_transient(self, error: BaseException) -> bool:
        state = getattr(error, "sqlstate", None)
        if state is not None:
            return state[:2] in TRANSIENT_CLASSES
        is_lost = type(error).__name__ in ("OperationalError", "InterfaceError")
        return is_lost and not any(said in str(error) for said in PERMANENT)


HARMLESS = {
    *("application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname"),
    *("gssencmode", "host", "hostaddr", "keepalives", "keepalives_count", "keepalives_idle"),
    *("keepalives_interval", "load_balance_hosts", "port", "prepare_threshold", "require_auth"),
    *("sslcert", "sslkey", "sslmode", "sslrootcert", "target_session_attrs", "user"),
}
"""The parameters whose values may be shown. Any other value may be a secret."""
UNREADABLE = "a stored lease does not decode"
KINDS: dict[str, Sqlite | Postgresql] = {"sqlite": Sqlite(), "postgresql": Postgresql()}
_CARRIED: set[str] = set()
"""Databases on which the parent had a transaction when this process was forked."""


class _Client(NamedTuple):
    connection: Connection
    driver: Any  # its connection


class Connections(Forked):
    def __init__(self, url: URL, clock: Clock, rng: random.Random) -> None:
        kind = KINDS.get(url.get_backend_name())
        if kind is None:
            message = "leases are kept in one of these"
            raise InvalidRequestError(message, known=sorted(KINDS), url=hide_password(url))
        self.database = kind
        self.url = url
        self._name = hide_password(url)
        self._clock = clock
        self._rng = rng
        self._engine = kind.engine(url)
        # SQLAlchemy wraps errors of its own calls, but not those of preparing a connection.
        self._errors = (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error)
        self._guard = threading.RLock()
        self._fork_ends_ms = 0  # no transaction begins before, unless the fork ends earlier
        self._inherited: list[Any] = []  # the parent's connections, which it still uses
        self._lender = self._make_lender()
        self.expect_forks()

    def _make_lender(self) -> Lender[_Client]:
        # SQLAlchemy's own pools lose connections, and locks, of threads that are interrupted.
        return Lender(self.database.clients, self._clock.monotonic_ms, self._close_client)

    def create_tables(self) -> None:
        """Create missing tables under a lock: one of several processes creates them."""

        def work(connection: Connection) -> None:
            if not connection.dialect.has_table(connection, leases.name):
                self.database.take_turn(connection, [Path((leases.name,))])
                metadata.create_all(connection)

        self.run(work)

    def run(self, work: Callable[[Connection], T], *, within_ms: int = TIMEOUT_S * 1000) -> T:
        """Do the work in a transaction and commit it. NotApplied: it was not done. MaybeApplied: a
        commit was sent, but not answered."""
        due_ms = self._clock.monotonic_ms() + within_ms
        kind: type[NotApplied | MaybeApplied] = NotApplied
        for _ in RETRYING.tries(self._clock, self._rng, due_ms=due_ms):
            found: list[T] = []
            try:
                self._work(work, found)
                return found[0]
            except (TypeError, ValueError) as error:  # of a column's type, or of the work itself
                if isinstance(error, TxnError):
                    raise
                raise CorruptRowError(UNREADABLE, url=self._name, cause=str(error)) from error
            except self._errors as error:
                failure = error
                kind = MaybeApplied if found else kind
                cause = error.orig or error if isinstance(error, DBAPIError) else error
                self._lender.close_free()  # they may have failed as well
                if not self.database.is_transient(cause):
                    break
        message = "the database of the leases failed"
        raise kind(message, url=self._name, reason=" ".join(str(cause).split())) from failure

    def close(self) -> None:
        with self._guard:
            if self._name in _CARRIED:
                self._lender.is_closed = True
            else:
                self._lender.close()

    def _work(self, work: Callable[[Connection], T], found: list[T]) -> None:
        """Do the work in a transaction, and commit it once its result was found."""
        with (hold := threading.Lock()):
            loan = self._open_loan(hold)
            is_clean = False
            try:
                connection = self._connect(loan)
                with connection.begin():
                    found.append(work(connection))
                is_clean = True
            except TxnError:
                is_clean = True
                raise
            finally:
                if not is_clean:
                    loan.lender.close_all(loan)
                loan.end()

    def _open_loan(self, hold: threading.Lock) -> Loan[_Client]:
        """Begin a transaction; where connections cannot be forked, a fork waits for its end."""
        while True:
            with self._guard:
                if self._lender.is_closed:
                    raise StoreClosedError("the leases were closed", url=self._name)
                if self._name in _CARRIED:
                    message = (
                        "the leases were in use when this process was forked: fork before that"
                    )
                    raise StoreError(message, url=self._name, pid=os.getpid())
                if not self._is_forking():
                    return self._lender.open_loan(hold)
            poll(lambda: not self._is_forking(), int(1000 * FORK_WITHIN_S))

    def _connect(self, loan: Loan[_Client]) -> Connection:
        if not self._lender.try_take(loan, is_first=True):
            due_ms = self._clock.monotonic_ms() + 2 * TIMEOUT_S * 1000
            if not self._lender.wait(loan, due_ms):
                raise PoolTimeoutError("no connection came free in time")
        if (client := loan[0]) is None:
            connection = self._engine.connect()
            client = loan[0] = _Client(connection, connection.connection.dbapi_connection)
        return client.connection

    def _close_client(self, client: _Client) -> None:
        """End its transaction, whatever SQLAlchemy knows of it."""
        with suppress(*self._errors):
            client.driver.close()
        with suppress(Exception):  # an interrupt may have left its objects half made
            client.connection.invalidate()

    def before_fork(self) -> None:
        """Wait for running transactions, up to a limit, and close SQLite's connections. No
        transaction begins until the fork is over."""
        if self.database.can_be_forked:
            return
        with self._guard:
            self._fork_ends_ms = self._clock.monotonic_ms() + int(2000 * FORK_WITHIN_S)
        poll(self._may_fork, int(1000 * FORK_WITHIN_S))
        if not self._lender.list_loans() and self._name not in _CARRIED:
            self._lender.close_free()

    def _is_forking(self) -> bool:
        return self._clock.monotonic_ms() < self._fork_ends_ms

    def _may_fork(self) -> bool:
        """Return True if no transaction runs, or one of this thread does: waiting would not end."""
        threads = {loan.thread for loan in self._lender.list_loans()}
        return not threads or threading.get_ident() in threads

    def after_fork(self, in_child: bool) -> None:
        """Allow transactions again. A child abandons the connections that its parent still uses."""
        if in_child:
            if self._lender.list_loans() and not self.database.can_be_forked:
                _CARRIED.add(self._name)
            self._inherited.append(self._lender)  # else garbage collection would close them
            was_closed, self._lender = self._lender.is_closed, self._make_lender()
            self._lender.is_closed = was_closed
            self._guard = threading.RLock()
        self._fork_ends_ms = 0


def hide_password(url: URL) -> str:
    """Return a URL without its password, and without values of parameters that may be secret."""
    secret = {name: "***" for name in url.query if name not in HARMLESS}
    return url.update_query_dict(secret).render_as_string(hide_password=True)


def _make_lock_key(name: Path) -> int:
    """Return the key of an advisory lock. Tables with equal keys only wait for each other."""
    said = blake2b(f"txn_leases/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(said, signed=True)


def _make_file(file: File) -> None:
    """Create the file's folder. In a folder with the set-group-id bit, also create the file,
    writable for the group whatever the umask is; SQLite gives the files beside it the same mode."""
    folder = file.parent
    make_folder(str(folder))
    mode = folder.stat().st_mode
    if mode & S_ISGID and not file.exists():
        with NamedTemporaryFile(prefix=f".{file.name}-", dir=folder) as made:
            os.fchmod(made.fileno(), mode & 0o666)
            with suppress(FileExistsError):  # the file never exists with another mode
                os.link(made.name, file)


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")  # leases outlive processes, so rows must


def _prepare_postgresql(connection: Any, _: object) -> None:
    """Apply the settings that this server knows. A server crash must not undo a confirmed lease."""
    autocommit, connection.autocommit = connection.autocommit, True
    connection.execute(f"SET statement_timeout = '{TIMEOUT_S}s'")  # the next one may take a while
    wanted = ", ".join(f"('{name}', '{value}')" for name, value in SESSION_SETTINGS.items())
    connection.execute(
        f"SELECT set_config(name, value, false) FROM pg_settings"
        f" JOIN (VALUES {wanted}) AS wanted (wanted, value) ON lower(name) = wanted"
    )
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false)"
        " WHERE current_setting('synchronous_commit') = 'off'"
    )
    connection.autocommit = autocommit
