"""Instants and times without a zone as microseconds since 1970, dates as days, all as ISO 8601.

Spark's years exceed Python's: the last second of 9999 in New York is in the year 10000 of UTC. So
whole numbers from Arrow become text and back without Python dates. A year that does not have four
digits has a sign, as in ISO 8601 and Java's `Instant`.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType, DateType, TimestampNTZType, TimestampType

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_DAY = timedelta(days=1) // _MICROSECOND
_CYCLE_YEARS, _CYCLE = 400, timedelta(days=146_097) // _MICROSECOND  # the calendar repeats
_LEAST, _MOST = ((each - _EPOCH) // _MICROSECOND for each in (datetime.min, datetime.max))
_BEYOND = re.compile(r"([+-][0-9]{4,6}|0000)(-.*)", re.DOTALL)


def list_plain_values(values: pa.Array) -> list[Any]:
    """Return the values of a column, which may be nested, with instants and times without a zone as
    microseconds and dates as days."""
    found: list[Any] = values.cast(_count_times(values.type)).to_pylist()
    return found


def _count_times(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
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
    """Return the microseconds of an instant (local if naive, as in PySpark) or a time without a
    zone."""
    if isinstance(value, int):
        return value
    if not has_zone:
        return (value - _EPOCH) // _MICROSECOND
    if value.tzinfo is None:
        return int(value.replace(microsecond=0).timestamp()) * 1_000_000 + value.microsecond
    return (value - _EPOCH.replace(tzinfo=UTC)) // _MICROSECOND


def format_iso(kind: DataType, value: Any) -> str:
    """Return a date or time of this type, or its whole number, as ISO 8601; instants in UTC."""
    if isinstance(kind, DateType):
        days = value if isinstance(value, int) else (value - _EPOCH.date()).days
        return _format_micros(days * _DAY).partition("T")[0]
    has_zone = isinstance(kind, TimestampType)
    return _format_micros(count_micros(value, has_zone)) + ("Z" if has_zone else "")


def parse_iso(kind: DataType, text: str) -> int:
    """Return the days or microseconds of an ISO 8601 text; without an offset it is in UTC."""
    cycles = 0
    if beyond := _BEYOND.fullmatch(text):
        cycles, year = divmod(int(beyond[1]) - 1, _CYCLE_YEARS)
        text = f"{year + 1:04d}{beyond[2]}"
    if isinstance(kind, DateType):
        return (date.fromisoformat(text) - _EPOCH.date()).days + cycles * (_CYCLE // _DAY)
    value = datetime.fromisoformat(text)
    offset = value.utcoffset()
    if offset is not None and isinstance(kind, TimestampNTZType):
        raise ValueError("a time without a zone has an offset")
    local = (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    return local + cycles * _CYCLE - (offset or timedelta()) // _MICROSECOND


def _format_micros(micros: int) -> str:
    cycles = 0 if _LEAST <= micros <= _MOST else (micros - _LEAST) // _CYCLE
    text = (_EPOCH + (micros - cycles * _CYCLE) * _MICROSECOND).isoformat()
    year = int(text[:4]) + cycles * _CYCLE_YEARS
    return f"{year:04d}{text[4:]}" if 0 <= year < 10_000 else f"{year:+05d}{text[4:]}"
