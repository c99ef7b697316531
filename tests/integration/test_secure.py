"""Servers that ask for TLS really do, and the native store gets through to them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest

from tests.integration.secure import ACCESS, CERTIFICATE, KEY, hbase_with, tls_properties
from txn import Key, Mutation, connect
from txn.clock import poll
from txn.cluster.cluster import Cluster
from txn.cluster.settings import NATIVE
from txn.errors import NotApplied, TableUnavailable
from txn.model import Check, Edit
from txn.stores import open_store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[pytest.param(False, marks=pytest.mark.long), True])
def certified(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, bool]]:
    """A cluster with TLS, and whether its clients have to show a certificate as well. Then their
    permissions are checked, too; otherwise no table can load a class."""
    folder = tmp_path_factory.mktemp("tls")
    properties = tls_properties(folder / "tls", ask_clients=request.param)
    properties |= ACCESS if request.param else {"hbase.coprocessor.user.enabled": "false"}
    with hbase_with(folder, properties) as cluster:
        yield cluster, request.param


def make_uri(cluster: Cluster, both: bool) -> str:
    shown = f"&certificate={CERTIFICATE}&key={KEY}" if both else ""
    return f"{cluster.uris[NATIVE]}?ca={CERTIFICATE}{shown}"


def test_the_native_store_commits_through_tls(certified: tuple[Cluster, bool]) -> None:
    """Many threads share its connections, of which TLS lets one at a time read or write."""
    with connect(make_uri(*certified), table="secret") as engine:
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


def test_a_user_who_may_not_execute_commits_without_the_endpoint(
    certified: tuple[Cluster, bool],
) -> None:
    """And whoever may commits with it, unless the servers load no classes of tables."""
    uri, may_execute = make_uri(*certified), certified[1]
    table, rows = "region", "region-txn"
    keys = [Key(row, "d", "x", table) for row in "abc"]

    def commit(user: str) -> list[bool | None]:
        with connect(uri + user, table=table, transactions=rows, protocol="fenced") as engine:
            if not user:
                engine.ensure_table(table, ["d"])
                acl = [Key(name, "l", "alice", "hbase:acl") for name in (table, rows)]
                engine.context.store.write([Edit(key, b"RWC", None) for key in acl if may_execute])
            engine.commit([Mutation(key, "1") for key in keys])
            group = [Check(key, b"1") for key in keys]
            assert engine.context.store.check_and_put(group) == [True] * 3
            return engine.context.store.put_if_all([group])

    def is_granted() -> bool:
        with suppress(TableUnavailable):
            return commit("&user=alice") == [None]
        return False

    assert commit("") == [may_execute or None]
    assert not may_execute or poll(is_granted, 60_000)
