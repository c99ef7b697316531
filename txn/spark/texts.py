"""Text of Spark's values: dates and times as ISO 8601, nested values as JSON.

Instants and times without a zone are microseconds since 1970, dates are days. Spark's years exceed
Python's: the last second of 9999 in New York is in the year 10000 of UTC. So whole numbers from
Arrow become text and back without Python dates. A year that does not have four digits has a sign,
as in ISO 8601 and Java's `Instant`.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from ctypes import c_double, c_float
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa
from pyspark.sql import types

from txn.errors import InvalidRequestError

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_DAY = timedelta(days=1) // _MICROSECOND
_CYCLE_YEARS, _CYCLE = 400, timedelta(days=146_097) // _MICROSECOND  # the calendar repeats
_LEAST, _MOST = ((each - _EPOCH) // _MICROSECOND for each in (datetime.min, datetime.max))
_BEYOND = re.compile(r"([+-][0-9]{4,6}|0000)(-.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u[0-9a-f]{4}|.)")

TIMES = (types.TimestampType, types.TimestampNTZType, types.DateType, types.TimeType)
Write = Callable[[types.DataType, Any], str]
Read = Callable[[types.DataType, Any], Any]


def list_plain_values(values: pa.Array) -> list[Any]:
    """Return the values of a column, which may be nested, with instants, timestamps without a zone
    and intervals as microseconds, dates as days and times of day as nanoseconds."""
    found: list[Any] = values.cast(_count_times(values.type)).to_pylist()
    return found


def _count_times(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time64(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_count_times(field.type)) for field in kind])
    if pa.types.is_map(kind):
        item = kind.item_field
        return pa.map_(kind.key_field, item.with_type(_count_times(item.type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_count_times(kind.value_type)))
    return kind


def count_micros(value: datetime | int, has_zone: bool) -> int:
    """Return the microseconds of an instant (local if naive) or a time without a zone."""
    if isinstance(value, int):
        return value
    if not has_zone:
        return (value - _EPOCH) // _MICROSECOND
    if value.tzinfo is None:
        return int(value.replace(microsecond=0).timestamp()) * 1_000_000 + value.microsecond
    return (value - _EPOCH.replace(tzinfo=UTC)) // _MICROSECOND


def format_iso(kind: types.DataType, value: Any) -> str:
    """Return a date or time of this type, or its whole number, as ISO 8601; instants in UTC."""
    if isinstance(kind, types.TimeType):
        if isinstance(value, int):
            value = (datetime.min + value // 1_000 * _MICROSECOND).time()
        return str(value.isoformat())
    if isinstance(kind, types.DateType):
        days = value if isinstance(value, int) else (value - _EPOCH.date()).days
        return _format_micros(days * _DAY).partition("T")[0]
    has_zone = isinstance(kind, types.TimestampType)
    return _format_micros(count_micros(value, has_zone)) + ("Z" if has_zone else "")


def parse_iso(kind: types.DataType, text: str) -> int:
    """Return days, microseconds, or nanoseconds of a day; a text without an offset is in UTC."""
    if isinstance(kind, types.TimeType):
        moment = time.fromisoformat(text)
        if moment.tzinfo is not None:
            raise ValueError("a time of day has an offset")
        return (datetime.combine(datetime.min, moment) - datetime.min) // _MICROSECOND * 1_000
    cycles = 0
    if beyond := _BEYOND.fullmatch(text):
        cycles, year = divmod(int(beyond[1]) - 1, _CYCLE_YEARS)
        text = f"{year + 1:04d}{beyond[2]}"
    if isinstance(kind, types.DateType):
        return (date.fromisoformat(text) - _EPOCH.date()).days + cycles * (_CYCLE // _DAY)
    value = datetime.fromisoformat(text)
    offset = value.utcoffset()
    if offset is not None and isinstance(kind, types.TimestampNTZType):
        raise ValueError("a time without a zone has an offset")
    local = (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    return local + cycles * _CYCLE - (offset or timedelta()) // _MICROSECOND


def _format_micros(micros: int) -> str:
    cycles = 0 if _LEAST <= micros <= _MOST else (micros - _LEAST) // _CYCLE
    text = (_EPOCH + (micros - cycles * _CYCLE) * _MICROSECOND).isoformat()
    year = int(text[:4]) + cycles * _CYCLE_YEARS
    return f"{year:04d}{text[4:]}" if 0 <= year < 10_000 else f"{year:+05d}{text[4:]}"


def check_json(kind: types.DataType) -> None:
    match kind:
        case types.StructType():
            for field in kind.fields:
                check_json(field.dataType)
        case types.ArrayType():
            check_json(kind.elementType)
        case types.MapType() if isinstance(kind.keyType, types.StringType):
            check_json(kind.valueType)
        case _:
            _find_single(kind)


def write_json(kind: types.DataType, value: Any) -> str:
    """Return JSON as Spark's `to_json` writes it, without null fields, with bytes as base64 and
    numbers as in Java. But decimals are text, since others read numbers as doubles; and times have
    their microseconds, which `to_json` drops."""
    if value is None:
        return "null"
    match kind:
        case types.StructType():
            if isinstance(value, Mapping):
                value = [value.get(name) for name in kind.names]
            pairs = zip(kind.fields, value, strict=True)
            return _write_object(
                (field.name, write_json(field.dataType, part))
                for field, part in pairs
                if part is not None
            )
        case types.ArrayType():
            return f"[{','.join(write_json(kind.elementType, each) for each in value)}]"
        case types.MapType():
            items = value.items() if isinstance(value, Mapping) else value
            return _write_object((key, write_json(kind.valueType, each)) for key, each in items)
        case _:
            return _find_single(kind)[0](kind, value)


def _write_object(fields: Iterable[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{_quote(name)}:{text}" for name, text in fields) + "}"


def _write_float(kind: types.DataType, value: float) -> str:
    """Return a number as Java 19 and later write it. It has the fewest digits, at least two, that
    distinguish it from others of its width. Below 1e-3 and from 1e7 on it has an exponent."""
    if not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    narrow = c_float if isinstance(kind, types.FloatType) else c_double
    texts = (f"{value:.{digits}e}" for digits in range(1, 17))
    text = next(text for text in texts if narrow(float(text)).value == narrow(value).value)
    number, _, exponent = text.partition("e")
    if value and not -3 <= int(exponent) < 7:
        return f"{number}E{int(exponent)}"
    whole, _, rest = f"{Decimal(text):f}".partition(".")
    return f"{whole}.{rest.rstrip('0') or '0'}"


def _quote(text: str) -> str:
    """Return a quoted text; escapes have capital hex digits, as in Jackson."""
    quoted = encode_basestring(text)
    return _ESCAPE.sub(lambda found: found[0][:2] + found[0][2:].upper(), quoted)


def parse_json(kind: types.DataType, text: bytes) -> Any:
    return _from_plain(kind, json.loads(text, parse_float=Decimal))


def _from_plain(kind: types.DataType, plain: Any) -> Any:
    if plain is None:
        return None
    match kind:
        case types.StructType():
            _expect(dict, plain)
            return {
                field.name: _from_plain(field.dataType, plain.get(field.name))
                for field in kind.fields
            }
        case types.ArrayType():
            _expect(list, plain)
            return [_from_plain(kind.elementType, each) for each in plain]
        case types.MapType():
            _expect(dict, plain)
            return [(key, _from_plain(kind.valueType, each)) for key, each in plain.items()]
        case _:
            return _find_single(kind)[1](kind, plain)


def _expect(kind: type, plain: object) -> None:
    if not isinstance(plain, kind):
        raise TypeError(f"JSON has a {type(plain).__name__}, not a {kind.__name__}")


_SINGLE: tuple[tuple[tuple[type[types.DataType], ...], Write, Read], ...] = (
    ((types.BooleanType,), lambda _, value: "true" if value else "false", lambda _, plain: plain),
    ((types.IntegralType,), lambda _, value: str(int(value)), lambda _, plain: plain),
    ((types.FloatType, types.DoubleType), _write_float, lambda _, plain: float(plain)),
    ((types.StringType,), lambda _, value: _quote(value), lambda _, plain: plain),
    (
        (types.DecimalType,),
        lambda _, value: f'"{Decimal(value):f}"',
        lambda _, plain: Decimal(str(plain)),
    ),
    (
        (types.BinaryType,),
        lambda _, value: f'"{base64.b64encode(bytes(value)).decode()}"',
        lambda _, plain: base64.b64decode(plain, validate=True),
    ),
    (
        TIMES,
        lambda kind, value: f'"{format_iso(kind, value)}"',
        lambda kind, plain: parse_iso(kind, str(plain)),
    ),
)


def _find_single(kind: types.DataType) -> tuple[Write, Read]:
    for kinds, write, read in _SINGLE:
        if isinstance(kind, kinds):
            return write, read
    raise InvalidRequestError("a type has no JSON", type=kind.simpleString())
