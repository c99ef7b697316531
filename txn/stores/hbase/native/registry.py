"""Where the table of all regions is, and the active master: as ZooKeeper knows, or the masters."""

from __future__ import annotations

import logging
from threading import Thread
from typing import Any

from google.protobuf.message import DecodeError
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from txn.clock import Clock
from txn.errors import NotApplied
from txn.stores.hbase.native.connection import RemoteError
from txn.stores.hbase.native.messages import PB
from txn.stores.hbase.native.servers import Servers
from txn.stores.hbase.native.target import Address, Target

LOGGER = logging.getLogger(__name__)
LOGGER.addHandler(logging.NullHandler())  # nothing on stderr, unless a program asks for it
MARK = b"PBUF"
NAMED = 0xFF


class Registry:
    """Asks each time that it is asked: what is known of it others keep."""

    def __init__(self, target: Target, servers: Servers, clock: Clock) -> None:
        self._target = target
        self._servers = servers
        self._clock = clock
        self._answered: tuple[Address, ...] = ()  # the master that answered last

    def find_meta(self, due_ms: int) -> Address:
        """Return the server of the region that has the table of regions."""
        if self._target.registry:
            response = self._ask_masters("GetMetaRegionLocations", due_ms)
            for location in response.meta_locations:
                if location.HasField("server_name"):
                    return _address(location.server_name)
            raise NotApplied("the table of regions is nowhere", cluster=str(self._target))
        return _address(self._read_node("meta-region-server", PB.MetaRegionServer, due_ms).server)

    def find_master(self, due_ms: int) -> Address:
        """Return the active master."""
        if self._target.registry:
            return _address(self._ask_masters("GetActiveMaster", due_ms).server_name)
        return _address(self._read_node("master", PB.Master, due_ms).master)

    def _ask_masters(self, method: str, due_ms: int) -> Any:
        request, response = getattr(PB, f"{method}Request"), getattr(PB, f"{method}Response")
        failures = []
        for address in (*self._answered, *self._target.registry):
            try_ms = min(due_ms, self._clock.monotonic_ms() + self._target.connect_ms)
            try:
                connection = self._servers.connect(address, "ClientMetaService", try_ms)
                answer = connection.call(method, request(), response, try_ms)
            except (OSError, RemoteError) as error:
                failures.append(f"{address[0]}:{address[1]}: {error}")
            else:
                self._answered = (address,)
                return answer
        self._answered = ()
        raise NotApplied("no master answers", registry=failures)

    def _read_node(self, name: str, kind: Any, due_ms: int) -> Any:
        """Read a node with a session of its own: this is done once, and when a server has gone.
        The driver has waits without end, so it does this in a thread that can be left alone."""
        node = f"{self._target.znode}/{name}"
        hosts, limit_ms = str(self._target), 2 * self._target.connect_ms
        within_ms = max(1, min(limit_ms, due_ms - self._clock.monotonic_ms()))
        found: list[bytes | Exception] = []
        reader = Thread(target=_read, args=(hosts, node, within_ms / 1000, found), daemon=True)
        reader.start()
        reader.join(within_ms / 1000)
        result = found[0] if found else TimeoutError("timed out")
        if isinstance(result, NoNodeError):
            raise NotApplied("no HBase is at this node", zookeeper=hosts, node=node) from result
        if isinstance(result, Exception):
            raise NotApplied(
                "no answer from ZooKeeper", zookeeper=hosts, cause=repr(result)
            ) from result
        return _decode_node(node, result, kind)


def _read(hosts: str, node: str, within_s: float, found: list[bytes | Exception]) -> None:
    """Have what a node holds, or why it cannot be read."""
    try:
        client = KazooClient(hosts, timeout=within_s, logger=LOGGER)
        try:
            client.start(timeout=within_s)
            data, _ = client.get_async(node).get(timeout=within_s)
            found.append(data)
        finally:
            client.stop()
            client.close()
    except Exception as error:  # noqa: BLE001  (whatever the driver raises, it is told)
        found.append(error)


def _decode_node(node: str, data: bytes, kind: Any) -> Any:
    """Read a message that stands behind the name of who wrote it, if there is one, and a mark."""
    if data[:1] == bytes([NAMED]):
        data = data[5 + int.from_bytes(data[1:5]) :]
    try:
        if not data.startswith(MARK):
            raise DecodeError("no mark")
        return kind.FromString(data[len(MARK) :])
    except DecodeError as error:
        raise NotApplied(
            "a node of ZooKeeper is not HBase's", node=node, cause=str(error)
        ) from error


def _address(server: Any) -> Address:
    return server.host_name, server.port
