"""What to install where a driver is missing: most of them come with extras."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from txn.errors import describe


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Name the extra in the ModuleNotFoundError of what a block imports."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = describe(f"install hbase-txn[{extra}]", missing=error.name)
        raise ModuleNotFoundError(message, name=error.name) from error
