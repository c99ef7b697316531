"""Whose owners are dead, and which transactions wait for which."""

from __future__ import annotations

from dataclasses import replace

from recovery.console.owners import (
    LeftTransactions,
    Owners,
    WaitingTransaction,
    make_trees,
)
from recovery.console.search import UnfinishedScan
from recovery.findings import GRACE_MS, Kind
from tests.unit.test_console_search import scan_all
from tests.unit.test_search import NOW_MS, TXN, Rows
from txn.model import Edit, Family, Key, Mutation
from txn.protocol.codec import encode_buffer
from txn.protocol.context import Context
from txn.protocol.row import child_key, column, new_row_key
from txn.protocol.statuses import FENCED, Status
from txn.request import Request

A, B, C = (Key(row, "d", "x", b"data") for row in "abc")


def refresh(context: Context, owners: Owners | None = None) -> Owners:
    """Count the unfinished, and judge their owners."""
    owners = owners or Owners(context)
    owners.refresh(scan_all(UnfinishedScan(context)))
    return owners


def find_left(rows: Rows) -> LeftTransactions:
    left = refresh(rows.context).left
    assert left is not None
    return left


def beat(rows: Rows, row_key: bytes, at_ms: int) -> None:
    rows.store.write([Edit(column(TXN, row_key, b"beat"), b"", at_ms)])


def test_what_dead_clients_left_is_counted_by_kind() -> None:
    rows = Rows()
    kinds = {Status.LOCKED: 3, Status.PUT: 2, Status.ABORTING: 1}
    for status, number in kinds.items():
        row_keys = [new_row_key(NOW_MS, status.at[3] * 10 + at) for at in range(number)]
        rows.put(row_keys, status, at_ms=NOW_MS)
    rows.clock.advance(GRACE_MS - 1)
    assert find_left(rows).total == 0
    rows.clock.advance(1)
    found = find_left(rows)
    assert found.kinds == {Kind.UNDECIDED: 3, Kind.DECIDED: 2, Kind.ABORTING: 1}
    assert (found.total, found.since, found.is_estimate) == (6, NOW_MS, False)


def test_a_heartbeat_is_a_sign_of_life() -> None:
    rows = Rows()
    whole = new_row_key(NOW_MS, 1)
    _, other = rows.put([whole, new_row_key(NOW_MS, 2)], Status.WRITTEN, at_ms=NOW_MS)
    rows.put([child_key(whole, 0, 0)], Status.PART, at_ms=NOW_MS)
    rows.clock.advance(GRACE_MS)
    assert find_left(rows).total == 2  # a transaction and its parts are one
    beat(rows, other, NOW_MS + 3_600_000)  # of a clock that is fast: nobody believes it
    assert (find_left(rows).total, find_left(rows).since) == (2, NOW_MS)
    beat(rows, whole, NOW_MS + 500)
    assert find_left(rows).total == 1


def test_each_owner_has_its_own_lock_ttl() -> None:
    rows = Rows()
    (row_key,) = rows.put([new_row_key(NOW_MS, 1)], Status.WRITTEN, at_ms=NOW_MS)
    rows.put([child_key(row_key, 0, 0)], Status.PART, at_ms=NOW_MS)
    patient = encode_buffer(Request(()), 240_000)
    rows.store.write([Edit(column(TXN, row_key, b"buffer"), patient, NOW_MS + 1)])
    rows.clock.advance(239_999)
    assert find_left(rows).total == 0
    rows.clock.advance(1)
    assert find_left(rows).total == 1


class Locked(Rows):
    """Transactions at their beginning, and the locks of a data table."""

    def __init__(self) -> None:
        super().__init__()
        self.store.ensure_table(b"data", {b"d": Family()})

    def begin(self, uid: int, *keys: Key, holds: int = 0, status: Status = Status.WRITTEN) -> bytes:
        """Put the row of a transaction that holds the first of its locks."""
        request = Request(tuple(Mutation(key, b"1") for key in keys))
        row_key = new_row_key(NOW_MS, uid)
        self.put([row_key], status, request, at_ms=NOW_MS)
        self.store.write([Edit(key.lock, row_key, NOW_MS) for key in keys[:holds]])
        return row_key

    def list_waiting(self, ago_ms: int = 1_000) -> list[WaitingTransaction]:
        self.clock.advance(ago_ms)
        return [*refresh(self.context).waiting]


def test_a_transaction_waits_for_the_first_lock_that_another_holds() -> None:
    rows = Locked()
    holder = rows.begin(1, A, holds=1, status=Status.LOCKED)
    middle = rows.begin(2, B, A, holds=1)
    last = rows.begin(3, C, B, holds=1)
    rows.begin(4, Key("free", "d", "x", b"data"))
    (root,) = rows.list_waiting()
    (below,) = root.waiters
    (leaf,) = below.waiters
    assert [(each.row_key, each.key, each.status) for each in (root, below, leaf)] == [
        (holder, None, Status.LOCKED),
        (middle, A, Status.WRITTEN),
        (last, B, Status.WRITTEN),
    ]
    assert not root.is_left


def test_those_who_wait_for_a_dead_client_are_seen() -> None:
    rows = Locked()
    dead = rows.begin(1, A, B, holds=1)
    rows.begin(2, B, holds=1, status=Status.LOCKED)
    waiter = rows.begin(3, A)
    rows.clock.advance(GRACE_MS)
    beat(rows, waiter, NOW_MS + GRACE_MS)
    (root,) = rows.list_waiting(100)
    assert (root.row_key, root.is_left) == (dead, True)
    assert [each.row_key for each in root.waiters] == [waiter]


def test_a_holder_without_a_row_and_a_table_that_is_gone_are_no_obstacle() -> None:
    rows = Locked()
    gone = new_row_key(NOW_MS, 9)
    rows.store.write([Edit(A.lock, gone, NOW_MS), Edit(B.lock, b"no lock", NOW_MS)])
    waiter = rows.begin(1, A)
    rows.begin(2, B)
    rows.begin(3, Key("a", "d", "x", b"absent"))
    (root,) = rows.list_waiting()
    assert (root.row_key, root.status) == (gone, None)
    assert [each.row_key for each in root.waiters] == [waiter]


def test_row_family_locks_are_waited_for_as_well() -> None:
    rows = Locked()
    rows.context = replace(rows.context, rules=FENCED)
    holder, waiter = rows.begin(1, A, status=Status.ASSERTED), rows.begin(2, A)
    rows.store.write([Edit(A.row_lock, b"1@" + holder, NOW_MS)])
    (root,) = rows.list_waiting()
    assert (root.row_key, [each.row_key for each in root.waiters]) == (holder, [waiter])


def test_a_cycle_is_shown_once_and_marked() -> None:
    """The order of keys allows none; one that is seen is a fault, or a look at two instants."""
    wait = {b"a": b"b", b"b": b"c", b"c": b"a", b"d": b"a", b"e": b"e"}
    found = [
        WaitingTransaction(name, Status.WRITTEN, False, A, holder) for name, holder in wait.items()
    ]
    roots = make_trees(found)
    assert [each.row_key for each in roots] == [b"a", b"e"]
    assert all(each.closes_cycle for each in roots)
    first, own = roots
    assert [each.row_key for each in first.waiters] == [b"c", b"d"]
    assert [each.row_key for each in first.waiters[0].waiters] == [b"b"]
    assert own.waiters == first.waiters[0].waiters[0].waiters == []
