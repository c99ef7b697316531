"""A real PostgreSQL for tests: on a Unix socket in a folder of its own, no TCP.

The server is the one on PATH or of Debian's package, or else that package unpacked into a cache,
which needs apt and no root. PostgreSQL refuses root: where the tests run as root it runs as nobody.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    "max_connections": "200",
    "shared_buffers": "32MB",
    "jit": "off",
}
EMPTY = """
SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid();
DROP SCHEMA public CASCADE;
CREATE SCHEMA public;
"""


class PostgreSQLError(Exception):
    """There is no server, or it does not do what it should."""


class PostgreSQL:
    """A server of this test run, by the folder of its data, log and socket."""

    def __init__(self, folder: Path | None = None, *, fsync: bool = True) -> None:
        """folder: that of a server that is there; else one is made. fsync: whether it waits for
        disks, which only a power failure could tell."""
        self._programs = find_programs()
        self._emptied = ""
        # Not in pytest's folder: nobody cannot get there, and a socket's path must be short.
        self.folder = folder or Path(tempfile.mkdtemp(prefix="hbase-txn-pg-"))
        settings = {"unix_socket_directories": self.folder, "fsync": "on" if fsync else "off"}
        settings = {**SETTINGS, **settings}
        self._options = " ".join(f"-c {name}='{value}'" for name, value in settings.items())
        if folder is None:
            self._make_data()

    def _make_data(self) -> None:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        try:
            self._run("initdb", "-D", "data", "-U", USER, "--auth=trust", "-E", "UTF8", "-N")
        except PostgreSQLError:
            shutil.rmtree(self.folder)
            raise
        (self.folder / "data" / "pg_hba.conf").write_text(WHO_MAY_CONNECT)

    def start(self) -> None:
        """Start it on its data, and wait until it answers."""
        self._run("pg_ctl", "start", "-w", f"-t{WITHIN_S}", "-D", "data", "-o", self._options)

    def stop(self, how: str = "fast") -> None:
        """End it: open sessions are cut off, what is committed is there when it starts again."""
        self._run("pg_ctl", "stop", "-w", f"-t{WITHIN_S}", "-D", "data", "-m", how)

    def kill(self) -> None:
        """Let it die, all its processes at once."""
        number = self.folder / "data" / "postmaster.pid"
        server = psutil.Process(int(number.read_text().split()[0]))
        server.suspend()
        everyone = [*server.children(recursive=True), server]
        for each in everyone:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        _wait_until_dead(everyone)
        for claim in (number, *self.folder.glob(".s.PGSQL.*.lock")):
            claim.unlink()  # who starts it would take a zombie for a server

    def restart(self) -> None:
        """End it and start it again."""
        self.stop()
        self.start()

    def remove(self) -> None:
        """End it, without a last write of all that it has, and delete its data."""
        with suppress(PostgreSQLError):  # it may have been killed
            self.stop("immediate")
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
        return self._url(name)

    def emptied_database(self) -> str:
        """Return the URL of one database, which is emptied: that is quicker than to make one."""
        if not self._emptied:
            self._emptied = self.new_database().partition("@/")[2].partition("?")[0]
        with self.connect(self._emptied) as session:
            session.execute(EMPTY)
        return self._url(self._emptied)

    def _url(self, name: str) -> str:
        return f"postgresql+psycopg://{USER}@/{name}?host={self.folder}"

    def _run(self, program: str, *arguments: str) -> None:
        """Run one of its programs to the end; what goes on behind it is no child of ours."""
        as_nobody: dict[str, Any] = {}
        if os.geteuid() == 0:
            as_nobody = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid}
            as_nobody["extra_groups"] = []
        variables = library_path(self._programs.parents[4]) | {"LC_ALL": "C", "TZ": "UTC"}
        with (self.folder / "log").open("ab") as log:
            done = subprocess.run(
                [self._programs / program, *arguments],
                cwd=self.folder,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
                **as_nobody,
            )
        if done.returncode:
            said = (self.folder / "log").read_text(errors="replace")[-2000:]
            raise PostgreSQLError(f"{program} failed: {said}")


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


@contextmanager
def _noted(path: Path) -> Iterator[dict[str, Any]]:
    """What workers have noted of the server that they share; no other looks meanwhile."""
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        facts: dict[str, Any] = json.loads(file.read() or '{"users": 0, "folder": ""}')
        yield facts
        file.truncate(0)
        json.dump(facts, file)


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgreSQL]:
    """A PostgreSQL for all tests and workers of a run; each test makes a database of its own.
    Without one a test is skipped, which CI does not accept."""
    base = tmp_path_factory.getbasetemp()
    note = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "postgresql"
    with _noted(note) as facts:
        try:
            server = PostgreSQL(Path(facts["folder"]) if facts["users"] else None, fsync=False)
        except PostgreSQLError as error:
            pytest.skip(f"no PostgreSQL: {error}")
        if not facts["users"]:
            server.start()
        facts.update(users=facts["users"] + 1, folder=str(server.folder))
    yield server
    with _noted(note) as facts:
        facts["users"] -= 1
        if not facts["users"]:
            server.remove()


@pytest.fixture(scope="module")
def mortal_postgresql() -> Iterator[PostgreSQL]:
    """A PostgreSQL for the tests of a module that restart and kill it."""
    server = PostgreSQL(fsync=False)
    server.start()
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database for leases, of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/leases"
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return server.emptied_database()
