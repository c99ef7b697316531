"""What happybase's user guide shows, section by section, on the emulator.

The examples are written anew, as statements of what they show, in all four ways that happybase
speaks Thrift. The same tests run on a real HBase, which is how we know that they are right.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import happybase
import pytest

from tests.integration.hbase import HBase
from txn.clock import SystemClock

MODES = [
    {"transport": "buffered", "protocol": "binary"},
    {"transport": "framed", "protocol": "binary"},
    {"transport": "buffered", "protocol": "compact"},
    {"transport": "framed", "protocol": "compact"},
]
FAMILIES = {
    "cf1": {"max_versions": 10},
    "cf2": {"max_versions": 1, "block_cache_enabled": False},
    "cf3": {},
}


def address(uri: str) -> dict[str, Any]:
    parts = urlsplit(uri)
    return {"host": parts.hostname, "port": parts.port}


@pytest.fixture(scope="module", params=[*map("-".join, (m.values() for m in MODES)), "hbase"])
def server(request: pytest.FixtureRequest) -> dict[str, Any]:
    """How happybase connects: to the emulator in each of its modes, or to a real HBase."""
    if request.param == "hbase":
        found: HBase = request.getfixturevalue("hbase")
        return address(found.thrift1)
    transport, protocol = request.param.split("-")
    found = request.getfixturevalue("emulator")
    return address(found.thrift1) | {"transport": transport, "protocol": protocol}


@pytest.fixture(scope="module")
def prefix() -> str:
    return f"guide{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def connection(server: dict[str, Any], prefix: str) -> Iterator[happybase.Connection]:
    with closing(happybase.Connection(**server, table_prefix=prefix)) as connection:
        connection.create_table("mytable", FAMILIES)
        yield connection
        connection.delete_table("mytable", disable=True)


@pytest.fixture
def table(connection: happybase.Connection) -> happybase.Table:
    return connection.table("mytable")


@pytest.fixture
def row() -> bytes:
    """A row of the test's own: what another has deleted stays deleted for older timestamps."""
    return uuid.uuid4().hex.encode()


# --- establishing a connection -------------------------------------------------------------------


def test_a_connection_opens_when_it_is_told_to(server: dict[str, Any]) -> None:
    """With autoconnect off nothing is sent before open()."""
    connection = happybase.Connection(**server, autoconnect=False)
    connection.open()
    assert isinstance(connection.tables(), list)
    connection.close()


# --- working with tables -------------------------------------------------------------------------


def test_families_have_the_settings_that_they_were_created_with(table: happybase.Table) -> None:
    """What is left out has the defaults of Thrift 1, which are not the shell's."""
    families = table.families()
    assert set(families) == {b"cf1", b"cf2", b"cf3"}
    assert families[b"cf1"]["max_versions"] == 10
    assert families[b"cf2"]["max_versions"] == 1
    assert families[b"cf2"]["block_cache_enabled"] is False
    assert families[b"cf3"]["max_versions"] == 3


def test_a_table_is_disabled_and_enabled(connection: happybase.Connection) -> None:
    """A table is disabled before it is dropped, so administration scripts ask."""
    assert connection.is_table_enabled("mytable")
    connection.disable_table("mytable")
    assert not connection.is_table_enabled("mytable")
    connection.enable_table("mytable")
    assert connection.is_table_enabled("mytable")


def test_a_table_can_be_compacted(connection: happybase.Connection) -> None:
    """Scripts do so after large deletes; it must not fail, whatever it does."""
    connection.compact_table("mytable")
    connection.compact_table("mytable", major=True)


def test_a_table_of_one_region_has_all_rows_in_it(table: happybase.Table) -> None:
    """Jobs split their work by regions."""
    [region] = table.regions()
    assert (region["start_key"], region["end_key"]) == (b"", b"")


# --- using table 'namespaces' --------------------------------------------------------------------


def test_a_prefix_hides_the_tables_of_others(
    server: dict[str, Any], connection: happybase.Connection, prefix: str
) -> None:
    """Applications that share a HBase see only their own tables, by their own names."""
    assert set(connection.tables()) <= {b"mytable", b"scanned"}
    with closing(happybase.Connection(**server)) as other:
        assert f"{prefix}_mytable".encode() in other.tables()
    assert connection.table("mytable").name == f"{prefix}_mytable".encode()


