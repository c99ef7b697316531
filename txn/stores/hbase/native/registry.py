"""Find the meta region, the active master and the live servers, by ZooKeeper or the masters."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError
from kazoo.exceptions import NoNodeError

from txn.clock import Clock
from txn.errors import NotApplied
from txn.stores.hbase.native.connection import RemoteError, decode_text
from txn.stores.hbase.native.messages import PB
from txn.stores.hbase.native.servers import Servers
from txn.stores.hbase.native.target import Address, Target
from txn.stores.hbase.places import first_line
from txn.stores.zookeeper import BoundedClient, call_apart

LOGGER = logging.getLogger(__name__)
LOGGER.addHandler(logging.NullHandler())  # nothing on stderr unless a program asks for it
MARK = b"PBUF"
NAMED = 0xFF
SERVERS = 10
"""In requests for a cluster's status: the names of its live servers."""

Wait = Callable[[Any], Any]
"""Returns the driver's answer to a question, which must come in the rest of the call's time."""
Question = Callable[[BoundedClient, Wait], Any]


class Registry:
    """Ask at each call; callers cache the answers."""

    def __init__(self, target: Target, servers: Servers, clock: Clock) -> None:
        self._target = target
        self._servers = servers
        self._clock = clock
        self._answered: tuple[Address, ...] = ()  # the master that answered last
        self._at_work: tuple[int, frozenset[Address]] = -1, frozenset()
        servers.list_servers = self.list_servers

    def find_meta(self, due_ms: int) -> Address:
        if self._target.registry:
            response = self._ask_masters("GetMetaRegionLocations", due_ms)
            for location in response.meta_locations:
                if location.HasField("server_name"):
                    return _address(location.server_name)
            raise NotApplied("the table of regions is nowhere", cluster=str(self._target))
        return _address(self._read_node("meta-region-server", PB.MetaRegionServer, due_ms).server)

    def find_master(self, due_ms: int) -> Address:
        if self._target.registry:
            return _address(self._ask_masters("GetActiveMaster", due_ms).server_name)
        return _address(self._read_node("master", PB.Master, due_ms).master)

    def list_servers(self, since_ms: int, due_ms: int) -> frozenset[Address]:
        """Return the servers live at a moment after `since_ms`; one answer serves many callers."""
        found = self._at_work
        if found[0] <= since_ms:
            asked_ms = self._clock.monotonic_ms()
            found = self._at_work = asked_ms, self._read_servers(due_ms)
        return found[1]

    def _read_servers(self, due_ms: int) -> frozenset[Address]:
        if self._target.registry:
            request = PB.GetClusterStatusRequest(options=[SERVERS])
            try:
                master = self.find_master(due_ms)
                call = self._servers.send(
                    master, "MasterService", "GetClusterStatus", request, due_ms
                )
                answer = call.receive(PB.GetClusterStatusResponse, due_ms)
            except (OSError, RemoteError) as error:
                raise NotApplied("the master does not answer", cause=first_line(error)) from error
            return frozenset(map(_address, answer.cluster_status.servers_name))

        node = f"{self._target.znode}/rs"

        def list_names(client: BoundedClient, wait: Wait) -> Any:
            wait(client.sync_async(node))  # without it, a ZooKeeper server may lag behind
            return wait(client.get_children_async(node))

        names = self._ask_zookeeper(node, list_names, due_ms)
        try:
            named = [name.rsplit(",", 2) for name in names]
            return frozenset((host, int(port)) for host, port, _ in named)
        except ValueError as error:
            raise NotApplied("a node of ZooKeeper is not HBase's", cause=str(error)) from error

    def _ask_masters(self, method: str, due_ms: int) -> Any:
        request, response = getattr(PB, f"{method}Request"), getattr(PB, f"{method}Response")
        failures = []
        for address in (*self._answered, *self._target.registry):
            try_ms = min(due_ms, self._clock.monotonic_ms() + self._target.connect_ms)
            try:
                call = self._servers.send(address, "ClientMetaService", method, request(), try_ms)
                answer = call.receive(response, try_ms)
            except (OSError, RemoteError) as error:
                failures.append(f"{address[0]}:{address[1]}: {error}")
            else:
                self._answered = (address,)
                return answer
        self._answered = ()
        raise NotApplied("no master answers", registry=failures)

    def _read_node(self, name: str, kind: Any, due_ms: int) -> Any:
        """Decode the message of a node, which may follow its writer's name and a mark."""
        node = f"{self._target.znode}/{name}"
        data = self._ask_zookeeper(
            node, lambda client, wait: wait(client.get_async(node))[0], due_ms
        )
        if data[:1] == bytes([NAMED]):
            data = data[5 + int.from_bytes(data[1:5]) :]
        try:
            if not data.startswith(MARK):
                raise DecodeError("no mark")
            message = kind.FromString(data[len(MARK) :])
            if not message.IsInitialized():
                raise DecodeError("no server")
            return message
        except DecodeError as error:
            raise NotApplied(
                "a node of ZooKeeper is not HBase's", node=node, cause=str(error)
            ) from error

    def _ask_zookeeper(self, node: str, question: Question, due_ms: int) -> Any:
        """Ask about a node in a new session, as this is rare. The driver has waits of its own, so
        it runs in a thread that can be abandoned, and that ends soon after the call."""
        hosts, limit_ms = str(self._target), 2 * self._target.connect_ms
        within_ms = max(1, min(limit_ms, due_ms - self._clock.monotonic_ms()))
        within_s = within_ms / 1000

        def ask() -> Any:
            end_ms = self._clock.monotonic_ms() + within_ms

            def wait(answer: Any) -> Any:
                return answer.get(timeout=max(0, end_ms - self._clock.monotonic_ms()) / 1000)

            client = BoundedClient(hosts, timeout=within_s, logger=LOGGER)
            try:
                client.start(timeout=within_s)
                return question(client, wait)
            finally:
                client.stop()
                client.close()

        try:
            return call_apart(ask, within_s)
        except NoNodeError as error:
            raise NotApplied("no HBase is at this node", zookeeper=hosts, node=node) from error
        except Exception as error:  # any error of the driver, or of starting a thread
            cause = f"{type(error).__name__}: {error}"
            raise NotApplied("no answer from ZooKeeper", zookeeper=hosts, cause=cause) from error


def _address(server: Any) -> Address:
    return decode_text(server.host_name), server.port
