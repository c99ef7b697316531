"""What the fields of forms say."""

from __future__ import annotations

from recovery.text import parse_duration
from txn.errors import InvalidRequestError
from txn.text import unescape

MOST_TABLES = 100


def parse_tables(text: str) -> tuple[bytes, ...]:
    """Return the names of tables, which spaces or commas separate, each once."""
    tables = tuple(dict.fromkeys(map(unescape, text.replace(",", " ").split())))
    if len(tables) > MOST_TABLES:
        raise InvalidRequestError("too many tables", given=len(tables), limit=MOST_TABLES)
    return tables


def parse_number(text: str) -> int:
    """Return a whole number, 0 or more."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidRequestError("not a number", given=text[:40])
    return int(text)


def parse_grace(text: str) -> int:
    """Return milliseconds."""
    return parse_duration(text or "1m")
