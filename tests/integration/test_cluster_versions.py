"""Another version of HBase than the default: transactions on it, and the way from it to a later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.hbase import QUICK_JAVA
from txn import Exact, Key, Mutation, connect
from txn.cluster.cluster import Cluster, open_cluster, start
from txn.cluster.jars import HBASE_VERSION
from txn.cluster.settings import Settings, SettingsError

pytestmark = pytest.mark.slow

EARLIER = "2.5.8"
STORE = "native"
ALICE, BOB = Key("alice", "d", "balance", "accounts"), Key("bob", "d", "balance", "accounts")


def started(folder: Path, version: str) -> Cluster:
    return start(Settings(folder, java_options=[QUICK_JAVA], version=version))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a cluster, which does not outlive the test."""
    yield tmp_path / "hbase"
    open_cluster(tmp_path / "hbase").stop(grace_ms=0)


def test_transactions_of_an_earlier_version_are_found_by_the_later_one(folder: Path) -> None:
    cluster = started(folder, EARLIER)
    with connect(cluster.uris[STORE]) as engine:
        engine.ensure_table("accounts", ["d"])
        engine.commit([Mutation(ALICE, "100"), Mutation(BOB, "100")])
        moved = [Mutation(ALICE, "090"), Mutation(BOB, "110")]
        engine.commit(moved, [Exact(ALICE, "100"), Exact(BOB, "100")])
    cluster.stop()

    cluster = started(folder, HBASE_VERSION)
    with connect(cluster.uris[STORE]) as engine:
        balances = engine.read([ALICE, BOB])
        assert [cell and cell.value for cell in balances.values()] == [b"090", b"110"]
        engine.commit([Mutation(ALICE, "080")], [Exact(BOB, "110")])
    cluster.stop(grace_ms=0)

    with pytest.raises(SettingsError, match=rf"has='{HBASE_VERSION}' asked='{EARLIER}'"):
        started(folder, EARLIER)
    assert open_cluster(folder).settings.version == HBASE_VERSION
