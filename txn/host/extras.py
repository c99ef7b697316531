"""Errors that name the extra to install when a driver is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from txn.errors import InvalidRequestError, annotate

OWN_EXTRAS = {"psycopg": "postgresql"}  # named instead of the caller's


@contextmanager
def import_extra(extra: str) -> Iterator[None]:
    """Add the name of the extra to a ModuleNotFoundError from the block."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(_make_message(extra, error), name=error.name) from error


@contextmanager
def require_extra(extra: str, **facts: object) -> Iterator[None]:
    """Turn the block's ModuleNotFoundError into an InvalidRequestError that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidRequestError(_make_message(extra, error, **facts)) from error


def _make_message(extra: str, error: ModuleNotFoundError, **facts: object) -> str:
    extra = OWN_EXTRAS.get(error.name or "", extra)
    missing = (error.name or "").partition(".")[0] or None
    message = f"install hbase-txn[{extra}], or in a checkout .[{extra}]"
    return annotate(message, **facts, missing=missing)
