"""Servers that ask for TLS really do: what the native store is then tried against."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.rpc_by_hand import MASTER, REGION_SERVER, ask
from tests.integration.secure import CERTIFICATE, KEY, hbase_with_tls
from txn.cluster.cluster import Cluster

pytestmark = pytest.mark.slow

WITHIN_S = 30
SERVERS = {"master": MASTER, "region1": REGION_SERVER}


@pytest.fixture(scope="module", params=[False, True], ids=["server's", "both sides'"])
def certified(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, bool]]:
    """A cluster with TLS, and whether its clients have to show a certificate as well."""
    folder = tmp_path_factory.mktemp("tls")
    with hbase_with_tls(folder, ask_clients=request.param) as cluster:
        yield cluster, request.param


@contextmanager
def connected(cluster: Cluster, server: str) -> Iterator[socket.socket]:
    port = cluster.settings.ports[server]
    with socket.create_connection(("127.0.0.1", port), WITHIN_S) as connection:
        yield connection


def trusting(*, shown: bool) -> ssl.SSLContext:
    """What trusts the servers; shown: with a certificate of its own."""
    context = ssl.create_default_context(cafile=CERTIFICATE)
    if shown:
        context.load_cert_chain(CERTIFICATE, KEY)
    return context


@pytest.mark.parametrize("server", SERVERS)
def test_servers_answer_through_tls_and_not_in_plain_text(
    certified: tuple[Cluster, bool], server: str
) -> None:
    """HBase has a setting with which it takes both, and a password would go over the wire."""
    (cluster, both), (service, method, said) = certified, SERVERS[server]
    with (
        connected(cluster, server) as connection,
        trusting(shown=both).wrap_socket(connection, server_hostname="localhost") as inside,
    ):
        assert said in ask(inside, service, method)
    with connected(cluster, server) as connection, pytest.raises(ConnectionError):
        ask(connection, service, method)


@pytest.mark.parametrize("server", SERVERS)
def test_certificate_of_the_client_is_asked_for_where_that_is_set(
    certified: tuple[Cluster, bool], server: str
) -> None:
    """It is what HBase does unless it is told otherwise."""
    cluster, both = certified
    service, method, _ = SERVERS[server]

    def ask_as_nobody() -> bytes:
        context = trusting(shown=False)
        with (
            connected(cluster, server) as connection,
            context.wrap_socket(connection, server_hostname="localhost") as inside,
        ):
            return ask(inside, service, method)

    if both:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask_as_nobody()
    else:
        assert ask_as_nobody()
