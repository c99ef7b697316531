"""What a lock cell says, in either protocol."""

from __future__ import annotations

import pytest

from tests.unit.worlds import X
from txn.errors import CorruptRowError
from txn.model import Cell
from txn.protocol.locks import NAMED, FencedLock, holder_of, read_lock
from txn.protocol.row import FREE, is_row_key, new_row_key

LOCK = X.row_lock
NAME = new_row_key(1, 1)


def says(value: bytes) -> Cell:
    return Cell(value, 7)


def test_what_is_written_is_read() -> None:
    for names in (b"", b"0123abcd", b"-,-,0123abcd"):
        lock = FencedLock(12, FREE, names)
        held = says(lock.take(b"T1@home"))
        assert read_lock(LOCK, held) == FencedLock(13, b"T1@home", names)
        assert holder_of(LOCK, held) == b"T1@home"
        free = says(read_lock(LOCK, held).undo_take())
        assert (read_lock(LOCK, free), holder_of(LOCK, free)) == (lock, FREE)


def test_names_move_up_with_each_acquisition() -> None:
    free = FencedLock().commit_single(b"transaction.1.aaaaaaaa")
    assert free == b"1 aaaaaaaa"
    lock = read_lock(LOCK, says(read_lock(LOCK, says(free)).take(b"T")))
    assert lock == FencedLock(2, b"T", b"aaaaaaaa")
    assert lock.give_back() == b"2 -,aaaaaaaa"
    assert FencedLock(1, b"T").give_back() == b"1"
    for _ in range(NAMED):
        assert lock.was_taken_by(b"aaaaaaaa", 1) is True
        free = lock.give_back()
        lock = read_lock(LOCK, says(read_lock(LOCK, says(free)).take(b"T")))
    assert lock.was_taken_by(b"aaaaaaaa", 1) is None
    assert lock.names == b""


@pytest.mark.parametrize("cell", [None, says(b"")], ids=["absent", "empty"])
def test_a_lock_that_was_never_taken_is_free(cell: Cell | None) -> None:
    assert (holder_of(LOCK, cell), read_lock(LOCK, cell)) == (FREE, FencedLock())


@pytest.mark.parametrize("value", [NAME, b"@T1", b"012", b"-1", b"1@", b"1" * 20, b"\xff"])
def test_what_no_lock_says_is_held_by_nobody_known(value: bytes) -> None:
    assert not is_row_key(holder_of(LOCK, says(value)))
    with pytest.raises(CorruptRowError, match="not a lock of the fenced protocol") as error:
        read_lock(LOCK, says(value))
    assert repr(value) not in str(error.value)  # it may be a value of somebody's


def test_a_lock_of_six_phases_is_its_holder() -> None:
    assert holder_of(X.lock, says(b"3@T1")) == b"3@T1"
    assert holder_of(X.lock, None) == FREE