# --- retrieving data -----------------------------------------------------------------------------


def test_a_row_is_a_dictionary_of_its_columns(table: happybase.Table, row: bytes) -> None:
    """A row that is not there is an empty one."""
    table.put(row, {b"cf1:col1": b"1", b"cf2:col2": b"2"})
    assert table.row(row) == {b"cf1:col1": b"1", b"cf2:col2": b"2"}
    assert table.row(b"nowhere") == {}


def test_rows_come_as_pairs_in_the_order_asked_for(table: happybase.Table, row: bytes) -> None:
    """So they can be made into dictionaries, in order or not; rows that are not there are left
    out."""
    for number in (1, 2, 3):
        table.put(row + b"%d" % number, {b"cf1:c": b"%d" % number})
    wanted = [row + b"3", b"nowhere", row + b"1"]
    assert table.rows(wanted) == [(row + b"3", {b"cf1:c": b"3"}), (row + b"1", {b"cf1:c": b"1"})]
    assert list(OrderedDict(table.rows(wanted))) == [row + b"3", row + b"1"]


def test_columns_are_selected_by_name_or_by_family(table: happybase.Table, row: bytes) -> None:
    """Reading less is the first thing that makes reading quicker."""
    table.put(row, {b"cf1:col1": b"1", b"cf1:col2": b"2", b"cf2:col1": b"3"})
    assert table.row(row, columns=[b"cf1:col1", b"cf2:col1"]) == {
        b"cf1:col1": b"1",
        b"cf2:col1": b"3",
    }
    assert table.row(row, columns=[b"cf1"]) == {b"cf1:col1": b"1", b"cf1:col2": b"2"}
    [(_, data)] = table.rows([row], columns=[b"cf2"])
    assert data == {b"cf2:col1": b"3"}


def test_a_timestamp_shows_what_was_there_before_it(table: happybase.Table, row: bytes) -> None:
    """The timestamp itself is not included, which the guide does not say."""
    table.put(row, {b"cf1:c": b"old"}, timestamp=100)
    table.put(row, {b"cf1:c": b"new"}, timestamp=200)
    assert table.row(row, timestamp=201) == {b"cf1:c": b"new"}
    assert table.row(row, timestamp=200) == {b"cf1:c": b"old"}
    assert table.row(row, timestamp=100) == {}
    assert table.rows([row], timestamp=150) == [(row, {b"cf1:c": b"old"})]


def test_timestamps_are_included_when_asked_for(table: happybase.Table, row: bytes) -> None:
    """A cell is then a pair."""
    table.put(row, {b"cf1:c": b"v"}, timestamp=123456789)
    found = table.row(row, columns=[b"cf1:c"], include_timestamp=True)
    assert found == {b"cf1:c": (b"v", 123456789)}


def test_cells_are_versions_newest_first(table: happybase.Table, row: bytes) -> None:
    """There may be fewer than asked for: the cell has fewer, or the family keeps fewer."""
    for timestamp in (1, 2, 3):
        table.put(row, {b"cf1:c": b"v%d" % timestamp}, timestamp=timestamp)
        table.put(row, {b"cf2:c": b"v%d" % timestamp}, timestamp=timestamp)
    assert table.cells(row, b"cf1:c", versions=2) == [b"v3", b"v2"]
    cells = table.cells(row, b"cf1:c", versions=9, include_timestamp=True)
    assert cells == [(b"v3", 3), (b"v2", 2), (b"v1", 1)]
    assert table.cells(row, b"cf1:c", timestamp=3) == [b"v2", b"v1"]
    assert table.cells(row, b"cf2:c", versions=9) == [b"v3"]


# --- scanning ------------------------------------------------------------------------------------

ROWS = [b"aaa", b"abc-1", b"abc-2", b"m", b"xyz", b"zzz"]


@pytest.fixture(scope="module")
def rows(connection: happybase.Connection) -> Iterator[happybase.Table]:
    """A table that nobody changes."""
    connection.create_table("scanned", FAMILIES)
    table = connection.table("scanned")
    with table.batch() as batch:
        for row in ROWS:
            batch.put(row, {b"cf1:c": row, b"cf1:d": b"-", b"cf2:c": b"+"})
    yield table
    connection.delete_table("scanned", disable=True)


def keys(*arguments: Any, **named: Any) -> list[bytes]:
    table, *rest = arguments
    return [row for row, _ in table.scan(*rest, **named)]


