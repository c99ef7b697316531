"""The lock of an absent row: its row may be late, so it is poisoned before the lock is freed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from recovery import InGrace, Kind, NothingToDo, Repaired, check, repair
from recovery.findings import GRACE_MS, RETENTION_MS
from recovery.purge import delete_cells
from tests.unit.worlds import POLICY, TABLE, World, X, Y, is_step
from txn.assertions import Exact
from txn.client.parts import PartsClient
from txn.errors import (
    AbortedError,
    AssertionFailedError,
    CommitOutcomeUnknown,
    ConflictError,
    MaybeApplied,
    NotApplied,
)
from txn.events import Helped
from txn.model import Check, Edit, Key, Mutation
from txn.protocol.context import Context
from txn.protocol.recovery import NOTHING, POISONED, STUCK_MS, Resolver, poison, roll_back
from txn.protocol.row import TransactionRow, child_key, column, created_ms, read_rows, status_key
from txn.protocol.statuses import ProtocolName, Status
from txn.protocol.transaction import (
    WRITTEN_WITHIN_MS,
    PendingCommit,
    Transaction,
    begin_commit,
    load_transaction,
)
from txn.request import Outcome
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Reply

pytestmark = pytest.mark.usefixtures("rows_for_all")
BOTH = pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
TTL_MS = POLICY.lock_ttl_ms


class Orphan(World):
    """A client died as its row and its lock were on their way. The lock arrived; the row is late.

    dead: its store, which can deliver the row.
    """

    def __init__(self, protocol: ProtocolName) -> None:
        super().__init__(protocol=protocol)
        self.put(X, b"0")
        self.dead = FaultyStore(self.store)
        client = self.client(self.dead, seed=7)
        row_is_late = Fault(frozenset({1}), Reply.CRASH, late=frozenset({0}))
        self.dead.plan = when_stepping(Status.WRITTEN, lambda: None, row_is_late)
        with pytest.raises(Crash):
            client.commit([Mutation(X, b"1")], [Exact(X, b"0"), ~Exact(Y, b"?")])
        self.row_key = self.holder(X)
        assert self.row_key and self.rows() == []

    @property
    def lock(self) -> Key:
        return self.engine.context.rules.lock_of(X)

    @property
    def row(self) -> TransactionRow:
        (row,) = (row for row in self.rows() if row.row_key == self.row_key)
        return row

    def resolve(self, resolver: Resolver) -> bool:
        """Meet the lock; return whether it was freed."""
        cell = self.cell(self.lock)
        assert cell is not None
        return resolver.resolve({self.row_key: {self.lock: cell}}) == {self.row_key}

    def require_poisoned(self) -> None:
        assert self.row.is_poisoned and self.row.status is Status.ABORTED
        assert (self.row.reason, self.row.buffer) == (POISONED, None)
        assert self.engine.outcome(self.row_key) is Outcome.UNKNOWN


def when_stepping(status: Status, act: Callable[[], object], fault: Fault) -> Callable[..., Fault]:
    """Return the plan that does something before the first step to a status, and lets it fail."""
    seen: list[Call] = []

    def plan(call: Call) -> Fault:
        if not seen and any(is_step(item, status) for item in call.items):
            seen.append(call)
            act()
            return fault
        return Fault()

    return plan


def poison_row(context: Context, row_key: bytes) -> bool:
    return poison(context, Transaction(row_key, NOTHING))


def lose_steps(world: World, row_key: bytes, left: Status | None) -> None:
    """Take a row back to a status, as the crash of a server does to what was not yet in its log.
    A log leaves no delete markers. So each cell is deleted at its own time, and whatever is written
    later is seen."""
    (row,) = world.store.scan(b"txn", row_key, row_key + b"\0")
    status = status_key(b"txn", row_key)
    lost = [key for key in row.cells if left is None or key.column == Status.LOCKED.at]
    world.store.write([Edit(key, None, row.cells[key].timestamp) for key in lost])
    if left is not None:
        world.store.write([Edit(status, left.value, row.cells[status].timestamp)])
    world.clock.advance(1)


def abort(world: World, row_key: bytes) -> None:
    """Abort a transaction, as a client does that was impatient."""
    context = world.client(seed=70).context
    row = read_rows(context, [row_key])[row_key]
    roll_back(context, [load_transaction(context, row)], lambda _: "impatience")


@BOTH
def test_a_lock_without_a_row_is_freed_after_a_lock_ttl_and_poison(protocol: ProtocolName) -> None:
    world = Orphan(protocol)
    resolver = Resolver(world.engine.context)
    assert not world.resolve(resolver)
    world.clock.advance(TTL_MS - 1)
    assert not world.resolve(resolver)
    assert (world.holder(X), world.rows()) == (world.row_key, [])
    world.clock.advance(POLICY.courtesy_ms)
    world.events.clear()
    assert world.resolve(resolver)
    assert world.holder(X) == b""
    world.require_poisoned()
    helped = [event for event in world.events if isinstance(event, Helped)]
    assert helped == [Helped(world.row_key, "freed")]


@BOTH
def test_whoever_wants_the_key_waits_a_lock_ttl_and_commits(protocol: ProtocolName) -> None:
    world = Orphan(protocol)
    began_ms = world.clock.monotonic_ms()
    world.client(seed=2).commit([Mutation(X, b"2")])
    assert TTL_MS <= world.clock.monotonic_ms() - began_ms < TTL_MS + 100
    assert (world.value(X), world.holder(X)) == (b"2", b"")
    world.require_poisoned()
    assert list(check(world.engine.context, grace_ms=0, scan=[TABLE])) == []


@BOTH
def test_poison_is_acknowledged_before_the_lock_is_freed(protocol: ProtocolName) -> None:
    """Freed first, the lock could be another's when the row arrives and decides."""
    world = Orphan(protocol)
    resolver = Resolver(world.client(world.faults, seed=2).context)
    assert not world.resolve(resolver)
    world.clock.advance(TTL_MS)
    refused = Fault(frozenset(), Reply.NOT_APPLIED)
    world.faults.plan = lambda call: refused if call.method == "check_and_put" else Fault()
    assert not world.resolve(resolver)
    assert world.holder(X) == world.row_key

    calls: list[Call] = []

    def plan(call: Call) -> Fault:
        calls.append(call)
        return Fault()

    world.faults.plan = plan
    world.clock.advance(STUCK_MS + POLICY.courtesy_ms)
    assert world.resolve(resolver)
    checks = [item for call in calls for item in call.items if isinstance(item, Check)]
    first, last = checks
    assert is_step(first, Status.ABORTED) and last.key == world.lock
    assert (first.expected, first.is_deferred) == (b"", False)
    assert last.expected and world.row_key in last.expected


