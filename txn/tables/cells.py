"""One column's stored state, and which of its versions is visible: pure functions over bytes.

The state is the newest put versions, newest first, and at the end the greatest delete-column marker
if there is one. A marker masks every put at or below its timestamp, whenever that put arrives, so a
masked put is dropped at once; so is one that more than enough newer versions hide. Two puts at one
timestamp: the later arrival replaces. Nothing that is dropped could ever be seen again, which is
why this small state answers exactly as HBase 2 does (without `NEW_VERSION_BEHAVIOR`).

    state   = *(timestamp:u64 size:u32 value) [timestamp:u64 0xFFFFFFFF]        big-endian
"""

from __future__ import annotations

import struct

from txn.model import Cell

MAX_SIZE = 1 << 30

_HEAD = struct.Struct(">QI")
_HEAD_SIZE = _HEAD.size
_MARKER = 0xFFFF_FFFF
_unpack = _HEAD.unpack_from
_pack = _HEAD.pack


def newest(state: bytes, oldest_ms: int = 0) -> Cell | None:
    """Return the newest visible version; those below `oldest_ms` have expired."""
    timestamp, size = _unpack(state)
    if size == _MARKER or timestamp < oldest_ms:
        return None
    return Cell(state[_HEAD_SIZE : _HEAD_SIZE + size], timestamp)


def versions(state: bytes, oldest_ms: int = 0) -> list[Cell]:
    """Return every visible version, newest first."""
    found = []
    at, end = 0, len(state)
    while at < end:
        timestamp, size = _unpack(state, at)
        if size == _MARKER or timestamp < oldest_ms:
            break
        at += _HEAD_SIZE + size
        found.append(Cell(state[at - size : at], timestamp))
    return found


def put(state: bytes, timestamp: int, value: bytes, limit: int) -> bytes:
    """Return the state after a put, of at most `limit` versions; the same object if unchanged."""
    head = _pack(timestamp, len(value))
    if not state:
        return head + value
    newer, kept = _newer(state, timestamp)
    if kept >= limit:
        return state
    older, end = newer, len(state)
    if newer < end:
        found, size = _unpack(state, newer)
        if size == _MARKER:
            if found >= timestamp:
                return state
        elif found == timestamp:
            older += _HEAD_SIZE + size
    cut, marker = _trim(state, older, limit - kept - 1)
    return b"".join((state[:newer], head, value, state[older:cut], state[marker:]))


def delete(state: bytes, timestamp: int) -> bytes:
    """Return the state after a delete-column marker; the same object if nothing changes."""
    newer, _ = _newer(state, timestamp)
    if newer < len(state):
        found, size = _unpack(state, newer)
        if size == _MARKER and found >= timestamp:
            return state
    return state[:newer] + _pack(timestamp, _MARKER)


def compact(state: bytes, oldest_ms: int = 0, purge_before_ms: int | None = None) -> bytes:
    """Return what a major compaction keeps, empty where that is nothing.

    Expired versions go, and the marker goes if it lies below `purge_before_ms` (None: always).
    """
    at, end = 0, len(state)
    while at < end:
        timestamp, size = _unpack(state, at)
        if size == _MARKER or timestamp < oldest_ms:
            break
        at += _HEAD_SIZE + size
    _, marker = _trim(state, at, 0)
    if marker == end:
        return state[:at]
    timestamp, _ = _unpack(state, marker)
    purged = purge_before_ms is None or timestamp < purge_before_ms
    return state[:at] if purged else state[:at] + state[marker:]


def _newer(state: bytes, timestamp: int) -> tuple[int, int]:
    """Return where the versions above the timestamp end, and how many they are."""
    at, end, count = 0, len(state), 0
    while at < end:
        found, size = _unpack(state, at)
        if found <= timestamp or size == _MARKER:
            break
        at += _HEAD_SIZE + size
        count += 1
    return at, count


def _trim(state: bytes, at: int, room: int) -> tuple[int, int]:
    """Return where the next `room` versions from here end, and where the marker begins."""
    cut, end = at, len(state)
    while at < end:
        _, size = _unpack(state, at)
        if size == _MARKER:
            break
        at += _HEAD_SIZE + size
        if room > 0:
            room -= 1
            cut = at
    return cut, at
