"""Which column is which cell: three ways of saying it, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from txn import InvalidRequestError, Key
from txn.spark.codecs import arrow_schema
from txn.spark.mapping import TableMapping
from txn.spark.options import SourceOptions, match_name, split_names

SCHEMA = t.StructType(
    [
        t.StructField("v", t.StringType()),
        t.StructField("id", t.StringType()),
        t.StructField("n", t.LongType()),
    ]
)
OTHERS = "v=d:v, n=by_v(v, n as text)/i:n, id=by_v(v, n as text)/i:id, v=copies/c:v, id=ns:e(v)/x:i"
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
    schema: t.StructType | None = None,
    /,
    besides: tuple[str, ...] = (),
    is_written: bool = False,
    **given: Any,
) -> TableMapping:
    options = {name.replace("_", "."): value for name, value in given.items()}
    return TableMapping.parse(SourceOptions(options), schema, besides, is_written=is_written)


def cells_of(mapping: TableMapping) -> dict[str, tuple[int, bytes, bytes, str]]:
    return {
        column.name: (column.place, column.family, column.qualifier, column.codec.name)
        for column in mapping.columns
    }


def row_key(mapping: TableMapping, *values: Any) -> bytes:
    schema = arrow_schema(mapping.schema)
    (found,) = mapping.encode_rows(pa.record_batch([[value] for value in values], schema=schema))
    return found


@pytest.mark.parametrize(
    ("options", "besides", "cells"),
    [
        ({"columns": "v=d:v, n=d:count as text"}, (), {"v": "v utf-8", "n": "count text"}),
        ({"columns": "v=t(id)/d:v, n=t/d:n"}, (), {"v": "v utf-8", "n": "n long"}),
        ({"family": "d"}, (), {"v": "v utf-8", "n": "n long"}),
        ({"family": "d"}, ("n",), {"v": "v utf-8"}),
        ({"columns": "v=d:v"}, ("n",), {"v": "v utf-8"}),
    ],
)
def test_columns_are_cells_by_name(
    options: dict[str, Any], besides: tuple[str, ...], cells: dict[str, str]
) -> None:
    """Besides the mapping a writer has columns that say what to do with a row."""
    mapping = mapping_of(SCHEMA, besides, table="t", row="id", **options)
    places = {"v": 0, "n": 2}
    assert cells_of(mapping) == {
        name: (places[name], b"d", cell.split()[0].encode(), cell.split()[1])
        for name, cell in cells.items()
    }
    assert mapping.key_of(b"1", mapping.columns[0]) == Key("1", "d", "v", "t")


def test_types_in_a_mapping_make_a_schema() -> None:
    mapping = mapping_of(
        table="t",
        row="id string",
        columns="v=d:v as utf-8,n=d:n as long, `a b` decimal(10, 2)=d:x\\x2cy, t timestamp=d:t",
    )
    assert mapping.schema == t.StructType(
        [
            t.StructField("id", t.StringType()),
            t.StructField("v", t.StringType()),
            t.StructField("n", t.LongType()),
            t.StructField("a b", t.DecimalType(10, 2)),
            t.StructField("t", t.TimestampType()),
        ]
    )
    assert cells_of(mapping)["a b"] == (3, b"d", b"x,y", "text")


def test_several_columns_make_a_row_key_of_text() -> None:
    """The number's own bytes would hold separators, and be in no order."""
    schema = t.StructType([*SCHEMA.fields, t.StructField("part", t.IntegerType())])
    mapping = mapping_of(schema, table="t", row="id, part", family="d", separator="|")
    assert row_key(mapping, "x", "k", 5, -3) == b"k|-3"
    assert [column.to_pylist() for column in mapping.decode_rows([b"k|7", b"l|8"])] == [
        ["k", "l"],
        [7, 8],
    ]
    for wrong in (b"k", b"k|7|8", b"|7", b"k|x"):
        with pytest.raises(InvalidRequestError, match="does not decode"):
            mapping.decode_rows([wrong])
    with pytest.raises(InvalidRequestError, match="separator in it column='id'"):
        row_key(mapping, "x", "k|l", 5, 7)
    for absent in (None, ""):
        with pytest.raises(InvalidRequestError, match="null or empty column='id'"):
            row_key(mapping, "x", absent, 5, 7)


