"""Bytes, keys, assertions, durations and times as text, and back."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as some

from recovery.text import (
    count_text,
    duration_text,
    error_text,
    parse_duration,
    quote_name,
    time_text,
)
from txn.assertions import Exact, GreaterThan, Not, Some, Version
from txn.errors import (
    AbortedError,
    AssertionFailedError,
    ConflictError,
    DeadlineError,
    InvalidRequestError,
)
from txn.model import Cell, Key
from txn.stores.hbase.schema import make_assign_command
from txn.text import (
    LONGEST_REASON,
    assertion_text,
    escape,
    key_text,
    reason_text,
    shorten,
    unescape,
)

parts = some.binary(min_size=1, max_size=20)
plain = some.sampled_from([b"t", b"ns:table", b"a-b_c.d"])


@given(some.binary())
def test_escaped_bytes_are_printable_and_come_back(value: bytes) -> None:
    assert escape(value).isprintable()
    assert unescape(escape(value)) == value


@given(some.builds(Key, parts, plain.filter(lambda f: b":" not in f), parts, plain))
def test_a_printed_key_is_parsed_as_itself(key: Key) -> None:
    assert Key.parse(key_text(key)) == key


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("t/r/f:c", Key("r", "f", "c", "t")),
        ("t/a/b/f:c:d", Key("a/b", "f", "c:d", "t")),
        ("ns:t/a:b/f:c", Key("a:b", "f", "c", "ns:t")),
        (r"t/\x00\\é/f:a\x2fb", Key(b"\0\\\xc3\xa9", "f", "a/b", "t")),
    ],
)
def test_keys_are_written_as_people_expect(text: str, key: Key) -> None:
    assert Key.parse(text) == key


@pytest.mark.parametrize("text", ["", "t", "t/r", "t/r/f", "t//f:c", "/r/f:c", "t/r/:c", "t/r/f:"])
def test_half_a_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="table/row/family:column"):
        Key.parse(text)


@pytest.mark.parametrize("text", ["\\", "\\n", "\\x", "\\x1", "\\xg0"])
def test_an_unknown_escape_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="backslash"):
        unescape(text)


def test_long_values_are_shortened_with_their_length() -> None:
    assert shorten(b"short") == "short"
    assert shorten(b"a" * 60) == "a" * 60
    assert shorten(b"a" * 5000, 10) == "aaaaaaaaaa… (5,000 bytes)"
    assert shorten("é".encode() * 100, 4) == "éééé… (200 bytes)"


def test_assertions_are_sentences() -> None:
    key = Key("r", "f", "c", "t")
    assert assertion_text(Exact(key, b"1") & Some(key)) == "(t/r/f:c = 1) and (t/r/f:c has a value)"
    assert assertion_text(Not(Some(key)) | GreaterThan(key, b"\0")) == (
        "(not (t/r/f:c has a value)) or (t/r/f:c > \\x00)"
    )
    assert assertion_text(Version(key, None)) == "t/r/f:c has no version"
    assert assertion_text(Version(key, 7)) == "t/r/f:c has version 7"


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("500ms", 500), ("90s", 90_000), ("1h30m", 5_400_000), ("7d", 604_800_000), ("0s", 0)],
)
def test_durations_are_read(text: str, duration_ms: int) -> None:
    assert parse_duration(text) == duration_ms


@pytest.mark.parametrize("text", ["", "10", "m", "-1s", "1.5h", "10 minutes"])
def test_a_duration_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "0 ms"),
        (1_234, "1.2 s"),
        (59_000, "59 s"),
        (61_000, "1 m 1 s"),
        (3_700_000, "1 h 1 m"),
        (100_000_000, "1 d 3 h"),
    ],
)
def test_durations_are_printed_with_two_units(duration_ms: int, text: str) -> None:
    assert duration_text(duration_ms) == text


def test_times_are_utc_and_never_fail() -> None:
    assert time_text(1_790_000_000_123) == "2026-09-21 14:13:20.123Z"
    assert time_text((1 << 63) - 1) == str((1 << 63) - 1)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (count_text(0, "row"), "0 rows"),
        (count_text(1, "row"), "1 row"),
        (count_text(2000, "row"), "2,000 rows"),
        (count_text(3, "entry", "entries"), "3 entries"),
    ],
)
def test_what_is_counted_is_named_as_it_is_said(told: str, expected: str) -> None:
    assert told == expected


KEY = Key("x", "d", "v", "t")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (AbortedError("it lies in the future"), "it lies in the future"),
        (
            ConflictError("key is locked", key=KEY, holder=b"\x00other"),
            r"key is locked: key t/x/d:v, holder \x00other",
        ),
        (ConflictError("rows keep changing"), "rows keep changing"),
        (
            DeadlineError("waited too long", key=KEY, tries=3),
            "waited too long: key t/x/d:v, tries 3",
        ),
        (
            AssertionFailedError(Not(Some(KEY)), {KEY: Cell(b"\xff", 5), KEY.lock: None}),
            r"assertion failed: assertion not (t/x/d:v has a value), seen t/x/d:v = \xff, "
            "t/x/d:v_lock absent",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_reason_is_written_as_the_commands_print(error: AbortedError, text: str) -> None:
    assert reason_text(error) == text


def test_a_reason_is_bounded() -> None:
    seen = {KEY._replace(row=b"%04d" % i): Cell(b"x" * 1000, 5) for i in range(30)}
    text = reason_text(AssertionFailedError(Some(KEY), seen))
    assert "t/0009/d:v" in text and "t/0010/d:v" not in text and text.endswith("and 20 more")
    assert len(reason_text(AbortedError("x" * 5000))) == LONGEST_REASON + 1


@pytest.mark.parametrize("name", [b"t; rm -rf x", b"$(id)", b"a'b", b"`id`", b"ns:table"])
def test_a_command_to_paste_quotes_its_names(name: bytes) -> None:
    for text in (f"txn fsck --scan {quote_name(name)}", error_text(f"x --scan {quote_name(name)}")):
        assert shlex.split(text)[-1].encode() == name


@pytest.mark.parametrize(
    ("name", "written"),
    [
        (b"ns:t", "'ns:t'"),
        (b"#{exit}", "'#{exit}'"),
        (b"t'", r'"\x74\x27"'),
        (b"\\", r'"\x5C"'),
        (b"\xff\n", r'"\xFF\x0A"'),
    ],
)
def test_a_command_for_hbases_shell_quotes_its_names(name: bytes, written: str) -> None:
    assert make_assign_command(name, [b"d"], b"x").startswith(f"alter {written}, {{NAME => 'd'")
