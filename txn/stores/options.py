"""The options of a store's URI: each is known, and has a value that it may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl

from txn.errors import InvalidRequestError

Option = Callable[[str, str], str | int]
"""Takes an option's name and what was given; returns its value or raises InvalidRequestError."""


def read_options(parts: SplitResult, known: Mapping[str, Option]) -> dict[str, Any]:
    """Return the values of the options that a URI has."""
    options: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            raise InvalidRequestError(
                "unknown option", option=name, uri=parts.geturl(), known=sorted(known)
            )
        options[name] = known[name](name, value)
    return options


def one_of(*values: str) -> Option:
    """Return an option that has one of these values."""

    def read(name: str, value: str) -> str:
        if value not in values:
            raise InvalidRequestError("unknown value", option=name, given=value, known=list(values))
        return value

    return read


def number(name: str, value: str) -> int:
    """A positive number below 1,000,000,000."""
    if not value.isdecimal() or len(value) > 9 or not int(value):
        raise InvalidRequestError("not a positive number", option=name, given=value)
    return int(value)


def up_to(limit: int) -> Option:
    """Return an option that is a positive number up to the limit."""

    def read(name: str, value: str) -> int:
        if number(name, value) > limit:
            raise InvalidRequestError("too large", option=name, given=value, limit=limit)
        return int(value)

    return read


def file(name: str, value: str) -> str:
    """A file that exists."""
    if not Path(value).is_file():
        raise InvalidRequestError("no such file", option=name, given=value)
    return value


def word(name: str, value: str) -> str:
    """Any text that is not empty."""
    if not value:
        raise InvalidRequestError("an option has no value", option=name)
    return value
