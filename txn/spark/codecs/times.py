"""Instants and times without a zone as microseconds since 1970, dates as days, all as ISO 8601.

Spark has more years than Python: the last second of 9999 in New York is in the year 10000 of UTC.
So values go as whole numbers from Arrow to text and back. A year that has not four digits has a
sign, as ISO 8601 and Java's `Instant` write it.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_DAY = timedelta(days=1) // _MICROSECOND
_YEARS, _IN_THEM = 400, timedelta(days=146_097) // _MICROSECOND  # after which dates come again
_LEAST, _MOST = ((each - _EPOCH) // _MICROSECOND for each in (datetime.min, datetime.max))
_BEYOND = re.compile(r"([+-][0-9]{4,6}|0000)(-.*)", re.DOTALL)


def list_plain_values(values: pa.Array) -> list[Any]:
    """Return the values of a column, also of a nested one: instants, and times without a zone, as
    microseconds, and dates as days."""
    found: list[Any] = values.cast(_count_times(values.type)).to_pylist()
    return found


def _count_times(kind: pa.DataType) -> pa.DataType:
    """Return a type with whole numbers in place of instants, times and dates."""
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
    """Return the microseconds of an instant, or of a time without a zone. A naive instant is local,
    as it is everywhere in PySpark."""
    if isinstance(value, int):
        return value
    if not has_zone:
        return (value - _EPOCH) // _MICROSECOND
    if value.tzinfo is None:
        return int(value.replace(microsecond=0).timestamp()) * 1_000_000 + value.microsecond
    return (value - _EPOCH.replace(tzinfo=UTC)) // _MICROSECOND


def count_days(value: date | int) -> int:
    """Return the days of a date."""
    return value if isinstance(value, int) else (value - _EPOCH.date()).days


def format_date(days: int) -> str:
    """Return a date as ISO 8601."""
    return format_time(days * _DAY).partition("T")[0]


def parse_date(text: str) -> int:
    """Return the days of an ISO 8601 text; ValueError."""
    cycles, text = _split_cycles(text)
    return count_days(date.fromisoformat(text)) + cycles * (_IN_THEM // _DAY)


def format_time(micros: int) -> str:
    """Return a time as ISO 8601."""
    cycles = 0 if _LEAST <= micros <= _MOST else (micros - _LEAST) // _IN_THEM
    text = (_EPOCH + (micros - cycles * _IN_THEM) * _MICROSECOND).isoformat()
    year = int(text[:4]) + cycles * _YEARS
    return f"{year:04d}{text[4:]}" if 0 <= year < 10_000 else f"{year:+05d}{text[4:]}"


def parse_time(text: str) -> tuple[int, bool]:
    """Return the microseconds of an ISO 8601 text, and whether it had a zone; ValueError."""
    cycles, text = _split_cycles(text)
    value = datetime.fromisoformat(text)
    micros = (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    shift = value.utcoffset()
    return micros + cycles * _IN_THEM - (shift or timedelta()) // _MICROSECOND, shift is not None


def _split_cycles(text: str) -> tuple[int, str]:
    """Return a text with a year that Python knows, and how many cycles it is off."""
    beyond = _BEYOND.fullmatch(text)
    if beyond is None:
        return 0, text
    cycles, year = divmod(int(beyond[1]) - 1, _YEARS)
    return cycles, f"{year + 1:04d}{beyond[2]}"
