"""What is written is what other readers of HBase expect, and what is read is checked."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from txn import InvalidRequestError
from txn.spark.codecs import Codec, make_codec, name_codec

NOON = datetime(2024, 2, 29, 12, 30, 15, 123456, UTC)
NESTED = t.StructType(
    [
        t.StructField("a", t.ArrayType(t.LongType())),
        t.StructField("m", t.MapType(t.StringType(), t.DoubleType())),
        t.StructField("d", t.DecimalType(10, 2)),
        t.StructField("t", t.TimestampType()),
        t.StructField("b", t.BinaryType()),
        t.StructField("none", t.StringType()),
    ]
)

# As HBase's Bytes writes them: big-endian two's complement, IEEE 754 bits, -1 for true.
CASES: list[tuple[str, t.DataType, Any, bytes]] = [
    ("utf-8", t.StringType(), "grüße", "grüße".encode()),
    ("byte", t.ByteType(), -2, b"\xfe"),
    ("short", t.ShortType(), -2, b"\xff\xfe"),
    ("int", t.IntegerType(), 258, b"\0\0\1\2"),
    ("int", t.LongType(), -1, b"\xff\xff\xff\xff"),
    ("long", t.LongType(), -(2**63), b"\x80" + bytes(7)),
    ("float", t.FloatType(), 1.5, b"\x3f\xc0\0\0"),
    ("double", t.DoubleType(), -2.0, b"\xc0" + bytes(7)),
    ("boolean", t.BooleanType(), True, b"\xff"),
    ("binary", t.BinaryType(), b"\0\xff", b"\0\xff"),
    ("text", t.IntegerType(), -7, b"-7"),
    ("text", t.DecimalType(10, 2), Decimal("-1.50"), b"-1.50"),
    ("text", t.DecimalType(38, 0), Decimal("1E+3"), b"1000"),
    ("text", t.FloatType(), pa.scalar(0.1, pa.float32()).as_py(), b"0.100000001"),
    ("iso", t.DateType(), date(2024, 2, 29), b"2024-02-29"),
    ("iso", t.TimestampType(), NOON, b"2024-02-29T12:30:15.123456Z"),
    ("iso", t.TimestampType(), datetime(1, 1, 1, tzinfo=UTC), b"0001-01-01T00:00:00Z"),
    ("iso", t.TimestampNTZType(), datetime.max, b"9999-12-31T23:59:59.999999"),
    ("millis", t.TimestampType(), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), bytes(6) + b"\3\xe8"),
    ("iso", t.TimeType(), time(12, 30, 15, 250_000), b"12:30:15.250000"),
    ("json", t.ArrayType(t.StringType()), ["a", None], b'["a",null]'),
    ("json", t.ArrayType(t.TimeType()), [time(1, 2, 3)], b'["01:02:03"]'),
]


def codec_of(name: str, kind: t.DataType) -> Codec:
    return make_codec(name, kind, "c")


def decoded(codec: Codec, data: bytes) -> Any:
    return codec.decode_array([data])[0].as_py()


@pytest.mark.parametrize(("name", "kind", "value", "data"), CASES)
def test_a_value_is_the_bytes_that_others_write(
    name: str, kind: t.DataType, value: Any, data: bytes
) -> None:
    """Java programs read the same cells; a value and a whole column go different ways."""
    codec = codec_of(name, kind)
    column = pa.array([None, value, value], type=codec.arrow)
    assert codec.encode(value) == data
    assert decoded(codec, data) == value
    assert codec.encode_array(column) == [None, data, data]
    assert codec.encode_array(column[1:]) == [data, data]
    assert codec.decode_array([None, data, data]).equals(column)
    assert codec.decode_array([data]).equals(column[1:2])
    assert codec.decode_array([]).equals(column[:0])
    assert pickle.loads(pickle.dumps(codec)).encode(value) == data


@pytest.mark.parametrize(
    ("name", "data"), [("long", (-5).to_bytes(8, signed=True)), ("text", b"-5")]
)
def test_an_interval_is_its_microseconds(name: str, data: bytes) -> None:
    """As Spark has it inside; its text in SQL would not be read as an interval again."""
    codec = codec_of(name, t.DayTimeIntervalType())
    column = pa.array([-5, None, 2**63 - 1], codec.arrow)
    cells = codec.encode_array(column)
    assert cells[:2] == [data, None]
    assert codec.decode_array(cells).equals(column)


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
        ("utf-8", t.StringType(), b"\xff"),
        ("int", t.IntegerType(), b"\0\0\1"),
        ("long", t.IntegerType(), b"\0\0\0\1\0\0\0\0"),
        ("boolean", t.BooleanType(), b"\0\0"),
        ("millis", t.TimestampType(), b"1"),
        ("text", t.IntegerType(), b"2147483648"),
        ("text", t.LongType(), b"1_000"),
        ("text", t.LongType(), "٣".encode()),
        ("text", t.DecimalType(4, 1), b"1.55"),
        ("text", t.DecimalType(4, 1), b"12345"),
        ("iso", t.TimestampNTZType(), b"2024-02-29T12:30:15Z"),
        ("json", t.ArrayType(t.LongType()), b'["a"]'),
        ("json", t.ArrayType(t.LongType()), b"[1"),
        ("iso", t.TimeType(), b"12:00:00Z"),  # it is of no day, so it can have no offset
    ],
)
def test_bytes_that_are_no_value_are_refused(name: str, kind: t.DataType, data: bytes) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError, pa.ArrowInvalid)):
        codec_of(name, kind).decode_array([None, data])


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("byte", t.LongType(), 128),
        ("int", t.LongType(), 2**31),
        ("float", t.FloatType(), 1e300),
        ("boolean", t.BooleanType(), 1),
    ],
)
def test_a_value_that_does_not_fit_is_refused(name: str, kind: t.DataType, value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        codec_of(name, kind).encode(value)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (t.YearMonthIntervalType(), r"an interval of months to int.*column='v'"),
        (t.NullType(), "no codec"),
    ],
)
def test_a_type_without_a_codec_is_refused(kind: t.DataType, words: str) -> None:
    """Arrow's library for Python cannot read an interval of months, whichever codec there is."""
    with pytest.raises(InvalidRequestError, match=words):
        name_codec(kind, "v")


