"""A table of a real HBase that is read-only: nobody waits for it, on any way to HBase."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from recovery import check
from tests.integration.hbase import HBase
from txn import Key, Mutation, connect
from txn.errors import AbortedError, TableUnavailable
from txn.stores import open_store
from txn.stores.gateway import Connection
from txn.stores.hbase.store import HBaseStore
from txn.stores.hbase.thrift2 import _table_name

QUICK_S = 5


def make_read_only(gateway: str, table: bytes) -> None:
    """Alter the table as an operator would."""

    def alter(gateway: Connection) -> None:
        found = gateway.ask("getTableDescriptor", _table_name(table))
        found.attributes = {**(found.attributes or {}), b"READONLY": b"true"}
        gateway.ask("modifyTable", found)

    with closing(open_store(gateway)) as store:
        assert isinstance(store, HBaseStore)
        store._pool.run_one(alter, repeat=True)


@pytest.fixture
def names(request: pytest.FixtureRequest, hbase: HBase) -> Iterator[dict[str, Any]]:
    name = f"refusing-{uuid.uuid4().hex[:8]}"
    options = {"transactions": f"{name}-txn", "protocol": request.param}
    with connect(hbase.thrift2, **options) as engine:
        for table in (name, f"{name}-open"):
            engine.ensure_table(table, ["d"])
    make_read_only(hbase.thrift2, name.encode())
    yield {"table": name, **options}


@pytest.mark.parametrize(
    ("names", "way"),
    [("fenced", "native"), ("six-phase", "thrift1"), ("six-phase", "thrift2")],
    indirect=["names"],
)
def test_a_read_only_table_is_told_at_once_and_leaves_nothing(
    hbase: HBase, names: dict[str, Any], way: str
) -> None:
    """It took 15 s, and the next commit of another key 25 s more."""
    closed, free = Key("r", "d", "x", names["table"]), Key("r", "d", "x", f"{names['table']}-open")
    with connect(getattr(hbase, way), **names) as engine:
        began_s = time.monotonic()
        for keys in ([closed], [free, closed]):
            with pytest.raises(AbortedError, match="read only") as caught:
                engine.commit([Mutation(key, "1") for key in keys])
            assert isinstance(caught.value.__cause__, TableUnavailable)
        assert engine.commit([Mutation(free, "2")]).complete
        assert time.monotonic() - began_s < QUICK_S
        engine.flush()
        assert list(check(engine.context, grace_ms=0)) == []
