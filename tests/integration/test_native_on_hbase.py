"""The native store on a real HBase: regions split and merge beneath batches and masters."""

from __future__ import annotations

import time
import uuid
from contextlib import closing
from random import Random

import pytest

from tests.integration.batches import transferring
from tests.integration.hbase import HBase
from tests.integration.shuffling import Shuffler
from txn import Key, Mutation, connect
from txn.clock import SystemClock
from txn.protocol.statuses import ProtocolName
from txn.stores import open_store
from txn.stores.hbase.native.store import NativeStore

PATIENCE_MS = 60_000


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [pytest.param("six-phase", marks=pytest.mark.long), "fenced"])
def test_regions_split_and_merge_beneath_batches(hbase: HBase, protocol: ProtocolName) -> None:
    """Of the data and of the transactions."""
    name = f"shuffled-{uuid.uuid4().hex[:8]}"
    with connect(
        hbase.native, table=name, transactions=f"{name}-txn", protocol=protocol, salt_buckets=4
    ) as engine:
        store = engine.context.store
        assert isinstance(store, NativeStore)
        with transferring(engine, name):
            data = Shuffler(store, name.encode(), Random(1))
            transactions = Shuffler(store, f"{name}-txn".encode(), Random(1))
            for change in (
                lambda: data.split(b"account025"),
                lambda: transactions.split(b"00.transaction.5"),
                lambda: data.merge(b"account150"),
                lambda: transactions.merge(b"03."),
            ):
                time.sleep(0.5)
                assert change()
            time.sleep(0.5)
        assert any(each.honours_conditions for each in store._servers._made)


def test_the_masters_tell_where_everything_is(hbase: HBase) -> None:
    table = f"asked-{uuid.uuid4().hex[:8]}"
    with closing(open_store(hbase.native)) as by_zookeeper:
        assert isinstance(by_zookeeper, NativeStore)
        due_ms = SystemClock().monotonic_ms() + PATIENCE_MS
        host, port = by_zookeeper._tables._master._find(due_ms)
    with connect(f"hbase://?registry={host}:{port}", table=table) as engine:
        engine.ensure_table(table, ["d"])
        engine.commit([Mutation(Key("row", "d", "x"), "1")])
    with connect(hbase.native, table=table) as engine:
        assert [row.row for row in engine.scan()] == [b"row"]