@BOTH
@pytest.mark.parametrize("applied", [None, frozenset()], ids=["applied", "lost"])
def test_a_lost_answer_to_poison_is_settled(
    protocol: ProtocolName, applied: frozenset[int] | None
) -> None:
    """A "no" to its repeat may be to one's own poison."""
    world = Orphan(protocol)
    resolver = Resolver(world.client(world.faults, seed=2).context)
    assert not world.resolve(resolver)
    world.clock.advance(TTL_MS)
    lost = Fault(applied, Reply.MAYBE_APPLIED)
    world.faults.plan = when_stepping(Status.ABORTED, lambda: None, lost)
    assert world.resolve(resolver)
    assert world.holder(X) == b""
    world.require_poisoned()


@BOTH
def test_a_row_that_arrives_before_poison_is_that_of_a_living_owner(
    protocol: ProtocolName,
) -> None:
    world = Orphan(protocol)
    resolver = Resolver(world.client(world.faults, seed=2).context)
    assert not world.resolve(resolver)
    world.clock.advance(TTL_MS)
    world.faults.plan = when_stepping(Status.ABORTED, world.dead.deliver, Fault())
    assert not world.resolve(resolver)
    assert (world.row.status, world.holder(X)) == (Status.WRITTEN, world.row_key)
    assert world.row.buffer is not None and world.row.reason is None
    world.clock.advance(POLICY.courtesy_ms)
    assert not world.resolve(resolver)
    world.clock.advance(TTL_MS - 1)
    assert not world.resolve(resolver)
    world.clock.advance(POLICY.courtesy_ms)
    assert world.resolve(resolver)
    assert (world.row.status, world.holder(X)) == (Status.ABORTED, b"")
    assert not world.row.is_poisoned
    assert world.engine.outcome(world.row_key) is Outcome.ABORTED


