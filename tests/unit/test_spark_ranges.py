"""What a job reads, and what each of its tasks reads of it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from random import Random

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType

from txn import InvalidRequestError
from txn.model import Edit, Family, Key
from txn.spark.codecs import make_codec, name_codec
from txn.spark.mapping import MappedColumn
from txn.spark.options import SourceOptions
from txn.spark.ranges import (
    ALL,
    MAX_VALUES,
    PARTITIONS,
    Range,
    cut_ranges,
    divide_ranges,
    intersect_ranges,
    join_parts,
    parse_bounds,
    push_filters,
)
from txn.stores import open_store

pytestmark = pytest.mark.fast

WORDS = ["a", "a\0", "aa", "ab", "b", "ä", "\U0001f600", "zz", "\x7f"]
NUMBERS = [0, 1, -1, 5, -5, 127, 128, -128, 2**31 - 1, -(2**31)]


def part_of(kind: DataType, codec: str | None = None) -> MappedColumn:
    return MappedColumn("id", 0, make_codec(codec or name_codec(kind, "id"), kind, "id"))


def holds(ranges: tuple[Range, ...], row: bytes) -> bool:
    found = [start <= row and (stop is None or row < stop) for start, stop in ranges]
    assert sum(found) <= 1, "no row is read twice"
    return any(found)


TESTS: list[tuple[type, Callable[..., bool]]] = [
    (EqualTo, lambda value, other: value == other),
    (EqualNullSafe, lambda value, other: value == other),
    (GreaterThan, lambda value, other: value > other),
    (GreaterThanOrEqual, lambda value, other: value >= other),
    (LessThan, lambda value, other: value < other),
    (LessThanOrEqual, lambda value, other: value <= other),
]


@pytest.mark.parametrize(("kind", "test"), TESTS)
def test_a_filter_that_is_taken_is_exact(kind: type, test: Callable[..., bool]) -> None:
    """Spark does not look again at what was taken from it."""
    for part, values in (
        (part_of(StringType()), sorted(WORDS, key=str.encode)),
        (part_of(BinaryType()), [word.encode() for word in WORDS]),
        (part_of(IntegerType()), NUMBERS),
        (part_of(IntegerType(), "short"), [n for n in NUMBERS if abs(n) < 2**15]),
    ):
        order = {value: value for value in values}
        if isinstance(values[0], str):
            order = {value: value.encode() for value in values}  # type: ignore[misc]
        for other in values:
            ranges, rest = push_filters([kind(("id",), other)], (part,), ALL)
            assert rest == []
            for value in values:
                expected = test(order[value], order[other])
                assert holds(ranges, part.codec.encode(value)) == expected, (value, other)


def test_several_filters_leave_what_all_of_them_leave() -> None:
    """As a WHERE with AND, which Spark hands over one by one."""
    part = part_of(StringType())
    given: list[Filter] = [
        IsNotNull(("id",)),
        StringStartsWith(("id",), "a"),
        In(("id",), ("a", "ab", "b", None, "ab")),
        GreaterThan(("id",), "a"),
    ]
    assert push_filters(given, (part,), ALL) == (((b"ab", b"ab\0"),), [])
    assert push_filters([IsNull(("id",))], (part,), ALL) == ((), [])
    assert push_filters([EqualTo(("id",), None)], (part,), ALL) == ((), [])


def test_numbers_in_an_in_are_looked_up() -> None:
    """A join on few keys becomes an IN."""
    part = part_of(IntegerType())
    ranges, rest = push_filters([In(("id",), (-1, 5, 2**40))], (part,), ALL)
    assert (ranges, rest) == (
        ((b"\0\0\0\5", b"\0\0\0\5\0"), (b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\0")),
        [],
    )


@pytest.mark.parametrize(
    "given",
    [
        EqualTo(("v",), "a"),
        EqualTo(("id", "x"), "a"),
        EqualTo(("id",), 7),
        StringEndsWith(("id",), "a"),
        Not(EqualTo(("id",), "a")),
        In(("id",), tuple(map(str, range(MAX_VALUES + 1)))),
    ],
)
def test_what_is_no_range_is_left_to_spark(given: Filter) -> None:
    """Nothing may be lost, and nothing answered twice."""
    part = part_of(StringType())
    assert push_filters([given], (part,), ALL) == (ALL, [given])
    assert push_filters([given], (part, part), ALL) == (ALL, [given])


@pytest.mark.parametrize(
    ("kind", "codec"), [(IntegerType(), "text"), (StringType("UTF8_LCASE"), None)]
)
def test_a_codec_without_an_order_takes_no_filter(kind: DataType, codec: str | None) -> None:
    """Numbers as text may have zeros in front, and words of a collation have many spellings."""
    given = EqualTo(("id",), 7 if codec else "a")
    assert push_filters([given], (part_of(kind, codec),), ALL) == (ALL, [given])


def test_bounds_are_rows_with_escapes() -> None:
    """Row keys need not be text."""
    assert parse_bounds(SourceOptions({})) == (b"", None)
    assert parse_bounds(SourceOptions({"start": r"a\x00", "stop": "b"})) == (b"a\0", b"b")
    assert parse_bounds(SourceOptions({"prefix": r"a\xff"})) == (b"a\xff", b"b")
    with pytest.raises(InvalidRequestError, match="a prefix, or start and stop"):
        parse_bounds(SourceOptions({"prefix": "a", "stop": "b"}))


def test_a_number_of_tasks_is_whole_or_left_open() -> None:
    """Without it the store and the machine say how many there are."""
    assert SourceOptions({}).whole(PARTITIONS, None) is None
    assert SourceOptions({"numPartitions": "7"}).whole(PARTITIONS, None) == 7
    with pytest.raises(InvalidRequestError, match="option='numPartitions'"):
        SourceOptions({"numPartitions": "0"}).whole(PARTITIONS, None)


def test_ranges_are_cut_at_splits_and_joined_again() -> None:
    """Each row is in one part, whatever the parts are."""
    ranges: tuple[Range, ...] = ((b"a", b"c"), (b"d", b"e"), (b"f", None))
    parts = cut_ranges(ranges, [b"b", b"d", b"g", b"h"])
    assert parts == [
        ((b"a", b"b"),),
        ((b"b", b"c"),),
        ((b"d", b"e"), (b"f", b"g")),
        ((b"g", b"h"),),
        ((b"h", None),),
    ]
    assert join_parts(parts, 2) == [
        ((b"a", b"b"), (b"b", b"c")),
        ((b"d", b"e"), (b"f", b"g"), (b"g", b"h"), (b"h", None)),
    ]
    assert join_parts(parts, 9) == parts
    assert join_parts([], 2) == []
    assert intersect_ranges(ranges, [(b"bb", b"dd")]) == ((b"bb", b"c"), (b"d", b"dd"))


def test_parts_of_a_table_are_about_equal() -> None:
    """A job takes as long as its longest task."""
    store, rng = open_store(f"memory://{uuid.uuid4().hex}"), Random(7)
    store.ensure_table(b"t", {b"f": Family()})
    keys = [b"user-%06d" % number for number in range(2_000)]
    keys += [rng.randbytes(8) for _ in range(2_000)]
    store.write([Edit(Key(key, "f", "c", "t"), b"1", 1) for key in keys])
    parts = divide_ranges(store, b"t", ALL, 8)
    sizes = [sum(1 for low, high in part for _ in store.scan(b"t", low, high)) for part in parts]
    assert (len(parts), sum(sizes)) == (8, 4_000)
    assert max(sizes) < 2 * 4_000 / 8
    some = divide_ranges(store, b"t", ((b"user-000100", b"user-000200"),), 8)
    assert 1 < len(some) <= 8
    assert divide_ranges(store, b"t", (), 8) == []
    assert len(divide_ranges(store, b"t", ALL, cores=3)) == 3
    assert len(divide_ranges(store, b"t", ALL, 2, cores=3)) == 2
    store.close()
