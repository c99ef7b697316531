"""Transactions in parts: for those who write them, and for those who come by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest

from recovery import Kind, LeftAlone, Repaired, check, repair
from recovery.purge import purge_row
from recovery.scan import whole_row
from tests.simulation.calls import asks_for, checks, puts
from tests.simulation.puppets import Puppet, when
from tests.simulation.world import World, key
from tests.unit.parted import X, Y, Z, make_client, open_rows, row_of, values
from tests.unit.worlds import POLICY
from txn import (
    AbortedError,
    AssertionFailedError,
    Cell,
    CommitOutcomeUnknown,
    ConflictError,
    CorruptRowError,
    Delete,
    Engine,
    Exact,
    InvalidRequestError,
    Key,
    Mutation,
    Outcome,
    Request,
    Some,
)
from txn.client.parts import PartsClient
from txn.errors import NotApplied
from txn.model import Edit
from txn.protocol.codec import Buffer, Plan
from txn.protocol.commit import prepare
from txn.protocol.recovery import roll_forward
from txn.protocol.row import (
    RowState,
    TransactionRow,
    child_key,
    column,
    follow,
    read_rows,
)
from txn.protocol.statuses import ProtocolName, Status
from txn.protocol.transaction import load_transaction
from txn.testing.faulty import NO_FAULT, Call, Fault, FaultyStore, Reply

W = Key("x", "d", "w", "rows")
PUT_X = [Mutation(X, "1")]
WHOLE = b"transaction.1700000000000." + b"0" * 32
both = pytest.mark.parametrize("protocol", get_args(ProtocolName))


@pytest.fixture(params=product(get_args(ProtocolName), (1, 100)), ids=str)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with open_rows(*request.param) as engine:
        yield engine


@pytest.fixture
def client(engine: Engine) -> PartsClient:
    return make_client(engine)


def write_two(client: PartsClient) -> tuple[bytes, int]:
    """Write two parts, of X and of Y."""
    transaction = client.begin()
    times = [client.write(transaction, 0, n, [Mutation(k, "1")]) for n, k in enumerate((X, Y))]
    return transaction, max(times)


def decide_two(client: PartsClient) -> bytes:
    """Write two parts, decide them, and leave the rest to others."""
    transaction, newest = write_two(client)
    client.commit(transaction, [2], newest, ack="decided")
    return transaction


def damage(engine: Engine, row_key: bytes, name: bytes, value: bytes | None) -> Callable[[], None]:
    """Replace a cell of a row; return what puts it back."""
    store, cell_key = engine.context.store, column(b"txn", row_key, name)
    cell = store.read([cell_key])[cell_key]
    at_ms = engine.context.clock.wall_ms() + 50
    store.write([Edit(cell_key, value, at_ms)])
    return lambda: store.write([Edit(cell_key, cell and cell.value, at_ms + 1)])


def mend(engine: Engine) -> list[object]:
    return [repair(engine.context, each) for each in list(check(engine.context, grace_ms=0))]


def test_parts_commit_together(engine: Engine, client: PartsClient) -> None:
    engine.commit([Mutation(Y, "old")])
    transaction = client.begin(labels={"job": "night"})
    times = [
        client.write(transaction, 0, 0, [Mutation(X, "1"), Mutation(W, "1")]),
        client.write(transaction, 0, 1, [Delete(Y)], [Exact(Y, "old")]),
        client.write(transaction, 2, 0, [Mutation(Z, "3")]),
    ]
    assert values(engine, X, Y, Z) == [None, b"old", None]
    done = client.commit(transaction, [2, 0, 1], max(times))
    assert (done.transaction, done.complete) == (transaction, True)
    assert values(engine, X, W, Y, Z) == [b"1", b"1", None, b"3"]
    assert {cell.timestamp for cell in engine.read([X, Z]).values() if cell} == {done.timestamp}
    assert engine.outcome(transaction) is Outcome.COMMITTED
    row = row_of(engine, transaction)
    assert row.parts == (2, 0, 1) and row.buffer and row.buffer.request.labels == {"job": "night"}
    assert not list(check(engine.context, grace_ms=0, scan=[b"rows"]))


def test_a_part_may_be_written_again(engine: Engine, client: PartsClient) -> None:
    """By the copy of a task, or by one that runs in the place of one that died."""
    transaction = client.begin()
    wanted = [Mutation(X, "1"), Mutation(Y, "1")], [~Some(X)]
    first = client.write(transaction, 0, 0, *wanted)
    again = PartsClient(engine).write(transaction, 0, 0, *wanted)
    with pytest.raises(InvalidRequestError, match="with another request"):
        client.write(transaction, 0, 0, [Mutation(X, "2")])
    done = client.commit(transaction, [1], max(first, again))
    assert values(engine, X, Y) == [b"1", b"1"] and done.complete


def test_a_token_commits_once(engine: Engine, client: PartsClient) -> None:
    first = client.begin(once="job")
    done = client.commit(first, [1], client.write(first, 0, 0, PUT_X))
    found = client.find_committed("job")
    assert found is not None and (found.transaction, found.repeated) == (first, True)
    assert found.timestamp == done.timestamp
    second = client.begin(once=b"job")
    newest = client.write(second, 0, 0, [Mutation(X, "2")])
    assert client.commit(second, [1], newest) == found
    assert values(engine, X) == [b"1"]
    assert engine.outcome(second) is Outcome.ABORTED
    assert client.find_committed("another") is None
    with pytest.raises(InvalidRequestError, match="1 to 1024 bytes"):
        client.begin(once="")


def test_a_false_assertion_is_told_and_leaves_the_rest_to_the_caller(
    engine: Engine, client: PartsClient
) -> None:
    transaction = client.begin()
    client.write(transaction, 0, 0, PUT_X)
    with pytest.raises(AssertionFailedError):
        client.write(transaction, 1, 0, [Mutation(Y, "1")], [Some(Y)])
    assert client.abort(transaction, "not so")
    assert row_of(engine, transaction).reason == "not so"
    engine.commit([Mutation(X, "2"), Mutation(Y, "2")])
    assert not list(check(engine.context, grace_ms=0, scan=[b"rows"]))
    for late in (
        lambda: client.write(transaction, 0, 1, [Mutation(Z, "1")]),
        lambda: client.write(transaction, 0, 0, PUT_X),
        lambda: client.commit(transaction, [1], 1),
    ):
        with pytest.raises(AbortedError, match=r"over|aborted"):
            late()
    mend(engine)
    assert values(engine, X, Y, Z) == [b"2", b"2", None]


def test_parts_that_share_a_key_or_a_lock_are_told_at_once(engine: Engine) -> None:
    """A row key that comes twice in a data frame is not waited for: it would never be let go."""
    client, locks_rows = PartsClient(engine, wait_ms=3_600_000), engine.context.rules.locks_rows
    transaction = client.begin()
    client.write(transaction, 0, 0, PUT_X)
    if locks_rows:
        with pytest.raises(InvalidRequestError, match="a row and family in common"):
            client.write(transaction, 1, 0, [Mutation(W, "2")])
    with pytest.raises(InvalidRequestError, match=r"two parts.* in common") as told:
        client.write(transaction, 1, 1, [Mutation(X, "2")])
    assert "part-00000-00000" in str(told.value)
    assert ("a key in common" in str(told.value)) is not locks_rows
    assert client.abort(transaction, "its rows are not told apart")


def test_what_was_decided_is_not_aborted(engine: Engine, client: PartsClient) -> None:
    """Spark aborts a job whose commit was answered too late."""
    transaction = client.begin()
    part = child_key(transaction, 0, 0)
    newest = client.write(transaction, 0, 0, PUT_X)
    done = client.commit(transaction, [1], newest, ack="decided")
    assert not done.complete
    assert not client.abort(transaction, "too late")
    assert values(engine, X) == [b"1"]
    engine.commit([Mutation(X, "2")], [Exact(X, "1")])  # who meets the part finishes it
    assert row_of(engine, part).status is Status.COMPLETE
    assert row_of(engine, transaction).status is Status.ASSERTED
    expired = check(engine.context, grace_ms=10**9, retention_ms=0)
    assert part not in {finding.transaction for finding in expired}
    mend(engine)
    assert row_of(engine, transaction).status is Status.COMPLETE
    assert values(engine, X) == [b"2"]


def test_a_lease_that_ran_out_aborts_all_parts(engine: Engine, client: PartsClient) -> None:
    """Its owner is dead, and nobody else may decide."""
    transaction, newest = write_two(client)
    second = child_key(transaction, 0, 1)
    engine.commit([Mutation(X, "other")])
    assert row_of(engine, transaction).status is Status.ABORTED
    assert row_of(engine, second).state is RowState.ABORTING
    with pytest.raises(ConflictError):
        client.commit(transaction, [2], newest)
    assert row_of(engine, second).status is Status.ABORTED
    assert not list(check(engine.context, grace_ms=0, scan=[b"rows"]))


def test_counts_and_numbers_have_limits(engine: Engine, client: PartsClient) -> None:
    """A row key has five digits for a number, so there may be 100,000 parts of a task."""
    transaction = client.begin()
    for task, number in ((100_000, 0), (0, 100_000), (-1, 0)):
        with pytest.raises(InvalidRequestError):
            client.write(transaction, task, number, PUT_X)
    newest = client.write(transaction, 0, 99_999, PUT_X)
    for counts in ([-1], [100_001], ["2"], [0] * 100_001):
        with pytest.raises(InvalidRequestError):
            client.commit(transaction, counts, newest)  # type: ignore[arg-type]
    client.commit(transaction, [100_000], newest, ack="decided")
    assert row_of(engine, transaction).parts == (100_000,)
    assert values(engine, X) == [b"1"]


def test_parts_that_were_not_counted_are_released(engine: Engine, client: PartsClient) -> None:
    """They are those of somebody who made more of them than the one who was believed."""
    transaction = client.begin()
    client.write(transaction, 0, 0, PUT_X)
    client.write(transaction, 3, 0, [Mutation(Y, "1")])
    client.commit(transaction, [1], 0)
    assert values(engine, X, Y) == [b"1", None]
    assert row_of(engine, child_key(transaction, 3, 0)).status is Status.ABORTED


def test_a_part_is_what_its_transaction_says() -> None:
    """As docs/protocol.md says, under "A transaction in parts"."""
    part = TransactionRow(child_key(WHOLE, 1, 2), Status.PART, follows=True)
    whole = TransactionRow(WHOLE, Status.WRITTEN, parts=())
    assert follow(part, TransactionRow(WHOLE)) is part  # which may arrive, unless it is poisoned
    assert follow(part, replace(whole, status=Status.ABORTED)).status is Status.ABORTING
    assert follow(part, whole).status is Status.WRITTEN  # without its buffer it may still decide
    unreadable = replace(whole, status=None, corrupt="junk")
    assert follow(part, unreadable).state is RowState.UNREADABLE
    decided = replace(
        whole, status=Status.ASSERTED, buffer=Buffer(Request(()), 1), plan=Plan(7, ()), parts=(0, 3)
    )
    followed = follow(replace(part, buffer=decided.buffer, plan=Plan(3, ())), decided)
    assert (followed.status, followed.plan) == (Status.ASSERTED, Plan(7, ()))
    assert followed.state is RowState.DECIDED
    without_plan = replace(part, buffer=decided.buffer)
    assert follow(without_plan, decided).state is RowState.UNREADABLE
    for later in (Status.PUT, Status.COMPLETE, Status.ABORTED):
        assert follow(part, replace(decided, status=later)).status is Status.ABORTING
    assert follow(part, replace(decided, parts=(9, 2))).status is Status.ABORTING
    own = replace(part, status=Status.COMPLETE, follows=False)
    assert follow(own, whole) is own and follow(own, decided) is own
    for lost in (None, Status.ABORTING, Status.ABORTED):
        gone = replace(part, status=lost, follows=False)
        assert follow(gone, decided).state is RowState.UNREADABLE
        assert follow(gone, replace(decided, parts=(9, 2))) is gone


def test_a_store_that_writes_one_cell_at_a_time_is_refused() -> None:
    """A plan could come without its status."""
    with pytest.raises(InvalidRequestError, match="Thrift 1"):
        PartsClient(World(one_cell=True).engine()).begin()


def test_a_row_key_that_took_long_to_write_is_given_up() -> None:
    world = World()

    def wait(call: Call) -> Fault:
        world.clock.sleep_ms(400_000)
        return NO_FAULT

    with pytest.raises(ConflictError, match="took too long"):
        PartsClient(world.client(wait)[0]).begin()


def test_an_unknown_status_is_told(engine: Engine, client: PartsClient) -> None:
    transaction = client.begin()
    client.write(transaction, 0, 0, PUT_X)
    damage(engine, child_key(transaction, 0, 0), b"status", b"9-NEW")
    with pytest.raises(CorruptRowError):
        client.write(transaction, 0, 0, PUT_X)


def test_a_part_is_purged_only_if_nothing_of_it_can_be_committed(
    engine: Engine, client: PartsClient
) -> None:
    """The owner would decide with it, and without it: half of the whole."""
    context = engine.context

    def purge(row_key: bytes, *, unfinished: bool = True) -> type:
        seen = whole_row(context, row_key)
        assert seen is not None
        return type(purge_row(context, seen, unfinished=unfinished))

    transaction, newest = write_two(client)
    part = child_key(transaction, 0, 1)
    assert purge(part) is LeftAlone
    client.commit(transaction, [2], newest, ack="decided")
    assert purge(part) is purge(part, unfinished=False) is LeftAlone
    assert values(engine, X, Y) == [b"1", b"1"]
    mend(engine)
    late, _ = write_two(client)
    assert purge(late) is Repaired
    assert purge(child_key(late, 0, 1)) is LeftAlone  # the first write may arrive once more
    damage(engine, late, b"status", Status.ABORTED.encoded)
    assert purge(child_key(late, 0, 1)) is Repaired


def test_a_deleted_transaction_has_no_known_outcome(engine: Engine, client: PartsClient) -> None:
    """It may have been complete: a repeated commit that called it aborted would be wrong."""
    transaction, newest = write_two(client)
    client.commit(transaction, [2], newest)
    for finding in list(check(engine.context, grace_ms=0, retention_ms=0)):
        repair(engine.context, finding)
    for number in range(2):  # it is absent, then poisoned
        with pytest.raises(ConflictError, match="over"):
            client.write(transaction, 1, number, [Mutation(Z, "late")])
        with pytest.raises(CommitOutcomeUnknown, match="row was deleted"):
            client.commit(transaction, [2], newest)
        client.abort(transaction, "its job failed")
    assert values(engine, X, Y, Z) == [b"1", b"1", None]


@pytest.mark.parametrize("lost", ["the answer", "this call's row", "an earlier one's row"])
def test_a_decision_whose_answer_was_lost_is_that_of_its_row(lost: str) -> None:
    """The second sending is refused, and the row says that the first one took effect."""
    world = World()
    later: list[str] = []  # calls from the one on whose answer is lost

    def fail(call: Call) -> Fault:
        is_decision = asks_for(Status.ASSERTED)(call) and not later
        if later or is_decision:
            later.append(call.method)
        if is_decision:
            return Fault(reply=Reply.MAYBE_APPLIED)
        # One read tells that the status has changed; what was decided is in the next one.
        return Fault(frozenset(), Reply.NOT_APPLIED) if later.count("read") > 1 else NO_FAULT

    once = when(asks_for(Status.ASSERTED), Fault(reply=Reply.MAYBE_APPLIED))
    client = PartsClient(world.client(once if lost == "the answer" else fail)[0])
    transaction = client.begin()
    newest = client.write(transaction, 0, 0, [Mutation(key("x"), b"1")])
    if lost == "an earlier one's row":
        PartsClient(world.client()[0]).commit(transaction, [1], newest, ack="decided")
        later.append("read")
    if lost == "the answer":
        done = client.commit(transaction, [1], newest)
        assert done.complete and done.timestamp == newest
    else:
        with pytest.raises(CommitOutcomeUnknown) as caught:
            client.commit(transaction, [1], newest)
        assert caught.value.transaction == transaction
        world.mend()
    assert world.values([key("x")]) == {key("x"): b"1"}


@pytest.mark.parametrize("marker", [True, False])
def test_a_key_that_is_held_for_long_is_waited_for_until_the_deadline(
    engine: Engine, client: PartsClient, monkeypatch: pytest.MonkeyPatch, marker: bool
) -> None:
    """Not for ever: the job has to be told. The time may be over in a pause as well."""

    def refuse(*args: Any) -> list[Any]:
        args[1][0].failure = ConflictError("key is locked")
        return []

    transaction, newest = write_two(client)
    monkeypatch.setattr("txn.protocol.children.prepare", refuse)
    began_ms = engine.context.clock.monotonic_ms()
    with pytest.raises(ConflictError, match="key is locked"):
        if marker:
            client.commit(transaction, [2], newest)
        else:
            client.write(transaction, 0, 2, [Mutation(Z, "1")])
    waited_ms = engine.context.clock.monotonic_ms() - began_ms
    wanted_ms = POLICY.deadline_ms if marker else client._wait_ms
    assert waited_ms >= wanted_ms - POLICY.longest_pause_ms


def test_a_decision_that_finds_no_row_any_more_is_unknown(
    engine: Engine, client: PartsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process wrote the row: it may have committed since, and is not poisoned."""
    transaction, newest = write_two(client)

    def lose_row(*args: Any, **options: Any) -> list[Any]:
        ready = prepare(*args, **options)
        lose(engine, transaction)
        return ready

    monkeypatch.setattr("txn.protocol.children.prepare", lose_row)
    with pytest.raises(CommitOutcomeUnknown):
        client.commit(transaction, [2], newest)
    assert whole_row(engine.context, transaction) is None


