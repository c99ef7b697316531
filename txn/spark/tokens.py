"""How transactions of Spark are named, and what their names stand for.

A token begins with its scope, a job or table, so that no two of these share tokens. It stands for
its rows. Other rows with the same token are an error and not a repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import date, time, timedelta
from decimal import Decimal
from hashlib import blake2b
from typing import Any

from pyspark.sql import Row

from txn.model import as_bytes
from txn.request import MAX_TOKEN

Once = Callable[[Any], str | bytes] | str
"""What tells a row's token: a function, or the name of a column."""

PLAIN = (str, int, bool, type(None), bytes)
DIGEST_BYTES = 16
READABLE_BYTES = 100
"""The readable bytes of a token that is shortened by a digest."""


def name_scope(job: bytes, table: bytes = b"") -> bytes:
    """Return the scope of what a job writes to a table; without a job, of all that is written to
    the table; without a table, of what the job's functions write. Only those of jobs begin with a
    slash, so no two are equal."""
    table = escape_slashes(table)
    return b"/%s/%s" % (escape_slashes(job), table) if job else table


def make_token(*names: bytes) -> bytes:
    """Return the token for nested names, such as a scope and the values of its columns. A long
    token is replaced by a digest behind two slashes; no other token begins with two."""
    token = b"/".join(names)
    if len(token) <= MAX_TOKEN:
        return token
    digest = blake2b(token, digest_size=32).hexdigest().encode()
    return b"//%s/%s" % (digest, token[:READABLE_BYTES])


def find_token(row: Any, once: Once, job: str) -> bytes:
    """Return a row's token: `/JOB//COLUMN/VALUE`, or `/JOB//` and what the function returns."""
    scope = name_scope(job.encode())
    if callable(once):
        return make_token(scope, as_bytes("once", once(row)))
    value = as_bytes("once", str(value) if isinstance(value := row[once], int) else value)
    return make_token(scope, escape_slashes(once.encode()), escape_slashes(value))


def name_function(function: Callable[..., Any]) -> str:
    """Return the name of a function, also of a partial one, or of a callable object's class."""
    function = getattr(function, "func", function)
    return getattr(function, "__qualname__", type(function).__qualname__)


def escape_slashes(name: bytes) -> bytes:
    return name.replace(b"\\", rb"\\").replace(b"/", rb"\/")


def digest_rows(rows: Iterable[Any], target: Collection[str | bytes | None] = ()) -> bytes:
    """Return a digest of rows in any order, and of what is done with them. Row and dictionary are
    the same, and so are whole numbers and floats, which pandas has beside nulls. Values that data
    frames do not have differ between attempts: then no rows are compared."""
    try:
        texts = sorted(map(_describe, rows))
    except TypeError:
        texts = []
    return blake2b(ascii([*target, *texts]).encode(), digest_size=DIGEST_BYTES).digest()


def _describe(value: Any) -> str:
    if type(value) in PLAIN:
        return ascii(value)
    if hasattr(type(value), "tolist"):  # numpy's scalars and arrays
        return _describe(value.tolist())
    if isinstance(value, Row) and hasattr(value, "__fields__"):
        value = dict(zip(value.__fields__, value, strict=True))
    match value:
        case float():
            return ascii(int(value) if value.is_integer() else value)
        case bytearray():
            return ascii(bytes(value))
        case Decimal():
            return str(value)
        case date() | time():
            return value.isoformat()
        case timedelta(days=days, seconds=seconds, microseconds=microseconds):
            return f"{days} {seconds} {microseconds}"
        case dict():
            return f"{{{sorted((_describe(key), _describe(item)) for key, item in value.items())}}}"
        case list() | tuple():
            return f"[{', '.join(map(_describe, value))}]"
    raise TypeError
