"""The lock of an absent row: its row may be late, so it is poisoned before the lock is freed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from recovery import InGrace, Kind, NothingToDo, Repaired, check, repair
from recovery.findings import GRACE_MS, RETENTION_MS
from recovery.purge import delete_cells
from tests.unit.worlds import (
    DOWN,
    LOST,
    POLICY,
    TABLE,
    World,
    X,
    Y,
    always,
    before,
    is_step,
    plan_before,
    steps_to,
)
from txn.assertions import Exact
from txn.errors import (
    AssertionFailedError,
    CommitOutcomeUnknown,
    ConflictError,
    MaybeApplied,
)
from txn.events import Helped
from txn.model import Check, Edit, Key, Mutation
from txn.protocol.context import Context
from txn.protocol.recovery import NOTHING, POISONED, Resolver, poison, roll_back
from txn.protocol.row import TransactionRow, column, created_ms, read_rows, status_key
from txn.protocol.statuses import PROTOCOLS, ProtocolName, Status
from txn.protocol.transaction import (
    WRITTEN_WITHIN_MS,
    Transaction,
    load_transaction,
)
from txn.request import Outcome
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Reply

pytestmark = pytest.mark.usefixtures("rows_for_all")
both_protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
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
        self.dead.plan = plan_before(steps_to(Status.WRITTEN), fault=row_is_late)
        with pytest.raises(Crash):
            client.commit([Mutation(X, b"1")], [Exact(X, b"0"), ~Exact(Y, b"?")])
        self.row_key = self.holder(X)
        assert self.row_key and self.rows() == []
        self.resolver = Resolver(self.client(self.faults, seed=2).context)

    @property
    def lock(self) -> Key:
        return self.engine.context.rules.lock_of(X)

    @property
    def row(self) -> TransactionRow:
        (row,) = (row for row in self.rows() if row.row_key == self.row_key)
        return row

    def resolve(self) -> bool:
        """Let another client meet the lock; return whether it was freed."""
        cell = self.cell(self.lock)
        assert cell is not None
        return self.resolver.resolve({self.row_key: {self.lock: cell}}) == {self.row_key}

    def wait_long(self) -> None:
        """Let another client meet the lock, and a lock TTL pass."""
        assert not self.resolve()
        self.clock.advance(TTL_MS)

    def require_poisoned(self) -> None:
        assert self.row.is_poisoned and self.row.status is Status.ABORTED
        assert (self.row.reason, self.row.buffer) == (POISONED, None)
        assert self.engine.outcome(self.row_key) is Outcome.UNKNOWN


@pytest.fixture(params=PROTOCOLS)
def orphan(request: pytest.FixtureRequest) -> Orphan:
    return Orphan(request.param)


@pytest.fixture(params=PROTOCOLS)
def impatient(request: pytest.FixtureRequest) -> World:
    return World(replace(POLICY, attempts=1), request.param)


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


def test_a_lock_without_a_row_is_freed_after_a_lock_ttl_and_poison(orphan: Orphan) -> None:
    assert not orphan.resolve()
    orphan.clock.advance(TTL_MS - 1)
    assert not orphan.resolve()
    assert (orphan.holder(X), orphan.rows()) == (orphan.row_key, [])
    orphan.clock.advance(POLICY.courtesy_ms)
    orphan.events.clear()
    assert orphan.resolve()
    assert orphan.holder(X) == b""
    orphan.require_poisoned()
    helped = [event for event in orphan.events if isinstance(event, Helped)]
    assert helped == [Helped(orphan.row_key, "freed")]


@pytest.mark.parametrize("lost", [LOST, Fault(reply=Reply.MAYBE_APPLIED)])
def test_a_lost_answer_to_poison_is_settled(orphan: Orphan, lost: Fault) -> None:
    """A "no" to its repeat may be to one's own poison."""
    orphan.wait_long()
    before(orphan, steps_to(Status.ABORTED), fault=lost)
    assert orphan.resolve()
    assert orphan.holder(X) == b""
    orphan.require_poisoned()


def test_a_row_that_arrives_before_poison_is_that_of_a_living_owner(
    orphan: Orphan,
) -> None:
    orphan.wait_long()
    before(orphan, steps_to(Status.ABORTED), orphan.dead.deliver)
    assert not orphan.resolve()
    assert (orphan.row.status, orphan.holder(X)) == (Status.WRITTEN, orphan.row_key)
    assert orphan.row.buffer is not None and orphan.row.reason is None
    orphan.clock.advance(POLICY.courtesy_ms)
    assert not orphan.resolve()
    orphan.clock.advance(TTL_MS - 1)
    assert not orphan.resolve()
    orphan.clock.advance(POLICY.courtesy_ms)
    assert orphan.resolve()
    assert (orphan.row.status, orphan.holder(X)) == (Status.ABORTED, b"")
    assert not orphan.row.is_poisoned
    assert orphan.engine.outcome(orphan.row_key) is Outcome.ABORTED


