"""Servers that ask for TLS really do, and the native store gets through to them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from tests.integration.secure import CERTIFICATE, KEY, hbase_with_tls
from txn import Key, Mutation, connect
from txn.cluster.cluster import Cluster
from txn.cluster.settings import NATIVE
from txn.errors import NotApplied
from txn.stores import open_store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[pytest.param(False, marks=pytest.mark.long), True])
def certified(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, bool]]:
    """A cluster with TLS, and whether its clients have to show a certificate as well."""
    folder = tmp_path_factory.mktemp("tls")
    with hbase_with_tls(folder, ask_clients=request.param) as cluster:
        yield cluster, request.param


def test_the_native_store_commits_through_tls(certified: tuple[Cluster, bool]) -> None:
    """Many threads share its connections, of which TLS lets one at a time read or write."""
    cluster, both = certified
    shown = f"&certificate={CERTIFICATE}&key={KEY}" if both else ""
    uri = f"{cluster.uris[NATIVE]}?ca={CERTIFICATE}{shown}"
    with connect(uri, table="secret") as engine:
        engine.ensure_table("secret", ["d"])
        keys = [Key(f"{number}", "d", "x") for number in range(8)]

        def write(key: Key) -> None:
            for number in range(10, 20):
                engine.commit([Mutation(key, f"{number}" + "x" * 100_000)])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, keys))
        assert [cell and cell.value[:2] for cell in engine.read(keys).values()] == [b"19"] * 8


def test_a_native_store_that_is_not_let_in_says_why(certified: tuple[Cluster, bool]) -> None:
    cluster, both = certified
    bad = {"": "closed|reset|no answer", "?tls=on": "certificate verify failed"}
    if both:
        bad[f"?ca={CERTIFICATE}"] = "certificate|closed|reset"
    for options, message in bad.items():
        limit = f"{options}&" if options else "?"
        with (
            closing(open_store(f"{cluster.uris[NATIVE]}{limit}timeout_ms=3000")) as store,
            pytest.raises(NotApplied, match=message),
        ):
            store.read([Key("a", "d", "x", "secret")])
