"""Stores that fail as planned, and that count: simulations are worth as much as these are right."""

from __future__ import annotations

import pytest

from txn import Key, MaybeApplied, NotApplied, StoreError
from txn.clock import ManualClock
from txn.model import Check, Edit, Family
from txn.stores import open_store
from txn.testing.counting import Counted, CountingStore
from txn.testing.faulty import Crash, Fault, FaultyStore, Plan, Reply, at, faultless

TABLE = b"data"
X, Y = Key("x", "d", "v", TABLE), Key("y", "d", "v", TABLE)
WRITES = [Edit(X, b"1", 5), Edit(Y, b"1", 5)]
CHECKS = [Check(X, b"", ((X, b"1"),)), Check(Y, b"", ((Y, b"1"),))]
NONE: frozenset[int] = frozenset()
FIRST, BOTH = frozenset({0}), frozenset({0, 1})


def store_of(plan: Plan = faultless) -> FaultyStore:
    inner = open_store("memory://", ManualClock())
    inner.ensure_table(TABLE, {b"d": Family()})
    return FaultyStore(inner, plan)


def there(store: FaultyStore) -> str:
    """Return which of the two keys have a value, without a fault."""
    store.plan, store.crashed = faultless, False
    cells = store.read([X, Y])
    return "".join(name for name, key in (("x", X), ("y", Y)) if cells[key])


@pytest.mark.parametrize("method", ["write", "check_and_put"])
@pytest.mark.parametrize(
    ("applied", "expected"), [(None, "xy"), (NONE, ""), (FIRST, "x"), (BOTH, "xy")]
)
def test_a_lost_reply_leaves_what_was_applied(
    method: str, applied: frozenset[int] | None, expected: str
) -> None:
    store = store_of(at({1: Fault(applied=applied, reply=Reply.MAYBE_APPLIED)}))
    with pytest.raises(MaybeApplied):
        getattr(store, method)(WRITES if method == "write" else CHECKS)
    assert there(store) == expected


def test_a_crashed_client_makes_no_further_call() -> None:
    store = store_of(at({1: Fault(applied=FIRST, reply=Reply.CRASH)}))
    with pytest.raises(Crash):
        store.write(WRITES)
    with pytest.raises(Crash):  # whatever code still runs, such as a finally
        store.read([X])
    assert store.calls == 1
    assert there(store) == "x"


def test_a_late_item_happens_when_it_is_delivered() -> None:
    """A duplicate in a gateway's queue knows nothing of what happened since."""
    store = store_of(at({1: Fault(late=FIRST)}))
    store.write([Edit(X, b"1", 5)])
    store.write([Edit(X, None, 4)])
    store.check_and_put([Check(X, b"1", ((X, b"2"),))])
    assert [late.call.number for late in store.in_flight] == [1]
    store.deliver()
    assert not store.in_flight
    found = store.read([X])[X]
    assert found is not None and found.value == b"2"


def test_a_repeated_call_reports_its_second_answer() -> None:
    """So a gateway turns the success of a checked write into a "no"."""
    store = store_of(at({1: Fault(twice=True)}))
    assert store.check_and_put(CHECKS) == [False, False]
    assert there(store) == "xy"


def test_a_table_may_be_made_though_nobody_is_told() -> None:
    lost = Fault(reply=Reply.MAYBE_APPLIED)
    refused = Fault(applied=NONE, reply=Reply.NOT_APPLIED)
    store = store_of(at({1: refused, 3: lost}))
    with pytest.raises(NotApplied):
        store.ensure_table(b"other", {b"d": Family()})
    assert store.describe(b"other") is None
    with pytest.raises(MaybeApplied):
        store.ensure_table(b"other", {b"d": Family()})
    assert store.describe(b"other") == {b"d": Family()}


