"""Servers that ask for TLS really do, and the native store gets through to them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest

from tests.integration.secure import ACCESS, CERTIFICATE, KEY, hbase_with_tls
from tests.integration.shuffling import add_endpoint
from txn import Engine, Key, Mutation, connect
from txn.clock import poll
from txn.cluster.cluster import Cluster
from txn.cluster.settings import NATIVE
from txn.errors import NotApplied, TableUnavailable
from txn.model import Check, Edit
from txn.stores import open_store
from txn.stores.hbase.native.store import NativeStore

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[pytest.param(False, marks=pytest.mark.long), True])
def certified(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, bool]]:
    """A cluster with TLS, and whether its clients have to show a certificate as well. Then their
    permissions are checked, too; otherwise no table can load a class."""
    folder = tmp_path_factory.mktemp("tls")
    more = ACCESS if request.param else {"hbase.coprocessor.user.enabled": "false"}
    with hbase_with_tls(folder, more, ask_clients=request.param) as cluster:
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
    names = table, transactions = "region", "region-txn"
    keys = [Key(row, "d", "x", table) for row in "abc"]
    uri, granted = make_uri(*certified), certified[1]

    def commit(user: str, value: bytes, *, can_join: bool) -> None:
        with open_engine(user) as engine:
            engine.commit([Mutation(key, value) for key in keys])
            group = [Check(key, value) for key in keys]
            assert engine.context.store.put_if_all([group]) == [can_join or None]
            assert engine.context.store.check_and_put(group) == [True] * 3

    def open_engine(user: str) -> Engine:
        return connect(uri + user, table=table, transactions=transactions, protocol="fenced")

    def is_allowed() -> bool:
        with suppress(TableUnavailable), open_engine("&user=alice") as engine:
            return bool(engine.read(keys))
        return False

    with open_engine("") as engine:
        engine.ensure_table(table, ["d"])
        store = engine.context.store
        assert isinstance(store, NativeStore)
        add_endpoint(store, table.encode())
        commit("", b"1", can_join=granted)
        if granted:
            acl = [Key(name, "l", "alice", "hbase:acl") for name in names]
            store.write([Edit(key, b"RWC", None) for key in acl])
            assert poll(is_allowed, 60_000)
            commit("&user=alice", b"2", can_join=False)
