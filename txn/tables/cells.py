"""One column's stored state, and which of its versions is visible: pure functions over bytes.

The state is the newest put versions, newest first, with the markers that still mask late puts: a
delete-column marker (everything at or below its timestamp), kept at the end, and exact markers (the
one version of that timestamp). A masked put is dropped at once, and so is one that more than enough
newer versions hide. Two puts at one timestamp: the later arrival replaces. This answers as HBase 2
does (without `NEW_VERSION_BEHAVIOR`, `KEEP_DELETED_CELLS=FALSE`). HBase leaves one thing to chance:
a version that VERSIONS hides can be seen until a flush, by a time range or after an exact delete of
a newer one. Here it is gone at once, as if each put were flushed.

    state   = *(version / exact) [timestamp:u64 0xFFFFFFFF]        big-endian
    version = timestamp:u64 size:u32 value / timestamp:u64 (0x80000000 | 8 + size):u32 ttl:i64 value
    exact   = timestamp:u64 0xFFFFFFFE

A version with a TTL of its own (ms; HBase's `_ttl`) is not there any more once its timestamp and
its TTL lie before now: reads, limits of versions and compactions pass over it. An older version is
then seen again, as in HBase.

The row-level markers of a family are such a state too, of markers alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from txn.errors import InvalidRequestError
from txn.model import Cell, new_tuple

MAX_SIZE = 1 << 30
ALL = 1 << 31
FOREVER = (1 << 63) - 1

_HEAD = struct.Struct(">QI")
_HEAD_SIZE = _HEAD.size
_MARKER = 0xFFFF_FFFF
_EXACT = 0xFFFF_FFFE
_LENGTH = 0x7FFF_FFFF
_TTL = 0x8000_0000
_TTL_SIZE = 8
_unpack = _HEAD.unpack_from
_pack = _HEAD.pack
_TTL_FORM = struct.Struct(">q")


class CellVersion(NamedTuple):
    """One visible version of a cell."""

    family: bytes
    column: bytes
    timestamp: int
    value: bytes


def newest(state: bytes, oldest_ms: int = 0, now_ms: int = 0) -> Cell | None:
    """Return the newest visible version; those below `oldest_ms` have expired."""
    timestamp, size = _unpack(state)
    if size > _LENGTH:
        return next(iter(versions(state, oldest_ms, now_ms, limit=1)), None)
    if timestamp < oldest_ms:
        return None
    return new_tuple(Cell, (state[_HEAD_SIZE : _HEAD_SIZE + size], timestamp))


def versions(
    state: bytes,
    oldest_ms: int = 0,
    now_ms: int = 0,
    *,
    limit: int = ALL,
    since: int = 0,
    until: int = FOREVER,
    at_least: int = 0,
) -> list[Cell]:
    """Return the visible versions, newest first, at most so many.

    Only those with timestamps from `since` (included) to `until` (excluded) count; the first
    `at_least` of them never expire, which is HBase's MIN_VERSIONS. now_ms: for TTLs of their own.
    """
    found: list[Cell] = []
    at, end = 0, len(state)
    while at < end and len(found) < limit:
        timestamp, size = _unpack(state, at)
        at += _HEAD_SIZE
        if size == _MARKER or timestamp < since:
            break
        if size == _EXACT:
            continue
        start, at = at, at + (size & _LENGTH)
        if size > _LENGTH:
            if _has_expired(state, start, timestamp, now_ms):
                continue
            start += _TTL_SIZE
        if timestamp < until:
            if timestamp < oldest_ms and len(found) >= at_least:
                break
            found.append(Cell(state[start:at], timestamp))
    return found


def put_version(
    state: bytes,
    timestamp: int,
    value: bytes,
    limit: int,
    now_ms: int = 0,
    *,
    ttl_ms: int | None = None,
) -> bytes:
    """Return the state after a put, of at most `limit` versions; the same object if unchanged, as
    by one whose TTL is over already."""
    if len(value) > MAX_SIZE:
        raise InvalidRequestError("value is too large", bytes=len(value), limit=MAX_SIZE)
    if ttl_ms is None:
        head = _pack(timestamp, len(value))
    elif _is_over(timestamp + ttl_ms, now_ms):
        return state
    else:
        head = _pack(timestamp, _TTL | _TTL_SIZE + len(value)) + _TTL_FORM.pack(ttl_ms)
    if not state:
        return head + value
    found, size = _unpack(state)
    if found <= timestamp and size <= _LENGTH:  # as nearly always: it is the newest
        end = _HEAD_SIZE + size
        if limit == 1 and len(state) == end:
            return head + value
        is_newer = found < timestamp
        return b"".join((head, value, *_trim(state, 0 if is_newer else end, limit - 1, now_ms)))
    return _put_among(state, timestamp, head + value, limit, now_ms)


def find_ttl(state: bytes, timestamp: int) -> int | None:
    """Return the TTL of the version of this timestamp, None where it has none."""
    for at, _, found, size in _entries(state):
        if found == timestamp and _LENGTH < size < _EXACT:
            return _read_ttl(state, at + _HEAD_SIZE)
    return None


def _put_among(state: bytes, timestamp: int, version: bytes, limit: int, now_ms: int) -> bytes:
    newer, kept, found, size = _locate(state, timestamp, now_ms)
    if kept >= limit or _hides(found, size, timestamp):
        return state
    older = newer
    if found == timestamp:
        older += _HEAD_SIZE + (size & _LENGTH)
    return b"".join((state[:newer], version, *_trim(state, older, limit - kept - 1, now_ms)))


def delete(state: bytes, timestamp: int) -> bytes:
    """Return the state after a delete-column marker; the same object if nothing changes."""
    newer, _, found, size = _locate(state, timestamp)
    if size == _MARKER and found >= timestamp:
        return state
    return state[:newer] + _pack(timestamp, _MARKER)


def delete_exact(state: bytes, timestamp: int) -> bytes:
    """Return the state after a delete of the one version; the same object if nothing changes."""
    newer, _, found, size = _locate(state, timestamp)
    if _hides(found, size, timestamp):
        return state
    return state[:newer] + _pack(timestamp, _EXACT) + drop_exact(state, timestamp)[newer:]


def drop_versions(state: bytes, timestamp: int) -> bytes:
    """Return the state without what is at or below the timestamp, which is masked from outside."""
    newer, _, found, _ = _locate(state, timestamp)
    return state[:newer] if 0 <= found <= timestamp else state


def drop_exact(state: bytes, timestamp: int) -> bytes:
    """Return the state without the one version, which is masked from outside."""
    newer, _, found, size = _locate(state, timestamp)
    if found == timestamp and size < _EXACT:
        return state[:newer] + state[newer + _HEAD_SIZE + (size & _LENGTH) :]
    return state


def masks(state: bytes, timestamp: int) -> bool:
    """Return whether a marker of this state hides a put of the timestamp."""
    _, _, found, size = _locate(state, timestamp)
    return _hides(found, size, timestamp)


def compact_cell(
    state: bytes,
    oldest_ms: int = 0,
    purge_before_ms: int | None = None,
    now_ms: int = 0,
    *,
    limit: int = ALL,
    at_least: int = 0,
) -> bytes:
    """Return what a major compaction keeps, empty where that is nothing.

    What has expired or is hidden goes, and markers below `purge_before_ms` (None: all of them).
    """
    kept = []
    count = 0
    for at, end, timestamp, size in _entries(state):
        if size >= _EXACT:
            keep = purge_before_ms is not None and timestamp >= purge_before_ms
        elif size > _LENGTH and _has_expired(state, at + _HEAD_SIZE, timestamp, now_ms):
            keep = False
        else:
            count += 1
            keep = count <= limit and (timestamp >= oldest_ms or count <= at_least)
        if keep:
            kept.append(state[at:end])
    return b"".join(kept)


def _read_ttl(state: bytes, at: int) -> int:
    ttl_ms: int = _TTL_FORM.unpack_from(state, at)[0]
    return ttl_ms


def _has_expired(state: bytes, at: int, timestamp: int, now_ms: int) -> bool:
    return _is_over(timestamp + _read_ttl(state, at), now_ms)


def _is_over(ends_ms: int, now_ms: int) -> bool:
    return ends_ms > FOREVER or ends_ms < now_ms  # Java's sum beyond 64 bits is negative


def _hides(found: int, size: int, timestamp: int) -> bool:
    """Return whether the entry, as `_locate` found it, is a marker that hides the timestamp."""
    return size >= _EXACT and (found == timestamp or (size == _MARKER and found > timestamp))


def _locate(state: bytes, timestamp: int, now_ms: int = 0) -> tuple[int, int, int, int]:
    """Return where what is above the timestamp ends, how many versions that is, and the timestamp
    and the size of the entry there: -1 and 0 at the end."""
    at, end, count = 0, len(state), 0
    while at < end:
        found, size = _unpack(state, at)
        if found <= timestamp or size == _MARKER:
            return at, count, found, size
        if size == _EXACT:
            at += _HEAD_SIZE
        else:
            expired = size > _LENGTH and _has_expired(state, at + _HEAD_SIZE, found, now_ms)
            count += not expired
            at += _HEAD_SIZE + (size & _LENGTH)
    return at, count, -1, 0


def _trim(state: bytes, at: int, room: int, now_ms: int) -> list[bytes]:
    """Return the parts of the rest of the state that stay: so many versions, and all markers."""
    parts = []
    start, end = at, len(state)
    while at < end:
        timestamp, size = _unpack(state, at)
        if size >= _EXACT:
            at += _HEAD_SIZE
            continue
        expired = size > _LENGTH and _has_expired(state, at + _HEAD_SIZE, timestamp, now_ms)
        if room > 0 and not expired:
            room -= 1
            at += _HEAD_SIZE + (size & _LENGTH)
        else:
            parts.append(state[start:at])
            at = start = at + _HEAD_SIZE + (size & _LENGTH)
    parts.append(state[start:])
    return parts


def _entries(state: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield where each version and marker begins and ends, its timestamp and its size."""
    at, end = 0, len(state)
    while at < end:
        timestamp, size = _unpack(state, at)
        start, at = at, at + _HEAD_SIZE + (size & _LENGTH if size < _EXACT else 0)
        yield start, at, timestamp, size