@pytest.mark.parametrize("early", [True, False])
def test_a_read_with_checks_comes_early_or_late(early: bool) -> None:
    """The two ends of what a transport with two connections does."""
    check = Check(X, b"1", edits=(Edit(X, b"2", 6),))
    store = store_of()
    store.reads_early = lambda: early
    store.write(WRITES)
    answers, found, _ = store.check_and_read([check], [X])
    assert answers == [True]
    assert found == {X: (b"1", 5) if early else (b"2", 6)}
    assert there(store) == "xy"


def test_a_read_that_fails_after_checks_does_not_deny_them() -> None:
    """NotApplied promises that the whole call had no effect."""
    refused = Fault(applied=NONE, reply=Reply.NOT_APPLIED)
    store = store_of(at({2: refused, 3: refused}))
    with pytest.raises(MaybeApplied):
        store.check_and_read(CHECKS[:1], [X])
    assert there(store) == "x"
    store = store_of(at({2: refused}))
    with pytest.raises(NotApplied):
        store.check_and_read([], [X])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"applied": NONE}, "has taken effect"),
        ({"reply": Reply.NOT_APPLIED}, "no effect"),
        ({"reply": Reply.NOT_APPLIED, "applied": NONE, "late": FIRST}, "no effect"),
    ],
)
def test_faults_that_break_the_contract_are_refused(fault: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fault(**fault)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault(reply=Reply.MAYBE_APPLIED), "xy"),
        (Fault(reply=Reply.CRASH), "xy"),
        (Fault(applied=NONE, reply=Reply.MAYBE_APPLIED), ""),
        (Fault(applied=NONE, reply=Reply.NOT_APPLIED), ""),
        (Fault(applied=NONE, reply=Reply.CRASH), ""),
    ],
)
def test_where_it_is_one_transaction_it_is_one_call_with_one_fault(
    fault: Fault, expected: str
) -> None:
    store = store_of(at({1: fault}))
    store.features |= {"atomic"}
    done: list[str] = []

    def work() -> None:
        store.write(WRITES[:1])
        store.atomically(lambda: store.write(WRITES[1:]))
        done.append("all")

    with pytest.raises((StoreError, Crash)):
        store.atomically(work)
    assert (store.calls, done) == (1, ["all"])
    assert there(store) == expected


def test_checks_go_through_as_they_are() -> None:
    """Whether a check has a condition, and waits for a log, is between its sender and the store;
    also of a part of a call, of a second time, and of what comes late."""
    first = Check(X, None, ((X, b"1"),), is_deferred=True)
    second = Check(Y, None, edits=(Edit(Y, b"1", 5),))
    store = store_of(at({2: Fault(twice=True), 4: Fault(FIRST, Reply.MAYBE_APPLIED, FIRST)}))
    below = CountingStore(store._inner)
    store._inner = below
    assert store.check_and_put([first, second]) == [True, True]
    assert store.check_and_read([first, second], [X])[0] == [True, True]
    with pytest.raises(MaybeApplied):
        store.check_and_put([first, second])
    store.deliver()
    sent = [call.items for call in below.trace if call.method == "check_and_put"]
    assert sent == [(first, second)] * 3 + [(first,)] * 2


X, Y = Key("x", "d", "v", TABLE), Key("y", "d", "v", TABLE)


def test_it_counts_calls_and_items_and_answers_as_the_store_below() -> None:
    store = CountingStore(open_store("memory://", ManualClock()))
    store.ensure_table(TABLE, {b"d": Family()})
    store.write([Edit(X, b"1", 5), Edit(Y, b"1", 5)])
    assert store.check_and_put([Check(X, b"2", ((X, b"3"),))]) == [False]
    assert store.read([X])[X] == (b"1", 5)
    assert store.read([X, Y])[Y] == (b"1", 5)
    assert [row.row for row in store.scan(TABLE)] == [b"x", b"y"]
    assert store.describe(TABLE) == {b"d": Family()}
    once = ("ensure_table", "write", "check_and_put", "scan", "describe")
    assert store.calls == {"read": 2} | dict.fromkeys(once, 1)
    assert (store.items["read"], store.items["write"]) == (3, 2)
    store.reset()
    store.read([X], [Y])
    assert store.trace == [Counted("read", (X, Y))]
    store.close()
