"""What a lock cell says: who holds it, and in the fenced protocol how often it was taken.

    x_lock    six-phase, of one key: the holder's row key; empty: free
    _lock     fenced, of one row and family: n while it is free, n@holder while it is held;
              absent: free, never taken

n is a decimal number, one more with each acquisition, so that no value of a fenced lock ever comes
again.
"""

from __future__ import annotations

import re

from txn.errors import CorruptRowError
from txn.model import LOCK_SUFFIX, Cell, Key, new_tuple

FREE = b""
UNIT_LOCK = LOCK_SUFFIX
_FENCED = re.compile(rb"(0|[1-9][0-9]{0,18})(?:@(.+))?", re.DOTALL)


def unit_lock(key: Key) -> Key:
    """Return the lock cell of the key's row and family."""
    return new_tuple(Key, (key[0], key[1], UNIT_LOCK, key[3]))


def holder_of(lock: Key, cell: Cell | None) -> bytes:
    """Return the row key of who holds a lock; FREE: nobody. What no lock says is a holder whose row
    nobody finds."""
    if cell is None or not cell.value:
        return FREE
    if lock.column != UNIT_LOCK:
        return cell.value
    match = _FENCED.fullmatch(cell.value)
    return cell.value if match is None else match[2] or FREE


def count_of(lock: Key, cell: Cell | None) -> int:
    """Return how often a fenced lock was taken; CorruptRowError where the cell does not say."""
    if cell is None or not cell.value:
        return 0
    match = _FENCED.fullmatch(cell.value)
    if match is None:
        raise CorruptRowError("not a lock of the fenced protocol", key=lock, value=cell.value)
    return int(match[1])


def free_value(count: int) -> bytes:
    """Return what a free fenced lock says."""
    return b"%d" % count


def held_value(count: int, holder: bytes) -> bytes:
    """Return what a held fenced lock says."""
    return b"%d@%b" % (count, holder)
