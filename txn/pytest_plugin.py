"""pytest fixtures for programs that use this library: an engine on a fresh store, and an HBase.

pytest imports this module wherever the package is installed, so no extra's driver is imported
before a test requests a fixture. docs/howto/testing.md describes the fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from txn.client.engine import Engine

HOST = "127.0.0.1"
MARKER = "txn_store"
FRESH = "embedded:"
"""Stands for the URI of an embedded store in the test's own folder."""


@dataclass(frozen=True, slots=True)
class RunningEmulator:
    """HBase's two Thrift services and the Transactional one, in this process, on a fresh memory
    store.

    host, and the three ports: where they listen. HBase clients use the first two, for example
    `happybase.Connection(emulator.host, emulator.thrift1_port)`.
    """

    host: str
    thrift1_port: int
    thrift2_port: int
    transactional_port: int

    @property
    def thrift1_uri(self) -> str:
        """The `connect` URI of the Thrift 1 gateway."""
        return f"hbase+thrift1://{self.host}:{self.thrift1_port}"

    @property
    def thrift2_uri(self) -> str:
        """The `connect` URI of the Thrift 2 gateway."""
        return f"hbase+thrift2://{self.host}:{self.thrift2_port}"

    @property
    def transactional_uri(self) -> str:
        """The `connect` URI of the server that commits for its clients."""
        return f"txn://{self.host}:{self.transactional_port}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the setting for the store of `txn_engine`."""
    say = (
        f"the store of the fixture txn_engine: a URI, or {FRESH!r} for a folder of each test's own"
    )
    parser.addini(MARKER, say, default="memory://")
    parser.getgroup("hbase-txn").addoption("--txn-store", metavar="URI", help=say)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    about = "the store of txn_engine for this test, and further arguments of txn.connect"
    config.addinivalue_line("markers", f"{MARKER}(uri=None, **arguments): {about}")


@pytest.fixture
def txn_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine on the test's own store, in memory by default.

    In order of precedence: the marker `txn_store("uri", table="t")`, which takes the arguments of
    `txn.connect`; the option `--txn-store`; the setting `txn_store` of the ini file.
    """
    from txn.client.connect import connect  # noqa: PLC0415

    def take(uri: str | None = None, **arguments: Any) -> tuple[str | None, dict[str, Any]]:
        return uri, arguments

    mark = request.node.get_closest_marker(MARKER)
    uri, arguments = take(*mark.args, **mark.kwargs) if mark else take()
    wanted = uri or request.config.getoption("--txn-store") or request.config.getini(MARKER)
    if wanted == FRESH:
        folder: Path = request.getfixturevalue("tmp_path")
        wanted = f"embedded://{folder}/txn_store"
    with connect(wanted, **arguments) as engine:
        yield engine


@pytest.fixture(scope="session")
def hbase_emulator_factory() -> Iterator[Callable[[], RunningEmulator]]:
    """Start emulators that run until the session ends, for fixtures that outlive a test."""
    with ExitStack() as started:
        yield lambda: start_emulator(started)


@pytest.fixture
def hbase_emulator() -> Iterator[RunningEmulator]:
    """An emulator without tables, for the duration of this test. Needs the extra `emulator`."""
    with ExitStack() as started:
        yield start_emulator(started)


def start_emulator(ends: ExitStack) -> RunningEmulator:
    """Start an emulator in this process, on free ports; the caller ends it with `ends`."""
    from txn.clock import SystemClock  # noqa: PLC0415
    from txn.host.extras import import_extra  # noqa: PLC0415
    from txn.stores import open_ordered  # noqa: PLC0415

    try:
        with import_extra("emulator"):
            from txn.emulator.serving import NAMES, Hosted, open_services  # noqa: PLC0415
            from txn.server.options import listen  # noqa: PLC0415
            from txn.server.ports import Server  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    hosted = Hosted("memory://", dict.fromkeys(NAMES, 0))
    stop, services = open_services(hosted, open_ordered(hosted.store), SystemClock())
    ends.callback(stop)
    server = Server([(listen(HOST, 0), services[name]) for name in NAMES])
    ends.enter_context(server)
    return RunningEmulator(HOST, *server.ports)
