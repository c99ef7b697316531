"""Transactions in parts, from the side of those who write them, and of those who come by."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import get_args

import pytest

from recovery import LeftAlone, check, explain, repair
from tests.simulation.calls import checks
from tests.simulation.world import World, key
from tests.unit.parted import X, Y, Z, make_client, open_rows, row_of, values
from tests.unit.worlds import POLICY
from txn import (
    AbortedError,
    AssertionFailedError,
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
    StoreError,
)
from txn.client.parts import PartsClient
from txn.errors import StoreClosedError
from txn.events import Event, WorkFailed
from txn.model import Edit
from txn.protocol.codec import OPEN, Buffer, Plan, decode_child_counts, encode_child_counts
from txn.protocol.row import (
    RowState,
    TransactionRow,
    child_key,
    column,
    follow,
    is_row_key,
    parent_of,
    status_key,
)
from txn.protocol.statuses import ProtocolName, Status
from txn.testing.faulty import NO_FAULT, Call, Fault

pytestmark = pytest.mark.fast
W = Key("x", "d", "w", "rows")


@pytest.fixture(params=product(get_args(ProtocolName), (1, 100)), ids=str)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with open_rows(*request.param) as engine:
        yield engine


@pytest.fixture
def client(engine: Engine) -> PartsClient:
    return make_client(engine)


def test_parts_commit_together(engine: Engine, client: PartsClient) -> None:
    """The whole use: one begins, several write, one commits."""
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


def test_a_transaction_and_its_parts_are_in_a_bucket_of_the_engine(
    engine: Engine, client: PartsClient
) -> None:
    """Its row is spread as any other, and the rows of its parts follow right behind it."""
    begun = [client.begin() for _ in range(50)]
    salt_buckets = engine.context.salt_buckets
    if salt_buckets == 1:
        assert all(each.startswith(b"transaction.") for each in begun)
    else:
        assert len({each[:3] for each in begun}) > 10
    for number, each in enumerate(begun):
        assert is_row_key(each) and parent_of(child_key(each, 0, number)) == each
        client.write(each, 0, 0, [Mutation(Key(f"{number}", "d", "v", "rows"), "1")])
    rows = [row.row for row in engine.context.store.scan(b"txn") if is_row_key(row.row)]
    assert rows == [row for each in sorted(begun) for row in (each, child_key(each, 0, 0))]
    for each in begun:
        client.commit(each, [1], 0, ack="decided")
    findings = list(check(engine.context, grace_ms=0))
    assert {found.transaction for found in findings} == set(rows)
    assert all(repair(engine.context, found) for found in findings)
    assert {engine.outcome(each) for each in begun} == {Outcome.COMMITTED}
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
    """A job that is run again is told of the first one, by whichever step finds it."""
    first = client.begin(once="job")
    done = client.commit(first, [1], client.write(first, 0, 0, [Mutation(X, "1")]))
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
    """Who writes parts says what becomes of the whole."""
    transaction = client.begin()
    client.write(transaction, 0, 0, [Mutation(X, "1")])
    with pytest.raises(AssertionFailedError):
        client.write(transaction, 1, 0, [Mutation(Y, "1")], [Some(Y)])
    assert client.abort(transaction, "not so")
    assert row_of(engine, transaction).reason == "not so"
    engine.commit([Mutation(X, "2"), Mutation(Y, "2")])
    assert not list(check(engine.context, grace_ms=0, scan=[b"rows"]))
    for late in (
        lambda: client.write(transaction, 0, 1, [Mutation(Z, "1")]),
        lambda: client.write(transaction, 0, 0, [Mutation(X, "1")]),
        lambda: client.commit(transaction, [1], 1),
    ):
        with pytest.raises(AbortedError, match=r"over|aborted"):
            late()
    for finding in check(engine.context, grace_ms=0):
        repair(engine.context, finding)
    assert values(engine, X, Y, Z) == [b"2", b"2", None]


def test_a_part_waits_for_a_time_only(engine: Engine, client: PartsClient) -> None:
    """It holds other keys meanwhile, and whoever has this one may wait for those."""
    first, second = client.begin(), client.begin()
    client.write(first, 0, 0, [Mutation(X, "1")])
    with pytest.raises((AbortedError, ConflictError)):
        client.write(second, 0, 0, [Mutation(X, "2"), Mutation(Y, "2")])
    assert client.abort(second, "no")
    client.commit(first, [1], 0)
    assert values(engine, X, Y) == [b"1", None]


def test_parts_that_share_a_key_are_told_at_once(engine: Engine) -> None:
    """A row key that comes twice in a data frame is not waited for: it would never be let go."""
    client = PartsClient(engine, wait_ms=3_600_000)
    transaction = client.begin()
    client.write(transaction, 0, 0, [Mutation(X, "1")])
    with pytest.raises(InvalidRequestError, match="two parts") as told:
        client.write(transaction, 1, 0, [Mutation(X, "2")])
    assert "part-00000-00000" in str(told.value)
    assert client.abort(transaction, "its rows are not told apart")


def test_parts_that_share_a_lock_are_told_what_it_is_of(engine: Engine) -> None:
    """In a fenced database a lock is of a row and family: the two have no key in common."""
    client = PartsClient(engine, wait_ms=3_600_000)
    transaction = client.begin()
    client.write(transaction, 0, 0, [Mutation(X, "1")])
    if engine.context.rules.locks_rows:
        with pytest.raises(InvalidRequestError, match="a row and family in common"):
            client.write(transaction, 1, 0, [Mutation(W, "2")])
    with pytest.raises(InvalidRequestError, match=" in common") as told:
        client.write(transaction, 1, 1, [Mutation(X, "2")])
    assert ("a key in common" in str(told.value)) is not engine.context.rules.locks_rows


def test_what_was_decided_is_not_aborted(engine: Engine, client: PartsClient) -> None:
    """Spark aborts a job whose commit was answered too late."""
    transaction = client.begin()
    newest = client.write(transaction, 0, 0, [Mutation(X, "1")])
    done = client.commit(transaction, [1], newest, ack="decided")
    assert not done.complete
    assert not client.abort(transaction, "too late")
    assert values(engine, X) == [b"1"]
    engine.commit([Mutation(X, "2")], [Exact(X, "1")])  # who meets the part finishes it
    assert row_of(engine, child_key(transaction, 0, 0)).status is Status.COMPLETE
    assert row_of(engine, transaction).status is Status.ASSERTED
    for finding in check(engine.context, grace_ms=0):
        repair(engine.context, finding)
    assert row_of(engine, transaction).status is Status.COMPLETE
    assert values(engine, X) == [b"2"]


def test_a_lease_that_ran_out_aborts_all_parts(engine: Engine, client: PartsClient) -> None:
    """Its owner is dead, and nobody else may decide."""
    transaction = client.begin()
    client.write(transaction, 0, 0, [Mutation(X, "1")])
    client.write(transaction, 0, 1, [Mutation(Y, "1")])
    engine.commit([Mutation(X, "other")])
    assert row_of(engine, transaction).status is Status.ABORTED
    assert row_of(engine, child_key(transaction, 0, 1)).state is RowState.ABORTING
    engine.commit([Mutation(Y, "other")])
    assert row_of(engine, child_key(transaction, 0, 1)).status is Status.ABORTED


def test_beats_keep_it_alive(engine: Engine, client: PartsClient) -> None:
    """Of whichever task: they are in the row of the whole."""
    transaction = client.begin()
    client.write(transaction, 0, 0, [Mutation(X, "1")])
    before = row_of(engine, transaction).heartbeat
    client.heartbeat(transaction)
    assert row_of(engine, transaction).heartbeat > before
    lease = replace(engine.context.policy, lock_ttl_ms=30)
    quick = PartsClient(engine)
    quick._context = replace(engine.context, policy=lease)
    with quick.sending_heartbeats(transaction):
        seen = row_of(engine, transaction).heartbeat
        engine.context.clock.sleep_ms(5)
        while row_of(engine, transaction).heartbeat == seen:
            pass
    client.commit(transaction, [1], 0)


@pytest.mark.parametrize("error", [StoreError("away"), ZeroDivisionError("odd")], ids=repr)
def test_beating_goes_on_after_any_error(
    engine: Engine, client: PartsClient, error: Exception
) -> None:
    """A heartbeat that ended at the first one let anybody abort the whole, a lease later."""
    transaction = client.begin()
    fails = iter([error] * 3)
    told: list[Event] = []
    heartbeat = client.heartbeat

    def fail(transaction: bytes) -> None:
        if (failure := next(fails, None)) is not None:
            raise failure
        heartbeat(transaction)

    quick = replace(POLICY, lock_ttl_ms=30)
    client._context = replace(engine.context, policy=quick, on_event=told.append)
    client.heartbeat = fail  # type: ignore[method-assign]
    before = row_of(engine, transaction).heartbeat
    with client.sending_heartbeats(transaction):
        engine.context.clock.sleep_ms(5)
        while row_of(engine, transaction).heartbeat == before:
            pass
    assert told.count(WorkFailed("send heartbeat")) == 3


def test_beating_ends_with_a_closed_store(client: PartsClient) -> None:
    """There is nothing left to beat in, and no thread is left."""
    came = threading.Event()

    def fail(transaction: bytes) -> None:
        came.set()
        raise StoreClosedError("closed")

    client._context = replace(client._context, policy=replace(POLICY, lock_ttl_ms=3))
    client.heartbeat = fail  # type: ignore[method-assign]
    with client.sending_heartbeats(client.begin()):
        assert came.wait(5)
        for each in threading.enumerate():
            if each.name == "txn-beat":
                each.join(5)
                assert not each.is_alive()


def test_too_many_parts_are_refused(client: PartsClient) -> None:
    """A row key has five digits for each number."""
    transaction = client.begin()
    for task, number in ((100_000, 0), (0, 100_000), (-1, 0)):
        with pytest.raises(InvalidRequestError):
            client.write(transaction, task, number, [Mutation(X, "1")])


def test_a_part_that_does_not_decode_keeps_its_transaction(
    engine: Engine, client: PartsClient
) -> None:
    """Nobody knows what it would write: so the whole is not told to be complete."""
    transaction = client.begin()
    newest = client.write(transaction, 0, 0, [Mutation(X, "1")])
    newest = max(newest, client.write(transaction, 0, 1, [Mutation(Y, "1")]))
    client.commit(transaction, [2], newest, ack="decided")
    store, bad = engine.context.store, column(b"txn", child_key(transaction, 0, 1), b"buffer")
    cell = store.read([bad])[bad]
    assert cell is not None
    store.write([Edit(bad, b"junk", cell.timestamp + 1)])
    assert row_of(engine, child_key(transaction, 0, 1)).state is RowState.UNREADABLE
    with pytest.raises(CorruptRowError):
        engine.read([Y])
    found = {f.transaction: f for f in check(engine.context, grace_ms=0)}
    left = repair(engine.context, found[transaction])
    assert isinstance(left, LeftAlone) and "part cannot be finished" in left.why
    store.write([Edit(bad, cell.value, cell.timestamp + 2)])
    repair(engine.context, found[transaction])
    assert values(engine, X, Y) == [b"1", b"1"]


def test_parts_that_were_not_counted_are_released(engine: Engine, client: PartsClient) -> None:
    """They are those of somebody who made more of them than the one who was believed."""
    transaction = client.begin()
    client.write(transaction, 0, 0, [Mutation(X, "1")])
    client.write(transaction, 3, 0, [Mutation(Y, "1")])
    client.commit(transaction, [1], 0)
    assert values(engine, X, Y) == [b"1", None]
    assert row_of(engine, child_key(transaction, 3, 0)).status is Status.ABORTED


def test_rows_of_parts_stay_while_their_transaction_is_under_way(
    engine: Engine, client: PartsClient
) -> None:
    """That they are complete is told by them alone."""
    transaction = client.begin()
    client.write(transaction, 0, 0, [Mutation(X, "1")])
    client.commit(transaction, [1], 0, ack="decided")
    engine.commit([Mutation(X, "2")])
    found = list(check(engine.context, grace_ms=10**9, retention_ms=0))
    assert child_key(transaction, 0, 0) not in {finding.transaction for finding in found}


WHOLE = b"transaction.1700000000000." + b"0" * 32


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


def test_names_of_parts_tell_whose_they_are() -> None:
    """From a lock alone: nothing else names the transaction."""
    assert parent_of(child_key(WHOLE, 0, 99_999)) == WHOLE
    assert parent_of(b"07." + child_key(WHOLE, 1, 1)) == b"07." + WHOLE
    assert parent_of(WHOLE) is None and parent_of(WHOLE + b".part-1-1") is None


def test_counts_of_parts_are_text() -> None:
    """Whoever looks at the row reads them."""
    assert encode_child_counts([3, 0, 12]) == b"3 0 12"
    assert decode_child_counts(b"3 0 12") == (3, 0, 12)
    assert encode_child_counts([]) == OPEN and decode_child_counts(OPEN) == ()
    for wrong in (b"", b"1,2", b"-1"):
        with pytest.raises(CorruptRowError):
            decode_child_counts(wrong)


def test_a_store_that_writes_one_cell_at_a_time_is_refused() -> None:
    """A plan could come without its status."""
    engine = World(one_cell=True).engine()
    with pytest.raises(InvalidRequestError, match="Thrift 1"):
        PartsClient(engine).begin()


def test_a_row_key_that_took_long_to_write_is_given_up() -> None:
    """As of any other transaction."""
    world = World()

    def wait(call: Call) -> Fault:
        world.clock.sleep_ms(400_000)
        return NO_FAULT

    with pytest.raises(ConflictError, match="took too long"):
        PartsClient(world.client(wait)[0]).begin()


def test_a_part_that_cannot_follow_keeps_its_transaction() -> None:
    """A newer version has stepped it on, to a status that nobody here knows."""
    world = World()
    meddled: list[Call] = []

    def meddle(call: Call) -> Fault:
        for check_of in checks(call):
            if parent_of(check_of.key.row) and check_of.expected == Status.PART.value and decided:
                status = status_key(b"txn", check_of.key.row)
                world.memory.write([Edit(status, b"9-NEW", world.clock.wall_ms() + 50)])
                meddled.append(call)
        return NO_FAULT

    decided: list[bool] = []
    client = PartsClient(world.client(meddle)[0])
    transaction = client.begin()
    newest = client.write(transaction, 0, 0, [Mutation(key("x"), b"1")])
    decided.append(True)
    assert not client.commit(transaction, [1], newest).complete
    assert len(meddled) == 1
    (status,) = (row.status for row in world.rows() if row.row_key == transaction)
    assert status is Status.ASSERTED


def test_an_unknown_status_is_told(engine: Engine, client: PartsClient) -> None:
    """A newer version was here: nothing is done in its name."""
    transaction = client.begin()
    client.write(transaction, 0, 0, [Mutation(X, "1")])
    part = status_key(b"txn", child_key(transaction, 0, 0))
    engine.context.store.write([Edit(part, b"9-NEW", engine.context.clock.wall_ms() + 50)])
    with pytest.raises(CorruptRowError):
        client.write(transaction, 0, 0, [Mutation(X, "1")])


def test_a_part_is_explained_as_its_transaction_has_it(engine: Engine, client: PartsClient) -> None:
    """Its own row says that it can go either way, long after it was decided."""
    transaction = client.begin()
    newest = client.write(transaction, 0, 0, [Mutation(X, "1")])
    part = child_key(transaction, 0, 0)
    before = explain(engine.context, part)
    assert before is not None and before.row.state is RowState.UNDECIDED
    done = client.commit(transaction, [1], newest, ack="decided")
    found, whole = explain(engine.context, part), explain(engine.context, transaction)
    assert found is not None and whole is not None
    assert found.row.state is RowState.DECIDED
    assert found.row.plan is not None and found.row.plan.timestamp == done.timestamp
    assert (found.whole, found.row.follows, found.held) == (transaction, True, (X,))
    assert (whole.whole, whole.row.parts) == (None, (1,))
    assert found.part_rows is None and found.first_part is None


def test_a_transaction_is_explained_with_how_many_parts_it_has(
    engine: Engine, client: PartsClient
) -> None:
    """Before the decision its row does not tell; and afterwards their rows may be gone."""
    transaction = client.begin()

    def look() -> tuple[object, ...]:
        found = explain(engine.context, transaction)
        assert found is not None
        return found.row.parts, found.part_rows, found.first_part

    assert look() == ((), 0, None)
    client.write(transaction, 1, 0, [Mutation(X, "1")])
    client.write(transaction, 1, 1, [Mutation(Y, "1")])
    client.begin()
    first = child_key(transaction, 1, 0)
    assert look() == ((), 2, first)
    client.commit(transaction, [0, 2], 0)
    assert look() == ((0, 2), 2, first)
    few = explain(engine.context, transaction, most_parts=1)  # it may have 100,000
    assert few is not None and (few.part_rows, few.first_part) == (1, first)
    row = explain(engine.context, engine.commit([Mutation(Z, "1"), Mutation(W, "1")]).transaction)
    assert row is not None and (row.row.parts, row.part_rows) == (None, None)
