"""Structs, arrays and maps as JSON text."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from json.encoder import encode_basestring
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
from txn.spark.codecs.times import format_iso, parse_iso
from txn.spark.codecs.values import Codec

_ESCAPE = re.compile(r"\\(?:u[0-9a-f]{4}|.)")


class JsonCodec(Codec):
    """JSON as Spark's `to_json` writes it, without null fields, with bytes as base64 and numbers as
    in Java. But decimals are text, since others read numbers as doubles; and dates and times are as
    in the codec `iso`, because `to_json` drops microseconds."""

    name = "json"
    defaults, has_one_type = 3, False
    accepts = (StructType, ArrayType, MapType)

    def __init__(self, kind: DataType) -> None:
        super().__init__(kind)
        _check_kind(kind)

    def encode(self, value: Any) -> bytes:
        return _write(self.kind, value).encode()

    def decode(self, cell: bytes) -> Any:
        return _from_plain(self.kind, json.loads(cell, parse_float=Decimal))


def _check_kind(kind: DataType) -> None:
    match kind:
        case StructType():
            for field in kind.fields:
                _check_kind(field.dataType)
        case ArrayType():
            _check_kind(kind.elementType)
        case MapType() if isinstance(kind.keyType, StringType):
            _check_kind(kind.valueType)
        case _:
            _find_single(kind)


def _write(kind: DataType, value: Any) -> str:
    if value is None:
        return "null"
    match kind:
        case StructType():
            if isinstance(value, Mapping):
                value = [value.get(name) for name in kind.names]
            pairs = zip(kind.fields, value, strict=True)
            fields = ((each.name, each.dataType, part) for each, part in pairs if part is not None)
            return _write_object(fields)
        case ArrayType():
            return f"[{','.join(_write(kind.elementType, each) for each in value)}]"
        case MapType():
            items = value.items() if isinstance(value, Mapping) else value
            return _write_object((key, kind.valueType, each) for key, each in items)
        case _:
            return _find_single(kind)[0](kind, value)


def _write_object(fields: Iterable[tuple[str, DataType, Any]]) -> str:
    return f"{{{','.join(f'{_quote(name)}:{_write(kind, each)}' for name, kind, each in fields)}}}"


def _write_float(kind: DataType, value: float) -> str:
    """Return a number as Java 19 and later write it. It has the fewest digits, at least two, that
    distinguish it from others of its width. Below 1e-3 and from 1e7 on it has an exponent."""
    if not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    width = "<f" if isinstance(kind, FloatType) else "<d"
    bits = struct.pack(width, value)
    texts = (f"{value:.{digits}e}" for digits in range(1, 17))
    text = next(text for text in texts if _pack(width, float(text)) == bits)
    number, _, exponent = text.partition("e")
    if value and not -3 <= int(exponent) < 7:
        return f"{number}E{int(exponent)}"
    whole, _, rest = f"{Decimal(text):f}".partition(".")
    return f"{whole}.{rest.rstrip('0') or '0'}"


def _pack(width: str, value: float) -> bytes:
    try:
        return struct.pack(width, value)
    except OverflowError:  # rounded up beyond the greatest value
        return b""


def _quote(text: str) -> str:
    """Return a quoted text; escapes have capital hex digits, as in Jackson."""
    quoted = encode_basestring(text)
    return _ESCAPE.sub(lambda found: found[0][:2] + found[0][2:].upper(), quoted)


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
            return _find_single(kind)[1](kind, plain)


def _expect(kind: type, plain: object) -> None:
    if not isinstance(plain, kind):
        raise TypeError(f"JSON has a {type(plain).__name__}, not a {kind.__name__}")


Write = Callable[[DataType, Any], str]
Read = Callable[[DataType, Any], Any]

_SINGLE: tuple[tuple[tuple[type[DataType], ...], Write, Read], ...] = (
    ((BooleanType,), lambda _, value: "true" if value else "false", lambda _, plain: plain),
    ((IntegralType,), lambda _, value: str(int(value)), lambda _, plain: plain),
    ((FloatType, DoubleType), _write_float, lambda _, plain: float(plain)),
    ((StringType,), lambda _, value: _quote(value), lambda _, plain: plain),
    (
        (DecimalType,),
        lambda _, value: f'"{Decimal(value):f}"',
        lambda _, plain: Decimal(str(plain)),
    ),
    (
        (BinaryType,),
        lambda _, value: f'"{base64.b64encode(bytes(value)).decode()}"',
        lambda _, plain: base64.b64decode(plain, validate=True),
    ),
    (
        (DateType, TimestampType, TimestampNTZType),
        lambda kind, value: f'"{format_iso(kind, value)}"',
        lambda kind, plain: parse_iso(kind, str(plain)),
    ),
)


def _find_single(kind: DataType) -> tuple[Write, Read]:
    for kinds, write, read in _SINGLE:
        if isinstance(kind, kinds):
            return write, read
    raise InvalidRequestError("a type has no JSON", type=kind.simpleString())