def test_a_row_that_arrives_after_poison_never_decides(orphan: Orphan) -> None:
    """Six-phase: it is refused. Fenced: it lies at t0, below the poison at t0 + 7."""
    assert poison_row(orphan.engine.context, orphan.row_key)
    status = orphan.cell(status_key(b"txn", orphan.row_key))
    assert status is not None
    if orphan.protocol == "fenced":
        assert status.timestamp == created_ms(orphan.row_key) + 7
        reason = orphan.cell(column(b"txn", orphan.row_key, b"reason"))
        assert reason is not None and reason.timestamp == created_ms(orphan.row_key) + 7
    orphan.dead.deliver()
    assert orphan.cell(status_key(b"txn", orphan.row_key)) == status
    assert orphan.row.status is Status.ABORTED
    # Only the fenced protocol puts its row without a comparison, and so with its buffer.
    assert orphan.row.is_poisoned is (orphan.protocol == "six-phase")
    for expected in (Status.WRITTEN, None):
        key = status_key(b"txn", orphan.row_key)
        value = expected.value if expected else b""
        decision = Check(key, value, ((key, Status.ASSERTED.value),))
        assert orphan.store.check_and_put([decision]) == [False]


def test_a_row_that_a_crash_undoes_is_poisoned_before_its_lock_is_freed(
    orphan: Orphan,
) -> None:
    orphan.dead.deliver()
    orphan.wait_long()
    lose = partial(lose_steps, orphan, orphan.row_key, None)
    before(orphan, steps_to(Status.ABORTING), lose)
    assert orphan.resolve()
    assert orphan.holder(X) == b""
    orphan.require_poisoned()


def test_a_row_that_is_written_again_after_a_crash_keeps_its_lock(impatient: World) -> None:
    """If its lock were freed, late, both this owner and the next would commit: a lost update."""
    impatient.engine.commit([Mutation(X, b"0"), Mutation(Y, b"0")])
    impatient.clock.advance(1)
    store = FaultyStore(impatient.store)
    resolver = Resolver(impatient.client(store, seed=2).context)
    lock = impatient.engine.context.rules.lock_of(X)

    def meet_lock() -> None:
        row_key, cell = impatient.holder(X), impatient.cell(lock)
        assert cell is not None
        assert not resolver.resolve({row_key: {lock: cell}})
        impatient.clock.advance(TTL_MS)

        def lose_row() -> None:
            lose_steps(impatient, row_key, None)
            now_ms = impatient.clock.wall_ms()
            impatient.store.compact(b"txn", now_ms)  # no marker hides the row at t0

        lose = plan_before(steps_to(Status.ABORTING), lose_row)

        def plan(call: Call) -> Fault:
            frees = any(isinstance(i, Check) and i.key == lock for i in call.items)
            return Fault(frozenset(), Reply.CRASH, late=frozenset({0})) if frees else lose(call)

        store.plan = plan
        with suppress(Crash):
            resolver.resolve({row_key: {lock: cell}})

    def commit_between() -> None:
        store.deliver()
        impatient.client(seed=3).commit([Mutation(X, b"2")], [Exact(X, b"0")])

    first = Fault(reply=Reply.MAYBE_APPLIED)
    writes: list[Call] = []
    decide = plan_before(steps_to(Status.ASSERTED), commit_between)

    def plan(call: Call) -> Fault:
        if not any(is_step(item, Status.WRITTEN) for item in call.items):
            return decide(call)
        writes.append(call)
        if len(writes) == 2:
            meet_lock()
        return first if len(writes) == 1 else Fault()

    impatient.faults.plan = plan
    with pytest.raises(ConflictError):
        impatient.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")], [Exact(X, b"0")])
    assert (len(writes), impatient.value(X)) == (2, b"0")


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_owner_that_finds_poison_after_its_decision_knows_nothing(
    impatient: World, is_lost: bool
) -> None:
    """It may have committed, and the row have been finished, deleted and poisoned since."""

    def delete_and_poison() -> None:
        (row,) = impatient.store.scan(b"txn", impatient.holder(X), impatient.holder(X) + b"\0")
        delete_cells(impatient.engine.context, [row])
        impatient.clock.advance(2 * WRITTEN_WITHIN_MS)
        assert poison_row(impatient.client(seed=3).context, row.row)

    before(impatient, steps_to(Status.ASSERTED), delete_and_poison, LOST if is_lost else Fault())
    with pytest.raises(CommitOutcomeUnknown) as caught:
        impatient.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    assert impatient.engine.outcome(caught.value.transaction) is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("protocol", "left", "by_others"),
    [
        ("six-phase", Status.WRITTEN, False),  # a fenced one decides at 0-WRITTEN
        *((protocol, None, others) for protocol in PROTOCOLS for others in (False, True)),
    ],
)
def test_an_owner_whose_row_a_crash_has_undone_tries_again(
    protocol: ProtocolName, left: Status | None, by_others: bool
) -> None:
    """It has not decided. So young a row was not deleted, also where others have poisoned it."""
    world = World(protocol=protocol)
    undone: list[bytes] = []

    def undo() -> None:
        undone.append(world.holder(X))
        lose_steps(world, undone[0], left)
        assert not by_others or poison_row(world.client(seed=3).context, undone[0])

    before(world, steps_to(Status.ASSERTED), undo)
    done = world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    assert done.transaction != undone[0] and done.complete
    row = read_rows(world.engine.context, undone)[undone[0]]
    assert (row.status, row.is_poisoned) == (Status.ABORTED, left is None)
    assert list(check(world.engine.context, grace_ms=0, scan=[TABLE])) == []


