"""The native store on a real HBase: regions that split and merge while batches are under way (they
move in test_cluster_distributed.py, which has servers enough), and the masters as the registry."""

from __future__ import annotations

import time
import uuid
from contextlib import closing, suppress
from random import Random

import pytest

from tests.integration.batches import transferring
from tests.integration.hbase import HBase
from tests.integration.shuffling import Shuffler
from txn import Key, Mutation, connect
from txn.clock import SystemClock
from txn.errors import StoreError
from txn.model import Columns, Edit, Family, Row
from txn.protocol.statuses import ProtocolName
from txn.stores import open_store
from txn.stores.hbase.native.store import NativeStore

ROWS = 60_000
HURRIES_MS = 60, 120, 240, 480, 960, 1920  # as short as this machine can do it just now
PATIENCE_MS = 60_000


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [pytest.param("six-phase", marks=pytest.mark.long), "fenced"])
def test_regions_split_and_merge_while_batches_are_under_way(
    hbase: HBase, protocol: ProtocolName
) -> None:
    """Of the data and of the transactions. Whoever meets a region that is gone looks it up again,
    asks for what was not done, and for nothing that was."""
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


@pytest.mark.long
def test_a_scan_of_a_rare_column_goes_on_when_a_server_takes_long(hbase: HBase) -> None:
    table = f"rare-{uuid.uuid4().hex[:8]}".encode()
    with closing(open_store(hbase.native)) as patient:
        patient.ensure_table(table, {b"d": Family()})
        for start in range(0, ROWS, 10_000):
            rows = [b"%06d" % number for number in range(start, start + 10_000)]
            edits = [Edit(Key(row, "d", "usual", table), b"x" * 100, 1) for row in rows]
            edits += [Edit(Key(rows[0], "d", f"rare{n}", table), b"1", 1) for n in "ab"]
            patient.write(edits)
    rare = [(b"d", b"rarea"), (b"d", b"rareb")]
    found = [(row.row, len(row.cells)) for row in scan_hurriedly(hbase, table, rare)]
    assert found == [(b"%06d" % number, 2) for number in range(0, ROWS, 10_000)]
    assert len(scan_hurriedly(hbase, table, None)) == ROWS


def scan_hurriedly(hbase: HBase, table: bytes, columns: Columns) -> list[Row]:
    """Return the rows, read with the first of the times that is enough."""
    *short_ms, longest_ms = HURRIES_MS
    for hurry_ms in short_ms:
        with (
            suppress(StoreError),
            closing(open_store(f"{hbase.native}?timeout_ms={hurry_ms}")) as store,
        ):
            return list(store.scan(table, columns=columns))
    with closing(open_store(f"{hbase.native}?timeout_ms={longest_ms}")) as store:
        return list(store.scan(table, columns=columns))
