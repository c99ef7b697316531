"""Codecs of single values: text, bytes, numbers as HBase's `Bytes` writes them, dates and times."""

from __future__ import annotations

import re
import struct
import sys
from array import array
from collections.abc import Callable
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
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
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from txn.spark.codecs.base import Cells, Codec
from txn.spark.codecs.times import (
    count_days,
    count_micros,
    format_date,
    format_time,
    list_plain_values,
    parse_date,
    parse_time,
)

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_WHOLE = re.compile(rb"[+-]?[0-9]+")
_NUMBER = re.compile(
    rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|Infinity)|nan|NaN"
)


class Utf8Codec(Codec):
    name = "utf-8"
    accepts = (StringType,)
    keeps_order = is_text = True

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"not a text: {type(value).__name__}")
        return value.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()

    def encode_array(self, values: pa.Array) -> list[bytes | None]:
        cells: list[bytes | None] = values.cast(pa.binary()).to_pylist()
        return cells

    def decode_array(self, cells: Cells) -> pa.Array:
        return pa.array(cells, type=pa.binary()).cast(self.arrow)


class BinaryCodec(Codec):
    name = "binary"
    accepts = (BinaryType,)
    keeps_order = True

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"not bytes: {type(value).__name__}")
        return bytes(value)

    def decode(self, data: bytes) -> bytes:
        return data

    def encode_array(self, values: pa.Array) -> list[bytes | None]:
        cells: list[bytes | None] = values.to_pylist()
        return cells


class BooleanCodec(Codec):
    """-1 is true, as `Bytes.toBytes` has it; all but 0 are read as true, as `Bytes` does."""

    name = "boolean"
    accepts = (BooleanType,)
    width = 1

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, bool):
            raise TypeError(f"not a boolean: {type(value).__name__}")
        return b"\xff" if value else b"\0"

    def decode(self, data: bytes) -> bool:
        if len(data) != 1:
            raise ValueError(f"{len(data)} bytes, not 1")
        return data != b"\0"


class FixedCodec(Codec):
    """Numbers of some bytes, the first of them the highest."""

    letter: ClassVar[str]
    own: ClassVar[pa.DataType]

    def __init__(self, kind: DataType) -> None:
        super().__init__(kind)
        self.width = struct.calcsize(f">{self.letter}")

    def encode(self, value: Any) -> bytes:
        try:
            return struct.pack(f">{self.letter}", value)
        except (struct.error, OverflowError) as error:
            raise ValueError(f"{error}: {value!r}") from error

    def decode(self, data: bytes) -> Any:
        try:
            value = struct.unpack(f">{self.letter}", data)[0]
        except struct.error as error:
            raise ValueError(f"{len(data)} bytes, not {self.width}") from error
        return self.check_value(value)

    def encode_array(self, values: pa.Array) -> list[bytes | None]:
        if values.null_count:
            return super().encode_array(values)
        width = self.width or 1
        try:
            joined = struct.pack(f">{len(values)}{self.letter}", *values.to_pylist())
        except (struct.error, OverflowError) as error:
            raise ValueError(str(error)) from error
        return [joined[place : place + width] for place in range(0, len(joined), width)]

    def decode_array(self, cells: Cells) -> pa.Array:
        width = self.width
        for cell in cells:
            if cell is not None and len(cell) != width:
                raise ValueError(f"{len(cell)} bytes, not {width}")
        blank = bytes(width or 0)
        numbers = array(self.letter, b"".join([blank if cell is None else cell for cell in cells]))
        if sys.byteorder == "little":
            numbers.byteswap()
        found = pa.Array.from_buffers(self.own, len(cells), [None, pa.py_buffer(numbers)])
        if None in cells:
            found = pc.if_else(pa.array([cell is not None for cell in cells]), found, None)
        return found if self.own == self.arrow else found.cast(self.arrow)


class ByteCodec(FixedCodec):
    name, letter, own = "byte", "b", pa.int8()
    accepts = _INTEGERS


class ShortCodec(FixedCodec):
    name, letter, own = "short", "h", pa.int16()
    accepts = (ShortType, *_INTEGERS)