def test_an_abort_releases_the_locks_of_a_row_that_a_crash_has_undone() -> None:
    world = World(replace(POLICY, attempts=1))
    before(world, steps_to(Status.ABORTING), lambda: lose_steps(world, world.holder(X), None))
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"1")], [Exact(Y, b"?")])
    assert (world.rows(), world.holder(X), world.holder(Y)) == ([], b"", b"")


def test_an_owner_that_cannot_poison_its_absent_row_knows_nothing(impatient: World) -> None:
    def undo() -> None:
        lose_steps(impatient, impatient.holder(X), None)
        always(impatient, steps_to(Status.ABORTED), LOST)

    before(impatient, steps_to(Status.ASSERTED), undo)
    with pytest.raises(CommitOutcomeUnknown) as caught:
        impatient.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    assert isinstance(caught.value.__cause__, MaybeApplied)


def test_an_owner_that_cannot_read_why_it_was_aborted_knows_nothing(impatient: World) -> None:
    """Poison and an abort have the same status."""

    def reads_buffer(call: Call) -> bool:
        keys = [key for key in call.items if isinstance(key, Key) and key.column == b"buffer"]
        return call.method == "read" and bool(keys)

    def abort() -> None:
        context, row_key = impatient.client(seed=70).context, impatient.holder(X)
        row = read_rows(context, [row_key])[row_key]
        roll_back(context, [load_transaction(context, row)], lambda _: "impatience")
        always(impatient, reads_buffer, DOWN)

    before(impatient, steps_to(Status.ASSERTED), abort)
    with pytest.raises(CommitOutcomeUnknown):
        impatient.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])


def test_fsck_frees_the_lock_of_an_absent_row_once_its_grace_is_over(
    orphan: Orphan,
) -> None:
    context = orphan.engine.context
    orphan.clock.advance(GRACE_MS - 10)
    young = InGrace()
    assert list(check(context, scan=[TABLE], young=young)) == []
    assert young.counts == {Kind.ORPHAN_LOCK: 1}
    assert (orphan.holder(X), orphan.rows()) == (orphan.row_key, [])
    orphan.clock.advance(20)
    (finding,) = check(context, scan=[TABLE])
    assert (finding.kind, finding.transaction, finding.key) == (
        Kind.ORPHAN_LOCK,
        orphan.row_key,
        X if orphan.protocol == "six-phase" else X._replace(column=b""),
    )
    assert repair(context, finding) == Repaired("freed")
    assert orphan.holder(X) == b""
    orphan.require_poisoned()
    assert list(check(context, grace_ms=0, scan=[TABLE])) == []
    orphan.clock.advance(RETENTION_MS + 1_000)
    (expired,) = check(context)
    assert (expired.kind, repair(context, expired)) == (Kind.EXPIRED, Repaired("deleted"))


@pytest.mark.parametrize("early", [True, False])
def test_fsck_keeps_the_lock_of_a_row_that_arrives(orphan: Orphan, early: bool) -> None:
    context = orphan.client(orphan.faults, seed=2).context
    orphan.clock.advance(GRACE_MS + 10)
    (finding,) = check(context, scan=[TABLE])
    if early:
        orphan.dead.deliver()
    before(orphan, steps_to(Status.ABORTED), orphan.dead.deliver)
    why = "its holder is not finished" if early else "its holder's row has arrived"
    assert repair(context, finding) == NothingToDo(why)
    assert (orphan.row.status, orphan.holder(X)) == (Status.WRITTEN, orphan.row_key)
