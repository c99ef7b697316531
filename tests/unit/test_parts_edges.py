"""Transactions in parts at their edges: asked again, meddled with, met at bad moments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

import pytest

from recovery import Kind, LeftAlone, Repaired, check, repair
from recovery.purge import purge_row
from recovery.scan import whole_row
from tests.simulation.puppets import asks_for, when
from tests.simulation.world import World, key
from tests.unit.parted import X, Y, Z, make_client, open_rows, row_of, values
from tests.unit.worlds import POLICY
from txn import (
    CommitOutcomeUnknown,
    ConflictError,
    CorruptRowError,
    Engine,
    InvalidRequestError,
    Mutation,
    Outcome,
    TxnError,
)
from txn.client.parts import PartsClient
from txn.clock import ManualClock
from txn.errors import NotApplied
from txn.model import Edit, Row
from txn.protocol.commit import prepare
from txn.protocol.row import RowState, child_key, column
from txn.protocol.statuses import ProtocolName, Status
from txn.testing.faulty import NO_FAULT, Call, Fault, FaultyStore, Reply

pytestmark = pytest.mark.fast


@pytest.fixture(params=get_args(ProtocolName))
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with open_rows(request.param) as engine:
        yield engine


@pytest.fixture
def client(engine: Engine) -> PartsClient:
    return make_client(engine)


def write_two(client: PartsClient) -> tuple[bytes, int]:
    """Write two parts, of X and of Y."""
    transaction = client.begin()
    times = [client.write(transaction, 0, n, [Mutation(k, "1")]) for n, k in enumerate((X, Y))]
    return transaction, max(times)


def test_who_asks_again_for_a_commit_is_told_of_it(engine: Engine, client: PartsClient) -> None:
    transaction, newest = write_two(client)
    done = client.commit(transaction, [2], newest, ack="decided")
    for again in (client, PartsClient(engine)):
        found = again.commit(transaction, [2], newest)
        assert (found.transaction, found.timestamp) == (transaction, done.timestamp)
        assert found.complete
    assert values(engine, X, Y) == [b"1", b"1"]
    assert engine.outcome(transaction) is Outcome.COMMITTED


def test_a_failed_commit_leaves_no_lock_whoever_aborted_it(
    engine: Engine, client: PartsClient
) -> None:
    transaction, newest = write_two(client)
    engine.commit([Mutation(X, "other")])  # waits for the lease
    with pytest.raises(ConflictError):
        client.commit(transaction, [2], newest)
    assert row_of(engine, child_key(transaction, 0, 1)).status is Status.ABORTED
    assert not list(check(engine.context, grace_ms=0, scan=[b"rows"]))


def test_a_part_is_not_purged_while_its_transaction_may_commit(
    engine: Engine, client: PartsClient
) -> None:
    transaction, newest = write_two(client)
    seen = whole_row(engine.context, child_key(transaction, 0, 1))
    assert seen is not None
    assert isinstance(purge_row(engine.context, seen, unfinished=True), LeftAlone)
    client.commit(transaction, [2], newest)
    assert values(engine, X, Y) == [b"1", b"1"]


def test_a_part_of_what_is_decided_is_not_purged(engine: Engine, client: PartsClient) -> None:
    transaction, newest = write_two(client)
    client.commit(transaction, [2], newest, ack="decided")
    seen = whole_row(engine.context, child_key(transaction, 0, 1))
    assert seen is not None
    assert isinstance(purge_row(engine.context, seen), LeftAlone)
    assert isinstance(purge_row(engine.context, seen, unfinished=True), LeftAlone)


def test_a_part_that_came_late_may_be_purged(engine: Engine, client: PartsClient) -> None:
    transaction, _ = write_two(client)
    for row, result in (
        (transaction, Repaired),
        (child_key(transaction, 0, 1), LeftAlone),  # the first write may arrive once more
    ):
        seen = whole_row(engine.context, row)
        assert seen is not None
        assert isinstance(purge_row(engine.context, seen, unfinished=True), result)
    status = column(b"txn", transaction, b"status")
    engine.context.store.write(
        [Edit(status, Status.ABORTED.encoded, engine.context.clock.wall_ms() + 9)]
    )
    assert isinstance(purge_row(engine.context, seen, unfinished=True), Repaired)


def test_a_deleted_transaction_has_no_known_outcome(engine: Engine, client: PartsClient) -> None:
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


def test_counts_that_do_not_decode_keep_all_parts(engine: Engine, client: PartsClient) -> None:
    transaction, newest = write_two(client)
    client.commit(transaction, [2], newest, ack="decided")
    parts = column(b"txn", transaction, b"parts")
    store = engine.context.store
    cell = store.read([parts])[parts]
    assert cell is not None
    store.write([Edit(parts, b"{2}", cell.timestamp + 1)])
    assert row_of(engine, transaction).state is RowState.UNREADABLE
    assert row_of(engine, child_key(transaction, 0, 0)).state is RowState.UNREADABLE
    for finding in list(check(engine.context, grace_ms=0)):
        assert isinstance(repair(engine.context, finding), LeftAlone)
    store.write([Edit(parts, b"2", cell.timestamp + 2)])
    assert values(engine, X, Y) == [b"1", b"1"]


@pytest.mark.parametrize("counts", [[-1], [100_001], ["2"], [0] * 100_001])
def test_counts_that_cannot_be_are_refused(client: PartsClient, counts: list[int]) -> None:
    transaction, newest = write_two(client)
    with pytest.raises(InvalidRequestError):
        client.commit(transaction, counts, newest)


def test_the_greatest_count_is_read_again(engine: Engine, client: PartsClient) -> None:
    transaction = client.begin()
    newest = client.write(transaction, 0, 99_999, [Mutation(X, "1")])
    client.commit(transaction, [100_000], newest, ack="decided")
    assert row_of(engine, transaction).parts == (100_000,)
    assert values(engine, X) == [b"1"]


def test_a_slow_clock_beats_beside_a_fast_one(engine: Engine, client: PartsClient) -> None:
    transaction = client.begin()
    clock = engine.context.clock
    assert isinstance(clock, ManualClock)
    fast = ManualClock(clock.wall_ms() + 50_000)
    ahead = Engine(engine.context.store, table="rows", policy=POLICY, clock=fast)
    PartsClient(ahead).heartbeat(transaction)
    seen = row_of(engine, transaction).heartbeat
    clock.sleep_ms(10)
    client.heartbeat(transaction)
    assert row_of(engine, transaction).heartbeat > seen


def test_a_marker_that_is_held_for_a_moment_does_not_lose_the_whole(
    engine: Engine, client: PartsClient
) -> None:
    store, first = engine.context.store, client.begin(once="job")
    (marker,) = row_of(engine, first).buffer.request.keys  # type: ignore[union-attr]
    rules = engine.context.rules
    lock, held = rules.lock_of(marker), b"1@" + first if rules.locks_rows else first
    store.write([Edit(lock, held, engine.context.clock.wall_ms())])
    second = client.begin(once="job")
    newest = client.write(second, 0, 0, [Mutation(X, "2")])
    try:
        done = client.commit(second, [1], newest)
    except TxnError as error:
        pytest.fail(f"lost: {error}")
    assert done.transaction == second


def test_a_decision_whose_answer_was_lost_is_that_of_its_row() -> None:
    world = World()
    lost = when(asks_for(Status.ASSERTED), Fault(reply=Reply.MAYBE_APPLIED))
    client = PartsClient(world.client(lost)[0])
    transaction = client.begin()
    newest = client.write(transaction, 0, 0, [Mutation(key("x"), b"1")])
    done = client.commit(transaction, [1], newest)
    assert done.complete and done.timestamp == newest
    assert world.values([key("x")]) == {key("x"): b"1"}


@pytest.mark.parametrize("decided_by", ["this call", "an earlier one"])
def test_a_decision_whose_row_cannot_be_read_is_unknown(decided_by: str) -> None:
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

    client = PartsClient(world.client(fail)[0])
    transaction = client.begin()
    newest = client.write(transaction, 0, 0, [Mutation(key("x"), b"1")])
    if decided_by == "an earlier one":
        PartsClient(world.client()[0]).commit(transaction, [1], newest, ack="decided")
        later += ["read"]
    with pytest.raises(CommitOutcomeUnknown) as caught:
        client.commit(transaction, [1], newest)
    assert caught.value.transaction == transaction
    world.mend()
    assert world.values([key("x")]) == {key("x"): b"1"}


def test_a_marker_that_is_held_for_long_is_waited_for_until_the_deadline(
    engine: Engine, client: PartsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> list[Any]:
        args[1][0].failure = ConflictError("key is locked")
        return []

    transaction, newest = write_two(client)
    monkeypatch.setattr("txn.protocol.children.prepare", refuse)
    began_ms = engine.context.clock.monotonic_ms()
    with pytest.raises(ConflictError, match="key is locked"):
        client.commit(transaction, [2], newest)
    waited_ms = engine.context.clock.monotonic_ms() - began_ms
    assert waited_ms >= POLICY.deadline_ms - POLICY.longest_pause_ms


def test_a_part_whose_key_is_held_for_long_is_told_of_a_conflict(
    engine: Engine, client: PartsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> list[Any]:
        args[1][0].failure = ConflictError("key is locked")
        return []

    transaction = client.begin()
    monkeypatch.setattr("txn.protocol.children.prepare", refuse)
    began_ms = engine.context.clock.monotonic_ms()
    with pytest.raises(ConflictError, match="key is locked"):
        client.write(transaction, 0, 0, [Mutation(X, "1")])
    waited_ms = engine.context.clock.monotonic_ms() - began_ms
    assert waited_ms >= client._wait_ms - POLICY.longest_pause_ms


def test_a_decision_that_finds_no_row_any_more_is_unknown(
    engine: Engine, client: PartsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process wrote the row, nobody here knows when: it may have committed since, and been
    deleted. So it is not poisoned."""
    transaction, newest = write_two(client)
    store = engine.context.store

    def lose_row(*args: Any, **options: Any) -> list[Any]:
        ready = prepare(*args, **options)
        row = whole_row(engine.context, transaction)
        assert row is not None
        store.write([Edit(key, None, cell.timestamp) for key, cell in row.cells.items()])
        return ready

    monkeypatch.setattr("txn.protocol.children.prepare", lose_row)
    with pytest.raises(CommitOutcomeUnknown):
        client.commit(transaction, [2], newest)
    assert whole_row(engine.context, transaction) is None


