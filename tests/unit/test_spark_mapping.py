"""Which column is which cell: three ways of saying it, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from txn import InvalidRequestError, Key
from txn.spark.codecs import arrow_schema
from txn.spark.mapping import TableMapping
from txn.spark.options import SourceOptions

pytestmark = pytest.mark.fast

SCHEMA = StructType(
    [
        StructField("v", StringType()),
        StructField("id", StringType()),
        StructField("n", LongType()),
    ]
)
CATALOG: dict[str, Any] = {
    "table": {"namespace": "default", "name": "t", "tableCoder": "PrimitiveType"},
    "rowkey": "key",
    "columns": {
        "id": {"cf": "rowkey", "col": "key", "type": "string"},
        "v": {"cf": "d", "col": "v", "type": "string"},
        "n": {"cf": "d", "col": "count", "type": "bigint"},
    },
}


def mapping_of(
    schema: StructType | None = None, /, besides: tuple[str, ...] = (), **given: str
) -> TableMapping:
    options = {name.replace("_", "."): value for name, value in given.items()}
    return TableMapping.parse(SourceOptions(options), schema, besides)


def cells_of(mapping: TableMapping) -> dict[str, tuple[int, bytes, bytes, str]]:
    return {
        column.name: (column.place, column.family, column.qualifier, column.codec.name)
        for column in mapping.columns
    }


def row_key(mapping: TableMapping, *values: Any) -> bytes:
    schema = arrow_schema(mapping.schema)
    (found,) = mapping.encode_rows(pa.record_batch([[value] for value in values], schema=schema))
    return found


def test_columns_are_cells_by_name() -> None:
    """The way that is told first: a schema, and where its columns go."""
    mapping = mapping_of(SCHEMA, table="t", row="id", columns="v=d:v, n=d:count as text")
    assert cells_of(mapping) == {"v": (0, b"d", b"v", "utf-8"), "n": (2, b"d", b"count", "text")}
    assert mapping.key_of(b"1", mapping.columns[1]) == Key("1", "d", "count", "t")
    assert row_key(mapping, "x", "k", 5) == b"k"


def test_without_columns_all_are_in_one_family() -> None:
    """A data frame is stored with three options."""
    mapping = mapping_of(SCHEMA, table="t", row="id", family="d")
    assert cells_of(mapping) == {"v": (0, b"d", b"v", "utf-8"), "n": (2, b"d", b"n", "long")}


def test_types_in_a_mapping_make_a_schema() -> None:
    """A reader of a table that no data frame has written has no schema at hand."""
    mapping = mapping_of(
        table="t",
        row="id string",
        columns="v=d:v as utf-8,n=d:n as long, `a b` decimal(10, 2)=d:x\\x2cy, t timestamp=d:t",
    )
    assert mapping.schema == StructType(
        [
            StructField("id", StringType()),
            StructField("v", StringType()),
            StructField("n", LongType()),
            StructField("a b", DecimalType(10, 2)),
            StructField("t", TimestampType()),
        ]
    )
    assert cells_of(mapping)["a b"] == (3, b"d", b"x,y", "text")


def test_several_columns_make_a_row_key_of_text() -> None:
    """The number's own bytes would hold separators, and be in no order."""
    schema = StructType([*SCHEMA.fields, StructField("part", IntegerType())])
    mapping = mapping_of(schema, table="t", row="id, part", family="d", separator="|")
    assert row_key(mapping, "x", "k", 5, -3) == b"k|-3"
    batch = pa.RecordBatch.from_pylist(
        [{"v": "x", "id": "k", "n": 1, "part": 7}], schema=arrow_schema(schema)
    )
    assert mapping.encode_rows(batch) == [b"k|7"]
    assert [column.to_pylist() for column in mapping.decode_rows([b"k|7", b"l|8"])] == [
        ["k", "l"],
        [7, 8],
    ]
    for wrong in (b"k", b"k|7|8", b"|7", b"k|x"):
        with pytest.raises(InvalidRequestError, match="does not decode"):
            mapping.decode_rows([wrong])
    with pytest.raises(InvalidRequestError, match="separator in it column='id'"):
        row_key(mapping, "x", "k|l", 5, 7)