def test_an_instant_is_the_same_one_in_any_zone() -> None:
    codec = codec_of("iso", t.TimestampType())
    there = NOON.astimezone(timezone(timedelta(hours=5)))
    assert codec.encode(there) == codec.encode(NOON)
    assert codec.encode(NOON.astimezone().replace(tzinfo=None)) == codec.encode(NOON)
    assert decoded(codec, b"2024-02-29T17:30:15.123456+05:00") == NOON
    assert decoded(codec, b"2024-02-29T12:30:15.123456") == NOON


LAST_SECOND = 253_402_300_799 * 10**6
"""Of the year 9999 in UTC, in microseconds."""


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (LAST_SECOND + 5 * 3_600 * 10**6, "+10000-01-01T04:59:59"),  # the last one in New York
        (LAST_SECOND + 999_999, "9999-12-31T23:59:59.999999"),
        (-62_135_596_800 * 10**6 - 1, "0000-12-31T23:59:59.999999"),
        (2**63 - 1, "+294247-01-10T04:00:54.775807"),
        (-(2**63), "-290308-12-21T19:59:05.224192"),
    ],
)
def test_an_instant_outside_the_years_of_python_is_text_as_java_writes_it(
    micros: int, text: str
) -> None:
    """The usual end of validity is an instant of the year 10000 west of Greenwich."""
    for kind, data in ((t.TimestampType(), f"{text}Z"), (t.TimestampNTZType(), text)):
        nested = t.StructType([t.StructField("at", t.ArrayType(kind)), t.StructField("m", KEPT)])
        codec, json = codec_of("iso", kind), codec_of("json", nested)
        column = pa.array([None, micros], type=codec.arrow)
        assert codec.encode_array(column) == [None, data.encode()]
        assert codec.decode_array([None, data.encode()]).equals(column)
        day, dates = text.partition("T")[0].encode(), codec_of("iso", t.DateType())
        column = pa.array([micros // (86_400 * 10**6)], type=dates.arrow)
        assert dates.encode_array(column) == [day]
        assert dates.decode_array([day]).equals(column)
        values = pa.array([{"at": [micros, None], "m": [("k", 0)]}], type=json.arrow)
        cells = json.encode_array(values)
        assert cells == [b'{"at":["%b",null],"m":{"k":"1970-01-01T00:00:00Z"}}' % data.encode()]
        assert json.decode_array(cells).equals(values)


KEPT = t.MapType(t.StringType(), t.TimestampType())


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (t.FloatType(), 3.4028234663852886e38, "3.4028235E38"),
        (t.FloatType(), 1.401298464324817e-45, "1.4E-45"),
        (t.DoubleType(), 0.00099, "9.9E-4"),
        (t.DoubleType(), 9_999_999.5, "9999999.5"),
        (t.DoubleType(), 1e7, "1.0E7"),
        (t.DoubleType(), 5e-324, "4.9E-324"),
        (t.DoubleType(), 1.7976931348623157e308, "1.7976931348623157E308"),
        (t.StringType(), 'a"\\\n\x1f/\u2028é', '"a\\"\\\\\\n\\u001F/\u2028é"'),
    ],
)
def test_json_has_values_as_java_writes_them(kind: t.DataType, value: Any, text: str) -> None:
    """A float of four bytes has fewer digits than the double that Python makes of it."""
    codec = codec_of("json", t.ArrayType(kind))
    values = pa.array([[value]], type=codec.arrow)
    assert codec.encode([value]) == f"[{text}]".encode()
    assert codec.encode_array(values) == [f"[{text}]".encode()]
    found = codec.decode_array([f"[{text}]".encode()])
    assert str(found.to_pylist()) == str(values.to_pylist())


class Doubled:
    """A codec of a user."""

    def encode(self, value: str) -> bytes:
        return (value * 2).encode()

    def decode(self, data: bytes) -> str:
        return data.decode()[: len(data) // 2]


doubled = Doubled()


def test_a_codec_is_found_by_its_import_path() -> None:
    codec = codec_of("tests.unit.test_spark_codecs:doubled", t.StringType())
    copy = pickle.loads(pickle.dumps(codec))
    assert copy.encode("ab") == b"abab"
    assert copy.decode_array([b"abab", None]).to_pylist() == ["ab", None]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("utf8", t.StringType(), "unknown codec"),
        ("int", t.StringType(), "not for this type"),
        ("no.such.module:name", t.StringType(), "cannot be imported.*No module named"),
        ("tests.unit.test_spark_codecs:NOON", t.StringType(), "has no encode"),
        ("json", t.MapType(t.LongType(), t.LongType()), "has no JSON"),
    ],
)
def test_a_codec_that_cannot_be_is_refused(name: str, kind: t.DataType, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        codec_of(name, kind)
