"""The work behind the client's back: the final statuses of rows whose locks are free, together."""

from __future__ import annotations

import logging

import pytest

from recovery import Kind, Repaired, check, repair
from tests.unit.worlds import POLICY, TABLE, World, X, Y, is_step
from txn.clock import poll
from txn.model import Check, Mutation
from txn.protocol.recovery import roll_forward
from txn.protocol.row import read_rows
from txn.protocol.statuses import PROTOCOLS, ProtocolName, Status
from txn.protocol.transaction import load_transaction
from txn.testing.faulty import Call, Crash, Fault, Reply

pytestmark = pytest.mark.usefixtures("rows_for_all")
BOTH = pytest.mark.parametrize("protocol", PROTOCOLS)
BOTH_KEYS = [Mutation(X, b"1"), Mutation(Y, b"1")]
REFUSED = Fault(frozenset(), Reply.NOT_APPLIED)


@pytest.fixture(autouse=True)
def slow_finisher(monkeypatch: pytest.MonkeyPatch) -> None:
    """It works when it is asked to, or where enough is there."""
    monkeypatch.setattr("txn.client.finisher.COMPLETE_WITHIN_S", 60)


def far_world(protocol: ProtocolName = "six-phase") -> World:
    """A database whose clients are far from their store."""
    world = World(protocol=protocol)
    world.faults.features |= {"remote_calls"}
    return world


def completes(call: Call) -> bool:
    return any(is_step(item, Status.COMPLETE) for item in call.items)


@BOTH
def test_a_far_row_is_completed_later_in_one_call_for_many(protocol: ProtocolName) -> None:
    world = far_world(protocol)
    results = [world.engine.commit([Mutation(X, v), Mutation(Y, v)]) for v in (b"1", b"2", b"3")]
    released = PROTOCOLS[protocol].released
    assert world.statuses() == [released] * 3
    assert (world.holder(X), world.holder(Y), world.value(X)) == (b"", b"", b"3")
    assert all(result.complete for result in results)
    made: list[Call] = []
    world.faults.plan = lambda call: made.append(call) or Fault()  # type: ignore[func-returns-value]
    world.engine.flush()
    (call,) = made
    assert (call.method, len(call.items)) == ("check_and_put", 3)
    checks = [item for item in call.items if isinstance(item, Check)]
    # A row at 4 is compared. A fenced row is put: 5 is the greatest timestamp of a commit.
    expected = released.value if protocol == "six-phase" else None
    assert [(check.expected, check.is_deferred) for check in checks] == [(expected, True)] * 3
    assert world.statuses() == [Status.COMPLETE] * 3


@BOTH
@pytest.mark.parametrize("ack", ["complete", "decided"])
def test_a_row_that_cannot_be_completed_stays_with_free_locks(
    protocol: ProtocolName, ack: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = far_world(protocol)
    world.faults.plan = lambda call: REFUSED if completes(call) else Fault()
    done = world.engine.commit(BOTH_KEYS, ack=ack)  # type: ignore[arg-type]
    assert poll(lambda: not world.holder(X) and not world.holder(Y), 60_000)
    world.engine.flush()
    assert done.complete is (ack == "complete")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert world.statuses() == [PROTOCOLS[protocol].released]
    assert (world.value(X), world.holder(X), world.holder(Y)) == (b"1", b"", b"")
    world.faults.plan = lambda call: Fault()
    (finding,) = check(world.engine.context, grace_ms=0, scan=[TABLE])
    assert finding.kind is Kind.DECIDED
    assert repair(world.engine.context, finding) == Repaired("rolled forward")
    assert world.statuses() == [Status.COMPLETE]


@pytest.mark.parametrize("status", [Status.PUT, Status.CLEANING])
def test_a_step_that_is_lost_alone_is_made_by_the_next_client(status: Status) -> None:
    """A crash of the row's server may take 4 back to 3, with its locks free; fsck completes it."""
    world = far_world()
    world.faults.plan = lambda call: (
        Fault(frozenset(range(1, len(call.items))), Reply.CRASH)
        if any(is_step(item, status) for item in call.items)
        else Fault()
    )
    with pytest.raises(Crash):
        world.engine.commit(BOTH_KEYS)
    world.faults.plan, world.faults.crashed = (lambda call: Fault()), False
    before = Status.ASSERTED if status is Status.PUT else Status.PUT
    assert world.statuses() == [before]
    is_held = status is Status.PUT
    assert bool(world.holder(X)) is is_held and world.value(X.tag) == b""
    world.clock.advance(POLICY.lock_ttl_ms)
    (finding,) = check(world.engine.context, grace_ms=0, scan=[TABLE])
    assert repair(world.engine.context, finding) == Repaired("rolled forward")
    assert world.statuses() == [Status.COMPLETE]
    assert (world.value(X), world.holder(X), world.value(X.tag)) == (b"1", b"", b"")


def test_a_helper_at_3_puts_nothing() -> None:
    """With 3, a lock may be free already, and the key be another's."""
    world = far_world()
    context = world.engine.context
    done = world.engine.commit(BOTH_KEYS)
    row = read_rows(context, [done.transaction])[done.transaction]
    helper = load_transaction(context, row)
    helper.status = Status.PUT
    other = world.client(seed=2).commit([Mutation(X, b"2")])
    made: list[str] = []
    world.faults.plan = lambda call: made.append(call.method) or Fault()  # type: ignore[func-returns-value]
    roll_forward(context, [helper])
    assert "write" not in made
    assert world.value(X) == b"2"
    cell = world.cell(X)
    assert cell is not None and cell.timestamp == other.timestamp
    world.engine.flush()
