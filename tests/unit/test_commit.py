"""The commit path: what it leaves behind, many at once, and once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.worlds import (
    POLICY,
    TAKEN,
    World,
    X,
    Y,
    before,
    is_step,
    record_calls,
    steps_to,
    stopped_at,
)
from txn.assertions import Exact, Some
from txn.errors import AbortedError, AssertionFailedError, ConflictError, InvalidRequestError
from txn.model import Cell, Delete, Edit, Family, Key, Mutation
from txn.protocol.clocks import FUTURE_MS
from txn.protocol.recovery import roll_back
from txn.protocol.row import FAMILY, read_rows
from txn.protocol.statuses import Status
from txn.protocol.transaction import load_transaction
from txn.request import Committed, Outcome, Request
from txn.stores.base import Answers
from txn.testing.faulty import FaultyStore


def test_all_cells_get_one_timestamp_and_nothing_stays_locked() -> None:
    world = World()
    world.put(Y, b"old")
    done = world.engine.commit([Mutation(X, b"1"), Delete(Y)], [Some(Y)])
    assert world.cell(X) == Cell(b"1", done.timestamp)
    assert world.cell(Y) is None
    for key in (X, Y):
        assert world.holder(key) == b""
        assert world.cell(key.tag) == Cell(b"", done.timestamp)
    assert done.complete and not done.repeated


def test_every_phase_is_in_the_row_with_its_time() -> None:
    world = World()
    done = world.engine.commit([Mutation(X, b"1")])
    (row,) = world.rows()
    assert (row.row_key, row.status) == (done.transaction, Status.COMPLETE)
    assert list(row.began) == TAKEN
    assert list(row.began.values()) == sorted(row.began.values())


def test_an_aborted_row_says_why() -> None:
    world = World()
    world.put(X, b"1")
    with pytest.raises(AssertionFailedError) as caught:
        world.engine.commit([Mutation(Y, b"1")], [Some(X), Exact(X, b"2")])
    assert caught.value.assertion == Exact(X, b"2")
    assert caught.value.seen[X].value == b"1"
    (row,) = world.rows()
    assert row.status is Status.ABORTED
    assert row.reason == "assertion failed: assertion data/x/d:x = 2, seen data/x/d:x = 1"
    assert world.value(Y) is None
    assert world.holder(X) == world.holder(Y) == b""


def test_the_commit_lies_above_everything_that_was_there() -> None:
    """Or its put would land under an earlier delete, or under a value from a faster clock."""
    world = World()
    first = world.engine.commit([Mutation(X, b"1")])
    world.clock.set_wall_ms(world.clock.wall_ms() - 10_000)
    second = world.engine.commit([Delete(X)])
    third = world.engine.commit([Mutation(X, b"3")])
    assert first.timestamp < second.timestamp < third.timestamp
    assert world.value(X) == b"3"


def test_a_cell_from_the_future_is_refused() -> None:
    """Following it would drag every later commit into the future as well, for ever."""
    world = World()
    world.store.write([Edit(X, b"1", world.clock.wall_ms() + FUTURE_MS + 5_000)])
    with pytest.raises(AbortedError, match=r"lies in the future.*key=.*'x'") as caught:
        world.engine.commit([Mutation(X, b"2")])
    assert type(caught.value) is AbortedError
    assert world.statuses() == [Status.ABORTED]


def test_commits_go_above_what_another_clock_has_left_in_the_future() -> None:
    world = World()
    ahead_ms = world.clock.wall_ms() + 24 * 3_600_000
    world.store.write([Edit(X, b"1", ahead_ms)])
    first = world.engine.commit([Mutation(X, b"2"), Mutation(Y, b"2")])
    second = world.engine.commit([Mutation(Y, b"3")])
    assert second.timestamp > first.timestamp > ahead_ms
    assert (world.value(X), world.value(Y)) == (b"2", b"3")


def test_a_cell_that_outruns_the_clock_is_waited_for() -> None:
    """Each commit adds a millisecond, so a hot cell on a fast store would reach the limit."""
    world = World()
    world.store.write([Edit(X, b"1", world.clock.wall_ms() + POLICY.skew_ms - 100)])
    before = world.clock.wall_ms()
    world.engine.commit([Mutation(X, b"2")])
    assert world.clock.wall_ms() > before


def test_transactions_of_a_batch_that_share_a_key_happen_in_order() -> None:
    world = World()
    results = world.engine.commit_many(
        [
            ([Mutation(X, b"1")], [~Some(X)]),
            ([Mutation(X, b"2"), Mutation(Y, b"2")], [Exact(X, b"1")]),
            ([Mutation(Y, b"3")], [Exact(Y, b"2")]),
        ]
    )
    assert [type(result) for result in results] == [Committed] * 3
    assert (world.value(X), world.value(Y)) == (b"2", b"3")


def test_a_batch_with_one_bad_request_writes_nothing() -> None:
    world = World()
    good, bad = ([Mutation(X, b"1")], []), ([Mutation(Key("a", "d", "x_lock"), b"1")], [])
    for wrong in (bad, [Mutation(X, b"1")], ([],)):
        with pytest.raises(InvalidRequestError, match="request=1"):
            world.engine.commit_many([good, wrong])  # type: ignore[list-item]
    assert world.rows() == []


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (Key("a", "d", "x", "nowhere"), "no such table.*nowhere"),
        (Key("a", "e", "x"), "no such family.*known="),
    ],
)
def test_unknown_tables_and_families_are_named(key: Key, message: str) -> None:
    world = World()
    with pytest.raises(InvalidRequestError, match=message):
        world.engine.commit([Mutation(X, b"1"), Mutation(key, b"1")])
    with pytest.raises(InvalidRequestError, match=message):
        world.engine.read([key])
    assert world.rows() == []


@pytest.mark.parametrize("name", ["transaction.1", "once.token", "doctor"])
def test_no_transaction_touches_the_transaction_table(name: str) -> None:
    world = World()
    families, key = world.store.describe(b"txn"), Key(name, FAMILY, "status", "txn")
    also = key._replace(table=b"default:txn")
    asserts = ([Mutation(X, b"1")], [~(Some(X) | Some(key))])
    for given in (([Mutation(key, b"1")], []), ([Delete(key)], []), asserts):
        with pytest.raises(InvalidRequestError, match=r"transaction table.*request=0"):
            world.engine.commit_many([given])  # type: ignore[list-item]
    for call in (
        lambda: world.engine.ensure_table("txn", ["d"]),
        lambda: world.engine.ensure_table("default:txn", ["d"]),
        lambda: world.engine.commit([Mutation(also, b"1")]),
        lambda: world.engine.run(lambda t: t.put(X, t.get(key) or b"none")),
    ):
        with pytest.raises(InvalidRequestError, match="the transaction table is the protocol's"):
            call()
    assert (world.engine.read([key]), world.rows()) == ({key: None}, [])
    assert world.store.describe(b"txn") == families


def test_a_family_with_a_ttl_is_refused() -> None:
    world = World()
    world.store.ensure_table(b"short", {b"d": Family(ttl_ms=60_000)})
    with pytest.raises(InvalidRequestError, match="TTL"):
        world.engine.commit([Mutation(Key("a", "d", "x", "short"), b"1")])


def test_a_failed_assertion_is_no_repeat() -> None:
    world = World()
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"1")], [Some(Y)], once="job/7")
    world.put(Y, b"1")
    assert not world.engine.commit([Mutation(X, b"1")], [Some(Y)], once="job/7").repeated


def test_one_token_twice_in_a_batch_commits_once() -> None:
    world = World()
    request = Request((Mutation(X, b"1"),), (~Some(X),), once=b"t")
    first, second = world.engine.commit_many([request, request])
    assert isinstance(first, Committed) and isinstance(second, Committed)
    assert (first.repeated, second.repeated) == (False, True)
    assert first.transaction == second.transaction


def test_a_read_before_the_step_that_it_travels_with_is_used() -> None:
    world = World()
    world.faults.reads_early = lambda: True
    calls = record_calls(world)
    assert world.engine.commit([Mutation(X, b"1")], [~Some(Y)]).complete
    looks = [len(call.items) for call in calls if call.method == "read"]
    assert looks[-1:] == [6]
    at = [call.method for call in calls].index("read", len(calls) - 7)
    assert [is_step(item, Status.LOCKED) for item in calls[at + 1].items] == [True]
    assert world.value(X) == b"1"


def test_an_abort_between_the_read_and_its_step_makes_the_step_fail() -> None:
    """What was read under the locks is true while they are held, which the step proves."""
    world = World()
    world.engine.commit([Mutation(X, b"0")])
    world.faults.reads_early = lambda: True
    aborted: list[bytes] = []

    def abort_and_overtake() -> None:
        aborted.append(world.holder(X))
        context = world.client(seed=3).context
        row = read_rows(context, aborted)[aborted[0]]
        roll_back(context, [load_transaction(context, row)], lambda _: "impatience")
        world.client(seed=4).commit([Mutation(X, b"1")])

    before(world, steps_to(Status.LOCKED), abort_and_overtake)
    world.engine.commit([Mutation(X, b"2")], [Exact(X, b"1")])
    assert world.value(X) == b"2"
    assert world.engine.outcome(aborted[0]) is Outcome.ABORTED


def test_an_answer_from_before_its_locks_aborts_a_transaction() -> None:
    """It shows another holder, and values that this one has replaced since."""
    world = World(replace(POLICY, attempts=1))
    world.put(X, b"0")
    row_key = stopped_at(world, Status.LOCKED)
    past = world.store.read([X, X.lock, X.tag])
    assert past[X.lock] and past[X.lock].value == row_key
    store = FaultyStore(
        world.store
    )  # answers the reads under locks from the past, as a gateway may
    check_and_read = store.check_and_read

    def answer_late(*args: Any, **given: Any) -> Answers:
        answers, found, times = check_and_read(*args, **given)
        return answers, {key: past.get(key, cell) for key, cell in found.items()}, times

    store.check_and_read = answer_late  # type: ignore[method-assign]
    world.clock.advance(POLICY.lock_ttl_ms)
    later = world.client(seed=2)
    for _ in range(2):
        with suppress(AbortedError):
            later.commit([Mutation(X, b"2")])
        world.clock.advance(POLICY.lock_ttl_ms)
    assert world.value(X) == b"2"
    with pytest.raises(ConflictError):
        world.client(store, seed=3).commit([Mutation(X, b"3")], [Exact(X, b"0")])
    assert world.value(X) == b"2"
