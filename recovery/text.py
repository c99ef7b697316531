"""What commands print beside bytes and keys, and what they take: times, durations, counts.

How bytes, keys and assertions are written is in `txn.text`: the library writes some of it down.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Mapping
from datetime import UTC, datetime

from txn.errors import InvalidRequestError
from txn.model import Key
from txn.protocol.row import strip_database, whole_of
from txn.text import escape, key_text

_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


_BYTES = r"""b(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_KEY = re.compile(rf"Key\(({_BYTES}), ({_BYTES}), ({_BYTES})(?:, ({_BYTES}))?\)")
_CELL = re.compile(rf"Cell\(value=({_BYTES}), timestamp=(\d+)\)")
_LITERAL = re.compile(rf"(?<!\w){_BYTES}")


def error_text(error: BaseException | str) -> str:
    """Return what an error says as commands print it: its bytes, keys and cells as text, and what
    the library calls a method as the command that does the same."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.strerror}: {error.filename}"
    text = str(error).replace("\\'", "'").replace("ensure_table", "`txn table create`")
    text = _KEY.sub(
        lambda found: key_text(Key(*(literal_eval(part) for part in found.groups() if part))), text
    )
    text = _CELL.sub(lambda found: f"{_read_literal(found[1])} at {found[2]}", text)
    return _LITERAL.sub(lambda found: _read_literal(found[0]), text)


def _read_literal(literal: str) -> str:
    return escape(literal_eval(literal)) or "(empty)"


def labels_text(labels: Mapping[str, str]) -> str:
    """Return the labels on one line, whatever is in them."""
    return escape(" ".join(f"{name}={text}" for name, text in labels.items()).encode())


def short_id(row_key: bytes) -> str:
    """Return the end of a transaction's row key, as `txn show` takes it: its last random digits,
    and of a part what comes behind them."""
    name = strip_database(row_key)
    whole = whole_of(name) or name
    return escape(whole[-8:] + name.removeprefix(whole))


def cut(text: str, width: int) -> str:
    """Return the text, or as much of it as is so wide, with a mark that there was more."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


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
    """Return a timestamp as UTC, to the millisecond; the number itself where no year holds it."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03d}Z"