def test_a_scan_is_bounded_by_start_stop_or_prefix(rows: happybase.Table) -> None:
    """The start is included, the stop is not."""
    assert keys(rows) == ROWS
    assert keys(rows, row_start=b"abc-2") == ROWS[2:]
    assert keys(rows, row_stop=b"xyz") == ROWS[:4]
    assert keys(rows, row_start=b"aaa", row_stop=b"xyz") == ROWS[:4]
    assert keys(rows, row_prefix=b"abc") == [b"abc-1", b"abc-2"]


def test_a_scan_selects_columns_and_timestamps(rows: happybase.Table) -> None:
    """As a row does."""
    assert next(rows.scan(columns=[b"cf1:c"])) == (b"aaa", {b"cf1:c": b"aaa"})
    assert next(rows.scan(columns=[b"cf2"])) == (b"aaa", {b"cf2:c": b"+"})
    assert keys(rows, timestamp=5) == []
    [(_, data)] = rows.scan(row_prefix=b"m", include_timestamp=True, columns=[b"cf1:c"])
    assert data[b"cf1:c"][0] == b"m"
    assert data[b"cf1:c"][1] > 1_600_000_000_000


def test_a_scan_has_limits_and_batches(rows: happybase.Table) -> None:
    """How much comes in a reply changes nothing of what comes."""
    assert keys(rows, limit=2) == ROWS[:2]
    assert keys(rows, batch_size=1) == ROWS
    assert keys(rows, batch_size=2, limit=5) == ROWS[:5]
    pieces = list(rows.scan(row_prefix=b"m", scan_batching=2))
    assert pieces == [(b"m", {b"cf1:c": b"m", b"cf1:d": b"-"}), (b"m", {b"cf2:c": b"+"})]


def test_a_scan_takes_a_filter(rows: happybase.Table) -> None:
    """In HBase's own language."""
    found = list(rows.scan(filter=b"PrefixFilter('abc') AND QualifierFilter(=, 'binary:d')"))
    assert found == [(b"abc-1", {b"cf1:d": b"-"}), (b"abc-2", {b"cf1:d": b"-"})]
    only = b"SingleColumnValueFilter('cf1', 'c', >=, 'binary:xyz', true, true)"
    assert keys(rows, filter=only) == [b"xyz", b"zzz"]


def test_a_scan_goes_backwards(rows: happybase.Table) -> None:
    """Its start is then the greater row."""
    assert keys(rows, reverse=True) == ROWS[::-1]
    assert keys(rows, reverse=True, row_start=b"m", row_stop=b"abc-1") == [b"m", b"abc-2"]


def test_a_scan_shows_columns_in_order(rows: happybase.Table) -> None:
    """A dictionary would lose their order on the way; the reply is then a list."""
    [(_, data)] = rows.scan(row_prefix=b"m", sorted_columns=True)
    assert list(data) == [b"cf1:c", b"cf1:d", b"cf2:c"]


# --- manipulating data ---------------------------------------------------------------------------


def test_a_put_has_the_time_of_the_server_or_its_own(table: happybase.Table, row: bytes) -> None:
    """Without a timestamp it is the server's."""
    table.put(row, {b"cf1:a": b"1"}, timestamp=123456789)
    table.put(row, {b"cf1:b": b"2"})
    found = table.row(row, include_timestamp=True)
    assert found[b"cf1:a"] == (b"1", 123456789)
    assert abs(found[b"cf1:b"][1] - SystemClock().wall_ms()) < 60_000


def test_a_delete_takes_rows_columns_or_what_is_older(table: happybase.Table, row: bytes) -> None:
    """Deletes with a timestamp leave what is newer."""
    table.put(row, {b"cf1:a": b"old", b"cf1:b": b"old", b"cf2:a": b"old"}, timestamp=10)
    table.put(row, {b"cf1:a": b"new"}, timestamp=20)
    table.delete(row, columns=[b"cf1:b"])
    assert table.row(row) == {b"cf1:a": b"new", b"cf2:a": b"old"}
    table.delete(row, timestamp=15)
    assert table.cells(row, b"cf1:a") == [b"new"]
    assert table.row(row) == {b"cf1:a": b"new"}
    table.delete(row)
    assert table.row(row) == {}