@BOTH
def test_a_row_that_arrives_after_poison_never_decides(protocol: ProtocolName) -> None:
    """Six-phase: it is refused. Fenced: it lies at t0, below the poison at t0 + 7."""
    world = Orphan(protocol)
    assert poison_row(world.engine.context, world.row_key)
    status = world.cell(status_key(b"txn", world.row_key))
    assert status is not None
    if protocol == "fenced":
        assert status.timestamp == created_ms(world.row_key) + 7
        reason = world.cell(column(b"txn", world.row_key, b"reason"))
        assert reason is not None and reason.timestamp == created_ms(world.row_key) + 7
    world.dead.deliver()
    assert world.cell(status_key(b"txn", world.row_key)) == status
    assert world.row.status is Status.ABORTED
    # Only the fenced protocol puts its row without a comparison, and so with its buffer.
    assert world.row.is_poisoned is (protocol == "six-phase")
    for expected in (Status.WRITTEN, None):
        key = status_key(b"txn", world.row_key)
        value = expected.value if expected else b""
        decision = Check(key, value, ((key, Status.ASSERTED.value),))
        assert world.store.check_and_put([decision]) == [False]


@BOTH
def test_a_lock_that_arrives_after_poison_is_freed_at_once(protocol: ProtocolName) -> None:
    world = Orphan(protocol)
    assert poison_row(world.engine.context, world.row_key)
    began_ms = world.clock.monotonic_ms()
    world.client(seed=2).commit([Mutation(X, b"2")])
    assert world.clock.monotonic_ms() - began_ms < POLICY.courtesy_ms


