"""How the value of a column is the bytes of a cell, and how bytes are the value again.

A codec is made for one type of Spark. Numbers are as HBase's `Bytes.toBytes` writes them, so that
Java reads them, and as the Spark connectors of HBase expect them. None, an absent cell, is nobody's
to encode or to decode. Whole columns go by Arrow arrays.
"""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from txn.errors import InvalidRequestError
from txn.spark.codecs.base import Cells, Codec, arrow_schema
from txn.spark.codecs.imported import ImportedCodec
from txn.spark.codecs.nested import JsonCodec
from txn.spark.codecs.plain import (
    BinaryCodec,
    BooleanCodec,
    ByteCodec,
    DoubleCodec,
    FloatCodec,
    IntCodec,
    IsoCodec,
    LongCodec,
    MillisCodec,
    ShortCodec,
    TextCodec,
    Utf8Codec,
)

__all__ = ["CODECS", "Cells", "Codec", "arrow_schema", "make_codec", "name_codec", "type_of_codec"]

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
"""By their names in options."""

_DEFAULTS: dict[type[DataType], str] = {
    StringType: "utf-8",
    ByteType: "byte",
    ShortType: "short",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    BooleanType: "boolean",
    BinaryType: "binary",
    DecimalType: "text",
    DateType: "iso",
    TimestampType: "iso",
    TimestampNTZType: "iso",
    StructType: "json",
    ArrayType: "json",
    MapType: "json",
}


def name_codec(kind: DataType, column: str) -> str:
    """Return the codec that a column of this type has where none is named: of numbers the bytes
    that HBase's own connector and SHC write, of dates and times text, of what is nested JSON."""
    for each, name in _DEFAULTS.items():
        if isinstance(kind, each):
            return name
    raise InvalidRequestError(
        "no codec for a type of Spark: name one", column=column, type=kind.simpleString()
    )


def make_codec(name: str, kind: DataType, column: str) -> Codec:
    """Return the codec of that name, or at that import path, for a column of this type."""
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
    """Return the type that a codec's name tells, or None where it is of many."""
    found = CODECS.get(name)
    if found is None or found in (TextCodec, IsoCodec, JsonCodec):
        return None
    return found.accepts[0]()
