"""What is written is what other readers of HBase expect, and what is read is checked."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as kinds

from txn import InvalidRequestError
from txn.spark.codecs import Codec, make_codec, name_codec

pytestmark = pytest.mark.fast

NOON = datetime(2024, 2, 29, 12, 30, 15, 123456, UTC)
NESTED = kinds.StructType(
    [
        kinds.StructField("a", kinds.ArrayType(kinds.LongType())),
        kinds.StructField("m", kinds.MapType(kinds.StringType(), kinds.DoubleType())),
        kinds.StructField("d", kinds.DecimalType(10, 2)),
        kinds.StructField("t", kinds.TimestampType()),
        kinds.StructField("b", kinds.BinaryType()),
        kinds.StructField("none", kinds.StringType()),
    ]
)

# As HBase's Bytes writes them: big-endian two's complement, IEEE 754 bits, -1 for true.
CASES: list[tuple[str, kinds.DataType, Any, bytes]] = [
    ("utf-8", kinds.StringType(), "grüße", "grüße".encode()),
    ("byte", kinds.ByteType(), -2, b"\xfe"),
    ("short", kinds.ShortType(), -2, b"\xff\xfe"),
    ("int", kinds.IntegerType(), 258, b"\0\0\1\2"),
    ("int", kinds.LongType(), -1, b"\xff\xff\xff\xff"),
    ("long", kinds.LongType(), -(2**63), b"\x80" + bytes(7)),
    ("long", kinds.IntegerType(), 258, bytes(6) + b"\1\2"),
    ("float", kinds.FloatType(), 1.5, b"\x3f\xc0\0\0"),
    ("double", kinds.DoubleType(), -2.0, b"\xc0" + bytes(7)),
    ("boolean", kinds.BooleanType(), True, b"\xff"),
    ("boolean", kinds.BooleanType(), False, b"\0"),
    ("binary", kinds.BinaryType(), b"\0\xff", b"\0\xff"),
    ("text", kinds.IntegerType(), -7, b"-7"),
    ("text", kinds.DecimalType(10, 2), Decimal("-1.50"), b"-1.50"),
    ("text", kinds.DecimalType(38, 0), Decimal("1E+3"), b"1000"),
    ("text", kinds.DoubleType(), 0.1, b"0.1"),
    ("text", kinds.FloatType(), pa.scalar(0.1, pa.float32()).as_py(), b"0.100000001"),
    ("iso", kinds.DateType(), date(2024, 2, 29), b"2024-02-29"),
    ("iso", kinds.TimestampType(), NOON, b"2024-02-29T12:30:15.123456Z"),
    ("iso", kinds.TimestampNTZType(), NOON.replace(tzinfo=None), b"2024-02-29T12:30:15.123456"),
    ("iso", kinds.TimestampType(), datetime(1, 1, 1, tzinfo=UTC), b"0001-01-01T00:00:00Z"),
    ("iso", kinds.TimestampNTZType(), datetime.max, b"9999-12-31T23:59:59.999999"),
    ("iso", kinds.DateType(), date.max, b"9999-12-31"),
    (
        "millis",
        kinds.TimestampType(),
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        bytes(6) + b"\3\xe8",
    ),
    ("iso", kinds.TimeType(), time(12, 30, 15, 250_000), b"12:30:15.250000"),
    ("iso", kinds.TimeType(0), time(12, 30), b"12:30:00"),
    ("json", kinds.ArrayType(kinds.StringType()), ["a", None], b'["a",null]'),
    ("json", kinds.ArrayType(kinds.TimeType()), [time(1, 2, 3)], b'["01:02:03"]'),
]


def codec_of(name: str, kind: kinds.DataType) -> Codec:
    return make_codec(name, kind, "c")


def decoded(codec: Codec, data: bytes) -> Any:
    return codec.decode_array([data])[0].as_py()


@pytest.mark.parametrize(("name", "kind", "value", "data"), CASES)
def test_a_value_is_the_bytes_that_others_write(
    name: str, kind: kinds.DataType, value: Any, data: bytes
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
    codec = codec_of(name, kinds.DayTimeIntervalType())
    column = pa.array([-5, None, 2**63 - 1], codec.arrow)
    cells = codec.encode_array(column)
    assert cells[:2] == [data, None]
    assert codec.encode_array(column[:1]) == [data]
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
        ("utf-8", kinds.StringType(), b"\xff"),
        ("int", kinds.IntegerType(), b"\0\0\1"),
        ("byte", kinds.ByteType(), b""),
        ("long", kinds.IntegerType(), b"\0\0\0\1\0\0\0\0"),
        ("boolean", kinds.BooleanType(), b"\0\0"),
        ("millis", kinds.TimestampType(), b"1"),
        ("text", kinds.IntegerType(), b"2147483648"),
        ("text", kinds.LongType(), b" 1"),
        ("text", kinds.LongType(), b"1_000"),
        ("text", kinds.LongType(), "٣".encode()),
        ("text", kinds.DoubleType(), b"1.5x"),
        ("text", kinds.DecimalType(4, 1), b"1.55"),
        ("text", kinds.DecimalType(4, 1), b"12345"),
        ("iso", kinds.DateType(), b"29.2.2024"),
        ("iso", kinds.TimestampNTZType(), b"2024-02-29T12:30:15Z"),
        ("json", kinds.ArrayType(kinds.LongType()), b"{}"),
        ("json", kinds.ArrayType(kinds.LongType()), b'["a"]'),
        ("json", kinds.ArrayType(kinds.LongType()), b"[1"),
        (
            "iso",
            kinds.TimeType(),
            b"12:00:00Z",
        ),  # it is of no day, so that no offset could be applied
    ],
)
def test_bytes_that_are_no_value_are_refused(name: str, kind: kinds.DataType, data: bytes) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError, pa.ArrowInvalid)):
        codec_of(name, kind).decode_array([None, data])


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("byte", kinds.LongType(), 128),
        ("int", kinds.LongType(), 2**31),
        ("float", kinds.FloatType(), 1e300),
        ("utf-8", kinds.StringType(), 7),
        ("binary", kinds.BinaryType(), "text"),
        ("boolean", kinds.BooleanType(), 1),
    ],
)
def test_a_value_that_does_not_fit_is_refused(name: str, kind: kinds.DataType, value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        codec_of(name, kind).encode(value)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (kinds.YearMonthIntervalType(), r"an interval of months to int.*column='v'"),
        (kinds.NullType(), "no codec"),
    ],
)
def test_a_type_without_a_codec_is_refused(kind: kinds.DataType, words: str) -> None:
    """Arrow's library for Python cannot read an interval of months, whichever codec there is."""
    with pytest.raises(InvalidRequestError, match=words):
        name_codec(kind, "v")