def lose(engine: Engine, row_key: bytes) -> None:
    """Delete a row as somebody does who knows nothing of it."""
    row = whole_row(engine.context, row_key)
    assert row is not None
    engine.context.store.write([Edit(k, None, cell.timestamp) for k, cell in row.cells.items()])


def test_what_is_not_known_to_be_aborted_is_not_called_so(
    engine: Engine, client: PartsClient
) -> None:
    """Its status is lost, and it may be committed."""
    transaction = decide_two(client)
    damage(engine, transaction, b"status", None)
    with pytest.raises(CorruptRowError):
        client.abort(transaction, "by hand")
    with pytest.raises(CommitOutcomeUnknown):
        client.commit(transaction, [2], 0)
    with pytest.raises(CorruptRowError):
        client.write(transaction, 1, 0, [Mutation(Z, b"1")])


@pytest.mark.parametrize("lost", range(3))
def test_a_transaction_with_a_lost_part_is_left_to_a_person(
    engine: Engine, client: PartsClient, lost: int
) -> None:
    """Somebody deleted its row: the others are finished, and nothing says that all of it is."""
    transaction = client.begin()
    keys = (X, Y, Z)
    newest = [client.write(transaction, 0, n, [Mutation(k, "1")]) for n, k in enumerate(keys)]
    part = child_key(transaction, 0, lost)
    lose(engine, part)
    assert not client.commit(transaction, [3], max(newest)).complete
    assert values(engine, *(k for k in keys if k is not keys[lost])) == [b"1", b"1"]
    with pytest.raises(CorruptRowError):
        engine.read([keys[lost]])
    (found,) = check(engine.context, grace_ms=0, scan=[b"rows"])
    assert (found.kind, found.transaction) == (Kind.UNREADABLE, transaction)
    assert found.facts["part"] == part
    assert isinstance(repair(engine.context, found), LeftAlone)
    assert engine.outcome(transaction) is Outcome.COMMITTED
    whole = whole_row(engine.context, transaction)
    assert whole is not None
    assert isinstance(purge_row(engine.context, whole, unfinished=True), Repaired)
    for finding in list(check(engine.context, grace_ms=0, scan=[b"rows"])):
        repair(engine.context, finding)
    assert values(engine, keys[lost]) == [None]


