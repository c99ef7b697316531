"""Servers that ask for Kerberos really do, and the native store gets through to them."""

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
    greet,
    receive,
)
from tests.kerberos.kdc import REALM, SERVER, Kdc, hbase_with_kerberos, running_kdc
from txn import Key, Mutation, connect
from txn.cluster.cluster import Cluster
from txn.cluster.settings import NATIVE
from txn.errors import NotApplied
from txn.model import Cell
from txn.stores import open_store

pytestmark = pytest.mark.slow

WITHIN_S = 30
SERVERS = {"master": MASTER, "region1": REGION_SERVER}


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


def answer(connection: socket.socket) -> bytes:
    """The server's token. Raises PermissionError with its reason where it has none."""
    status, size = struct.unpack(">II", receive(connection, 8))
    said = receive(connection, size)
    if status == 0:
        return said
    (size,) = struct.unpack(">I", receive(connection, 4))
    raise PermissionError(said.decode(), receive(connection, size).decode())


@pytest.mark.parametrize("server", SERVERS)
def test_servers_refuse_one_who_only_says_a_name_or_shows_no_ticket(
    cluster: Cluster, server: str
) -> None:
    """It is how HBase without Kerberos is used: anybody is whoever they say. They refuse in words,
    which a client has to pass on."""
    service, method, said = SERVERS[server]
    with connected(cluster, server) as connection:
        refused = ask(connection, service, method)
    assert b"Authentication is required" in refused
    assert said not in refused
    with connected(cluster, server) as connection:
        greet(connection, KERBEROS)
        token = b"not a ticket"
        connection.sendall(struct.pack(">I", len(token)) + token)
        with pytest.raises(PermissionError, match="GSS initiate failed"):
            answer(connection)


@pytest.mark.parametrize("principal", ["hbase/_HOST", f"{SERVER}@{REALM}"])
def test_the_native_store_commits_with_a_ticket(
    cluster: Cluster, kdc: Kdc, principal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in kdc.environ.items():
        monkeypatch.setenv(name, value)
    uri = f"{cluster.uris[NATIVE]}?auth=kerberos&principal={principal}"
    with connect(uri, table="proven") as engine:
        engine.ensure_table("proven", ["d"])
        key = Key("a", "d", principal)
        done = engine.commit([Mutation(key, b"1")])
        assert engine.read([key]) == {key: Cell(b"1", done.timestamp)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "Authentication is required|closed"),
        ("&auth=kerberos&principal=nobody/_HOST", "Kerberos.*not found"),
    ],
)
def test_a_native_store_that_is_not_let_in_says_why(
    cluster: Cluster, kdc: Kdc, options: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in kdc.environ.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"{cluster.uris[NATIVE]}?timeout_ms=3000{options}")
    with pytest.raises(NotApplied, match=message):
        store.read([Key("a", "d", "x", "proven")])
    store.close()
