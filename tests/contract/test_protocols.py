"""The two protocols beside each other: the same requests, one after the other, end the same way."""

from collections.abc import Iterator
from random import Random
from typing import get_args

import pytest

from recovery import check, summary
from txn import (
    AssertionFailedError,
    Committed,
    Delete,
    Engine,
    Exact,
    GreaterThan,
    Key,
    Mutation,
    Request,
    Some,
    TokenReusedError,
    TxnError,
    Version,
)
from txn.assertions import Assertion
from txn.clock import ManualClock
from txn.model import Cell, Edit
from txn.protocol.statuses import ProtocolName
from txn.stores import open_store

pytestmark = pytest.mark.fast

KEYS = [Key(row, family, column, "data") for row in "ab" for family in "de" for column in "xy"]
SEEDS = range(60)
STEPS = 25
NOW = 1
"""Asserted as a version: that of the key now, whatever its timestamp; one more is another one."""
TOKENS = ("one", "two", None, None, None)


class Database:
    """One database, with a clock of its own."""

    def __init__(self, protocol: ProtocolName) -> None:
        self.clock = ManualClock()
        self.store = open_store("memory://", self.clock)
        self.engine = Engine(
            self.store, table="data", clock=self.clock, rng=Random(1), protocol=protocol
        )
        self.engine.ensure_table("data", ["d", "e"])

    def commit(self, requests: list[Request]) -> list[str]:
        """Commit requests together; return how each ended."""
        self.clock.advance(1)
        results = self.engine.commit_many([self._dated(request) for request in requests])
        return [tell(result) for result in results]

    def values(self) -> dict[Key, bytes | None]:
        """The cells by an atomic read, which is what a scan finds as well."""
        found = self.engine.read(KEYS)
        scanned = {key: cell for row in self.engine.scan("data") for key, cell in row.cells.items()}
        assert scanned == {key: cell for key, cell in found.items() if cell}
        return {key: cell.value if cell else None for key, cell in found.items()}

    def past(self, key: Key, value: bytes) -> None:
        """Write past the protocol, before any transaction."""
        self.store.write([Edit(key, value, self.clock.wall_ms())])

    def _dated(self, request: Request) -> Request:
        """Put this database's own timestamps in the place of assertions of versions."""
        asserted = tuple(self._date(each) for each in request.assertions)
        content = b"any" if request.once == b"two" else None
        return Request(request.mutations, asserted, request.once, once_content=content)

    def _date(self, assertion: Assertion) -> Assertion:
        if not isinstance(assertion, Version) or assertion.timestamp is None:
            return assertion
        cell: Cell | None = self.engine.read([assertion.key])[assertion.key]
        return Version(assertion.key, cell.timestamp + assertion.timestamp - NOW if cell else NOW)


def tell(result: Committed | TxnError) -> str:
    if isinstance(result, Committed):
        return "repeated" if result.repeated else "committed"
    if isinstance(result, TokenReusedError):
        return "reused"
    assert isinstance(result, AssertionFailedError), result
    assert result.assertion is not None
    return "refused"


def some_assertion(rng: Random) -> Assertion:
    key, value = rng.choice(KEYS), b"%d" % rng.randrange(3)
    kinds = (
        Exact(key, value),
        GreaterThan(key, value),
        Some(key),
        Version(key, None),
    )
    chosen = rng.choice(kinds)
    dated = Version(key, rng.choice((NOW, NOW, NOW + 1)))
    return rng.choice((chosen, ~chosen, chosen | Some(rng.choice(KEYS)), dated))


def some_request(rng: Random) -> Request:
    keys = rng.sample(KEYS, rng.randint(1, 4))
    changes = tuple(
        Delete(key) if rng.random() < 0.3 else Mutation(key, b"%d" % rng.randrange(3))
        for key in keys
    )
    asserted = tuple(some_assertion(rng) for _ in range(rng.randrange(3)))
    token = rng.choice(TOKENS)
    return Request(changes, asserted, token.encode() if token else None)


def some_batches(rng: Random) -> Iterator[list[Request]]:
    for _ in range(STEPS):
        yield [some_request(rng) for _ in range(rng.choice((1, 1, 1, 3)))]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_requests_end_in_the_same_way(seed: int) -> None:
    one, two = (Database(protocol) for protocol in get_args(ProtocolName))
    for each in (one, two):
        each.past(KEYS[0], b"1")
    for batch in some_batches(Random(seed)):
        assert one.commit(batch) == two.commit(batch), batch
        assert one.values() == two.values()
    for each in (one, two):
        assert summary(each.engine.context, [b"data"]).is_quiet
        assert list(check(each.engine.context, grace_ms=0, scan=[b"data"])) == []
