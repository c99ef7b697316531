"""Servers that ask for Kerberos really do, and the native store gets through to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kerberos.kdc import REALM, SERVER, hbase_with_kerberos, running_kdc
from txn import Key, Mutation, connect
from txn.cluster.cluster import Cluster
from txn.cluster.settings import NATIVE
from txn.errors import NotApplied
from txn.model import Cell
from txn.stores import open_store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of a realm, of which clients here get tickets."""
    with (
        running_kdc(tmp_path_factory.mktemp("kdc")) as kdc,
        hbase_with_kerberos(tmp_path_factory.mktemp("hbase"), kdc) as found,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in kdc.environ.items():
            patch.setenv(name, value)
        yield found


@pytest.mark.parametrize("principal", ["hbase/_HOST", f"{SERVER}@{REALM}"])
def test_the_native_store_commits_with_a_ticket(cluster: Cluster, principal: str) -> None:
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
    cluster: Cluster, options: str, message: str
) -> None:
    store = open_store(f"{cluster.uris[NATIVE]}?timeout_ms=3000{options}")
    with pytest.raises(NotApplied, match=message):
        store.read([Key("a", "d", "x", "proven")])
    store.close()
