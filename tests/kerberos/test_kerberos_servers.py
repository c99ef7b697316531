"""Servers that ask for Kerberos really do: what the native store is then tried against."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.rpc_by_hand import (
    KERBEROS,
    MASTER,
    REGION_SERVER,
    ask,
    ask_known,
    greet,
    receive,
)
from tests.kerberos.kdc import CLIENT, REALM, SERVER, Kdc, hbase_with_kerberos, running_kdc
from txn.cluster.cluster import Cluster

pytestmark = pytest.mark.slow

WITHIN_S = 30
SERVERS = {"master": MASTER, "region1": REGION_SERVER}
every_server = pytest.mark.parametrize("server", SERVERS)
NO_LAYER, LARGEST = 1, 0xFFFF  # RFC 4752: nothing is signed or encrypted after the greeting


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with running_kdc(tmp_path_factory.mktemp("kdc")) as found:
        yield found


@pytest.fixture(scope="module")
def cluster(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with hbase_with_kerberos(tmp_path_factory.mktemp("hbase"), kdc) as found:
        yield found


@contextmanager
def connected(cluster: Cluster, server: str) -> Iterator[socket.socket]:
    port = cluster.settings.ports[server]
    with socket.create_connection(("127.0.0.1", port), WITHIN_S) as connection:
        yield connection


def send(connection: socket.socket, token: bytes) -> None:
    connection.sendall(struct.pack(">I", len(token)) + token)


def answer(connection: socket.socket) -> bytes:
    """The server's token. Raises PermissionError with its reason where it has none."""
    status, size = struct.unpack(">II", receive(connection, 8))
    said = receive(connection, size)
    if status == 0:
        return said
    (size,) = struct.unpack(">I", receive(connection, 4))
    raise PermissionError(said.decode(), receive(connection, size).decode())


def show_ticket(connection: socket.socket) -> None:
    """Do what a client with a ticket does before its first request."""
    import gssapi  # noqa: PLC0415  (only `make kerberos` installs it)

    greet(connection, KERBEROS)
    name = gssapi.Name(f"{SERVER}@{REALM}", gssapi.NameType.kerberos_principal)
    flags = gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity
    context = gssapi.SecurityContext(name=name, usage="initiate", flags=flags)
    token = context.step()
    while not context.complete:
        send(connection, token)
        token = context.step(answer(connection))
    send(connection, token or b"")
    offered = context.unwrap(answer(connection)).message
    assert offered[0] & NO_LAYER
    chosen = bytes([NO_LAYER]) + LARGEST.to_bytes(3, "big")
    send(connection, context.wrap(chosen, False).message)


@every_server
def test_servers_refuse_one_who_only_says_a_name(cluster: Cluster, server: str) -> None:
    """It is how HBase without Kerberos is used: anybody is whoever they say."""
    service, method, said = SERVERS[server]
    with connected(cluster, server) as connection:
        refused = ask(connection, service, method)
    assert b"Authentication is required" in refused
    assert said not in refused


@every_server
def test_servers_refuse_one_who_shows_no_ticket(cluster: Cluster, server: str) -> None:
    """They say so in words, which a client has to pass on."""
    with connected(cluster, server) as connection:
        greet(connection, KERBEROS)
        send(connection, b"not a ticket")
        with pytest.raises(PermissionError, match="GSS initiate failed"):
            answer(connection)


@every_server
def test_servers_answer_one_who_shows_a_ticket(
    cluster: Cluster, kdc: Kdc, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The realm, the keys and the servers fit together: what then fails is the client's."""
    for name, value in kdc.environ.items():
        monkeypatch.setenv(name, value)
    service, method, said = SERVERS[server]
    with connected(cluster, server) as connection:
        show_ticket(connection)
        assert said in ask_known(connection, service, method, f"{CLIENT}@{REALM}".encode())
