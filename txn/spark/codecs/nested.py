"""Structs, arrays and maps as JSON text."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from txn.errors import InvalidRequestError
from txn.spark.codecs.base import Codec
from txn.spark.codecs.plain import IsoCodec

_SINGLE = (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)


class JsonCodec(Codec):
    """JSON as Spark's `to_json` has it: fields without a value are left out, bytes are base64,
    dates and times are text. Only a decimal is text where `to_json` has a number."""

    name = "json"
    accepts = (StructType, ArrayType, MapType)

    def __init__(self, kind: DataType) -> None:
        super().__init__(kind)
        if not _has_json(kind):
            raise InvalidRequestError("a type has no JSON", type=kind.simpleString())

    def encode(self, value: Any) -> bytes:
        plain = _to_plain(self.kind, value)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()

    def decode(self, data: bytes) -> Any:
        return self.check_value(_from_plain(self.kind, json.loads(data, parse_float=Decimal)))


def _has_json(kind: DataType) -> bool:
    match kind:
        case StructType():
            return all(_has_json(field.dataType) for field in kind.fields)
        case ArrayType():
            return _has_json(kind.elementType)
        case MapType():
            return isinstance(kind.keyType, StringType) and _has_json(kind.valueType)
        case _:
            return isinstance(kind, _SINGLE)


def _to_plain(kind: DataType, value: Any) -> Any:
    if value is None:
        return None
    match kind:
        case StructType():
            return _to_object(kind, value)
        case ArrayType():
            return [_to_plain(kind.elementType, each) for each in value]
        case MapType():
            pairs = value.items() if isinstance(value, Mapping) else value
            return {key: _to_plain(kind.valueType, each) for key, each in pairs}
        case _:
            return _to_single(kind, value)


def _to_object(kind: StructType, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        value = [value.get(name) for name in kind.names]
    pairs = zip(kind.fields, value, strict=True)
    plain = {field.name: _to_plain(field.dataType, each) for field, each in pairs}
    return {name: each for name, each in plain.items() if each is not None}


def _to_single(kind: DataType, value: Any) -> Any:
    match kind:
        case DecimalType():
            return format(Decimal(value), "f")
        case BinaryType():
            return base64.b64encode(bytes(value)).decode()
        case DateType() | TimestampType() | TimestampNTZType():
            return IsoCodec(kind).encode(value).decode()
        case FloatType() | DoubleType():
            if math.isfinite(value):
                return float(value)
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case _:
            return value


def _from_plain(kind: DataType, plain: Any) -> Any:
    if plain is None:
        return None
    match kind:
        case StructType():
            _expect(dict, plain)
            return {
                field.name: _from_plain(field.dataType, plain.get(field.name))
                for field in kind.fields
            }
        case ArrayType():
            _expect(list, plain)
            return [_from_plain(kind.elementType, each) for each in plain]
        case MapType():
            _expect(dict, plain)
            return [(key, _from_plain(kind.valueType, each)) for key, each in plain.items()]
        case _:
            return _from_single(kind, plain)


def _from_single(kind: DataType, plain: Any) -> Any:
    match kind:
        case DecimalType():
            return Decimal(str(plain))
        case BinaryType():
            return base64.b64decode(plain, validate=True)
        case DateType() | TimestampType() | TimestampNTZType():
            return IsoCodec(kind).decode(str(plain).encode())
        case FloatType() | DoubleType():
            return float(plain)
        case _:
            return plain


def _expect(kind: type, plain: object) -> None:
    if not isinstance(plain, kind):
        raise TypeError(f"JSON has a {type(plain).__name__}, not a {kind.__name__}")