def test_what_does_not_encode_or_decode_is_named() -> None:
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
    mapping = mapping_of(catalog=json.dumps(CATALOG))
    assert (mapping.table, mapping.row[0].name) == (b"t", "id")
    assert cells_of(mapping) == {"v": (1, b"d", b"v", "utf-8"), "n": (2, b"d", b"count", "long")}
    part = mapping_of(t.StructType(SCHEMA.fields[:2]), catalog=json.dumps(CATALOG))
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
def test_a_catalog_with_something_else_is_refused(change: dict[str, Any], words: str) -> None:
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
        ({"row": "id", "columns": "v=d:v, n=d:v"}, "a cell is there twice"),
        ({"row": "id", "columns": "v=d:v, id=d:i, n=d:n"}, "a mapped column is there twice"),
        ({"row": "id", "columns": "v=d:v_lock, n=d:n"}, "reserved"),
        ({"row": "id", "columns": "v=d:v, n=d:n,"}, "malformed option='columns' part=''"),
        ({"row": "id", "columns": "v=d:v, n int=d:n"}, "one type in the schema"),
        ({"row": "id,n as long", "columns": "v=d:v"}, "made of text"),
        ({"row": "id,n", "columns": "v=d:v", "separator": ""}, "fixed width"),
        ({"catalog": "{"}, "no JSON"),
        ({"hbase.columns.mapping": "id STRING"}, "malformed"),
        ({"catalog": json.dumps(CATALOG), "table": "other"}, "two tables"),
        ({"row": "id", "columns": OTHERS}, r"only a writer .*tables=\[b'by_v', b'copies'"),
        ({"hbase.columns.mapping": "id STRING :k, v STRING :k, n BIGINT d:n"}, "several row keys"),
    ],
)
def test_what_is_said_wrongly_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        TableMapping.parse(SourceOptions({"table": "t", **given}), SCHEMA)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"columns": "v string=d:v"}, r"no type.*column='id'"),
        ({"family": "d"}, "option columns"),
    ],
)
def test_a_mapping_without_types_needs_a_schema(given: dict[str, Any], words: str) -> None:
    """To guess that a number is text would read it wrongly without an error."""
    with pytest.raises(InvalidRequestError, match=words):
        mapping_of(table="t", row="id", **given)


@pytest.mark.parametrize("family", ["d", ""])
def test_names_of_columns_ignore_case(family: str) -> None:
    """As Spark's do. Where two columns differ in case alone, each is meant by its own case."""
    columns = "" if family else "V=d:v, N=d:n"
    mapping = mapping_of(SCHEMA, table="t", row="ID", family=family, columns=columns)
    assert [column.name for column in (*mapping.row, *mapping.columns)] == ["id", "v", "n"]
    assert mapping.find_column("N").name == "n"
    catalog = json.dumps(CATALOG).replace('"v":', '"V":')
    assert [c.name for c in mapping_of(SCHEMA, catalog=catalog).columns] == ["v", "n"]
    both = t.StructType([*SCHEMA.fields, t.StructField("V", t.StringType())])
    assert set(cells_of(mapping_of(both, table="t", row="id", family="d"))) == {"v", "n", "V"}
    assert match_name("V", ["v", "V"]) == "V"
    with pytest.raises(InvalidRequestError, match=r"several columns.*columns=\['ab', 'AB'\]"):
        match_name("Ab", ["ab", "AB"])


def test_backquotes_hold_any_name() -> None:
    names = ["a`b", "c, d", "e (f", "`", "id"]
    schema = t.StructType([t.StructField(name, t.StringType()) for name in names])
    columns = "`a``b`=d:a, `c, d`=d:c, `e (f`=d:e, ````=d:q"
    mapping = mapping_of(schema, table="t", row="id", columns=columns)
    assert [column.name for column in mapping.columns] == names[:4]
    assert split_names(" `a``b`, `c, d`,, e ") == ["a`b", "c, d", "e"]


def test_cells_of_other_rows_are_mapped_by_row() -> None:
    mapping = mapping_of(SCHEMA, is_written=True, table="t", row="id", columns=OTHERS)
    found = [
        (row.table, [part.name for part in row.row], [column.qualifier for column in row.columns])
        for row in mapping.rows
    ]
    assert found == [
        (b"t", ["id"], [b"v"]),
        (b"by_v", ["v", "n"], [b"n", b"id"]),
        (b"copies", ["id"], [b"v"]),
        (b"ns:e", ["v"], [b"i"]),
    ]
    assert row_key(mapping.other_rows[0], "x", "k", 5) == b"x/5"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("v=d:v, n=o(x)/i:n", r"not in the schema columns=\['x'\]"),
        ("v=d:v, n=o(v, v)/i:n", "a column of a row key is there twice"),
        ("v=d:v, n=o(v)/i:n, id=o(v)/i:n", "a cell is there twice"),
        ("v=o/d:v, n=o/d:n", "needs a row key, and a column that is a cell"),
        ("v=d:v, n=o(v, )/i:n", "malformed option='columns' part=''"),
    ],
)
def test_other_rows_that_make_no_sense_are_refused(columns: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        mapping_of(SCHEMA, is_written=True, table="t", row="id", columns=columns)