@pytest.mark.parametrize("value", [None, ""])
def test_a_row_key_without_a_part_is_refused(value: str | None) -> None:
    """It would be another row's key, or none."""
    mapping = mapping_of(SCHEMA, table="t", row="id", family="d")
    batch = pa.RecordBatch.from_pylist([{"id": value}], schema=arrow_schema(SCHEMA))
    for encode in (
        lambda: row_key(mapping, "x", value, 1),
        lambda: mapping.encode_rows(batch),
    ):
        with pytest.raises(InvalidRequestError, match="null or empty column='id'"):
            encode()


def test_what_does_not_encode_or_decode_is_named() -> None:
    """One bad cell among millions is found by what the error says."""
    mapping = mapping_of(SCHEMA, table="t", row="id", family="d")
    v, n = mapping.columns
    with pytest.raises(InvalidRequestError, match="column='n' codec='long'"):
        n.encode("x")
    with pytest.raises(InvalidRequestError, match=r"a value is empty.* column='v'"):
        v.encode("")
    with pytest.raises(InvalidRequestError, match=r"a value is empty.* column='v'"):
        v.encode_array(pa.array(["a", ""]))
    with pytest.raises(InvalidRequestError, match="row=b'2' column='n' codec='long'"):
        n.decode_array([bytes(8), b"12"], [b"1", b"2"])


def test_the_connector_of_hbase_is_understood() -> None:
    """Jobs that have its options need no new ones; its times are milliseconds."""
    mapping = mapping_of(
        hbase_table="default:t",
        hbase_columns_mapping="id STRING :key, v STRING d:v, n BIGINT d:count, at TIMESTAMP d:at",
    )
    assert mapping.table == b"t"
    assert cells_of(mapping) == {
        "v": (1, b"d", b"v", "utf-8"),
        "n": (2, b"d", b"count", "long"),
        "at": (3, b"d", b"at", "millis"),
    }


def test_a_catalog_is_understood() -> None:
    """Jobs of SHC have one; a data frame may lack some of its columns."""
    mapping = mapping_of(catalog=json.dumps(CATALOG))
    assert (mapping.table, mapping.row[0].name) == (b"t", "id")
    assert cells_of(mapping) == {"v": (1, b"d", b"v", "utf-8"), "n": (2, b"d", b"count", "long")}
    part = mapping_of(StructType(SCHEMA.fields[:2]), catalog=json.dumps(CATALOG))
    assert cells_of(part) == {"v": (0, b"d", b"v", "utf-8")}
    spaced = CATALOG | {"table": {"namespace": "n", "name": "t"}}
    assert mapping_of(catalog=json.dumps(spaced)).table == b"n:t"


