"""The salt bucket of a new transaction: near its keys, where the store knows what is near."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from tests.unit.worlds import World
from txn.client.measured import MeasuredStore
from txn.events import silent
from txn.model import Key
from txn.protocol.context import Context
from txn.protocol.row import is_row_key, make_row_key, new_row_key
from txn.request import lock_request
from txn.stores.base import Store
from txn.testing.counting import CountingStore

BUCKETS = 8
KEYS = [Key(row, "d", "x", "data") for row in ("a1", "a2", "b1")]


class Located(CountingStore):
    """A store that knows the servers of some rows, by what they begin with."""

    def __init__(self, inner: Store, servers: dict[bytes, str]) -> None:
        super().__init__(inner)
        self.servers = servers

    def find_server(self, table: bytes, row: bytes) -> object | None:
        found = [server for start, server in self.servers.items() if row.startswith(start)]
        return found[0] if found else None


def context_of(servers: dict[bytes, str], salt_buckets: int = BUCKETS) -> Context:
    world = World(salt_buckets=salt_buckets)
    store = MeasuredStore(CountingStore(Located(world.store, servers)), silent)
    return replace(world.engine.context, store=store)


def count_buckets(context: Context) -> Counter[int]:
    """Return how many of a thousand transactions begin in each bucket."""
    rng, found = Random(1), Counter[int]()
    for _ in range(1_000):
        row_key = make_row_key(context, rng.getrandbits(128), lock_request(KEYS))
        assert is_row_key(row_key)
        found[int(row_key[:2])] += 1
    return found


def spread(servers: str) -> dict[bytes, str]:
    """Return the servers of the buckets, and of the keys: most of them are on A."""
    buckets = {b"%02d." % bucket: server for bucket, server in enumerate(servers)}
    return {**buckets, b"a": "A", b"b": "B"}


def test_a_transaction_begins_on_the_server_of_most_of_its_keys() -> None:
    """One request then carries its row and its locks. Of several buckets there all are used, and
    one in thousands of transactions finds none of them."""
    found = count_buckets(context_of(spread("ABCAABCB")))
    assert sum(found[near] for near in (0, 3, 4)) > 990
    assert min(found[near] for near in (0, 3, 4)) > 250


def test_a_bucket_of_an_unknown_server_is_used_too() -> None:
    """It is known once it was used. Otherwise the first known one would take everything."""
    servers = spread("ABBBBBBB")
    del servers[b"07."]
    found = count_buckets(context_of(servers))
    assert min(found[bucket] for bucket in (0, 7)) > 400


@pytest.mark.parametrize("servers", [spread("BBBBBBBB"), {}, {b"0": "A"}])
def test_where_no_bucket_is_near_all_are_used(servers: dict[bytes, str]) -> None:
    """No bucket is on the server, or the servers of the keys are not known."""
    assert min(count_buckets(context_of(servers)).values()) > 80


def test_without_buckets_or_servers_a_row_key_is_as_ever() -> None:
    """Nothing is asked for."""
    for context in (context_of(spread("A"), 1), World(salt_buckets=BUCKETS).engine.context):
        count = context.salt_buckets
        expected = new_row_key(context.clock.wall_ms(), 5, count, context.table)
        assert make_row_key(context, 5, lock_request(KEYS)) == expected
