"""A real PostgreSQL for tests: on a Unix socket in a folder of its own, fsync on, no TCP.

The server is the one on PATH or of Debian's package, or else that package unpacked into a cache,
which needs apt and no root. PostgreSQL refuses root: where the tests run as root it runs as nobody.
It is stopped and killed by process id, and can be started again on its data.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.packages import PackageError, fetch_package, library_path
from txn.host.java import cache_folder

INSTALLED = Path("/usr/lib/postgresql")
PACKAGE = "postgresql"
USER = "txn"
# Root's home is closed to nobody, so what is fetched for root lies in the machine's cache.
ROOTS_CACHE = Path("/var/cache/hbase-txn")
WITHIN_S = 120
WHO_MAY_CONNECT = f"local all {USER} trust\nlocal all all scram-sha-256\n"
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "fsync": "on",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "jit": "off",
}


class PostgreSQLError(Exception):
    """There is no server, or it does not do what it should."""


class PostgreSQL:
    """A server of this test run."""

    def __init__(self) -> None:
        self._programs = find_programs()
        # Not in pytest's folder: nobody cannot get there, and a socket's path must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="hbase-txn-pg-"))
        self._log = self.folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        self._wait_for(
            self._run("initdb", "-D", "data", "-U", USER, "--auth=trust", "-E", "UTF8", "-N")
        )
        (self.folder / "data" / "pg_hba.conf").write_text(WHO_MAY_CONNECT)

    def start(self) -> None:
        """Start it on its data, and wait until it answers."""
        settings = {**SETTINGS, "unix_socket_directories": str(self.folder)}
        options = [word for pair in settings.items() for word in ("-c", "=".join(pair))]
        self._process = self._run("postgres", "-D", "data", *options)
        deadline = time.monotonic() + WITHIN_S
        while self._process.poll() is None and time.monotonic() < deadline:
            with suppress(psycopg.OperationalError):
                self.connect().close()
                return
            time.sleep(0.02)
        said = self._said()
        self.kill()
        raise PostgreSQLError(f"the server does not answer: {said}")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: open sessions are cut off, what is committed is on disk."""
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(WITHIN_S)
            finally:
                self.kill()

    def kill(self) -> None:
        """Let it die, all its processes at once, as in a power failure."""
        if self._process is None:
            return
        with suppress(psutil.NoSuchProcess):
            server = psutil.Process(self._process.pid)
            server.suspend()
            everyone = [*server.children(recursive=True), server]
            for each in everyone:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            self._process.wait()
            _wait_until_dead(everyone)
        self._process.wait()
        self._process = None

    def restart(self) -> None:
        """End it and start it again."""
        self.stop()
        self.start()

    def remove(self) -> None:
        """End it, without a last write of all that it has, and delete its data."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder)

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """Open a session in which each statement is a transaction."""
        return psycopg.connect(
            host=str(self.folder), user=USER, dbname=database, autocommit=True, connect_timeout=10
        )

    def new_database(self) -> str:
        """Make an empty database, and return its URL for SQLAlchemy."""
        name = f"db_{uuid.uuid4().hex}"
        with self.connect() as session:
            session.execute(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://{USER}@/{name}?host={self.folder}"

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        as_nobody: dict[str, Any] = {}
        if os.geteuid() == 0:
            as_nobody = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid}
            as_nobody["extra_groups"] = []
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [self._programs / program, *arguments],
                cwd=self.folder,
                env={
                    **os.environ,
                    **library_path(self._programs.parents[4]),
                    "LC_ALL": "C",
                    "TZ": "UTC",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **as_nobody,
            )

    def _wait_for(self, process: subprocess.Popen[bytes]) -> None:
        if process.wait(WITHIN_S):
            said = self._said()
            shutil.rmtree(self.folder)
            raise PostgreSQLError(f"no data folder could be made: {said}")

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


def _wait_until_dead(processes: list[psutil.Process]) -> None:
    """Until none of them has the data open: those of a dead parent may stay on as zombies."""
    deadline = time.monotonic() + WITHIN_S
    for each in processes:
        while time.monotonic() < deadline:
            try:
                if each.status() == psutil.STATUS_ZOMBIE:
                    break
            except psutil.NoSuchProcess:
                break
            time.sleep(0.01)


def find_programs() -> Path:
    """Return the folder of the server's programs, fetched first where there is none.

    Raises PostgreSQLError where it is not to be had.
    """
    for found in _installed():
        if (found / "postgres").exists() and (found / "initdb").exists():
            return found
    cache = ROOTS_CACHE if os.geteuid() == 0 else cache_folder()
    target = cache / "postgresql"
    if not target.exists():
        try:
            fetch_package(PACKAGE, target, lambda root: _newest(root / INSTALLED.relative_to("/")))
        except PackageError as error:
            raise PostgreSQLError(f"no server: {error}") from error
    return _newest(target / INSTALLED.relative_to("/"))[0]


def _installed() -> Iterator[Path]:
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    yield from _newest(INSTALLED)


def _newest(versions: Path) -> list[Path]:
    found = [each for each in versions.glob("*/bin") if each.parent.name.isdecimal()]
    return sorted(found, key=lambda each: int(each.parent.name), reverse=True)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """A PostgreSQL for all tests of a worker; each makes a database of its own. Without one a test
    is skipped, which CI does not accept."""
    try:
        server = PostgreSQL()
    except PostgreSQLError as error:
        pytest.skip(f"no PostgreSQL: {error}")
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database for leases, of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/leases"
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return server.new_database()