@BOTH
def test_the_end_of_a_transaction_is_not_poisoned(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    done = world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    assert not poison_row(world.engine.context, done.transaction)
    assert world.statuses() == [Status.COMPLETE]


@BOTH
def test_a_row_that_a_crash_undoes_is_poisoned_before_its_lock_is_freed(
    protocol: ProtocolName,
) -> None:
    world = Orphan(protocol)
    world.dead.deliver()
    resolver = Resolver(world.client(world.faults, seed=2).context)
    assert not world.resolve(resolver)
    world.clock.advance(TTL_MS)
    lose = partial(lose_steps, world, world.row_key, None)
    world.faults.plan = when_stepping(Status.ABORTING, lose, Fault())
    assert world.resolve(resolver)
    assert world.holder(X) == b""
    world.require_poisoned()


@BOTH
def test_a_row_that_is_written_again_after_a_crash_keeps_its_lock(protocol: ProtocolName) -> None:
    """If its lock were freed, late, both this owner and the next would commit: a lost update."""
    world = World(replace(POLICY, attempts=1), protocol=protocol)
    world.engine.commit([Mutation(X, b"0"), Mutation(Y, b"0")])
    world.clock.advance(1)
    store = FaultyStore(world.store)
    resolver = Resolver(world.client(store, seed=2).context)
    lock = world.engine.context.rules.lock_of(X)

    def meet_lock() -> None:
        row_key, cell = world.holder(X), world.cell(lock)
        assert cell is not None
        assert not resolver.resolve({row_key: {lock: cell}})
        world.clock.advance(TTL_MS)

        def lose_row() -> None:
            lose_steps(world, row_key, None)
            world.store.compact(b"txn", world.clock.wall_ms())  # no marker hides the row at t0

        lose = when_stepping(Status.ABORTING, lose_row, Fault())

        def plan(call: Call) -> Fault:
            frees = any(isinstance(i, Check) and i.key == lock for i in call.items)
            stop = Fault(frozenset(), Reply.CRASH, late=frozenset({0}))
            return stop if frees else lose(call)

        store.plan = plan
        with suppress(Crash):
            resolver.resolve({row_key: {lock: cell}})

    def commit_between() -> None:
        store.deliver()
        world.client(seed=3).commit([Mutation(X, b"2")], [Exact(X, b"0")])

    first = Fault(reply=Reply.MAYBE_APPLIED)
    writes: list[Call] = []
    decide = when_stepping(Status.ASSERTED, commit_between, Fault())

    def plan(call: Call) -> Fault:
        if not any(is_step(item, Status.WRITTEN) for item in call.items):
            return decide(call)
        writes.append(call)
        if len(writes) == 2:
            meet_lock()
        return first if len(writes) == 1 else Fault()

    world.faults.plan = plan
    with pytest.raises(ConflictError):
        world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")], [Exact(X, b"0")])
    assert (len(writes), world.value(X)) == (2, b"0")


@BOTH
def test_an_owner_that_was_poisoned_commits_with_a_new_row_key(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    world.engine.commit([Mutation(X, b"0"), Mutation(Y, b"0")])
    world.clock.advance(1)
    poisoned: list[bytes] = []

    def plan(call: Call) -> Fault:
        steps = [item for item in call.items if is_step(item, Status.WRITTEN)]
        if steps and not poisoned:
            (row,) = steps
            assert isinstance(row, Check)
            poisoned.append(row.key.row)
            assert poison_row(world.client(seed=3).context, row.key.row)
        return Fault()

    world.faults.plan = plan
    done = world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")], [Exact(X, b"0")])
    assert done.transaction != poisoned[0]
    assert (world.value(X), world.value(Y)) == (b"1", b"1")
    assert (world.holder(X), world.holder(Y)) == (b"", b"")
    context = world.engine.context
    assert read_rows(context, poisoned)[poisoned[0]].status is Status.ABORTED
    assert world.engine.outcome(done.transaction) is Outcome.COMMITTED
    assert list(check(context, grace_ms=0, scan=[TABLE])) == []


@BOTH
@pytest.mark.parametrize("is_lost", [False, True])
def test_an_owner_that_finds_poison_after_its_decision_knows_nothing(
    protocol: ProtocolName, is_lost: bool
) -> None:
    """It may have committed, and the row have been finished, deleted and poisoned since."""
    world = World(replace(POLICY, attempts=1), protocol=protocol)

    def delete_and_poison() -> None:
        (row,) = world.store.scan(b"txn", world.holder(X), world.holder(X) + b"\0")
        delete_cells(world.engine.context, [row])
        world.clock.advance(2 * WRITTEN_WITHIN_MS)
        assert poison_row(world.client(seed=3).context, row.row)

    fault = Fault(frozenset(), Reply.MAYBE_APPLIED) if is_lost else Fault()
    world.faults.plan = when_stepping(Status.ASSERTED, delete_and_poison, fault)
    with pytest.raises(CommitOutcomeUnknown) as caught:
        world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    assert world.engine.outcome(caught.value.transaction) is Outcome.UNKNOWN


@BOTH
@pytest.mark.parametrize("left", [None, Status.WRITTEN])
def test_an_owner_aborts_what_a_crash_of_a_server_has_undone(
    protocol: ProtocolName, left: Status | None
) -> None:
    world = World(protocol=protocol)
    undone: list[bytes] = []

    def undo() -> None:
        undone.append(world.holder(X))
        lose_steps(world, undone[0], left)

    if protocol == "fenced" and left is Status.WRITTEN:
        return  # it decides at 0-WRITTEN
    world.faults.plan = when_stepping(Status.ASSERTED, undo, Fault())
    done = world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    assert done.transaction != undone[0] and done.complete
    row = read_rows(world.engine.context, undone)[undone[0]]
    assert (row.status, row.is_poisoned) == (Status.ABORTED, left is None)
    assert list(check(world.engine.context, grace_ms=0, scan=[TABLE])) == []


@BOTH
def test_an_owner_whose_undone_row_another_client_poisons_tries_again(
    protocol: ProtocolName,
) -> None:
    world = World(protocol=protocol)
    undone: list[bytes] = []

    def undo_and_poison() -> None:
        undone.append(world.holder(X))
        lose_steps(world, undone[0], None)
        assert poison_row(world.client(seed=3).context, undone[0])

    world.faults.plan = when_stepping(Status.ASSERTED, undo_and_poison, Fault())
    done = world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    assert done.transaction != undone[0] and done.complete
    assert world.engine.outcome(undone[0]) is Outcome.UNKNOWN


def test_an_abort_releases_the_locks_of_a_row_that_a_crash_has_undone() -> None:
    world = World(replace(POLICY, attempts=1))
    world.faults.plan = when_stepping(
        Status.ABORTING, lambda: lose_steps(world, world.holder(X), None), Fault()
    )
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"1")], [Exact(Y, b"?")])
    assert (world.rows(), world.holder(X), world.holder(Y)) == ([], b"", b"")


