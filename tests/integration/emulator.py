"""The emulator that tests use: both of HBase's services in this process, on ports of its own.

Its cells are in memory, or on disk without sync; tests make tables of their own, as on HBase.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.hbase import HBase
from txn.clock import SystemClock
from txn.emulator import thrift1
from txn.emulator.thrift2 import service as thrift2
from txn.server.connection import ServedInterface
from txn.server.options import listen
from txn.server.ports import Server
from txn.service.server import Transactional
from txn.stores import open_store
from txn.tables.kv.lmdb import LmdbStore
from txn.tables.kv.memory import MemoryStore
from txn.tables.kv.ordered import OrderedStore

HOST = "127.0.0.1"
SERVED_CELLS = "memory://served"


@contextmanager
def emulated(path: Path | None = None) -> Iterator[HBase]:
    """An emulator that looks like the HBase of tests; in memory, unless there is a path."""
    keys: OrderedStore = MemoryStore() if path is None else LmdbStore(str(path), sync=False)
    services = [
        ServedInterface(service.SERVICE, service.handler(keys, SystemClock()))
        for service in (thrift1, thrift2)
    ]
    with Server([(listen(HOST, 0), service) for service in services]) as server:
        one, two = server.ports
        yield HBase(f"hbase+thrift1://{HOST}:{one}", f"hbase+thrift2://{HOST}:{two}")
    keys.close()


@pytest.fixture(scope="session")
def txn_server() -> Iterator[str]:
    """The URI of a server of transactions, in memory, which the tests of a run share."""
    hosted = Transactional(open_store(SERVED_CELLS))
    with Server([(listen(HOST, 0), hosted.service)]) as server:
        yield f"txn://{HOST}:{server.ports[0]}"
    hosted.flush()


@pytest.fixture(scope="session")
def emulator() -> Iterator[HBase]:
    """The emulator that the tests of a run share."""
    with emulated() as found:
        yield found
