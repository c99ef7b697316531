"""Codecs: conversions between the value of a column and the bytes of a cell.

A codec is made for one Spark type. Numbers have the bytes of HBase's `Bytes.toBytes`, which Java
and the Spark connectors of HBase expect. An absent cell is None and never reaches a codec. Whole
columns are converted as Arrow arrays.
"""

from __future__ import annotations

import importlib
import inspect
import re
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from txn.errors import InvalidRequestError
from txn.spark import texts

Cells = Sequence[bytes | None]
"""The cells of a column, None for each absent one."""

NESTED = (types.StructType, types.ArrayType, types.MapType)
DEFAULT_CODECS: dict[type[types.DataType], str] = {
    types.StringType: "utf-8",
    types.ByteType: "byte",
    types.ShortType: "short",
    types.IntegerType: "int",
    types.LongType: "long",
    types.FloatType: "float",
    types.DoubleType: "double",
    types.BooleanType: "boolean",
    types.BinaryType: "binary",
    types.DecimalType: "text",
    **dict.fromkeys(texts.TIMES, "iso"),
    types.DayTimeIntervalType: "long",
    **dict.fromkeys(NESTED, "json"),
}
"""The default codec of each type. Numbers have the bytes that HBase's own connector and SHC write;
dates and times are text; nested values are JSON."""

NUMBERS: dict[str, tuple[str, pa.DataType]] = {
    "byte": ("b", pa.int8()),
    "short": ("h", pa.int16()),
    "int": ("i", pa.int32()),
    "long": ("q", pa.int64()),
    "float": ("f", pa.float32()),
    "double": ("d", pa.float64()),
}
"""The numbers of a fixed width: the format characters of `struct` and their Arrow types."""

_ZONE: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)
_INTEGERS = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
_WHOLE = re.compile(rb"[+-]?[0-9]+")
_NUMBER = re.compile(
    rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|Infinity)|nan|NaN"
)


def arrow_schema(schema: types.StructType) -> pa.Schema:
    """Return the exact schema that Spark requires of record batches."""
    return to_arrow_schema(schema, **_ZONE)


class Codec:
    """Encode the values of a column as cells, and decode them. Bad input raises ValueError,
    TypeError or one of Arrow's errors; the caller adds the cell. A codec can be pickled."""

    is_text = False
    """Whether the bytes are text, which may stand beside a separator in a row key."""
    width: int | None = None
    """The number of bytes of each value, if it is fixed."""

    def __init__(self, name: str, kind: types.DataType) -> None:
        self.name = name
        self.kind = kind
        self.arrow = arrow_schema(types.StructType().add("value", kind)).field(0).type

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.kind)

    def encode(self, value: Any) -> bytes:
        """Return the cell of a value that is not None. Times may be whole numbers, as in Arrow."""
        raise NotImplementedError

    def decode(self, cell: bytes) -> Any:
        """Return the value of a cell in a form that Arrow accepts."""
        raise NotImplementedError

    def encode_array(self, values: pa.Array) -> list[bytes | None]:
        encode = self.encode
        return [
            None if value is None else encode(value) for value in texts.list_plain_values(values)
        ]

    def decode_array(self, cells: Cells) -> pa.Array:
        decode = self.decode
        return pa.array([None if cell is None else decode(cell) for cell in cells], self.arrow)

    def check_width(self, cell: bytes) -> None:
        if len(cell) != self.width:
            raise ValueError(f"{len(cell)} bytes, not {self.width}")


class BytesCodec(Codec):
    """Bytes, or text as UTF-8, which sort as Spark compares them unless text has a collation."""

    def __init__(self, name: str, kind: types.DataType) -> None:
        super().__init__(name, kind)
        self.is_text = isinstance(kind, types.StringType)

    def encode(self, value: Any) -> bytes:
        wanted = str if self.is_text else bytes | bytearray | memoryview
        if not isinstance(value, wanted):
            raise TypeError(f"not {'a text' if self.is_text else 'bytes'}: {type(value).__name__}")
        return value.encode() if isinstance(value, str) else bytes(value)

    def encode_array(self, values: pa.Array) -> list[bytes | None]:
        cells: list[bytes | None] = values.cast(pa.binary()).to_pylist()
        return cells

    def decode_array(self, cells: Cells) -> pa.Array:
        return pa.array(cells, type=pa.binary()).cast(self.arrow)


