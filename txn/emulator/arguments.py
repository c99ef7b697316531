"""What both services of HBase are asked for in the same words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txn.model import MAX_CELL, MAX_ROW
from txn.tables.changes import key_value_bytes
from txn.tables.operations import MAX_TIMESTAMP, Put, Range
from txn.tables.refusal import Refused


def check_time(timestamp: int) -> int | None:
    """Return the timestamp, None for HBase's "now"."""
    refuse_negative(timestamp)
    return time_of(timestamp)


def time_of(timestamp: int) -> int | None:
    """Return the timestamp as it is, None for HBase's "now"."""
    return None if timestamp == MAX_TIMESTAMP else timestamp


def range_of(start: bytes | None, stop: bytes | None, *, reverse: bool = False) -> Range:
    """Return a range of rows; as in HBase, from a row to itself means that row."""
    first, last = start or b"", stop or b""
    if max(len(first), len(last)) > MAX_ROW:
        raise Refused("illegal argument", "a row is at most 32767 bytes", bytes=len(first))
    return Range(first, last, include_stop=bool(first) and first == last, reverse=reverse)


def ttl_of(attributes: Mapping[bytes, bytes] | None) -> int | None:
    """Return the TTL (ms) that a mutation's attributes give to its cells; None: they give none."""
    given = (attributes or {}).get(b"_ttl")
    if given is None:
        return None
    if len(given) < 8:
        raise Refused("retries exhausted", "a _ttl is 8 bytes", bytes=len(given))
    ttl_ms = int.from_bytes(given[:8], signed=True)
    return None if ttl_ms == MAX_TIMESTAMP else ttl_ms


def check_sizes(row: bytes, puts: Iterable[Put]) -> None:
    """Refuse the puts that HBase's own client does not send; those of servers are not many more."""
    for family, column, value, *_ in puts:
        size = key_value_bytes(row, family, column, value)
        if size > MAX_CELL:
            raise Refused(
                "illegal argument", "the cell is too large", cell_bytes=size, limit=MAX_CELL
            )


def batch_of(size: int | None) -> int | None:
    """Return how many versions a result may hold; HBase takes what is not positive for any."""
    return size if size is not None and size > 0 else None


def refuse_negative(timestamp: int) -> None:
    """Raise Refused for a time before all others."""
    if timestamp < 0:
        raise Refused("illegal argument", "timestamps are not negative", timestamp=timestamp)