def decide_and_lose(engine: Engine, client: PartsClient, name: bytes) -> bytes:
    """Decide a transaction of two parts, whose row then loses a cell."""
    transaction, newest = write_two(client)
    client.commit(transaction, [2], newest, ack="decided")
    lost = column(b"txn", transaction, name)
    engine.context.store.write([Edit(lost, None, engine.context.clock.wall_ms() + 9)])
    return transaction


def test_what_is_not_known_to_be_aborted_is_not_called_so(
    engine: Engine, client: PartsClient
) -> None:
    transaction = decide_and_lose(engine, client, b"status")
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
    transaction = client.begin()
    keys = (X, Y, Z)
    newest = [client.write(transaction, 0, n, [Mutation(k, "1")]) for n, k in enumerate(keys)]
    seen = whole_row(engine.context, child_key(transaction, 0, lost))
    assert seen is not None
    engine.context.store.write([Edit(k, None, cell.timestamp) for k, cell in seen.cells.items()])
    assert not client.commit(transaction, [3], max(newest)).complete
    assert values(engine, *(k for k in keys if k is not keys[lost])) == [b"1", b"1"]
    with pytest.raises(CorruptRowError):
        engine.read([keys[lost]])
    (found,) = check(engine.context, grace_ms=0, scan=[b"rows"])
    assert (found.kind, found.transaction) == (Kind.UNREADABLE, transaction)
    assert found.facts["part"] == seen.row
    assert isinstance(repair(engine.context, found), LeftAlone)
    assert engine.outcome(transaction) is Outcome.COMMITTED
    whole = whole_row(engine.context, transaction)
    assert whole is not None
    assert isinstance(purge_row(engine.context, whole, unfinished=True), Repaired)
    for finding in list(check(engine.context, grace_ms=0, scan=[b"rows"])):
        repair(engine.context, finding)
    assert values(engine, keys[lost]) == [None]