def test_an_owner_that_was_stopped_for_long_does_not_poison_its_absent_row() -> None:
    world = World(replace(POLICY, attempts=1))

    def undo() -> None:
        lose_steps(world, world.holder(X), None)
        world.clock.advance(WRITTEN_WITHIN_MS + 1)

    world.faults.plan = when_stepping(Status.ASSERTED, undo, Fault())
    with pytest.raises(CommitOutcomeUnknown):
        world.engine.commit([Mutation(X, b"1")])
    assert world.rows() == []


@BOTH
def test_an_owner_that_cannot_poison_its_absent_row_knows_nothing(protocol: ProtocolName) -> None:
    world = World(replace(POLICY, attempts=1), protocol=protocol)
    lose = when_stepping(Status.ASSERTED, lambda: lose_steps(world, world.holder(X), None), Fault())

    def plan(call: Call) -> Fault:
        down = Fault(frozenset(), Reply.MAYBE_APPLIED)
        return down if any(is_step(item, Status.ABORTED) for item in call.items) else lose(call)

    world.faults.plan = plan
    with pytest.raises(CommitOutcomeUnknown) as caught:
        world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    assert isinstance(caught.value.__cause__, MaybeApplied)


@BOTH
def test_an_owner_that_cannot_read_why_it_was_aborted_knows_nothing(
    protocol: ProtocolName,
) -> None:
    """Poison and an abort have the same status."""
    world = World(replace(POLICY, attempts=1), protocol=protocol)
    is_down = False

    def abort_it() -> None:
        nonlocal is_down
        is_down = True
        abort(world, world.holder(X))

    step = when_stepping(Status.ASSERTED, abort_it, Fault())

    def plan(call: Call) -> Fault:
        reads_buffer = call.method == "read" and any(
            isinstance(key, Key) and key.column == b"buffer" for key in call.items
        )
        down = Fault(frozenset(), Reply.NOT_APPLIED)
        return down if is_down and reads_buffer else step(call)

    world.faults.plan = plan
    with pytest.raises(CommitOutcomeUnknown):
        world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])


