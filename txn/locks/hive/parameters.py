"""Values of `:name` and `?` in a statement of Spark, and names that are written as IDENTIFIER('t').

A value that Python has no certain spelling for stays a marker: a partition of an unknown value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import islice, pairwise
from typing import Any

from sqlglot import TokenType

from txn.errors import InvalidRequestError
from txn.locks.hive.words import Word, Words, refuse_statement, replace_words, split, tokens_of

Args = Mapping[str, Any] | Sequence[Any]

_IDENTIFIER = re.compile(r" IDENTIFIER \( '(?: \|\| ')* \)")
_WORD = re.compile(r"[\w`]")
_PLAIN = re.compile(r"[^\\'$\x00-\x1f]*")


def bind_values(sql: str, args: Args | None = None) -> str:
    """Return a text with the values of its markers, and with the names that IDENTIFIER gives.

    args: as `spark.sql` takes them, by name or in order.
    """
    if not isinstance(args, Mapping | Sequence | None) or isinstance(args, str | bytes):
        raise InvalidRequestError(f"args are values by name, or in order: given={args!r}")
    if args and not isinstance(args, Mapping) and len(split(sql)) > 1:
        refuse_statement(sql, "values in order are of one statement")
    found, end = "", 0
    for first, last, value in _markers(sql, args or {}):
        literal = _literal(value)
        if literal is not None:
            found += sql[end:first] + literal
            end = last
    return replace_words(found + sql[end:], [(_IDENTIFIER, _name)])


def _markers(text: str, args: Args) -> Iterator[tuple[int, int, Any]]:
    """Where each marker begins and ends, with its value. A colon right behind a word is none."""
    tokens = tokens_of(text)
    values = iter(() if isinstance(args, Mapping) else args)
    for token, following in pairwise([*tokens, None]):
        if token is None:
            return
        if token.token_type is TokenType.PLACEHOLDER:
            yield from ((token.start, token.end + 1, value) for value in islice(values, 1))
        elif token.token_type is TokenType.COLON and following is not None:
            is_marker = following.start == token.end + 1 and not _WORD.match(text[token.start - 1])
            if is_marker and isinstance(args, Mapping) and following.text in args:
                yield token.start, following.end + 1, args[following.text]


def _literal(value: Any) -> str | None:
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case int():
            return str(value)
        case float() | Decimal():
            return format(Decimal(value), "f") if math.isfinite(value) else None
        case datetime():
            return None
        case date():
            return f"DATE'{value}'"
        case str():
            return f"'{value}'" if _PLAIN.fullmatch(value) else _escape(value)
    return None


def _escape(text: str) -> str:
    """A string that nobody takes for a constant, but whose quotes end where they must."""
    return "'" + "".join(f"\\u{ord(each):04x}" for each in text) + "'"


def _name(words: Sequence[Word], _: str) -> str:
    text = "".join(word.text for word in words if word.kind is TokenType.STRING)
    if any(word.kind is TokenType.RAW_STRING for word in words):
        refuse_statement(text, "a name whose spelling is not certain")
    names = Words(text, "")
    parts = [names.identifier()]
    while names.accept("."):
        parts.append(names.identifier())
    names.end()
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)
