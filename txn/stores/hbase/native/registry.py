"""Where the table of all regions is, and the active master: as ZooKeeper knows, or the masters."""

from __future__ import annotations

import logging
from typing import Any

from google.protobuf.message import DecodeError
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

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
        for address in self._target.registry:
            try:
                connection = self._servers.connect(address, "ClientMetaService", due_ms)
                return connection.call(method, request(), response, due_ms)
            except (OSError, RemoteError) as error:
                failures.append(f"{address[0]}:{address[1]}: {error}")
        raise NotApplied("no master answers", registry=failures)

    def _read_node(self, name: str, kind: Any, due_ms: int) -> Any:
        """Read a node with a session of its own: this is done once, and when a server has gone."""
        hosts = str(self._target)
        left_ms = max(1, due_ms - self._clock.monotonic_ms())
        node = f"{self._target.znode}/{name}"
        try:
            client = KazooClient(hosts, timeout=self._target.connect_ms / 1000, logger=LOGGER)
        except ValueError as error:
            raise NotApplied("not a ZooKeeper", zookeeper=hosts, cause=str(error)) from error
        try:
            client.start(timeout=min(left_ms, 2 * self._target.connect_ms) / 1000)
            data, _ = client.get(node)
        except NoNodeError as error:
            raise NotApplied("no HBase is at this node", zookeeper=hosts, node=node) from error
        except (KazooException, KazooTimeoutError) as error:
            raise NotApplied(
                "no answer from ZooKeeper", zookeeper=hosts, cause=repr(error)
            ) from error
        finally:
            client.stop()
            client.close()
        return _decode_node(node, data, kind)


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