class Failing(FaultyStore):
    """A store that cannot make durable what was written before."""

    def write(self, edits: Sequence[Edit], **named: Any) -> None:
        if not edits:
            raise NotApplied("the disk does not take it")
        super().write(edits, **named)


def test_a_decision_that_cannot_be_made_durable_is_unknown(
    engine: Engine, client: PartsClient
) -> None:
    """A power failure may undo what was only read, so it is no answer to a second question."""
    transaction, newest = write_two(client)
    assert client.commit(transaction, [2], newest).complete
    store = Failing(engine.context.store)
    store.features |= {"atomic"}
    other = Engine(store, table="rows", policy=POLICY, clock=engine.context.clock)
    with pytest.raises(CommitOutcomeUnknown):
        make_client(other).commit(transaction, [2], newest)


SX, SY, SZ = key("x"), key("y"), key("z")


def reads(row: bytes) -> Callable[[Call], bool]:
    """Match the reading of one row."""
    return lambda call: (
        call.method == "row" and isinstance(call.items[0], Key) and call.items[0].row == row
    )


def finish(engine: Engine, row_key: bytes) -> None:
    """Finish a transaction, or a part of one."""
    row = read_rows(engine.context, [row_key])[row_key]
    roll_forward(engine.context, [load_transaction(engine.context, row)])


