"""What both services of HBase are asked for in the same words."""

from __future__ import annotations

from collections.abc import Mapping

from txn.model import MAX_ROW
from txn.tables.operations import MAX_TIMESTAMP, Range
from txn.tables.refusal import Refused


def check_time(timestamp: int) -> int | None:
    """Return the timestamp, None for HBase's "now"."""
    refuse_negative(timestamp)
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
        raise Refused("do not retry", "a _ttl is 8 bytes", bytes=len(given))
    ttl_ms = int.from_bytes(given[:8], signed=True)
    return None if ttl_ms == MAX_TIMESTAMP else ttl_ms


def batch_of(size: int | None) -> int | None:
    """Return how many versions a result may hold; HBase takes what is not positive for any."""
    return size if size is not None and size > 0 else None


def refuse_negative(timestamp: int) -> None:
    """Raise Refused for a time before all others."""
    if timestamp < 0:
        raise Refused("illegal argument", "timestamps are not negative", timestamp=timestamp)
