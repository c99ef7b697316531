"""The two other ways of describing a mapping: that of HBase's Spark connector, whose
`hbase.columns.mapping` is "id STRING :key, n INT c:n", and the JSON catalog that SHC has, and the
connector as well.

Both write numbers as HBase's `Bytes` does, and times as milliseconds. The columns of a row key
follow each other without a separator. Only what would be written otherwise by them is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import DateType, StructType, TimestampType

from txn.errors import InvalidRequestError
from txn.spark.mapping.outline import ColumnSketch, Outline, outline_options, parse_type
from txn.spark.options import SourceOptions

WAYS = {
    "row": ("row", "separator", "columns", "family"),
    "hbase.columns.mapping": ("hbase.columns.mapping", "hbase.table"),
    "catalog": ("catalog",),
}
"""The options of each way."""

CODERS = ("primitivetype", "org.apache.spark.sql.execution.datasources.hbase.types.primitivetype")


def read_outline(options: SourceOptions, schema: StructType | None) -> Outline:
    """Return what the options describe, in the one way that they do."""
    given = {name for names in WAYS.values() for name in names if options.text(name)}
    chosen = [way for way, names in WAYS.items() if given.intersection(names)]
    if len(chosen) != 1:
        raise InvalidRequestError(
            "columns must be mapped in one way: by row with columns or family, by "
            "hbase.columns.mapping, or by catalog",
            given=sorted(given),
        )
    if chosen == ["row"]:
        return outline_options(options, schema)
    return (
        outline_connector(options)
        if chosen == ["hbase.columns.mapping"]
        else outline_catalog(options)
    )


def outline_connector(options: SourceOptions) -> Outline:
    """Return what the options of HBase's Spark connector say."""
    sketches = [
        _parse_definition(part.strip())
        for part in options.require("hbase.columns.mapping").split(",")
    ]
    row = [sketch for sketch in sketches if not sketch.family]
    if len(row) > 1:
        raise InvalidRequestError(
            "hbase.columns.mapping has several row keys, and no order of them: use catalog",
            columns=[sketch.name for sketch in row],
        )
    columns = [sketch for sketch in sketches if sketch.family]
    table = _name_table(options, options.text("hbase.table") or options.require("table"))
    return Outline(table, row, columns, is_partial=True)


def _parse_definition(text: str) -> ColumnSketch:
    parts = text.split()
    if len(parts) != 3 or ":" not in parts[2]:
        shape = "NAME TYPE family:qualifier, or NAME TYPE :key"
        raise InvalidRequestError(
            "an option is malformed", option="hbase.columns.mapping", part=text, shape=shape
        )
    family, _, qualifier = parts[2].partition(":")
    return _make_sketch(parts[0], parts[1], family, qualifier if family else "")


def outline_catalog(options: SourceOptions) -> Outline:
    """Return what a catalog says."""
    catalog = _parse_json(options.require("catalog"))
    table = _take(catalog, "table", Mapping)
    coder = str(table.get("tableCoder", "PrimitiveType"))
    if coder.lower() not in CODERS:
        raise InvalidRequestError("catalog has a coder that is not ours", tableCoder=coder)
    columns = _take(catalog, "columns", Mapping)
    sketches = {
        name: _parse_entry(name, _take(columns, name, Mapping, "columns.")) for name in columns
    }
    keys = {
        str(columns[name].get("col")): sketch
        for name, sketch in sketches.items()
        if not sketch.family
    }
    parts = _take(catalog, "rowkey", str).split(":")
    if sorted(parts) != sorted(keys):
        raise InvalidRequestError(
            "catalog must have a column of family rowkey for each part of its rowkey, and no other",
            rowkey=parts,
            columns=sorted(keys),
        )
    namespace = str(table.get("namespace", "default"))
    name = f"{namespace}:{_take(table, 'name', str, 'table.')}"
    return Outline(
        _name_table(options, name),
        [keys[part] for part in parts],
        [sketch for sketch in sketches.values() if sketch.family],
        is_partial=True,
    )


def _parse_entry(name: str, entry: Mapping[str, Any]) -> ColumnSketch:
    for unknown in sorted(entry.keys() - {"cf", "col", "type", "length", "codec"}):
        raise InvalidRequestError(
            "catalog says of a column what is not supported: name a codec", column=name, key=unknown
        )
    family = str(entry.get("cf", "rowkey"))
    kind, qualifier = _take(entry, "type", str, name), _take(entry, "col", str, name)
    length = str(entry.get("length", "")) or None
    if length is not None and (not length.isdecimal() or int(length) < 1):
        raise InvalidRequestError("catalog has a length that is none", column=name, length=length)
    is_key = family == "rowkey"
    return _make_sketch(
        name,
        kind,
        "" if is_key else family,
        "" if is_key else qualifier,
        codec=entry.get("codec"),
        width=int(length) if is_key and length else None,
    )


def _make_sketch(
    name: str,
    type_name: str,
    family: str,
    qualifier: str,
    *,
    codec: str | None = None,
    width: int | None = None,
) -> ColumnSketch:
    kind = parse_type(type_name, name)
    if codec is None and isinstance(kind, DateType):
        raise InvalidRequestError(
            "dates are written as midnight of some zone there: describe it with row and columns",
            column=name,
        )
    if codec is None and isinstance(kind, TimestampType):
        codec = "millis"
    return ColumnSketch(name, kind, family.encode(), qualifier.encode(), codec, width)


def _name_table(options: SourceOptions, name: str) -> bytes:
    table = name.removeprefix("default:").encode()
    given = options.text("table")
    if given is not None and given.encode() != table:
        raise InvalidRequestError("two tables are named", table=given, mapping=name)
    return table


def _parse_json(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidRequestError("catalog is no JSON", why=str(error)) from error
    if not isinstance(found, dict):
        raise InvalidRequestError("catalog is no JSON object")
    return found


def _take(entry: Mapping[str, Any], name: str, kind: type, where: str = "") -> Any:
    value = entry.get(name)
    if not isinstance(value, kind):
        raise InvalidRequestError("catalog lacks a part", part=f"{where}{name}")
    return value