class BooleanCodec(Codec):
    """Booleans as in `Bytes`: true is written as -1, and every value except 0 is read as true."""

    width = 1

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, bool):
            raise TypeError(f"not a boolean: {type(value).__name__}")
        return b"\xff" if value else b"\0"

    def decode(self, cell: bytes) -> bool:
        self.check_width(cell)
        return cell != b"\0"


class NumberCodec(Codec):
    """Numbers of a fixed width, big-endian. An interval of days to seconds is its microseconds."""

    def __init__(self, name: str, kind: types.DataType) -> None:
        super().__init__(name, kind)
        self._letter, self._own = NUMBERS[name]
        self.width = struct.calcsize(f">{self._letter}")

    def encode(self, value: Any) -> bytes:
        return self._pack(self._letter, value)

    def encode_array(self, values: pa.Array) -> list[bytes | None]:
        if values.null_count:
            return super().encode_array(values)
        width = self.width or 1
        joined = self._pack(f"{len(values)}{self._letter}", *texts.list_plain_values(values))
        return [joined[place : place + width] for place in range(0, len(joined), width)]

    def decode_array(self, cells: Cells) -> pa.Array:
        for cell in cells:
            if cell is not None:
                self.check_width(cell)
        blank = bytes(self.width or 0)
        numbers = array(self._letter, b"".join(blank if cell is None else cell for cell in cells))
        if sys.byteorder == "little":
            numbers.byteswap()
        found = pa.Array.from_buffers(self._own, len(cells), [None, pa.py_buffer(numbers)])
        if None in cells:
            found = pc.if_else(pa.array([cell is not None for cell in cells]), found, None)
        return found if self._own == self.arrow else found.cast(self.arrow)

    def _pack(self, letters: str, *values: Any) -> bytes:
        try:
            return struct.pack(f">{letters}", *values)
        except (struct.error, OverflowError) as error:
            raise ValueError(str(error)) from error


class TextCodec(Codec):
    """A number, or an interval's microseconds, as decimal text."""

    is_text = True

    def __init__(self, name: str, kind: types.DataType) -> None:
        super().__init__(name, kind)
        self._number: Callable[[str], Any] = int
        if isinstance(kind, types.DecimalType):
            self._number = Decimal
        elif isinstance(kind, types.FloatType | types.DoubleType):
            self._number = float
        self._shape = _WHOLE if self._number is int else _NUMBER

    def encode(self, value: Any) -> bytes:
        if self._number is Decimal:
            return format(Decimal(value), "f").encode()
        if self._number is int:
            return b"%d" % value
        is_narrow = isinstance(self.kind, types.FloatType)
        return (f"{value:.9g}" if is_narrow else repr(float(value))).encode()

    def decode(self, cell: bytes) -> Any:
        if not self._shape.fullmatch(cell):
            raise ValueError("no number")
        return self._number(cell.decode())


class IsoCodec(Codec):
    """Dates and times as ISO 8601. An instant is written in UTC; one without an offset is UTC."""

    is_text = True

    def encode(self, value: Any) -> bytes:
        return texts.format_iso(self.kind, value).encode()

    def decode(self, cell: bytes) -> int:
        return texts.parse_iso(self.kind, cell.decode())


