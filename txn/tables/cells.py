"""One column's stored state and its visible versions: pure functions over bytes.

The state has the newest put versions, newest first, and the markers that still mask late puts. A
delete-column marker masks everything at or below its timestamp and is kept at the end. An exact
marker masks the one version of its timestamp. A masked put is dropped at once, and so is one that
enough newer versions hide. Of two puts at one timestamp, the later arrival replaces the earlier.

This behaves as HBase 2 does (without `NEW_VERSION_BEHAVIOR`, with `KEEP_DELETED_CELLS=FALSE`), with
one difference. In HBase a version hidden by VERSIONS can be seen until a flush, through a time
range or after an exact delete of a newer one. Here it is gone at once, as if each put were flushed.

    state   = *(version / exact) [timestamp:u64 0xFFFFFFFF]        big-endian
    version = timestamp:u64 size:u32 value / timestamp:u64 (0x80000000 | 8 + size):u32 ttl:i64 value
    exact   = timestamp:u64 0xFFFFFFFE

A version may have a TTL of its own (ms; HBase's `_ttl`). When its timestamp plus its TTL lies
before now, all ignore it. An older version then becomes visible again, as in HBase.

The row-level markers of a family are such a state too, of markers only.
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
    family: bytes
    column: bytes
    timestamp: int
    value: bytes


def newest(state: bytes, oldest_ms: int = 0, now_ms: int = 0) -> Cell | None:
    """Return the newest visible version; versions below `oldest_ms` have expired."""
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
    """Return up to `limit` visible versions, newest first.

    Only timestamps from `since` (included) to `until` (excluded) count. The first `at_least` of
    them never expire, which is HBase's MIN_VERSIONS. now_ms: for TTLs of single versions.
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
    """Return the state after a put, with up to `limit` versions; the same object if unchanged."""
    size = len(value)
    if size > MAX_SIZE:
        raise InvalidRequestError("value is too large", bytes=size, limit=MAX_SIZE)
    if ttl_ms is None:
        head = _pack(timestamp, size)
    elif _is_over(timestamp + ttl_ms, now_ms):
        return state
    else:
        head = _pack(timestamp, _TTL | _TTL_SIZE + size) + _TTL_FORM.pack(ttl_ms)
    if not state:
        return head + value
    found, found_size = _unpack(state)
    if found <= timestamp and found_size <= _LENGTH:  # nearly always: it is the newest
        end = _HEAD_SIZE + found_size
        if limit == 1 and len(state) == end:
            return head + value
        rest = _trim(state, 0 if found < timestamp else end, limit - 1, now_ms)
        return b"".join((head, value, rest))
    newer, kept, found, found_size = _locate(state, timestamp, now_ms)
    if kept >= limit or _hides(found, found_size, timestamp):
        return state
    older = newer
    if found == timestamp:
        older += _HEAD_SIZE + (found_size & _LENGTH)
    rest = _trim(state, older, limit - kept - 1, now_ms)
    return b"".join((state[:newer], head, value, rest))


def find_ttl(state: bytes, timestamp: int) -> int | None:
    for at, _, found, size in _entries(state):
        if found == timestamp and _LENGTH < size < _EXACT:
            return int(_TTL_FORM.unpack_from(state, at + _HEAD_SIZE)[0])
    return None


def delete(state: bytes, timestamp: int) -> bytes:
    """Return the state after a delete-column marker; the same object if nothing changes."""
    newer, _, found, size = _locate(state, timestamp)
    if size == _MARKER and found >= timestamp:
        return state
    return state[:newer] + _pack(timestamp, _MARKER)


def delete_exact(state: bytes, timestamp: int) -> bytes:
    """Return the state after an exact delete; the same object if nothing changes."""
    newer, _, found, size = _locate(state, timestamp)
    if _hides(found, size, timestamp):
        return state
    return state[:newer] + _pack(timestamp, _EXACT) + drop_exact(state, timestamp)[newer:]


def drop_versions(state: bytes, timestamp: int) -> bytes:
    """Return the state without what is at or below the timestamp, masked by a row-level marker."""
    newer, _, found, _ = _locate(state, timestamp)
    return state[:newer] if 0 <= found <= timestamp else state


def drop_exact(state: bytes, timestamp: int) -> bytes:
    """Return the state without the one version, which a row-level marker masks."""
    newer, _, found, size = _locate(state, timestamp)
    if found == timestamp and size < _EXACT:
        return state[:newer] + state[newer + _HEAD_SIZE + (size & _LENGTH) :]
    return state


def masks(state: bytes, timestamp: int) -> bool:
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
    """Return the state that a major compaction keeps, perhaps none: without expired and hidden
    versions, and markers below `purge_before_ms` (None: all)."""
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


def _has_expired(state: bytes, at: int, timestamp: int, now_ms: int) -> bool:
    (ttl_ms,) = _TTL_FORM.unpack_from(state, at)
    return _is_over(timestamp + ttl_ms, now_ms)


def _is_over(ends_ms: int, now_ms: int) -> bool:
    return ends_ms > FOREVER or ends_ms < now_ms  # in Java a sum beyond 64 bits is negative


def _hides(found: int, size: int, timestamp: int) -> bool:
    return size >= _EXACT and (found == timestamp or (size == _MARKER and found > timestamp))


def _locate(state: bytes, timestamp: int, now_ms: int = 0) -> tuple[int, int, int, int]:
    """Return the end of the entries above the timestamp, the number of versions among them, and the
    timestamp and size of the next entry: -1 and 0 at the end."""
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


def _trim(state: bytes, at: int, room: int, now_ms: int) -> bytes:
    """Return what stays of the rest of the state: `room` versions, and all markers."""
    kept, start, end = b"", at, len(state)
    while at < end:
        timestamp, size = _unpack(state, at)
        after = at + _HEAD_SIZE + (size & _LENGTH)
        if size >= _EXACT:
            at += _HEAD_SIZE
        elif room > 0 and (
            size <= _LENGTH or not _has_expired(state, at + _HEAD_SIZE, timestamp, now_ms)
        ):
            room -= 1
            at = after
        else:
            kept += state[start:at]
            at = start = after
    return kept + state[start:]


def _entries(state: bytes) -> Iterator[tuple[int, int, int, int]]:
    at, end = 0, len(state)
    while at < end:
        timestamp, size = _unpack(state, at)
        start, at = at, at + _HEAD_SIZE + (size & _LENGTH if size < _EXACT else 0)
        yield start, at, timestamp, size
