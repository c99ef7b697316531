"""Bytes, keys, assertions, durations and times as text, requests as JSON, and back."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as some

from recovery.commands.requests import parse_request
from recovery.text import (
    count_text,
    duration_text,
    error_text,
    parse_duration,
    quote_name,
    time_text,
)
from txn.assertions import And, Exact, GreaterThan, Not, Or, Some, Version
from txn.errors import (
    AbortedError,
    AssertionFailedError,
    ConflictError,
    DeadlineError,
    InvalidRequestError,
)
from txn.model import Cell, Delete, Key, Mutation
from txn.request import Request
from txn.stores.hbase.schema import make_assign_command, make_endpoint_command
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


KEY = Key("x", "d", "v", "t")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (shorten(b"short"), "short"),
        (shorten(b"a" * 5000, 10), "aaaaaaaaaa… (5,000 bytes)"),
        (shorten("é".encode() * 100, 4), "éééé… (200 bytes)"),
        (
            assertion_text(Exact(KEY, b"1") & Some(KEY)),
            "(t/x/d:v = 1) and (t/x/d:v has a value)",
        ),
        (
            assertion_text(Not(Some(KEY)) | GreaterThan(KEY, b"\0")),
            "(not (t/x/d:v has a value)) or (t/x/d:v > \\x00)",
        ),
        (assertion_text(Version(KEY, None)), "t/x/d:v has no version"),
        (assertion_text(Version(KEY, 7)), "t/x/d:v has version 7"),
        (duration_text(1_234), "1.2 s"),
        (duration_text(61_000), "1 m 1 s"),
        (duration_text(3_700_000), "1 h 1 m"),
        (duration_text(100_000_000), "1 d 3 h"),
        (time_text(1_790_000_000_123), "2026-09-21 14:13:20.123Z"),
        (time_text((1 << 63) - 1), str((1 << 63) - 1)),  # a damaged row may have any timestamp
        (count_text(0, "row"), "0 rows"),
        (count_text(2000, "row"), "2,000 rows"),
        (count_text(3, "entry", "entries"), "3 entries"),
    ],
)
def test_things_are_written_for_people(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("500ms", 500), ("90s", 90_000), ("1h30m", 5_400_000), ("7d", 604_800_000), ("0s", 0)],
)
def test_durations_are_read(text: str, duration_ms: int) -> None:
    assert parse_duration(text) == duration_ms


@pytest.mark.parametrize(
    ("parse", "texts", "match"),
    [
        (parse_duration, ["", "10", "m", "-1s", "1.5h", "10 minutes"], "duration"),
        (unescape, ["\\", "\\n", "\\x", "\\x1", "\\xg0"], "backslash"),
        (
            Key.parse,
            ["", "t", "t/r", "t/r/f", "t//f:c", "/r/f:c", "t/r/:c", "t/r/f:"],
            "table/row/family:column",
        ),
    ],
)
def test_what_is_not_whole_is_refused(
    parse: Callable[[str], object], texts: list[str], match: str
) -> None:
    """Taking milliseconds for seconds would abort everything that lives."""
    for text in texts:
        with pytest.raises(InvalidRequestError, match=match):
            parse(text)


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
    assert make_endpoint_command(name).startswith(f"alter {written}, METHOD => 'table_att', '")


TEXT = "t/x/d:v"


def parsed(**parts: object) -> Request:
    return parse_request(json.dumps(parts))


def test_a_document_has_everything_that_a_request_has() -> None:
    assertions = [
        {"exact": TEXT, "value": "1"},
        {"greater": TEXT, "value": {"base64": "/w=="}},
        {"version": TEXT, "timestamp": None},
        {"or": [{"and": [{"some": TEXT}, {"version": TEXT, "timestamp": 7}]}, {"some": TEXT}]},
        {"not": {"some": TEXT}},
    ]
    request = parsed(
        mutations=[{"put": TEXT, "value": "é"}, {"delete": TEXT}],
        assertions=assertions,
        once={"base64": "AAE="},
        labels={"job": "load"},
    )
    assert request == Request(
        (Mutation(KEY, "é"), Delete(KEY)),
        (
            Exact(KEY, b"1"),
            GreaterThan(KEY, b"\xff"),
            Version(KEY, None),
            Or(And(Some(KEY), Version(KEY, 7)), Some(KEY)),
            Not(Some(KEY)),
        ),
        b"\0\1",
        {"job": "load"},
    )


def test_a_key_may_be_an_object_and_a_text_is_taken_literally() -> None:
    """Programs that write documents need not know about escapes; JSON has some of its own."""
    parts = {"table": "t", "row": {"base64": "AC8="}, "family": "f", "column": "a/b"}
    given = [{"delete": parts}, {"put": TEXT, "value": "\\x00"}]
    assert parsed(mutations=given).mutations == (
        Delete(Key(b"\0/", "f", "a/b", "t")),
        Mutation(KEY, b"\\x00"),
    )


@pytest.mark.parametrize(
    ("parts", "place"),
    [
        ({"mutation": []}, "mutation"),
        ({"mutations": [{"put": TEXT}]}, "mutations[0]"),
        ({"mutations": [{"put": TEXT, "value": 7}]}, "mutations[0].value"),
        ({"mutations": [{"put": TEXT, "value": {"base64": "?"}}]}, "mutations[0].value"),
        ({"mutations": [{"delete": TEXT, "value": "1"}]}, "mutations[0]"),
        ({"mutations": [{"delete": {"row": "r"}}]}, "mutations[0]"),
        ({"mutations": [{"delete": 7}]}, "mutations[0]"),
        ({"mutations": [{"delete": "r/f:c"}]}, "table/row/family:column"),
        ({"assertions": [{}]}, "assertions[0]"),
        ({"assertions": [{"same": TEXT}]}, "same"),
        ({"assertions": [{"some": TEXT, "not": {"some": TEXT}}]}, "assertions[0]"),
        ({"assertions": [{"not": {"or": [{"some": TEXT}, 7]}}]}, "assertions[0].not.or[1]"),
        ({"assertions": [{"version": TEXT, "timestamp": "7"}]}, "assertions[0]"),
        ({"once": 7}, "once"),
        ({"labels": []}, "labels"),
    ],
)
def test_an_error_names_the_place(parts: dict[str, object], place: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parsed(**parts)
    assert place in str(caught.value)


@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_what_is_no_document_or_nested_too_deeply_is_refused(depth: int) -> None:
    """Some interpreters give up while they parse it, and some afterwards."""
    for text in ("", "{", "[]", "7", b"\xff"):
        with pytest.raises(InvalidRequestError):
            parse_request(text)
    assertion = '{"not": ' * depth + f'{{"some": "{TEXT}"}}' + "}" * depth
    with pytest.raises(InvalidRequestError, match="nested too deeply limit=100"):
        parse_request(f'{{"assertions": [{assertion}]}}')
