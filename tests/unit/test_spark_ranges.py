"""What a job reads, and what each of its tasks reads of it."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable
from random import Random

import pytest
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType

from txn import InvalidRequestError
from txn.model import Edit, Family, Key
from txn.spark.codecs import make_codec, name_codec
from txn.spark.mapping import MappedColumn
from txn.spark.options import SourceOptions
from txn.spark.ranges import (
    ALL,
    Range,
    cut_ranges,
    divide_ranges,
    intersect_ranges,
    join_parts,
    parse_bounds,
    select_ranges,
)
from txn.stores import open_store

WORDS = ["a", "a\0", "aa", "ab", "b", "ä", "\U0001f600", "zz", "\x7f"]
NUMBERS = [0, 1, -1, 5, -5, 127, 128, -128, 2**31 - 1, -(2**31)]


def part_of(kind: DataType, codec: str | None = None) -> MappedColumn:
    return MappedColumn("id", 0, make_codec(codec or name_codec(kind, "id"), kind, "id"))


def holds(ranges: tuple[Range, ...], row: bytes) -> bool:
    found = [start <= row and (stop is None or row < stop) for start, stop in ranges]
    assert sum(found) <= 1, "no row is read twice"
    return any(found)


def quote(value: object) -> str:
    text = value.decode() if isinstance(value, bytes) else value
    return "'" + text.replace("'", "''") + "'" if isinstance(text, str) else str(text)


TESTS: list[tuple[str, Callable[..., bool]]] = [
    ("=", operator.eq),
    (">", operator.gt),
    (">=", operator.ge),
    ("<", operator.lt),
    ("<=", operator.le),
]


@pytest.mark.parametrize(("comparison", "test"), TESTS)
def test_a_condition_selects_exactly_its_rows(comparison: str, test: Callable[..., bool]) -> None:
    """Nobody looks again at the rows that are read, or for those that are not."""
    for part, values in (
        (part_of(StringType()), WORDS),
        (part_of(BinaryType()), [word.encode() for word in WORDS]),
        (part_of(IntegerType()), NUMBERS),
        (part_of(IntegerType(), "short"), [n for n in NUMBERS if abs(n) < 2**15]),
    ):
        order: dict[object, object] = {
            value: value.encode() if isinstance(value, str) else value for value in values
        }
        for other in values:
            ranges = select_ranges(f"id {comparison} {quote(other)}", (part,), ALL)
            for value in values:
                expected = test(order[value], order[other])
                assert holds(ranges, part.codec.encode(value)) == expected, (value, other)


def test_several_comparisons_select_what_all_of_them_do() -> None:
    row = (part_of(StringType()),)
    given = "id in ('a', 'ab','b', 'ab' ) and `id`>'a' AND ID < 'b'"
    assert select_ranges(given, row, ALL) == ((b"ab", b"ab\0"),)
    assert select_ranges("id = 'it''s and'", row, ALL) == ((b"it's and", b"it's and\0"),)
    assert select_ranges("id < 'a' and id > 'b'", row, ALL) == ()
    assert select_ranges("id > 'c'", row, ((b"a", b"b"),)) == ()
    number = (part_of(IntegerType()),)
    assert select_ranges(f"id in (-1, 5, {2**40})", number, ALL) == (
        (b"\0\0\0\5", b"\0\0\0\5\0"),
        (b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\0"),
    )
    assert select_ranges(r"id = '\xff'", (part_of(BinaryType()),), ALL) == ((b"\xff", b"\xff\0"),)


@pytest.mark.parametrize(
    ("given", "parts", "words"),
    [
        ("v = 'a'", 1, "column='v'"),
        ("id = 'a'", 2, "prefix, start and stop"),
        ("id like 'a%'", 1, "malformed"),
        ("id = 'a' or id = 'b'", 1, "malformed"),
        ("id = 'a' and", 1, "malformed"),
        ("id in ()", 1, "malformed"),
        ("", 1, "malformed"),
        ("id = 7", 1, "literal='?7.*wanted=.text in quotes"),
        ("id == 'a'", 1, "shape=.COLUMN =, <, <=, > or >= LITERAL"),
    ],
)
def test_a_condition_that_is_no_range_is_refused(given: str, parts: int, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        select_ranges(given, (part_of(StringType()),) * parts, ALL)


def test_a_condition_names_its_column_as_spark_does() -> None:
    """In any case, unless there is another that differs in it alone; with backquotes doubled."""
    row = (part_of(StringType())._replace(name="a`b"),)
    found = ((b"x", b"x\0"),)
    assert select_ranges("`A``b` = 'x'", row, ALL, ["a`b", "v"]) == found
    with pytest.raises(InvalidRequestError, match="column='A`b'"):
        select_ranges("`A``b` = 'x'", row, ALL, ["a`b", "A`b"])


@pytest.mark.parametrize(
    ("kind", "codec"), [(IntegerType(), "text"), (StringType("UTF8_LCASE"), None)]
)
def test_a_codec_without_an_order_takes_no_condition(kind: DataType, codec: str | None) -> None:
    """Numbers as text may have zeros in front, and words of a collation have many spellings."""
    with pytest.raises(InvalidRequestError, match="no order"):
        select_ranges("id = 7", (part_of(kind, codec),), ALL)


def test_bounds_are_rows_with_escapes() -> None:
    assert parse_bounds(SourceOptions({})) == (b"", None)
    assert parse_bounds(SourceOptions({"start": r"a\x00", "stop": "b"})) == (b"a\0", b"b")
    assert parse_bounds(SourceOptions({"prefix": r"a\xff"})) == (b"a\xff", b"b")
    with pytest.raises(InvalidRequestError, match="a prefix, or start and stop"):
        parse_bounds(SourceOptions({"prefix": "a", "stop": "b"}))


def test_ranges_are_cut_at_splits_and_joined_again() -> None:
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