class MillisCodec(Codec):
    """An instant as eight bytes of milliseconds since 1970, as in HBase's own connector."""

    width = 8

    def encode(self, value: Any) -> bytes:
        return struct.pack(">q", texts.count_micros(value, has_zone=True) // 1_000)

    def decode(self, cell: bytes) -> int:
        self.check_width(cell)
        return int.from_bytes(cell, signed=True) * 1_000


class JsonCodec(Codec):
    """Structs, arrays and maps as JSON: see `write_json`."""

    def __init__(self, name: str, kind: types.DataType) -> None:
        super().__init__(name, kind)
        texts.check_json(kind)

    def encode(self, value: Any) -> bytes:
        return texts.write_json(self.kind, value).encode()

    def decode(self, cell: bytes) -> Any:
        return texts.parse_json(self.kind, cell)


class ImportedCodec(Codec):
    """A user's codec by its import path, with `encode(value) -> bytes` and `decode(bytes)`."""

    def __init__(self, name: str, kind: types.DataType) -> None:
        super().__init__(name, kind)
        module, _, attribute = name.partition(":")
        try:
            self._inner = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            problem = "codec cannot be imported"
            raise InvalidRequestError(problem, codec=name, cause=str(error)) from error
        if not (hasattr(self._inner, "encode") and hasattr(self._inner, "decode")):
            raise InvalidRequestError("codec has no encode or no decode", codec=name)

    def encode(self, value: Any) -> bytes:
        cell = self._inner.encode(value)
        if not isinstance(cell, bytes):
            raise TypeError(f"the codec made no bytes: {type(cell).__name__}")
        return cell

    def encode_array(self, values: pa.Array) -> list[bytes | None]:
        return [None if value is None else self.encode(value) for value in values.to_pylist()]

    def decode(self, cell: bytes) -> Any:
        return self._inner.decode(cell)


CODECS: dict[str, tuple[type[Codec], tuple[type[types.DataType], ...]]] = {
    "utf-8": (BytesCodec, (types.StringType,)),
    "byte": (NumberCodec, _INTEGERS),
    "short": (NumberCodec, (types.ShortType, *_INTEGERS)),
    "int": (NumberCodec, (types.IntegerType, *_INTEGERS)),
    "long": (NumberCodec, (types.LongType, *_INTEGERS, types.DayTimeIntervalType)),
    "float": (NumberCodec, (types.FloatType,)),
    "double": (NumberCodec, (types.DoubleType,)),
    "boolean": (BooleanCodec, (types.BooleanType,)),
    "binary": (BytesCodec, (types.BinaryType,)),
    "text": (TextCodec, (types.NumericType, types.DayTimeIntervalType)),
    "iso": (IsoCodec, texts.TIMES),
    "millis": (MillisCodec, (types.TimestampType,)),
    "json": (JsonCodec, NESTED),
}
"""The codecs by their names in options, and the Spark types that each accepts. The first type is
implied by the name of a codec of numbers, or of a single type."""


def name_codec(kind: types.DataType, column: str) -> str:
    """Return the default codec of a type, or raise InvalidRequestError if it has none."""
    for each, name in DEFAULT_CODECS.items():
        if isinstance(kind, each):
            return name
    raise InvalidRequestError(
        "no codec for this type: cast the column (an interval of months to int), or name a codec",
        column=column,
        type=kind.simpleString(),
    )


def make_codec(name: str, kind: types.DataType, column: str) -> Codec:
    """Return the codec with this name or import path, for a column of this type."""
    if ":" in name:
        return ImportedCodec(name, kind)
    if name not in CODECS:
        raise InvalidRequestError("unknown codec", codec=name, column=column, known=[*CODECS])
    codec, accepted = CODECS[name]
    if not isinstance(kind, accepted):
        problem = "codec is not for this type"
        raise InvalidRequestError(problem, codec=name, column=column, type=kind.simpleString())
    return codec(name, kind)


def type_of_codec(name: str) -> types.DataType | None:
    """Return the type that a codec's name implies, or None if the codec accepts several types."""
    codec, accepted = CODECS.get(name, (Codec, ()))
    return accepted[0]() if codec is NumberCodec or len(accepted) == 1 else None
