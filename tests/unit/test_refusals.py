"""A table that refuses what it is asked, as a read-only one does: nobody asks it again, and the
transactions that need it abort, without a trace and without keeping the others."""

from __future__ import annotations

from typing import get_args

import pytest

from recovery import check
from tests.unit.worlds import POLICY, TABLE, World, X, Y
from txn import AbortedError, CommitOutcomeUnknown, Committed, Key, Mutation, NotApplied
from txn.errors import TableUnavailable
from txn.model import Check, Edit, Family
from txn.policy import Policy
from txn.protocol.statuses import ProtocolName
from txn.stores.hbase.places import is_final
from txn.testing.faulty import NO_FAULT, Call, Fault, Late, Reply

CLOSED = b"closed"
Z = Key("z", "d", "x", CLOSED)
PATIENT = Policy(**{name: getattr(POLICY, name) for name in ("attempts", "lock_ttl_ms")})


class Refusing(World):
    """A world with a table that refuses every write."""

    def __init__(self, protocol: ProtocolName, is_one_region: bool = False) -> None:
        super().__init__(PATIENT, protocol)
        if is_one_region:
            self.faults.features |= {"many_row_checks"}
        self.store.ensure_table(CLOSED, {b"d": Family()})
        self.answers = True  # whether it says so at a look
        self.engine.read([X, Z])
        self.faults.plan = self.refuse

    def refuse(self, call: Call) -> Fault:
        groups = [[item] if isinstance(item, Check | Edit) else item for item in call.items]
        writes = [i for group in groups for i in group if isinstance(i, Check | Edit)]
        if any(i.key.table == CLOSED for i in writes):
            raise TableUnavailable("the table refuses it", CLOSED)
        if not self.answers and call.method == "read" and not writes:
            return Fault(frozenset(), Reply.NOT_APPLIED)
        return Fault()


one_region = pytest.mark.parametrize("is_one_region", [False, True])
PROTOCOLS = pytest.mark.parametrize("protocol", get_args(ProtocolName))


@PROTOCOLS
def test_it_is_told_at_once_and_leaves_nothing(protocol: ProtocolName) -> None:
    world = Refusing(protocol)
    for keys in ([Z], [X, Z]):
        with pytest.raises(AbortedError, match="the table refuses it") as caught:
            world.engine.commit([Mutation(key, b"1") for key in keys])
        assert isinstance(caught.value.__cause__, TableUnavailable)
    before_ms = world.clock.monotonic_ms()
    assert world.engine.commit([Mutation(X, b"2")]).complete
    assert world.clock.monotonic_ms() - before_ms < 1_000
    assert list(check(world.engine.context, grace_ms=0)) == []


@PROTOCOLS
def test_others_of_a_batch_go_on(protocol: ProtocolName) -> None:
    world = Refusing(protocol)
    results = world.engine.commit_many([([Mutation(key, b"1")], []) for key in (X, Z, Y)])
    assert [type(each) for each in results] == [Committed, AbortedError, Committed]
    assert (world.value(X), world.value(Y), world.value(Z)) == (b"1", b"1", None)


@one_region
@pytest.mark.parametrize("applied", [None, frozenset()], ids=["applied", "lost"])
def test_what_may_have_been_done_before_it_was_refused_is_looked_up(
    applied: frozenset[int] | None, is_one_region: bool
) -> None:
    """The lock names its transaction; without it nobody knows whether the first request is late."""
    world = Refusing("fenced", is_one_region)
    mutations = [Mutation(Z, b"1"), *([Mutation(X, b"1")] if is_one_region else ())]

    def lose(call: Call) -> Fault:
        if call.method in ("check_and_put", "put_if_all"):
            world.faults.plan = world.refuse
            return Fault(applied, Reply.MAYBE_APPLIED)
        return Fault()

    world.faults.plan = lose
    if applied is None:
        assert world.engine.commit(mutations).complete
        assert world.value(Z) == b"1"
    else:
        with pytest.raises(CommitOutcomeUnknown):
            world.engine.commit(mutations)


@one_region
def test_a_table_that_refuses_says_nothing_of_requests_to_another(is_one_region: bool) -> None:
    """One is under way as the other table refuses its own, and arrives later."""
    world = Refusing("fenced", is_one_region)

    def refuse(call: Call) -> Fault:
        if call.method not in ("check_and_put", "put_if_all"):
            return NO_FAULT
        if len(call.items) == 1:
            raise TableUnavailable("this one refuses it too", TABLE)
        world.faults.in_flight.append(Late(call, call.items[:1]))
        raise TableUnavailable("the table refuses it", CLOSED)

    world.faults.plan = refuse
    results = world.engine.commit_many([([Mutation(key, b"1")], []) for key in (X, Z)])
    assert [type(each) for each in results] == [CommitOutcomeUnknown, AbortedError]
    world.faults.deliver()
    assert world.value(X) == b"1"


def test_what_cannot_be_looked_at_is_unknown() -> None:
    world = Refusing("fenced")

    def fail(call: Call) -> Fault:
        world.answers = world.answers and call.method != "check_and_put"
        return world.refuse(call)

    world.faults.plan = fail
    with pytest.raises(CommitOutcomeUnknown):
        world.engine.commit([Mutation(Z, b"1")])


@PROTOCOLS
def test_without_the_transaction_table_nothing_was_committed(protocol: ProtocolName) -> None:
    world = Refusing(protocol)

    def refuse(call: Call) -> Fault:
        if any(isinstance(i, Check | Edit) and i.key.table == b"txn" for i in call.items):
            raise TableUnavailable("the table refuses it", b"txn")
        return Fault()

    world.faults.plan = refuse
    with pytest.raises(NotApplied, match="nothing was committed: the table refuses it"):
        world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])


@pytest.mark.parametrize(
    ("text", "can_retry", "expected"),
    [
        ("org.apache.hadoop.hbase.DoNotRetryIOException: region is read only", None, True),
        ("org.apache.hadoop.hbase.security.AccessDeniedException: no", None, True),
        ("Failed 1 action: DoNotRetryIOException: 1 time, servers with issues: h,1,2", None, True),
        ("org.apache.hadoop.hbase.quotas.SpaceLimitingException: full", None, True),
        ("java.io.IOException: something", False, True),
        ("java.io.IOException: something", True, False),
        ("java.io.IOException: something", None, False),
        ("org.apache.hadoop.hbase.NotServingRegionException: t", False, False),
        ("org.apache.hadoop.hbase.exceptions.RegionMovedException: t", None, False),
        ("org.apache.hadoop.hbase.UnknownScannerException: 7", False, False),
        ("org.apache.hadoop.hbase.exceptions.ScannerResetException: 7", False, False),
        ("org.apache.hadoop.hbase.quotas.RpcThrottlingException: wait 1 s", None, False),
    ],
)
def test_what_clients_of_hbase_do_not_ask_again_is_final(
    text: str, can_retry: bool | None, expected: bool
) -> None:
    """Their subclasses that mean another server, or another scanner, are not."""
    assert is_final(text, can_retry) is expected
