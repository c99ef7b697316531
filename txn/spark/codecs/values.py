"""The contract of a codec, and codecs of text, bytes, numbers (as in HBase's `Bytes`) and times."""

from __future__ import annotations

import inspect
import re
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
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
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from txn.spark.codecs.times import count_micros, format_iso, list_plain_values, parse_iso

Cells = Sequence[bytes | None]
"""The cells of a column, None for each absent one."""

_ZONE: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)
_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_WHOLE = re.compile(rb"[+-]?[0-9]+")
_NUMBER = re.compile(
    rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|Infinity)|nan|NaN"
)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the exact schema that Spark requires of record batches."""
    return to_arrow_schema(schema, **_ZONE)


class Codec:
    """Encode the values of a column as cells, and decode them. Bad input raises ValueError,
    TypeError or one of Arrow's errors; the caller adds the cell. A codec can be pickled."""

    name: str
    accepts: ClassVar[tuple[type[DataType], ...]]
    """The Spark types that it supports; the first is the default where a mapping names no type."""
    defaults: ClassVar[int] = 1
    """The number of leading types in `accepts` for which it is the default codec."""
    has_one_type: ClassVar[bool] = True
    """Whether its name implies the type of a column."""
    keeps_order: ClassVar[bool] = False
    """Whether the order of the bytes is Spark's order of the values."""
    is_text: ClassVar[bool] = False
    """Whether the bytes are text, which may stand beside a separator in a row key."""
    width: int | None = None
    """The number of bytes of each value, if it is fixed."""

    def __init__(self, kind: DataType) -> None:
        self.kind = kind
        self.arrow = arrow_schema(StructType([StructField("value", kind)])).field(0).type

    def encode(self, value: Any) -> bytes:
        """Return the cell of a value that is not None. Times may be whole numbers, as in Arrow."""
        raise NotImplementedError

    def decode(self, cell: bytes) -> Any:
        """Return the value of a cell in a form that Arrow accepts."""
        raise NotImplementedError

    def encode_array(self, values: pa.Array) -> list[bytes | None]:
        encode = self.encode
        return [None if value is None else encode(value) for value in list_plain_values(values)]

    def decode_array(self, cells: Cells) -> pa.Array:
        decode = self.decode
        return pa.array([None if cell is None else decode(cell) for cell in cells], self.arrow)

    def check_width(self, cell: bytes) -> None:
        if len(cell) != self.width:
            raise ValueError(f"{len(cell)} bytes, not {self.width}")


class BinaryCodec(Codec):
    name = "binary"
    accepts: ClassVar[tuple[type[DataType], ...]] = (BinaryType,)
    keeps_order = True

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"not bytes: {type(value).__name__}")
        return bytes(value)

    def encode_array(self, values: pa.Array) -> list[bytes | None]:
        cells: list[bytes | None] = values.cast(pa.binary()).to_pylist()
        return cells

    def decode_array(self, cells: Cells) -> pa.Array:
        return pa.array(cells, type=pa.binary()).cast(self.arrow)


class Utf8Codec(BinaryCodec):
    name = "utf-8"
    accepts = (StringType,)
    is_text = True

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"not a text: {type(value).__name__}")
        return value.encode()


class BooleanCodec(Codec):
    """Booleans as in `Bytes`: true is written as -1, and every value except 0 is read as true."""

    name = "boolean"
    accepts = (BooleanType,)
    width = 1

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, bool):
            raise TypeError(f"not a boolean: {type(value).__name__}")
        return b"\xff" if value else b"\0"

    def decode(self, cell: bytes) -> bool:
        self.check_width(cell)
        return cell != b"\0"


class FixedCodec(Codec):
    """Numbers of a fixed width, big-endian."""

    letter: ClassVar[str]
    own: ClassVar[pa.DataType]

    def __init__(self, kind: DataType) -> None:
        super().__init__(kind)
        self.width = struct.calcsize(f">{self.letter}")

    def encode(self, value: Any) -> bytes:
        return self._pack(self.letter, value)

    def encode_array(self, values: pa.Array) -> list[bytes | None]:
        if values.null_count:
            return super().encode_array(values)
        width = self.width or 1
        joined = self._pack(f"{len(values)}{self.letter}", *values.to_pylist())
        return [joined[place : place + width] for place in range(0, len(joined), width)]

    def decode_array(self, cells: Cells) -> pa.Array:
        for cell in cells:
            if cell is not None:
                self.check_width(cell)
        blank = bytes(self.width or 0)
        numbers = array(self.letter, b"".join([blank if cell is None else cell for cell in cells]))
        if sys.byteorder == "little":
            numbers.byteswap()
        found = pa.Array.from_buffers(self.own, len(cells), [None, pa.py_buffer(numbers)])
        if None in cells:
            found = pc.if_else(pa.array([cell is not None for cell in cells]), found, None)
        return found if self.own == self.arrow else found.cast(self.arrow)

    def _pack(self, letters: str, *values: Any) -> bytes:
        try:
            return struct.pack(f">{letters}", *values)
        except (struct.error, OverflowError) as error:
            raise ValueError(str(error)) from error


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
    has_one_type = False
    accepts = (DecimalType, *_INTEGERS, FloatType, DoubleType)
    is_text = True

    def __init__(self, kind: DataType) -> None:
        super().__init__(kind)
        self._number: Callable[[str], Any] = int
        if isinstance(kind, DecimalType):
            self._number = Decimal
        elif isinstance(kind, FloatType | DoubleType):
            self._number = float
        self._shape = _WHOLE if self._number is int else _NUMBER

    def encode(self, value: Any) -> bytes:
        if self._number is Decimal:
            return format(Decimal(value), "f").encode()
        if self._number is int:
            return b"%d" % value
        return (f"{value:.9g}" if isinstance(self.kind, FloatType) else repr(float(value))).encode()

    def decode(self, cell: bytes) -> Any:
        if not self._shape.fullmatch(cell):
            raise ValueError("no number")
        return self._number(cell.decode())


class IsoCodec(Codec):
    """Dates and times as ISO 8601. An instant is written in UTC; one without an offset is UTC."""

    name = "iso"
    defaults, has_one_type = 3, False
    accepts = (TimestampType, TimestampNTZType, DateType)
    is_text = True

    def encode(self, value: Any) -> bytes:
        return format_iso(self.kind, value).encode()

    def decode(self, cell: bytes) -> int:
        return parse_iso(self.kind, cell.decode())


class MillisCodec(Codec):
    """An instant as eight bytes of milliseconds since 1970, as in HBase's own connector."""

    name = "millis"
    defaults = 0
    accepts = (TimestampType,)
    width = 8

    def encode(self, value: Any) -> bytes:
        return struct.pack(">q", count_micros(value, has_zone=True) // 1_000)

    def decode(self, cell: bytes) -> int:
        self.check_width(cell)
        return int.from_bytes(cell, signed=True) * 1_000