def test_a_catalog_may_join_a_row_key() -> None:
    """As SHC joins them: one behind the other, only the last of any length."""
    columns = {
        "a": {"cf": "rowkey", "col": "k1", "type": "string", "length": "2"},
        "b": {"cf": "rowkey", "col": "k2", "type": "int"},
        "c": {"cf": "rowkey", "col": "k3", "type": "string"},
        "v": {"cf": "d", "col": "v", "type": "string"},
    }
    given = CATALOG | {"rowkey": "k1:k2:k3", "columns": columns}
    mapping = mapping_of(catalog=json.dumps(given))
    row = row_key(mapping, "xy", 1, "end", "v")
    assert row == b"xy\0\0\0\1end"
    assert [column.to_pylist() for column in mapping.decode_rows([row])] == [["xy"], [1], ["end"]]
    with pytest.raises(InvalidRequestError, match="wrong width column='a'"):
        row_key(mapping, "x", 1, "end", "v")
    with pytest.raises(InvalidRequestError, match="does not decode"):
        mapping.decode_rows([b"xy\0\0\0\1"])
    del columns["a"]["length"]
    with pytest.raises(InvalidRequestError, match=r"fixed width .*columns=\['a'\]"):
        mapping_of(catalog=json.dumps(given))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rowkey": "other"}, "for each part of its rowkey"),
        ({"table": {"name": "t", "tableCoder": "Phoenix"}}, "a coder"),
        ({"table": {}}, r"part='table.name'"),
        ({"columns": []}, "part='columns'"),
        (
            {"columns": CATALOG["columns"] | {"v": {"cf": "d", "col": "v", "avro": "s"}}},
            "key='avro'",
        ),
        (
            {"columns": CATALOG["columns"] | {"v": {"cf": "d", "col": "v", "type": "date"}}},
            "midnight",
        ),
    ],
)
def test_a_catalog_with_what_is_not_supported_is_refused(
    change: dict[str, Any], words: str
) -> None:
    """Another meaning of the same bytes would be read without an error."""
    with pytest.raises(InvalidRequestError, match=words):
        mapping_of(catalog=json.dumps(CATALOG | change))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "in one way"),
        ({"family": "d"}, "missing option='row'"),
        ({"row": "id"}, "missing option='family'"),
        ({"row": "id", "columns": "v=d:v, n=d:n", "catalog": "{}"}, "in one way"),
        ({"row": "id", "columns": "v=d:v, n=d:n", "family": "d"}, "exclude each other"),
        ({"row": "id", "columns": "v=d:v"}, r"not mapped columns=\['n'\]"),
        ({"row": "id", "columns": "v=d:v, n=d:n, x=d:x"}, r"not in the schema columns=\['x'\]"),
        ({"row": "no", "columns": "v=d:v, n=d:n, id=d:i"}, "not in the schema"),
        ({"row": "id", "columns": "v=d:v, n=d:v"}, "a cell is there twice"),
        ({"row": "id", "columns": "v=d:v, v=d:w, n=d:n"}, "a mapped column is there twice"),
        ({"row": "id", "columns": "v=d:v, id=d:i, n=d:n"}, "a mapped column is there twice"),
        ({"row": "id", "columns": "v=d:v_lock, n=d:n"}, "reserved"),
        ({"row": "id", "columns": "v=d:v_tag, n=d:n"}, "reserved"),
        ({"row": "id", "columns": "v=dv, n=d:n"}, "malformed option='columns'"),
        ({"row": "id=d:v", "columns": "v=d:v, n=d:n"}, "malformed option='row'"),
        ({"row": "id", "columns": "v=d:v, n=d:n,"}, "malformed option='columns' part=''"),
        ({"row": "id", "columns": "v=d:v, n int=d:n"}, "one type in the schema"),
        ({"row": "id", "columns": "v=d:v, n set=d:n"}, "unknown type"),
        ({"row": "id", "columns": "v=d:v, n=d:n as shrt"}, "unknown codec"),
        ({"row": "id,n as long", "columns": "v=d:v"}, "made of text"),
        ({"row": "id,n", "columns": "v=d:v", "separator": ""}, "fixed width"),
        ({"catalog": "{"}, "no JSON"),
        ({"hbase.columns.mapping": "id STRING"}, "malformed"),
        ({"hbase.columns.mapping": "id STRING :k, v STRING :k, n BIGINT d:n"}, "several row keys"),
    ],
)
def test_what_is_said_wrongly_is_refused(given: dict[str, str], words: str) -> None:
    """Before anything is read or written, by a message that names it."""
    with pytest.raises(InvalidRequestError, match=words):
        TableMapping.parse(SourceOptions({"table": "t", **given}), SCHEMA)


def test_a_mapping_without_types_needs_a_schema() -> None:
    """To guess that a number is text would read it wrongly without an error."""
    with pytest.raises(InvalidRequestError, match=r"no type.*column='id'"):
        mapping_of(table="t", row="id", columns="v string=d:v")
    with pytest.raises(InvalidRequestError, match="option columns"):
        mapping_of(table="t", row="id", family="d")


def test_columns_besides_the_mapping_are_the_callers() -> None:
    """A writer has columns that say what to do with a row."""
    mapping = mapping_of(SCHEMA, ("n",), table="t", row="id", family="d")
    assert cells_of(mapping) == {"v": (0, b"d", b"v", "utf-8")}
    mapping = mapping_of(SCHEMA, ("n",), table="t", row="id", columns="v=d:v")
    assert cells_of(mapping) == {"v": (0, b"d", b"v", "utf-8")}


def test_two_tables_are_refused() -> None:
    """A job would write to the one that it did not mean."""
    with pytest.raises(InvalidRequestError, match="two tables"):
        mapping_of(catalog=json.dumps(CATALOG), table="other")
