"""Errors that say what to install where a driver is missing: most of them come with extras."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from txn.errors import InvalidRequestError, annotate

OWN_EXTRAS = {"psycopg": "postgresql"}
"""Drivers of which there is a choice: the extra that has this one."""


@contextmanager
def import_extra(extra: str) -> Iterator[None]:
    """Name the extra in a ModuleNotFoundError that the block raises."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(_say(extra, error), name=error.name) from error


@contextmanager
def require_extra(extra: str, **facts: object) -> Iterator[None]:
    """Turn a ModuleNotFoundError into an InvalidRequestError: the request needs the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidRequestError(_say(extra, error, **facts)) from error


def _say(extra: str, error: ModuleNotFoundError, **facts: object) -> str:
    extra = OWN_EXTRAS.get(error.name or "", extra)
    missing = (error.name or "").partition(".")[0] or None
    message = f"install hbase-txn[{extra}], or in a checkout .[{extra}]"
    return annotate(message, **facts, missing=missing)
