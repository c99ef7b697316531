"""What a lock cell says: who holds it, and in the fenced protocol how often it was taken.

    x_lock    six-phase, of one key: the holder's row key; empty: free
    _lock     fenced, of one row and family: n [" " names] while it is free,
              n "@" holder [" " names] while it is held; absent: free, never taken

n is a decimal number, one more with each acquisition, so that no value of a fenced lock ever comes
again. The names tell which of the last acquisitions were whole transactions of this row and family
alone, which have no row of their own: for n (held: n - 1), the one before, and so on, each the
transaction's name, or "-" for one that has a row; commas between.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from txn.errors import CorruptRowError
from txn.model import LOCK_SUFFIX, ROW_KEY, Cell, Key, new_tuple

FREE = b""
UNIT_LOCK = LOCK_SUFFIX
NAMED = 16
NAME = 8  # hex digits: compared with one other only
NO_LOCK = "the cell of the lock holds what is no lock"
_NOBODY = b"-"
_FENCED = re.compile(rb"(0|[1-9][0-9]{0,18})(?:@([^ ]+))?(?: ([0-9a-f,-]+))?")


class FencedLock(NamedTuple):
    """What a fenced lock says. taken: how often it was. names: newest first, of the acquisitions
    before the holder's."""

    taken: int = 0
    holder: bytes = FREE
    names: tuple[bytes, ...] = ()

    @property
    def value(self) -> bytes:
        """The bytes of the cell."""
        held = b"@" + self.holder if self.holder else b""
        named = b" " + b",".join(self.names) if self.names else b""
        return b"%d%b%b" % (self.taken, held, named)

    def take(self, holder: bytes) -> FencedLock:
        """Return the lock as held by a transaction with a row."""
        return FencedLock(self.taken + 1, holder, self.names)

    def undo_take(self) -> FencedLock:
        """Return the lock, which is held, as its holder found it."""
        return FencedLock(self.taken - 1, FREE, self.names)

    def give_back(self) -> FencedLock:
        """Return the lock, which is held, as free."""
        return FencedLock(self.taken, FREE, _push(_NOBODY, self.names))

    def pass_by(self, row_key: bytes) -> FencedLock:
        """Return the lock, which is free, as a transaction without a row leaves it."""
        return FencedLock(self.taken + 1, FREE, _push(_name(row_key), self.names))

    def was_taken_by(self, row_key: bytes, count: int) -> bool | None:
        """Return whether a transaction without a row was the one that made the count; None: nobody
        can tell any more."""
        behind = self.taken - count - bool(self.holder)
        if behind < 0:
            return False
        if behind >= NAMED:
            return None
        return behind < len(self.names) and self.names[behind] == _name(row_key)


def unit_lock(key: Key) -> Key:
    """Return the lock cell of the key's row and family."""
    return new_tuple(Key, (key[0], key[1], UNIT_LOCK, key[3]))


def holder_of(lock: Key, cell: Cell | None) -> bytes:
    """Return the row key of who holds a lock; FREE: nobody. What no lock says is a holder that is
    no transaction, also where it would be the name of one."""
    if cell is None or not cell.value:
        return FREE
    if lock.column != UNIT_LOCK:
        return cell.value
    match = _FENCED.fullmatch(cell.value)
    if match is not None:
        return match[2] or FREE
    return b"?" + cell.value if ROW_KEY.fullmatch(cell.value) else cell.value


def require_lock(lock: Key, cell: Cell | None) -> None:
    """Raise CorruptRowError where a cell in the place of a lock is none: it may be somebody's
    value, and nobody knows whose the key is."""
    holder = holder_of(lock, cell)
    if holder and ROW_KEY.fullmatch(holder) is None:
        raise make_foreign_error(NO_LOCK, lock, cell)


def is_lock_of_rows(key: Key, cell: Cell) -> bool | None:
    """Return True for a cell that is a lock of the fenced protocol, False for one of the six-phase
    protocol, None for any other."""
    if key.column == UNIT_LOCK:
        return True if cell.value and _FENCED.fullmatch(cell.value) else None
    if not key.column.endswith(LOCK_SUFFIX):
        return None
    return False if not cell.value or ROW_KEY.fullmatch(cell.value) else None


def make_foreign_error(what: str, key: Key, cell: Cell | None) -> CorruptRowError:
    """Return the error of a cell that says what the protocol never writes there. Of the value it
    tells the size alone: it may be somebody's, and errors go to the logs of servers and programs.
    """
    return CorruptRowError(what, key=key, bytes=len(cell.value) if cell else 0)


def read_lock(lock: Key, cell: Cell | None) -> FencedLock:
    """Return what a fenced lock says; CorruptRowError where that is nothing."""
    if cell is None or not cell.value:
        return FencedLock()
    match = _FENCED.fullmatch(cell.value)
    if match is None:
        raise make_foreign_error("not a lock of the fenced protocol", lock, cell)
    names = tuple(match[3].split(b",")) if match[3] else ()
    return FencedLock(int(match[1]), match[2] or FREE, names)


def _name(row_key: bytes) -> bytes:
    return row_key.partition(b"@")[0][-NAME:]


def _push(name: bytes, names: tuple[bytes, ...]) -> tuple[bytes, ...]:
    found = (name, *names)[:NAMED]
    while found and found[-1] == _NOBODY:
        found = found[:-1]
    return found
