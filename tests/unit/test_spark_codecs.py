"""What is written is what other readers of HBase expect, and what is read is checked."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
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
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from txn import InvalidRequestError
from txn.spark.codecs import CODECS, Codec, make_codec, name_codec

pytestmark = pytest.mark.fast

NOON = datetime(2024, 2, 29, 12, 30, 15, 123456, UTC)
NESTED = StructType(
    [
        StructField("a", ArrayType(LongType())),
        StructField("m", MapType(StringType(), DoubleType())),
        StructField("d", DecimalType(10, 2)),
        StructField("t", TimestampType()),
        StructField("b", BinaryType()),
        StructField("none", StringType()),
    ]
)

# As HBase's Bytes writes them: big-endian two's complement, IEEE 754 bits, -1 for true.
CASES: list[tuple[str, DataType, Any, bytes]] = [
    ("utf-8", StringType(), "grüße", "grüße".encode()),
    ("byte", ByteType(), -2, b"\xfe"),
    ("short", ShortType(), -2, b"\xff\xfe"),
    ("int", IntegerType(), 258, b"\0\0\1\2"),
    ("int", LongType(), -1, b"\xff\xff\xff\xff"),
    ("long", LongType(), -(2**63), b"\x80" + bytes(7)),
    ("long", IntegerType(), 258, bytes(6) + b"\1\2"),
    ("float", FloatType(), 1.5, b"\x3f\xc0\0\0"),
    ("double", DoubleType(), -2.0, b"\xc0" + bytes(7)),
    ("boolean", BooleanType(), True, b"\xff"),
    ("boolean", BooleanType(), False, b"\0"),
    ("binary", BinaryType(), b"\0\xff", b"\0\xff"),
    ("text", IntegerType(), -7, b"-7"),
    ("text", DecimalType(10, 2), Decimal("-1.50"), b"-1.50"),
    ("text", DecimalType(38, 0), Decimal("1E+3"), b"1000"),
    ("text", DoubleType(), 0.1, b"0.1"),
    ("text", FloatType(), pa.scalar(0.1, pa.float32()).as_py(), b"0.100000001"),
    ("iso", DateType(), date(2024, 2, 29), b"2024-02-29"),
    ("iso", TimestampType(), NOON, b"2024-02-29T12:30:15.123456Z"),
    ("iso", TimestampNTZType(), NOON.replace(tzinfo=None), b"2024-02-29T12:30:15.123456"),
    ("millis", TimestampType(), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), bytes(6) + b"\3\xe8"),
    ("json", ArrayType(StringType()), ["a", None], b'["a",null]'),
]


def codec_of(name: str, kind: DataType) -> Codec:
    return make_codec(name, kind, "c")


@pytest.mark.parametrize(("name", "kind", "value", "data"), CASES)
def test_a_value_is_the_bytes_that_others_write(
    name: str, kind: DataType, value: Any, data: bytes
) -> None:
    """Java programs read the same cells; a value and a whole column go different ways."""
    codec = codec_of(name, kind)
    column = pa.array([None, value, value], type=codec.arrow)
    assert codec.encode(value) == data
    assert codec.decode(data) == value
    assert codec.encode_array(column) == [None, data, data]
    assert codec.encode_array(column[1:]) == [data, data]
    assert codec.decode_array([None, data, data]).equals(column)
    assert codec.decode_array([data]).equals(column[1:2])
    assert pickle.loads(pickle.dumps(codec)).encode(value) == data


@pytest.mark.parametrize("name", CODECS)
def test_every_codec_has_a_case(name: str) -> None:
    """One that is not here would be tried first by a user."""
    assert name in {case[0] for case in CASES}


def test_no_cells_are_an_empty_column() -> None:
    """The last batch of a partition may be empty."""
    for name, kind, _, _ in CASES:
        column = codec_of(name, kind).decode_array([])
        assert (len(column), column.type) == (0, codec_of(name, kind).arrow)


def test_what_is_nested_is_json_both_ways() -> None:
    """A struct comes as a row from a writer of rows, and as a dict from one of record batches."""
    codec = codec_of("json", NESTED)
    row = ([1, None], {"x": float("inf"), "y": 0.5}, Decimal("1.10"), NOON, b"\0", None)
    data = codec.encode(row)
    assert data == (
        b'{"a":[1,null],"m":{"x":"Infinity","y":0.5},"d":"1.10",'
        b'"t":"2024-02-29T12:30:15.123456Z","b":"AA=="}'
    )
    column = codec.decode_array([data, None])
    assert column.to_pylist()[0]["m"] == [("x", float("inf")), ("y", 0.5)]
    assert codec.encode_array(column) == [data, None]


@pytest.mark.parametrize(
    ("name", "kind", "data"),
    [
        ("utf-8", StringType(), b"\xff"),
        ("int", IntegerType(), b"\0\0\1"),
        ("byte", ByteType(), b""),
        ("long", IntegerType(), b"\0\0\0\1\0\0\0\0"),
        ("boolean", BooleanType(), b"\0\0"),
        ("millis", TimestampType(), b"1"),
        ("text", IntegerType(), b"2147483648"),
        ("text", LongType(), b" 1"),
        ("text", LongType(), b"1_000"),
        ("text", LongType(), "٣".encode()),
        ("text", DoubleType(), b"1.5x"),
        ("text", DecimalType(4, 1), b"1.55"),
        ("text", DecimalType(4, 1), b"12345"),
        ("iso", DateType(), b"29.2.2024"),
        ("iso", TimestampNTZType(), b"2024-02-29T12:30:15Z"),
        ("json", ArrayType(LongType()), b"{}"),
        ("json", ArrayType(LongType()), b'["a"]'),
        ("json", ArrayType(LongType()), b"[1"),
    ],
)
def test_bytes_that_are_no_value_are_refused(name: str, kind: DataType, data: bytes) -> None:
    """The worst answer is another number; and both ways of reading must agree."""
    refusals = (ValueError, TypeError, OverflowError, pa.ArrowInvalid)
    with pytest.raises(refusals):
        codec_of(name, kind).decode(data)
    with pytest.raises(refusals):
        codec_of(name, kind).decode_array([None, data])


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("byte", LongType(), 128),
        ("int", LongType(), 2**31),
        ("float", FloatType(), 1e300),
        ("utf-8", StringType(), 7),
        ("binary", BinaryType(), "text"),
        ("boolean", BooleanType(), 1),
    ],
)
def test_a_value_that_does_not_fit_is_refused(name: str, kind: DataType, value: Any) -> None:
    """A number that was cut would be another one."""
    with pytest.raises((ValueError, TypeError)):
        codec_of(name, kind).encode(value)


def test_an_instant_is_the_same_one_in_any_zone() -> None:
    """Writers and readers run in different zones."""
    codec = codec_of("iso", TimestampType())
    there = NOON.astimezone(timezone(timedelta(hours=5)))
    assert codec.encode(there) == codec.encode(NOON)
    assert codec.encode(NOON.astimezone().replace(tzinfo=None)) == codec.encode(NOON)
    assert codec.decode(b"2024-02-29T17:30:15.123456+05:00") == NOON
    assert codec.decode(b"2024-02-29T12:30:15.123456") == NOON


class Doubled:
    """A codec of a user."""

    def encode(self, value: str) -> bytes:
        return (value * 2).encode()

    def decode(self, data: bytes) -> str:
        return data.decode()[: len(data) // 2]


doubled = Doubled()


def test_a_codec_is_found_by_its_import_path() -> None:
    """The one way to read what some other program wrote; it goes to the tasks by its path."""
    codec = codec_of("tests.unit.test_spark_codecs:doubled", StringType())
    copy = pickle.loads(pickle.dumps(codec))
    assert copy.encode("ab") == b"abab"
    assert copy.decode_array([b"abab", None]).to_pylist() == ["ab", None]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("utf8", StringType(), "unknown codec"),
        ("int", StringType(), "not for this type"),
        ("no.such.module:name", StringType(), "cannot be imported"),
        ("tests.unit.test_spark_codecs:missing", StringType(), "cannot be imported"),
        ("tests.unit.test_spark_codecs:NOON", StringType(), "has no encode"),
        ("json", MapType(LongType(), LongType()), "has no JSON"),
    ],
)
def test_a_codec_that_cannot_be_is_refused(name: str, kind: DataType, words: str) -> None:
    """Before any task starts."""
    with pytest.raises(InvalidRequestError, match=words):
        codec_of(name, kind)


def test_a_type_without_a_codec_is_refused() -> None:
    """An interval has no bytes that anybody else would understand."""
    with pytest.raises(InvalidRequestError, match="no codec"):
        name_codec(NullType(), "v")
