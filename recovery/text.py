"""Text of times, durations, counts and errors, as commands print and parse it.

`txn.text` has the text of bytes, keys and assertions, some of which the library stores.
"""

from __future__ import annotations

import re
import shlex
from ast import literal_eval
from collections.abc import Mapping
from datetime import UTC, datetime

from txn.errors import InvalidRequestError
from txn.model import Key
from txn.protocol.row import parent_of, strip_database
from txn.text import escape, key_text, show_text

_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES = r"""b(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_MARKS = re.compile(
    r"""(?P<command>(?<=command=)"[^"]*")"""
    rf"|(?P<key>Key\({_BYTES}(?:, {_BYTES}){{2,3}}\))"
    rf"|(?P<cell>Cell\(value={_BYTES}, timestamp=\d+\))"
    rf"|(?P<bytes>(?<!\w){_BYTES})"
    r"|(?P<word>(?:(?:(?<=[=\[(])|(?<=, ))'[^'\s]+'|(?<= )'[\w@%+=:,./-]+')(?=[,\])\s]|$))"
    r"|(?P<kind>\[Errno -?\d+\] |\b(?:ssl\.|socket\.)?(?:Timeout|Connection\w*|OS|SSL)Error: )"
)
COMMANDS = {
    "ensure_table": "`txn table create`",
    "transactions, salt_buckets, policy, on_event, protocol and rows are of the server": (
        "the server has its own --transactions, --protocol and --rows: leave them out"
    ),
    "name its transaction table": "name its transaction table with --transactions",
    ": use Delete": ': write {"delete": key}',
    ", or raise Policy(skew_ms=)": "",
}
"""Phrases for programs, and what commands print instead."""


def error_text(error: BaseException | str) -> str:
    """Return an error's text with commands instead of functions, and without Python's quotes."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return show_text(f"{error.strerror}: {error.filename}")
    text = str(error).replace("\\'", "'")
    for said, command in COMMANDS.items():
        text = text.replace(said, command)
    return show_text(_MARKS.sub(_read_mark, text))


def _read_mark(found: re.Match[str]) -> str:
    text = found[0]
    match found.lastgroup:
        case "command":  # HBase's shell needs the quotes
            return text
        case "key":
            return key_text(Key(*map(literal_eval, re.findall(_BYTES, text))))
        case "cell":
            value, timestamp = text.removeprefix("Cell(value=")[:-1].rsplit(", timestamp=")
            return f"{_read_literal(value)} at {timestamp}"
        case "bytes":
            return _read_literal(text)
        case "word":
            return text[1:-1].replace("\\\\", "\\")
        case _:
            return ""


def _read_literal(literal: str) -> str:
    return escape(literal_eval(literal)) or "(empty)"


def quote_name(name: bytes) -> str:
    """Return a name for a command that people paste into a shell."""
    return shlex.quote(escape(name))


def labels_text(labels: Mapping[str, str]) -> str:
    """Return the labels on one line, whatever their content."""
    return escape(" ".join(f"{name}={text}" for name, text in labels.items()).encode())


def short_id(row_key: bytes) -> str:
    """Return the last random digits of a row key, and a part's number, as `txn show` takes them."""
    name = strip_database(row_key)
    whole = parent_of(name) or name
    return escape(whole[-8:] + name.removeprefix(whole))


def count_text(count: int, singular: str, plural: str = "") -> str:
    """Return a number and what it counts, such as `1 row` and `2,000 rows`."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def parse_duration(text: str) -> int:
    """Return milliseconds from `500ms`, `90s`, `10m`, `24h`, `1h30m` or `7d`."""
    compact = text.strip().lower()
    parts = _DURATION.findall(compact)
    if not compact or _DURATION.sub("", compact).strip():
        raise InvalidRequestError("a duration is a number and ms, s, m, h or d", given=text)
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
    """Return a timestamp as UTC, to the millisecond; the number itself if no year can hold it."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03d}Z"