def test_an_instant_is_the_same_one_in_any_zone() -> None:
    codec = codec_of("iso", kinds.TimestampType())
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
    for kind, data in ((kinds.TimestampType(), f"{text}Z"), (kinds.TimestampNTZType(), text)):
        nested = kinds.StructType(
            [kinds.StructField("at", kinds.ArrayType(kind)), kinds.StructField("m", KEPT)]
        )
        codec, json = codec_of("iso", kind), codec_of("json", nested)
        column = pa.array([None, micros], type=codec.arrow)
        assert codec.encode_array(column) == [None, data.encode()]
        assert codec.decode_array([None, data.encode()]).equals(column)
        day, dates = text.partition("T")[0].encode(), codec_of("iso", kinds.DateType())
        column = pa.array([micros // (86_400 * 10**6)], type=dates.arrow)
        assert dates.encode_array(column) == [day]
        assert dates.decode_array([day]).equals(column)
        values = pa.array([{"at": [micros, None], "m": [("k", 0)]}], type=json.arrow)
        cells = json.encode_array(values)
        assert cells == [b'{"at":["%b",null],"m":{"k":"1970-01-01T00:00:00Z"}}' % data.encode()]
        assert json.decode_array(cells).equals(values)


KEPT = kinds.MapType(kinds.StringType(), kinds.TimestampType())


def test_an_instant_is_counted_beyond_the_years_of_python() -> None:
    west, east = timezone(timedelta(hours=-8)), timezone(timedelta(hours=9))
    last, first = datetime.max.replace(tzinfo=west), datetime.min.replace(tzinfo=east)
    codec, millis = (
        codec_of("iso", kinds.TimestampType()),
        codec_of("millis", kinds.TimestampType()),
    )
    assert codec.encode(last) == b"+10000-01-01T07:59:59.999999Z"
    assert codec.encode(first) == b"0000-12-31T15:00:00Z"
    for value in (last, first):
        micros = (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        assert codec.decode_array([codec.encode(value)]).cast(pa.int64()).to_pylist() == [micros]
        found = millis.decode_array(millis.encode_array(pa.array([micros], millis.arrow)))
        assert found.cast(pa.int64()).to_pylist() == [micros // 1_000 * 1_000]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (kinds.FloatType(), 0.1, "0.1"),
        (kinds.FloatType(), 16_777_216.0, "1.6777216E7"),
        (kinds.FloatType(), 3.4028234663852886e38, "3.4028235E38"),
        (kinds.FloatType(), 1.401298464324817e-45, "1.4E-45"),
        (kinds.DoubleType(), 0.1, "0.1"),
        (kinds.DoubleType(), -0.0, "-0.0"),
        (kinds.DoubleType(), 100.0, "100.0"),
        (kinds.DoubleType(), 0.001, "0.001"),
        (kinds.DoubleType(), 0.00099, "9.9E-4"),
        (kinds.DoubleType(), 9_999_999.5, "9999999.5"),
        (kinds.DoubleType(), 1e7, "1.0E7"),
        (kinds.DoubleType(), 5e-324, "4.9E-324"),
        (kinds.DoubleType(), 1.7976931348623157e308, "1.7976931348623157E308"),
        (kinds.DoubleType(), float("-inf"), '"-Infinity"'),
        (kinds.DoubleType(), float("nan"), '"NaN"'),
        (kinds.StringType(), 'a"\\\n\x1f/\u2028é', '"a\\"\\\\\\n\\u001F/\u2028é"'),
        (kinds.BooleanType(), True, "true"),
        (kinds.ShortType(), -7, "-7"),
    ],
)
def test_json_has_values_as_java_writes_them(kind: kinds.DataType, value: Any, text: str) -> None:
    """A float of four bytes has fewer digits than the double that Python makes of it."""
    codec = codec_of("json", kinds.ArrayType(kind))
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
    codec = codec_of("tests.unit.test_spark_codecs:doubled", kinds.StringType())
    copy = pickle.loads(pickle.dumps(codec))
    assert copy.encode("ab") == b"abab"
    assert copy.decode_array([b"abab", None]).to_pylist() == ["ab", None]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("utf8", kinds.StringType(), "unknown codec"),
        ("int", kinds.StringType(), "not for this type"),
        ("no.such.module:name", kinds.StringType(), "cannot be imported.*No module named"),
        (
            "tests.unit.test_spark_codecs:missing",
            kinds.StringType(),
            "cannot be imported.*no attribute",
        ),
        ("tests.unit.test_spark_codecs:NOON", kinds.StringType(), "has no encode"),
        ("json", kinds.MapType(kinds.LongType(), kinds.LongType()), "has no JSON"),
    ],
)
def test_a_codec_that_cannot_be_is_refused(name: str, kind: kinds.DataType, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        codec_of(name, kind)