class Forgetful(FaultyStore):
    """A store whose next scan of parts misses the first."""

    forgets = True

    def scan(self, table: bytes, start: bytes = b"", *args: Any, **named: Any) -> Iterator[Row]:
        rows = super().scan(table, start, *args, **named)
        if self.forgets and start.endswith(b".part-"):
            self.forgets = False
            next(rows)
        return rows


def test_a_part_that_a_scan_missed_is_finished(engine: Engine, client: PartsClient) -> None:
    transaction, newest = write_two(client)
    store = Forgetful(engine.context.store)
    other = Engine(store, table="rows", policy=POLICY, clock=engine.context.clock)
    assert make_client(other).commit(transaction, [2], newest).complete
    assert not store.forgets
    assert values(engine, X, Y) == [b"1", b"1"]


def test_a_decision_that_cannot_be_made_durable_is_unknown(
    engine: Engine, client: PartsClient
) -> None:
    transaction, newest = write_two(client)
    assert client.commit(transaction, [2], newest).complete

    class Failing(FaultyStore):
        def write(self, edits: Sequence[Edit], **named: Any) -> None:
            if not edits:
                raise NotApplied("the disk does not take it")
            super().write(edits, **named)

    store = Failing(engine.context.store)
    store.features |= {"atomic"}
    other = Engine(store, table="rows", policy=POLICY, clock=engine.context.clock)
    with pytest.raises(CommitOutcomeUnknown):
        make_client(other).commit(transaction, [2], newest)
