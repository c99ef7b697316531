"""The options `ifAbsent`, `ifVersion` and `assertions`: assertions of the row's transaction.

`ifAbsent` is `true` for all cells of the mapping, or names columns. `ifVersion` names a column with
the present timestamp of the cells that the row writes (null: absent), or one such column per cell:
`balance=seen, name=seen_too`. `assertions` is a column of JSON documents as `txn commit` takes
them, or of equivalent structs, in which the name of a column may replace a key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructType

from txn.assertions import MAX_DEPTH, Assertion, Not, Some, Version
from txn.documents import AssertionReader, parse_assertions, read_bytes, read_key
from txn.errors import InvalidRequestError
from txn.model import Key
from txn.spark.mapping import TableMapping
from txn.spark.options import SourceOptions, split_names

CONDITIONS = ("ifAbsent", "ifVersion", "assertions")

ALL = ""
"""Stands for all cells that a row writes, where `ifVersion` names no column."""


@dataclass(frozen=True)
class Conditions:
    """The assertions of rows. absent: columns whose cells must be absent; None: all cells.
    versions: pairs of a mapped column, or ALL, and the column of its timestamp. documents: of
    assertions."""

    absent: tuple[str, ...] | None = ()
    versions: tuple[tuple[str, str], ...] = ()
    documents: str | None = None

    @classmethod
    def parse(cls, options: SourceOptions, schema: StructType) -> Conditions:
        versions = _parse_versions(options.text("ifVersion"))
        for _, source in versions:
            _check_type("ifVersion", schema, source, (LongType, IntegerType), "a timestamp in ms")
        documents = options.text("assertions") or None
        if documents is not None:
            kinds = (StringType, ArrayType, StructType)
            _check_type("assertions", schema, documents, kinds, "JSON text, or an array of structs")
        absent = options.text("ifAbsent", "false") or "false"
        if absent.lower() in ("true", "false"):
            return cls(None if absent.lower() == "true" else (), versions, documents)
        return cls(tuple(split_names(absent)), versions, documents)

    @property
    def sources(self) -> list[str]:
        """Return the columns that have timestamps or assertions, which are not cells."""
        documents = [self.documents] if self.documents else []
        return [source for _, source in self.versions] + documents

    def check(self, mapping: TableMapping) -> None:
        """Raise InvalidRequestError for a condition on a column that is not a cell."""
        for name in [*(self.absent or ()), *(name for name, _ in self.versions if name != ALL)]:
            mapping.find_column(name)

    def list_inputs(self, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Return, for each row of a batch, the values from which its assertions are built."""
        names = [name for _, name in self.versions]
        if self.documents is not None:
            names.append(self.documents)
        if not names:
            return [()] * batch.num_rows
        columns = [_list_values(batch, name) for name in names]
        return list(zip(*columns, strict=True))

    def list_assertions(
        self, mapping: TableMapping, row: bytes, written: Sequence[Key], inputs: Sequence[Any]
    ) -> tuple[Assertion, ...]:
        """Return the assertions of a row. written: its written keys; inputs: from `list_inputs`."""
        absent = mapping.columns if self.absent is None else map(mapping.find_column, self.absent)
        found: list[Assertion] = [Not(Some(mapping.key_of(row, column))) for column in absent]
        for (name, source), timestamp in zip(self.versions, inputs, strict=False):
            keys = written if name == ALL else [mapping.key_of(row, mapping.find_column(name))]
            found += (Version(key, timestamp) for key in keys)
            if timestamp is not None and timestamp < 1:
                raise InvalidRequestError(
                    "a version is a timestamp in ms, or null", column=source, given=timestamp
                )
        if self.documents is not None and inputs[-1] is not None:
            found += _read_documents(mapping, row, self.documents, inputs[-1])
        return tuple(found)


def _list_values(batch: pa.RecordBatch, name: str) -> list[Any]:
    values = batch.column(batch.schema.get_field_index(name))
    try:
        found: list[Any] = values.to_pylist()
    except (OverflowError, ValueError) as error:
        raise InvalidRequestError("a time is not of the years 1 to 9999", column=name) from error
    return found


def _parse_versions(text: str | None) -> tuple[tuple[str, str], ...]:
    pairs = []
    for part in split_names(text):
        name, equals, source = part.rpartition("=")
        if equals and not name.strip():
            raise InvalidRequestError("an option is malformed", option="ifVersion", part=part)
        pairs.append((name.strip(" `") or ALL, source.strip(" `")))
    if len(pairs) > 1 and any(name == ALL for name, _ in pairs):
        raise InvalidRequestError(
            "ifVersion is one column, or pairs such as balance=seen", if_version=text
        )
    return tuple(pairs)


def _check_type(
    option: str, schema: StructType, name: str, kinds: tuple[type, ...], wanted: str
) -> None:
    if name not in schema.names:
        raise InvalidRequestError("an option names no column", option=option, column=name)
    kind = schema[name].dataType
    if not isinstance(kind, kinds):
        raise InvalidRequestError(
            "a column has a type that does not fit",
            option=option,
            column=name,
            type=kind.simpleString(),
            wanted=wanted,
        )


def _read_documents(
    mapping: TableMapping, row: bytes, place: str, given: Any
) -> Iterator[Assertion]:
    columns = {column.name: column for column in mapping.columns}

    def find_key(key: object, where: str) -> Key:
        if isinstance(key, str) and key in columns:
            return mapping.key_of(row, columns[key])
        return read_key(key, where)

    def find_value(key: object, value: object, where: str) -> bytes:
        if isinstance(key, str) and key in columns and not isinstance(value, dict):
            return columns[key].encode(value)
        return read_bytes(value, where)

    items = _load(given, place)
    yield from parse_assertions(items, place, AssertionReader(find_key, find_value))


def _load(given: Any, place: str) -> list[Any]:
    """Return the list of documents in a text, a struct or an array of structs. A struct has all
    fields of its type, so null fields are dropped, except a timestamp."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise InvalidRequestError("not JSON", column=place, why=str(error)) from error
        except RecursionError as error:
            raise InvalidRequestError("nested too deeply", limit=MAX_DEPTH) from error
        return given if isinstance(given, list) else [given]
    return [_drop_nulls(item) for item in (given if isinstance(given, list) else [given])]


def _drop_nulls(item: Any) -> Any:
    if isinstance(item, list):
        return [_drop_nulls(part) for part in item]
    if not isinstance(item, dict):
        return item
    kept = {name: _drop_nulls(part) for name, part in item.items() if part is not None}
    return {**kept, "timestamp": item.get("timestamp")} if "version" in kept else kept
