"""What happybase's user guide shows, section by section: the emulator answers as a real HBase does.

The examples are written anew. The server's own tests are of all four ways to speak Thrift.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import urlsplit

import happybase
import pytest

from tests.integration.hbase import HBase
from txn.clock import SystemClock

Table = Any  # of happybase, which has no types
FAMILIES = {
    "cf1": {"max_versions": 10},
    "cf2": {"max_versions": 1, "block_cache_enabled": False},
    "cf3": {},
}
SCANS: list[dict[str, Any]] = [
    *({}, {"limit": 2}, {"columns": [b"cf1:1"]}, {"scan_batching": 1}, {"batch_size": 1}),
    {"timestamp": 150, "include_timestamp": True, "columns": [b"cf1"]},
    {"filter": b"QualifierFilter(=, 'binary:2') AND FamilyFilter(=, 'binary:cf1')"},
    {"sorted_columns": True},
]


@pytest.fixture(scope="module")
def tables(hbase: HBase, emulator: HBase) -> Iterator[list[Table]]:
    """A table on HBase, and one on the emulator."""
    prefix = f"guide{uuid.uuid4().hex[:8]}"
    other_way = {"transport": "framed", "protocol": "compact"}
    with ExitStack() as stack:
        tables = []
        for found, options in ((hbase, {}), (emulator, other_way)):
            parts = urlsplit(found.thrift1)
            own = happybase.Connection(parts.hostname, parts.port, table_prefix=prefix, **options)
            stack.enter_context(closing(own))
            own.create_table("mytable", FAMILIES)
            stack.callback(own.delete_table, "mytable", disable=True)
            tables.append(own.table("mytable"))
        yield tables


def send(table: Table, row: bytes, **options: Any) -> Any:
    with table.batch(**options) as batch:
        for number in range(1, 4):
            batch.put(row + b"%d" % number, {b"cf1:1": b"1", b"cf1:%d" % number: b"2"})
        batch.delete(row + b"4")


def fail(table: Table, row: bytes, **options: Any) -> Any:
    with pytest.raises(ZeroDivisionError), table.batch(**options) as batch:
        batch.put(row, {b"cf1:1": b"1"})
        raise ZeroDivisionError


def send_many(table: Table, row: bytes) -> list[int]:
    """How many are there before the end of a batch that is sent in parts, and after it."""
    with table.batch(batch_size=1000) as batch:
        for number in range(1200):
            batch.put(row + b"%04d" % number, {b"cf1:1": b"v1", b"cf1:2": b"v2"})
        before = len(list(table.scan(row_prefix=row)))
    return [before, len(list(table.scan(row_prefix=row)))]


def fill(table: Table, row: bytes) -> None:
    for time in (100, 200, 300):
        table.put(row, {b"cf1:a": b"%d" % time, b"cf2:a": b"%d" % time}, timestamp=time)
    table.put(row, {b"cf1:b": b"b", b"cf3:c": b"c"}, timestamp=150)


def count(table: Table, row: bytes) -> list[int]:
    column = b"cf1:counter"
    told = [table.counter_get(row, column), *(table.counter_inc(row, column) for _ in range(3))]
    told += [table.counter_dec(row, column), table.counter_inc(row, column, value=3)]
    told.append(table.counter_dec(row, column, value=7))
    # Each change is at least a millisecond after the one before, perhaps ahead of the clock.
    [(_, newest)] = table.cells(row, column, versions=1, include_timestamp=True)
    while SystemClock().wall_ms() <= newest:
        pass
    table.counter_set(row, column, 12)
    return [*told, table.counter_get(row, column)]


def use_pool(table: Table, row: bytes) -> list[Any]:
    """A thread that asks again while it holds a connection gets the same."""
    own = table.connection
    pool = happybase.ConnectionPool(3, host=own.host, port=own.port, table_prefix=own.table_prefix)
    with pool.connection() as first, pool.connection() as second:
        return [first is second, first.tables(), first.table("mytable").row(row)]


def administer(table: Table, _: bytes) -> list[Any]:
    own = table.connection
    table_name = "mytable"
    own.compact_table(table_name)
    own.compact_table(table_name, major=True)
    told = [own.is_table_enabled(table_name), own.tables(), table.families()]
    own.disable_table(table_name)
    told.append(own.is_table_enabled(table_name))
    own.enable_table(table_name)
    [region] = table.regions()
    return [*told, own.is_table_enabled(table_name), region["start_key"], region["end_key"]]


ASKED: dict[str, Callable[[Table, bytes], Any]] = {
    "administration": administer,
    "rows": lambda t, r: [t.row(r), t.row(b"nowhere"), t.rows([r, b"nowhere", r])],
    "columns": lambda t, r: [t.row(r, [b"cf1:a", b"cf2:a"]), t.row(r, [b"cf1"])],
    "times": lambda t, r: [t.row(r, [b"cf1"], time) for time in (301, 300, 200, 100)],
    "rows at a time": lambda t, r: t.rows([r], [b"cf1"], 150, include_timestamp=True),
    "versions": lambda t, r: [t.cells(r, name, 9, None, True) for name in (b"cf1:a", b"cf2:a")],
    "versions at a time": lambda t, r: t.cells(r, b"cf1:a", versions=1, timestamp=300),
    "a deleted column": lambda t, r: [t.delete(r, columns=[b"cf1:b"]), t.row(r)],
    "deleted versions": lambda t, r: [t.delete(r, timestamp=150), t.cells(r, b"cf1:a"), t.row(r)],
    "a deleted row": lambda t, r: [t.delete(r), t.row(r)],
    "a batch": lambda t, r: [send(t, r), list(t.scan(row_prefix=r))],
    "a batch at a time": lambda t, r: [
        send(t, r, timestamp=123456789),
        list(t.scan(row_prefix=r, include_timestamp=True)),
    ],
    "a batch that fails": lambda t, r: [fail(t, r), t.row(r)],
    "a batch that is all or not sent": lambda t, r: [fail(t, r, transaction=True), t.row(r)],
    "a large batch": send_many,
    "scans": lambda t, r: [
        send(t, r, timestamp=140),
        [list(t.scan(row_prefix=r, **options)) for options in SCANS],
        list(t.scan(row_start=r + b"2", row_stop=r, reverse=True)),
    ],
    "counters": count,
    "a pool": use_pool,
}


@pytest.mark.parametrize("name", ASKED)
def test_the_guide_shows_the_same_on_the_emulator(tables: list[Table], name: str) -> None:
    row, answers = uuid.uuid4().hex.encode(), []
    for table in tables:
        if name != "counters":
            fill(table, row)
        answers.append(ASKED[name](table, row))
    assert answers[1] == answers[0] and answers[0]