class IntCodec(FixedCodec):
    name, letter, own = "int", "i", pa.int32()
    accepts = (IntegerType, *_INTEGERS)


class LongCodec(FixedCodec):
    name, letter, own = "long", "q", pa.int64()
    accepts = (LongType, *_INTEGERS)


class FloatCodec(FixedCodec):
    name, letter, own = "float", "f", pa.float32()
    accepts = (FloatType,)


class DoubleCodec(FixedCodec):
    name, letter, own = "double", "d", pa.float64()
    accepts = (DoubleType,)


class TextCodec(Codec):
    """A number as its decimal text."""

    name = "text"
    accepts = (DecimalType, *_INTEGERS, FloatType, DoubleType)
    is_text = True

    def __init__(self, kind: DataType) -> None:
        super().__init__(kind)
        self._parse: Callable[[str], Any] = int
        if isinstance(kind, DecimalType):
            self._parse = Decimal
        elif isinstance(kind, FloatType | DoubleType):
            self._parse = float
        self._shape = _WHOLE if self._parse is int else _NUMBER

    def encode(self, value: Any) -> bytes:
        if self._parse is Decimal:
            return format(Decimal(value), "f").encode()
        if self._parse is int:
            return b"%d" % value
        return (f"{value:.9g}" if isinstance(self.kind, FloatType) else repr(float(value))).encode()

    def decode(self, data: bytes) -> Any:
        if not self._shape.fullmatch(data):
            raise ValueError("no number")
        return self.check_value(self._parse(data.decode()))

    def decode_array(self, cells: Cells) -> pa.Array:
        shape, parse = self._shape, self._parse
        if not all(cell is None or shape.fullmatch(cell) for cell in cells):
            raise ValueError("no number")
        values = [None if cell is None else parse(cell.decode()) for cell in cells]
        return pa.array(values, type=self.arrow)


class IsoCodec(Codec):
    """Dates and times as ISO 8601. An instant is written in UTC; one without an offset is UTC."""

    name = "iso"
    accepts = (TimestampType, TimestampNTZType, DateType)
    is_text = True

    def encode(self, value: Any) -> bytes:
        if isinstance(self.kind, DateType):
            return format_date(count_days(value)).encode()
        has_zone = isinstance(self.kind, TimestampType)
        text = format_time(count_micros(value, has_zone))
        return f"{text}Z".encode() if has_zone else text.encode()

    def encode_array(self, values: pa.Array) -> list[bytes | None]:
        return self.encode_values(list_plain_values(values))

    def decode(self, data: bytes) -> Any:
        return self.check_value(self.parse(data.decode()))

    def decode_array(self, cells: Cells) -> pa.Array:
        values = [None if cell is None else self.parse(cell.decode()) for cell in cells]
        return pa.array(values, type=self.arrow)

    def parse(self, text: str) -> int:
        """Return what Arrow takes for the value of a text: days, or microseconds."""
        if isinstance(self.kind, DateType):
            return parse_date(text)
        micros, has_zone = parse_time(text)
        if has_zone and isinstance(self.kind, TimestampNTZType):
            raise ValueError("a time without a zone has an offset")
        return micros


class MillisCodec(Codec):
    """An instant as the milliseconds since 1970, eight bytes, as HBase's own connector has it."""

    name = "millis"
    accepts = (TimestampType,)
    width = 8

    def encode(self, value: Any) -> bytes:
        return struct.pack(">q", count_micros(value, has_zone=True) // 1_000)

    def encode_array(self, values: pa.Array) -> list[bytes | None]:
        return self.encode_values(list_plain_values(values))

    def decode(self, data: bytes) -> Any:
        return self.decode_array([data])[0].as_py()

    def decode_array(self, cells: Cells) -> pa.Array:
        for cell in cells:
            if cell is not None and len(cell) != self.width:
                raise ValueError(f"{len(cell)} bytes, not {self.width}")
        values = [None if cell is None else struct.unpack(">q", cell)[0] * 1_000 for cell in cells]
        return pa.array(values, type=self.arrow)
