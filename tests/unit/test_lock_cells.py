"""What a lock cell says, in either protocol."""

from __future__ import annotations

import pytest

from tests.unit.worlds import X
from txn.errors import CorruptRowError
from txn.model import Cell, Key
from txn.protocol.lock_cells import FREE, count_of, free_value, held_value, holder_of, unit_lock

LOCK = unit_lock(X)


def says(value: bytes) -> Cell:
    return Cell(value, 7)


def test_one_lock_serves_a_row_and_family() -> None:
    """Two columns are in each other's way, two families and two rows are not."""
    assert unit_lock(X) == unit_lock(X._replace(column=b"other"))
    assert unit_lock(X) != unit_lock(X._replace(family=b"e"))
    assert unit_lock(X) != unit_lock(X._replace(row=b"other"))
    assert isinstance(LOCK, Key)


def test_what_is_written_is_read() -> None:
    """Clients of all versions read what one has written."""
    assert holder_of(LOCK, says(held_value(12, b"T1@home"))) == b"T1@home"
    assert count_of(LOCK, says(held_value(12, b"T1@home"))) == 12
    assert holder_of(LOCK, says(free_value(12))) == FREE
    assert count_of(LOCK, says(free_value(12))) == 12


@pytest.mark.parametrize("cell", [None, says(b"")], ids=["absent", "empty"])
def test_a_lock_that_was_never_taken_is_free(cell: Cell | None) -> None:
    """The first transaction on a row finds nothing there."""
    assert (holder_of(LOCK, cell), count_of(LOCK, cell)) == (FREE, 0)


@pytest.mark.parametrize("value", [b"T1", b"@T1", b"012", b"-1", b"1@", b"1" * 20, b"\xff"])
def test_what_no_lock_says_is_held_by_nobody_known(value: bytes) -> None:
    """It is in the way, since nobody knows what it means, and has no count to go on from."""
    assert holder_of(LOCK, says(value)) == value
    with pytest.raises(CorruptRowError, match="not a lock of the fenced protocol"):
        count_of(LOCK, says(value))


def test_a_lock_of_six_phases_is_its_holder() -> None:
    """Beside a key, whatever is there is a row key: also one that looks like a count."""
    assert holder_of(X.lock, says(b"3@T1")) == b"3@T1"
    assert holder_of(X.lock, None) == FREE