def test_a_local_commit_that_was_lost_and_poisoned_did_not_take_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of a local transaction is ever late: poison proves that there was no row."""
    world = World()
    world.faults.features |= {"atomic"}
    rows: list[bytes] = []

    def plan(call: Call) -> Fault:
        if call.method == "atomically":
            return Fault(frozenset(), Reply.MAYBE_APPLIED)
        if call.method == "write" and not call.items:
            assert poison_row(world.client(seed=3).context, rows[0])
        return Fault()

    def begin_and_note(*args: Any) -> PendingCommit:
        t = begin_commit(*args)
        rows.append(t.row_key)
        return t

    monkeypatch.setattr("txn.client.local.begin_commit", begin_and_note)
    world.faults.plan = plan
    with pytest.raises(NotApplied, match="did not take effect"):
        world.engine.commit([Mutation(X, b"1")])
    assert world.value(X) is None


@BOTH
def test_a_row_without_a_buffer_is_poison_and_one_with_junk_is_not(protocol: ProtocolName) -> None:
    world = Orphan(protocol)
    assert poison_row(world.engine.context, world.row_key)
    world.require_poisoned()
    buffer = column(b"txn", world.row_key, b"buffer")
    world.store.write([Edit(buffer, b"junk", world.clock.wall_ms() + 1)])
    assert not world.row.is_poisoned
    assert world.engine.outcome(world.row_key) is Outcome.ABORTED


@BOTH
def test_fsck_frees_the_lock_of_an_absent_row_once_its_grace_is_over(
    protocol: ProtocolName,
) -> None:
    world = Orphan(protocol)
    context = world.engine.context
    world.clock.advance(GRACE_MS - 10)
    young = InGrace()
    assert list(check(context, scan=[TABLE], young=young)) == []
    assert young.counts == {Kind.ORPHAN_LOCK: 1}
    assert (world.holder(X), world.rows()) == (world.row_key, [])
    world.clock.advance(20)
    (finding,) = check(context, scan=[TABLE])
    assert (finding.kind, finding.transaction, finding.key) == (
        Kind.ORPHAN_LOCK,
        world.row_key,
        X if protocol == "six-phase" else X._replace(column=b""),
    )
    assert repair(context, finding) == Repaired("freed")
    assert world.holder(X) == b""
    world.require_poisoned()
    assert list(check(context, grace_ms=0, scan=[TABLE])) == []
    world.clock.advance(RETENTION_MS - 1_000)
    assert list(check(context)) == []
    world.clock.advance(2_000)
    (expired,) = check(context)
    assert (expired.kind, repair(context, expired)) == (Kind.EXPIRED, Repaired("deleted"))
    assert world.rows() == []


@BOTH
@pytest.mark.parametrize("early", [True, False])
def test_fsck_keeps_the_lock_of_a_row_that_arrives(protocol: ProtocolName, early: bool) -> None:
    world = Orphan(protocol)
    context = world.client(world.faults, seed=2).context
    world.clock.advance(GRACE_MS + 10)
    (finding,) = check(context, scan=[TABLE])
    if early:
        world.dead.deliver()
    world.faults.plan = when_stepping(Status.ABORTED, world.dead.deliver, Fault())
    why = "its holder is not finished" if early else "its holder's row has arrived"
    assert repair(context, finding) == NothingToDo(why)
    assert (world.row.status, world.holder(X)) == (Status.WRITTEN, world.row_key)


@BOTH
def test_a_part_that_was_poisoned_fails_with_its_transaction(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    client = PartsClient(world.engine)
    parent = client.begin()
    part = child_key(parent, 0, 0)
    assert poison_row(world.engine.context, part)
    with pytest.raises(AbortedError, match="its transaction is over"):
        client.write(parent, 0, 0, [Mutation(X, b"1")])
    assert world.holder(X) == b""
    assert world.value(X) is None


def test_a_lock_of_another_database_is_never_poisoned() -> None:
    """The row of its holder is in another transaction table, where it may have decided."""
    world = World(database=None)
    theirs = b"transaction.1700000000000." + b"0" * 32 + b"@others"
    world.store.check_and_put([Check(X.lock, b"", ((X.lock, theirs),))])
    resolver = Resolver(world.engine.context)
    for _ in range(3):
        cell = world.cell(X.lock)
        assert cell is not None
        assert resolver.resolve({theirs: {X.lock: cell}}) == set()
        world.clock.advance(10 * TTL_MS)
    assert (world.holder(X), world.rows()) == (theirs, [])