def put_three_and_delete_one(batch: happybase.Batch, row: bytes) -> None:
    batch.put(row + b"1", {b"cf1:1": b"1", b"cf1:2": b"2"})
    batch.put(row + b"2", {b"cf1:2": b"2", b"cf1:3": b"3"})
    batch.put(row + b"3", {b"cf1:3": b"3", b"cf1:4": b"4"})
    batch.delete(row + b"4")


def kept(table: happybase.Table, row: bytes) -> list[bytes]:
    return [key.removeprefix(row) for key in keys(table, row_prefix=row)]


DONE = [b"1", b"2", b"3"]


def test_a_batch_is_sent_at_once(table: happybase.Table, row: bytes) -> None:
    """Until then the server knows nothing of it."""
    table.put(row + b"4", {b"cf1:1": b"1", b"cf2:1": b"1"})
    batch = table.batch()
    put_three_and_delete_one(batch, row)
    assert kept(table, row) == [b"4"]
    batch.send()
    assert kept(table, row) == DONE


def test_a_batch_has_one_timestamp(table: happybase.Table, row: bytes) -> None:
    """For its puts and its deletes."""
    table.put(row + b"4", {b"cf1:1": b"1"}, timestamp=123456780)
    batch = table.batch(timestamp=123456789)
    put_three_and_delete_one(batch, row)
    batch.send()
    assert kept(table, row) == DONE
    assert table.row(row + b"1", include_timestamp=True)[b"cf1:1"] == (b"1", 123456789)


def test_a_batch_is_sent_at_the_end_of_its_block_even_after_an_error(
    table: happybase.Table, row: bytes
) -> None:
    """It behaves like try and finally."""
    with pytest.raises(ZeroDivisionError), table.batch() as batch:
        put_three_and_delete_one(batch, row)
        raise ZeroDivisionError
    assert kept(table, row) == DONE


def test_a_transaction_batch_is_not_sent_after_an_error(table: happybase.Table, row: bytes) -> None:
    """This is all that happybase means by a transaction."""
    with pytest.raises(ZeroDivisionError), table.batch(transaction=True) as batch:
        put_three_and_delete_one(batch, row)
        raise ZeroDivisionError
    assert kept(table, row) == []
    with table.batch(transaction=True) as batch:
        put_three_and_delete_one(batch, row)
    assert kept(table, row) == DONE


def test_a_large_batch_is_sent_in_parts(table: happybase.Table, row: bytes) -> None:
    """Twelve hundred puts of two cells are sent a thousand cells at a time."""
    with table.batch(batch_size=1000) as batch:
        for number in range(1200):
            batch.put(row + b"%04d" % number, {b"cf1:1": b"v1", b"cf1:2": b"v2"})
        assert len(kept(table, row)) == 1000
    assert len(kept(table, row)) == 1200


# --- counters ------------------------------------------------------------------------------------


def test_counters_count(table: happybase.Table, row: bytes) -> None:
    """They begin at zero and answer with what they have come to.

    Each change is written at least a millisecond after the one before, so that a few of them in
    one millisecond lie ahead of the clock: what is set is older, until the clock has caught up.
    """
    assert table.counter_get(row, b"cf1:counter") == 0
    assert [table.counter_inc(row, b"cf1:counter") for _ in range(3)] == [1, 2, 3]
    assert table.counter_dec(row, b"cf1:counter") == 2
    assert table.counter_inc(row, b"cf1:counter", value=3) == 5
    assert table.counter_dec(row, b"cf1:counter", value=7) == -2
    [(_, newest)] = table.cells(row, b"cf1:counter", versions=1, include_timestamp=True)
    while SystemClock().wall_ms() <= newest:
        pass
    table.counter_set(row, b"cf1:counter", 12)
    assert table.counter_get(row, b"cf1:counter") == 12


# --- the connection pool -------------------------------------------------------------------------


def test_a_pool_lends_connections(
    server: dict[str, Any], connection: happybase.Connection, prefix: str, row: bytes
) -> None:
    """A thread that asks again while it holds one gets the same."""
    connection.table("mytable").put(row, {b"cf1:c": b"1"})
    pool = happybase.ConnectionPool(size=3, **server, table_prefix=prefix)
    with pool.connection() as first:
        assert b"mytable" in first.tables()
        with pool.connection() as second:
            assert second is first
        assert first.table("mytable").row(row) == {b"cf1:c": b"1"}