def list_values(found: dict[Key, Cell | None]) -> list[bytes | None]:
    return [cell.value if cell else None for _, cell in sorted(found.items())]


def fill(protocol: ProtocolName) -> World:
    world = World(protocol=protocol)
    world.engine().commit([Mutation(each, b"0") for each in (SX, SY, SZ)])
    return world


def begin_task(world: World, transaction: bytes) -> Puppet[int]:
    return Puppet(
        world, lambda engine: PartsClient(engine).write(transaction, 0, 0, [Mutation(SX, b"1")])
    )


@both
def test_a_part_that_was_read_before_its_plan_is_not_taken_for_broken(
    protocol: ProtocolName,
) -> None:
    """It is planned, and all is decided, before its transaction's row is read too."""
    world = fill(protocol)
    client = PartsClient(world.engine())
    transaction = client.begin()
    part = child_key(transaction, 0, 0)
    task = begin_task(world, transaction)
    assert task.until(
        lambda call: any(k.column == b"plan" for item in call.items for k, _ in puts(item))
    )
    reader = Puppet(world, lambda engine: engine.read([SX]), backwards=True)
    assert reader.until(reads(part)) and reader.until(reads(transaction))
    client.commit(transaction, [1], task.finish(), ack="decided")
    assert list_values(reader.finish()) == [b"1"]


