"""What the stories call a call: the matches of steps that travel together; and the transport of
single cells."""

from __future__ import annotations

import pytest

from tests.simulation.puppets import frees, poisons, takes, writes_and_takes
from tests.simulation.telling import brief
from tests.simulation.world import TRANSACTIONS, OneCell, key
from txn import MaybeApplied, NotApplied
from txn.clock import ManualClock
from txn.model import Check, Edit, Family, Key
from txn.protocol.row import status_key
from txn.protocol.statuses import Status
from txn.stores import open_store
from txn.testing.faulty import Call, Fault, FaultyStore, Item, Reply, at

X = key("x")
HOLDER = b"transaction.1700000000000.d95bafc8f2a4d27bdcf4bb99f4bea973@txn"
STATUS = status_key(TRANSACTIONS, HOLDER)
LOCK = Check(X.lock, b"", ((X.lock, HOLDER),))
FENCED_LOCK = Check(X.row_lock, b"3", edits=(Edit(X.row_lock, b"4@" + HOLDER, 5),))
UNLOCK = Check(X.lock, HOLDER, ((X.lock, b""),))


def step(expected: bytes | None, status: Status) -> Check:
    return Check(STATUS, expected, ((STATUS, status.value),))


def call(*items: Item) -> Call:
    return Call(1, "check_and_put", items)


def test_a_row_and_its_locks_in_one_call() -> None:
    row, plain = step(b"", Status.WRITTEN), step(None, Status.WRITTEN)
    assert writes_and_takes(X)(call(row, LOCK))
    assert writes_and_takes(X)(call(LOCK, plain))
    assert writes_and_takes(X)(call(plain, FENCED_LOCK))
    assert takes(X)(call(row, LOCK))
    assert not writes_and_takes(X)(call(row))
    assert not writes_and_takes(X)(call(LOCK))
    assert not writes_and_takes(key("y"))(call(row, LOCK, FENCED_LOCK))


def test_unlocks_beside_a_step() -> None:
    assert frees(call(step(b"3-PUT", Status.CLEANING), UNLOCK))
    assert not frees(call(Check(X.lock, None, ((X.tag, b""),)), LOCK))


def test_poison_is_an_abort_of_an_absent_row() -> None:
    reason = (STATUS._replace(column=b"reason"), b"its lock was met, and it had no row")
    poison = Check(STATUS, b"", (reason, (STATUS, Status.ABORTED.value)))
    fenced = Check(STATUS, b"", edits=tuple(Edit(name, value, 7) for name, value in poison.puts))
    assert poisons(call(poison))
    assert poisons(call(UNLOCK, fenced))
    assert not poisons(call(step(b"6-ABORTING", Status.ABORTED)))
    assert not poisons(call(step(b"", Status.WRITTEN)))


def test_a_trace_shows_what_waits_for_no_log() -> None:
    tag = Check(X.tag, None, edits=(Edit(Key(*X.tag), b"", 5),), is_deferred=True)
    assert brief(tag) == "x/v_tag:*->- later"
    assert brief(LOCK) == "x/v_lock:->Ta973"  # by the end of its number, without its database


def test_a_transport_of_single_cells_denies_nothing_that_has_happened() -> None:
    for refused, expected in ((1, NotApplied), (2, MaybeApplied), (3, MaybeApplied)):
        inner = open_store("memory://", ManualClock())
        inner.ensure_table(b"data", {b"d": Family()})
        fault = Fault(applied=frozenset(), reply=Reply.NOT_APPLIED)
        store = OneCell(FaultyStore(inner, at({refused: fault})))
        checks = [Check(key, b"", ((key, b"1"),)) for key in (X, X.tag)]
        with pytest.raises(expected):
            store.check_and_read(checks, [X])
