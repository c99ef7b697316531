"""The Thrift stores on a real HBase: tables, and both kinds of gateways at once."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from recovery.doctor import Verdict, examine
from tests.integration.hbase import HBase
from txn import Delete, Key, Mutation, connect
from txn.errors import InvalidRequestError, MaybeApplied, TableUnavailable
from txn.model import Cell, Family
from txn.protocol.row import FAMILY
from txn.stores import open_store
from txn.stores.base import Store
from txn.stores.gateway import Connection
from txn.stores.hbase.store import HBaseStore
from txn.stores.hbase.thrift2 import IDL


def fresh(name: str) -> bytes:
    return f"{name}-{uuid.uuid4().hex[:8]}".encode()


@pytest.fixture(scope="module")
def store(hbase: HBase) -> Iterator[HBaseStore]:
    store = open_store(hbase.thrift2)
    assert isinstance(store, HBaseStore)
    yield store
    store.close()


def make_as_hbase_does(store: HBaseStore, table: bytes, **settings: object) -> None:
    """Make a table with HBase's defaults, and other settings of the table or its family d."""
    attributes = {
        name.encode(): str(value).encode() for name, value in settings.items() if name.isupper()
    }
    family = IDL.TColumnFamilyDescriptor(
        name=b"d", attributes=attributes, timeToLive=settings.get("ttl_s")
    )
    name, durability = IDL.TTableName(None, table), settings.get("durability")
    descriptor = IDL.TTableDescriptor(name, [family], durability=durability)
    store._pool.run_one(Connection.ask, "createTable", descriptor, None, repeat=False)


@contextmanager
def opened(uri: str) -> Iterator[Store]:
    with closing(open_store(uri)) as client:
        yield client


def test_tables_are_made_as_the_protocol_needs_them(hbase: HBase, store: HBaseStore) -> None:
    """A purged marker no longer masks a late duplicate of an older put."""
    table, buckets = fresh("kept"), fresh("buckets")
    store.ensure_table(table, {b"d": Family()})
    store.ensure_table(table, {b"e": Family(versions=1, keep_deletes_ms=90_000_001)})
    found = store.describe(table) or {}
    assert found[b"d"] == Family(versions=3, keep_deletes_ms=25 * 3_600_000)
    assert found[b"e"] == Family(versions=1, keep_deletes_ms=90_000_001)
    with connect(hbase.thrift2, transactions=buckets, salt_buckets=4) as engine:
        engine.commit([Mutation(Key("a", "d", "x", table), b"1")])
    starts = store._pool.run_one(store._dialect.starts, buckets, repeat=True)
    assert sorted(starts) == [b"", b"01.", b"02.", b"03."]


def test_a_table_of_a_namespace_is_like_any_other(hbase: HBase, store: HBaseStore) -> None:
    table = f"ns_{secrets.token_hex(4)}:data".encode()
    store.ensure_table(table, {b"d": Family()})
    store.ensure_table(table, {b"d": Family(), b"e": Family()})
    store.ensure_table(b"txn", {FAMILY: Family(versions=1)})  # which Thrift 1 cannot make
    with connect(hbase.thrift1, table=table, transactions="txn") as engine:
        key = Key("a", "d", "x")
        done = engine.commit([Mutation(key, b"1")])
        assert engine.read([key]) == {key: Cell(b"1", done.timestamp)}
        assert engine.context.store.describe(table.replace(b"data", b"other")) is None
    assert [row.row for row in store.scan(table)] == [b"a"]


@pytest.mark.parametrize("kind", ["thrift1", "thrift2"])
def test_a_table_that_cannot_be_is_not_there(hbase: HBase, kind: str) -> None:
    """Gateways answer such names with an internal error, which helps nobody."""
    with opened(getattr(hbase, kind)) as client:
        for name in (b"", b"a b", b"a:b:c", b"-a", b"nowhere:table"):
            assert client.describe(name) is None
            if name:
                with pytest.raises(TableUnavailable, match="no such table"):
                    client.read([Key("a", "d", "x", name)])
            if b"where" not in name:
                with pytest.raises(InvalidRequestError, match="not a legal table name"):
                    client.ensure_table(name, {b"d": Family()})


def test_thrift_1_says_how_to_make_a_table(hbase: HBase) -> None:
    """It cannot ask HBase to keep markers, so it makes nothing, and names what would."""
    table, is_told = fresh("untold"), r"Thrift 2 gateway, or in the HBase shell"
    with opened(hbase.thrift1) as client:
        with pytest.raises(InvalidRequestError, match=is_told) as caught:
            client.ensure_table(table, {b"t": Family(versions=1)}, [b"01."])
        assert client.describe(table) is None
    assert f"create '{table.decode()}', {{NAME => 't', VERSIONS => 1" in str(caught.value)
    assert "'hbase.hstore.time.to.purge.deletes' => '90000000'" in str(caught.value)
    assert "SPLITS => ['01.']" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"ttl_s": 60}, "TTL.*ttl_ms=60000"),
        ({"NEW_VERSION_BEHAVIOR": True}, "NEW_VERSION_BEHAVIOR"),
        ({"durability": IDL.TDurability.ASYNC_WAL}, "ASYNC_WAL"),
    ],
)
def test_tables_that_break_the_protocol_are_refused(
    hbase: HBase, store: HBaseStore, settings: dict[str, object], reason: str
) -> None:
    table = fresh("unsafe")
    make_as_hbase_does(store, table, VERSIONS=3, **settings)
    with connect(hbase.thrift2) as engine:
        with pytest.raises(InvalidRequestError, match=reason):
            engine.commit([Mutation(Key("a", "d", "x", table), b"1")])
        with pytest.raises(InvalidRequestError):
            engine.ensure_table(table, ["d"])
        found = [d for d in examine(engine.context, [table]) if d.verdict is Verdict.WRONG]
    assert len(found) == 1
    assert found[0].mend.startswith("alter ")


def test_deletes_are_refused_where_markers_are_purged(hbase: HBase, store: HBaseStore) -> None:
    """HBase's default. Puts need no markers, so they are welcome."""
    table = fresh("purged")
    make_as_hbase_does(store, table)
    key = Key("a", "d", "x", table)
    with connect(hbase.thrift2) as engine:
        engine.commit([Mutation(key, b"1")])
        with pytest.raises(InvalidRequestError, match=r"purge\.deletes to 86400000"):
            engine.commit([Delete(key)])
        verdicts = [d.verdict for d in examine(engine.context, [table])]
    assert (Verdict.WRONG in verdicts, Verdict.CAUTION in verdicts) == (False, True)


@pytest.mark.parametrize("wrong", ["thrift1", "thrift2"])
def test_the_other_kind_of_gateway_is_recognized(hbase: HBase, wrong: str) -> None:
    """Both listen at 9090 by default."""
    other = {"thrift1": hbase.thrift2, "thrift2": hbase.thrift1}[wrong]
    with opened(f"hbase+{wrong}:{other.partition(':')[2]}") as client:
        with pytest.raises(InvalidRequestError, match="the gateway is of the other kind"):
            client.describe(b"txn")
        with pytest.raises(MaybeApplied, match="nvalid method name"):
            client.read([Key("a", "d", "x", "txn")])