@both
def test_a_part_that_was_read_before_it_followed_is_not_taken_for_aborted(
    protocol: ProtocolName,
) -> None:
    """Its transaction came to its end meanwhile; another one, which has read of it, is seen."""
    world = fill(protocol)
    engine = world.engine()
    client = PartsClient(engine)
    later = client.begin()
    newest = client.write(later, 0, 0, [Mutation(SY, b"1")])
    world.clock.sleep_ms(10)
    first = client.begin()
    assert first > later
    part = child_key(first, 0, 0)
    times = [client.write(first, 0, n, [Mutation(k, b"1")]) for n, k in enumerate((SX, SZ))]

    reader = Puppet(world, lambda engine: engine.read([SX, SY]), backwards=True)
    assert reader.until(reads(first))
    assert reader.until(reads(child_key(later, 0, 0)))  # the first one was seen undecided
    client.commit(first, [2], max(times), ack="decided")
    finish(engine, child_key(first, 0, 1))
    newest = max(newest, client.write(later, 0, 1, [], [Exact(SZ, b"1")]))
    client.commit(later, [2], newest, ack="decided")
    assert reader.until(reads(part))  # of the second look
    assert reader.until(reads(first))
    finish(engine, first)
    assert list_values(reader.finish()) == [b"1", b"1"]


@both
def test_a_task_that_locked_after_the_abort_gives_its_locks_back(protocol: ProtocolName) -> None:
    world = fill(protocol)
    client = PartsClient(world.engine())
    transaction = client.begin()
    task = begin_task(world, transaction)
    assert task.until(lambda call: any(c.key.column.endswith(b"_lock") for c in checks(call)))
    assert client.abort(transaction, "no")
    with pytest.raises(AbortedError, match="over"):
        task.finish()
    assert not world.leftovers()
