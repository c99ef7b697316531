"""What a transaction costs: calls of the store, items, and over HBase's RPC requests and rounds."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.bench.measuring import Protocol
from tests.bench.rounds import EITHER, OTHER, SAME, Placement, count_rounds
from txn import Engine, Key, Mutation, Request
from txn.clock import ManualClock
from txn.model import Family
from txn.stores import open_store
from txn.testing.counting import CountingStore
from txn.testing.faulty import FaultyStore

TABLE = b"data"
CALLS = {"check_and_put": 5, "check_and_read": 1, "write": 1}
ROUNDS = [
    *("check_and_put", "check_and_read", "check_and_put", "atomically", "write"),
    *("check_and_put",) * 3,
]


def key(row: int) -> Key:
    return Key(f"row-{row:03}", "d", "v", TABLE)


@pytest.fixture
def counting() -> CountingStore:
    store = CountingStore(FaultyStore(open_store("memory://", ManualClock())))
    store.ensure_table(TABLE, {b"d": Family(database=b"txn")})
    return store


@pytest.fixture
def engine(counting: CountingStore) -> Engine:
    """An engine that knows its table already, and has not been counted yet."""
    engine = Engine(counting, clock=ManualClock(), rng=Random(1))
    engine.read([key(0)])
    counting.reset()
    return engine


@pytest.mark.parametrize(("transactions", "keys_of_each"), [(1, 1), (1, 4), (7, 1), (10, 3)])
def test_a_batch_makes_seven_calls(
    engine: Engine, counting: CountingStore, transactions: int, keys_of_each: int
) -> None:
    requests = [
        Request(tuple(Mutation(key(m * keys_of_each + k), b"1") for k in range(keys_of_each)))
        for m in range(transactions)
    ]
    engine.commit_many(requests)
    keys = transactions * keys_of_each
    assert counting.calls == {**CALLS, "atomically": 1}
    assert [call.method for call in counting.trace] == ROUNDS
    # The tags, and whatever else is of one row, are one item; here each key has a row of its own.
    sizes = [len(call.items) for call in counting.trace]
    assert sizes == [
        transactions + keys,  # 0-WRITTEN and the locks
        transactions + 3 * keys,  # 1-LOCKED and the read
        transactions,  # the decision
        *(0, 2 * keys),  # values and tags
        transactions + keys,  # 3-PUT and the empty tags
        transactions + keys,  # 4-CLEANING and the unlocks
        transactions,  # 5-COMPLETE
    ]


COUNT = 5


@pytest.mark.parametrize(
    ("protocol", "placement", "requests", "until_decided", "until_unlocked"),
    [
        ("six-phase", SAME, 7, 4, 7),
        ("six-phase", OTHER, 11, 4, 7),
        ("fenced", replace(SAME, rows="always"), 4, 3, 4),
        ("fenced", replace(OTHER, rows="always"), 5, 3, 4),
        ("fenced", SAME, 2, 2, 2),
    ],
)
def test_a_transfer_with_its_read_takes_so_many_requests_in_so_many_rounds(
    protocol: Protocol, placement: Placement, requests: int, until_decided: int, until_unlocked: int
) -> None:
    """The read is the first. The final status is put later, for many with one request."""
    counts = count_rounds(protocol, placement, COUNT)
    assert counts.requests == {requests}
    assert counts.until_decided == {until_decided}
    assert counts.until_unlocked == {until_unlocked}
    assert (0 < counts.later <= 1) is (requests > 2)


def test_a_fenced_transaction_prefers_a_bucket_on_the_server_of_its_keys() -> None:
    placement = replace(EITHER, rows="always")
    assert count_rounds("fenced", placement, COUNT).requests == {4}
