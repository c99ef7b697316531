r"""Bytes, keys, assertions, times and durations as text for people, and back.

Bytes are UTF-8 where that is printable, else `\xNN`; a backslash is `\\`. So no text is ambiguous,
and whatever a command prints it also takes. A key is `table/row/family:column`: the table ends at
the first slash and the row at the last one, so that only a slash in a column must be `\x2f`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import assert_never

from txn.assertions import And, Assertion, Exact, GreaterThan, Not, Or, Some, Version
from txn.errors import InvalidRequestError, describe
from txn.model import Key

LONGEST = 60

_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(\\)|.?)", re.DOTALL)
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def escape(value: bytes) -> str:
    """Return the bytes as printable text from which `unescape` makes the same bytes."""
    text = value.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(_escape_letter(letter) for letter in text)


def unescape(text: str) -> bytes:
    """Return the bytes that the text stands for; InvalidRequestError for an unknown escape."""

    def replacement(match: re.Match[bytes]) -> bytes:
        if match[1] is not None:
            return bytes([int(match[1], 16)])
        if match[2] is not None:
            return b"\\"
        raise InvalidRequestError(describe(r"a backslash must be \\ or \xNN", text=text))

    return _ESCAPE.sub(replacement, text.encode("utf-8", "surrogateescape"))


def shorten(value: bytes, longest: int = LONGEST) -> str:
    """Return the bytes as text for a person; of a long value its beginning and its length."""
    text = escape(value[: 4 * longest])  # a letter has four bytes at most: none is cut in two
    if len(value) <= 4 * longest and len(text) <= longest:
        return text
    return f"{text[:longest]}… ({len(value):,} bytes)"


def key_text(key: Key) -> str:
    """Return the key as `parse_key` takes it."""
    column = escape(key.column).replace("/", r"\x2f")
    return f"{escape(key.table or b'')}/{escape(key.row)}/{escape(key.family)}:{column}"


def parse_key(text: str) -> Key:
    """Return the key that is written `table/row/family:column`, or raise InvalidRequestError."""
    table, _, rest = text.partition("/")
    row, _, last = rest.rpartition("/")
    family, _, column = last.partition(":")
    if not (table and row and family and column):
        raise InvalidRequestError(describe("a key is table/row/family:column", given=text))
    return Key(unescape(row), unescape(family), unescape(column), unescape(table))


def assertion_text(assertion: Assertion) -> str:
    """Return the assertion as a person would say it."""
    match assertion:
        case Exact(key, value):
            return f"{key_text(key)} = {shorten(value)}"
        case Some(key):
            return f"{key_text(key)} has a value"
        case GreaterThan(key, value):
            return f"{key_text(key)} > {shorten(value)}"
        case Version(key, timestamp):
            version = "no version" if timestamp is None else f"version {timestamp}"
            return f"{key_text(key)} has {version}"
        case Not(inner):
            return f"not ({assertion_text(inner)})"
        case And(parts) | Or(parts):
            word = " and " if isinstance(assertion, And) else " or "
            return word.join(f"({assertion_text(part)})" for part in parts)
        case _:
            assert_never(assertion)


def labels_text(labels: Mapping[str, str]) -> str:
    """Return the labels on one line, whatever is in them."""
    return escape(" ".join(f"{name}={text}" for name, text in labels.items()).encode())


def count_text(count: int, singular: str, plural: str = "") -> str:
    """Return a number and what it counts, such as `1 row` and `2,000 rows`."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def parse_duration(text: str) -> int:
    """Return milliseconds from `500ms`, `90s`, `10m`, `24h`, `1h30m` or `7d`."""
    compact = text.strip().lower()
    parts = _DURATION.findall(compact)
    if not compact or _DURATION.sub("", compact).strip():
        raise InvalidRequestError(
            describe("a duration is a number and ms, s, m, h or d", given=text)
        )
    return sum(int(number) * _UNITS_MS[unit] for number, unit in parts)


def duration_text(duration_ms: int) -> str:
    """Return a duration in its two greatest units, below ten seconds with its fraction."""
    if duration_ms < 1000:
        return f"{duration_ms} ms"
    if duration_ms < 10_000:
        return f"{duration_ms / 1000:.1f} s"
    seconds = duration_ms // 1000
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // part} {smaller}"
    return f"{seconds // 60} m {seconds % 60} s" if seconds >= 60 else f"{seconds} s"


def time_text(timestamp_ms: int) -> str:
    """Return a timestamp as UTC, to the millisecond; the number itself where no year holds it."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def _escape_letter(letter: str) -> str:
    if letter == "\\":
        return r"\\"
    if letter.isprintable():
        return letter
    return "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", "surrogateescape"))
