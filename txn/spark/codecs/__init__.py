"""Codecs: conversions between the value of a column and the bytes of a cell.

A codec is made for one Spark type. Numbers have the bytes of HBase's `Bytes.toBytes`, which Java
and the Spark connectors of HBase expect. An absent cell is None and never reaches a codec. Whole
columns are converted as Arrow arrays.
"""

from __future__ import annotations

import importlib
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType

from txn.errors import InvalidRequestError
from txn.spark.codecs.json import JsonCodec
from txn.spark.codecs.values import (
    BinaryCodec,
    BooleanCodec,
    ByteCodec,
    Cells,
    Codec,
    DoubleCodec,
    FloatCodec,
    IntCodec,
    IsoCodec,
    LongCodec,
    MillisCodec,
    ShortCodec,
    TextCodec,
    Utf8Codec,
    arrow_schema,
)

__all__ = [
    "CODECS",
    "DEFAULT_CODECS",
    "Cells",
    "Codec",
    "arrow_schema",
    "make_codec",
    "name_codec",
    "type_of_codec",
]

CODECS: dict[str, type[Codec]] = {
    each.name: each
    for each in (
        Utf8Codec,
        ByteCodec,
        ShortCodec,
        IntCodec,
        LongCodec,
        FloatCodec,
        DoubleCodec,
        BooleanCodec,
        BinaryCodec,
        TextCodec,
        IsoCodec,
        MillisCodec,
        JsonCodec,
    )
}
"""The codecs by their names in options."""

DEFAULT_CODECS: dict[type[DataType], str] = {
    kind: codec.name for codec in CODECS.values() for kind in codec.accepts[: codec.defaults]
}
"""The name of the default codec for columns of each type."""


def name_codec(kind: DataType, column: str) -> str:
    """Return the default codec of a type. Numbers have the bytes that HBase's own connector and SHC
    write; dates and times are text; nested values are JSON."""
    for each, name in DEFAULT_CODECS.items():
        if isinstance(kind, each):
            return name
    raise InvalidRequestError(
        "no codec for a type of Spark: name one", column=column, type=kind.simpleString()
    )


def make_codec(name: str, kind: DataType, column: str) -> Codec:
    """Return the codec with this name or import path, for a column of this type."""
    if ":" in name:
        return ImportedCodec(name, kind)
    found = CODECS.get(name)
    if found is None:
        raise InvalidRequestError("unknown codec", codec=name, column=column, known=[*CODECS])
    if not isinstance(kind, found.accepts):
        raise InvalidRequestError(
            "codec is not for this type", codec=name, column=column, type=kind.simpleString()
        )
    return found(kind)


def type_of_codec(name: str) -> DataType | None:
    """Return the type that a codec's name implies, or None if the codec accepts several types."""
    found = CODECS.get(name)
    return None if found is None or not found.has_one_type else found.accepts[0]()


class ImportedCodec(Codec):
    """A user's codec by its import path, with `encode(value) -> bytes` and `decode(bytes)`."""

    def __init__(self, path: str, kind: DataType) -> None:
        super().__init__(kind)
        self.name = path
        module, _, name = path.partition(":")
        try:
            self._inner = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidRequestError(
                "codec cannot be imported", codec=path, cause=str(error)
            ) from error
        if not (hasattr(self._inner, "encode") and hasattr(self._inner, "decode")):
            raise InvalidRequestError("codec has no encode or no decode", codec=path)

    def __reduce__(self) -> tuple[Any, ...]:
        return ImportedCodec, (self.name, self.kind)

    def encode(self, value: Any) -> bytes:
        cell = self._inner.encode(value)
        if not isinstance(cell, bytes):
            raise TypeError(f"the codec made no bytes: {type(cell).__name__}")
        return cell

    def encode_array(self, values: pa.Array) -> list[bytes | None]:
        return [None if value is None else self.encode(value) for value in values.to_pylist()]

    def decode(self, cell: bytes) -> Any:
        return self._inner.decode(cell)
