"""What is measured: transfers between accounts, ten cells on ten rows, and flights, each with its
floor.

The floor is the same work without a transaction: the same reads and writes, one request each. A
transfer of ours reads its accounts in one plain batch and asserts their versions, which is what an
optimistic client does; one that meets a conflict or a changed version is run again. A flight is
what `txn demo flights` commits: twelve cells in three rows, and a marker.

Each protocol has tables of its own, and so have the floors.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from txn import Committed, ConflictError, Engine, Key, Mutation, Version
from txn.assertions import list_keys
from txn.clock import SystemClock
from txn.demo import data
from txn.model import Cell, Edit
from txn.request import Ack, Request
from txn.stores.base import Store

TABLE = "bench"
BALANCE = b"1000"
FAMILY = "d"
TEN = 10
ROWS = 10_000
AIRPORTS = ("ATL", "BOS", "LAX", "MCO", "ORD", "SFO")

Cells = Mapping[Key, Cell | None]
Wanted = tuple[list[Mutation], list[Version]]


@dataclass(frozen=True, slots=True)
class Tables:
    """Where one protocol works: its name is that of its table; `transactions` is its transaction
    table."""

    name: str

    @property
    def transactions(self) -> str:
        return f"{self.name}-transactions"

    @property
    def flights(self) -> data.DemoTables:
        return data.DemoTables(f"{self.name}-flights", f"{self.name}-indexes", self.transactions)

    def account(self, number: int) -> Key:
        return Key(f"account{number:04d}", FAMILY, "balance", self.name)

    def row(self, number: int) -> Key:
        return Key(f"row{number:05d}", FAMILY, "x", self.name)


ALONE = Tables(TABLE)
"""Where nothing stands beside it: the comparison with other programs calls what follows so."""


def account(number: int) -> Key:
    return ALONE.account(number)


def found(engine: Engine, accounts: int, tables: Tables = ALONE) -> None:
    """Make the tables, and give each account its balance."""
    engine.ensure_table(tables.name, [FAMILY])
    engine.ensure_table(tables.flights.flights, [data.FAMILY])
    engine.ensure_table(tables.flights.indexes, [data.FAMILY])
    engine.commit_many([([Mutation(tables.account(i), BALANCE)], []) for i in range(accounts)])


def transfers(
    engine: Engine,
    rng: Random,
    accounts: int,
    count: int,
    ack: Ack = "complete",
    *,
    tables: Tables = ALONE,
    gathered: bool = False,
) -> int:
    """Commit so many transfers together, or hand in each alone where they are to be gathered;
    return how many attempts that took."""
    wanted, attempts = count, 0
    while wanted:
        attempts += wanted
        numbers = rng.sample(range(accounts), 2 * wanted)
        keys = [tables.account(number) for number in numbers]
        if count == 1 and not gathered and engine.context.rules.locks_rows:
            wanted -= _transfer_in_block(engine, keys, ack)
            continue
        seen = engine.context.store.read(keys)
        pairs = zip(keys[::2], keys[1::2], strict=True)
        commit = _submit_all if gathered else _commit_all
        wanted -= commit(engine, [_transfer(seen, pair) for pair in pairs], ack)
    return attempts


def _commit_all(engine: Engine, requests: Sequence[Wanted], ack: Ack) -> int:
    results = engine.commit_many(requests, ack=ack)
    return sum(isinstance(result, Committed) for result in results)


def _submit_all(engine: Engine, requests: Sequence[Wanted], ack: Ack) -> int:
    """Hand in all, then wait for each; return how many committed."""
    futures = [engine.submit(request, ack=ack) for request in requests]
    return sum(future.exception() is None for future in futures)


def _transfer_in_block(engine: Engine, keys: Sequence[Key], ack: Ack) -> bool:
    """Transfer in a block, whose commit does not read again; return whether it committed."""
    try:
        with engine.transaction(ack=ack) as t:
            for (key, value), by in zip(t.get_many(keys).items(), (-1, 1), strict=True):
                assert value is not None
                t.put(key, b"%d" % (int(value) + by))
    except ConflictError:
        return False
    return True


def _transfer(seen: Cells, pair: tuple[Key, Key]) -> Wanted:
    cells = [_there(seen[key]) for key in pair]
    mutations = [
        Mutation(key, b"%d" % (int(cell.value) + by))
        for key, cell, by in zip(pair, cells, (-1, 1), strict=True)
    ]
    return mutations, [Version(key, c.timestamp) for key, c in zip(pair, cells, strict=True)]


def plain_transfer(store: Store, rng: Random, accounts: int, tables: Tables = ALONE) -> int:
    """The floor of a transfer: two reads and two writes."""
    keys = [tables.account(number) for number in rng.sample(range(accounts), 2)]
    cells = [_there(store.read([key])[key]) for key in keys]
    now = SystemClock().wall_ms()
    for key, cell, by in zip(keys, cells, (-1, 1), strict=True):
        value = b"%d" % (int(cell.value) + by)
        store.write([Edit(key, value, max(now, cell.timestamp + 1))])
    return 1


def ten_cells(engine: Engine, tables: Tables, rng: Random, ack: Ack) -> int:
    """Write ten cells on ten rows, all or nothing."""
    engine.commit([Mutation(key, BALANCE) for key in _ten(tables, rng)], ack=ack)
    return 1


def ten_plain_cells(store: Store, tables: Tables, rng: Random) -> int:
    """The floor of ten cells: ten writes."""
    now = SystemClock().wall_ms()
    for key in _ten(tables, rng):
        store.write([Edit(key, BALANCE, now)])
    return 1


def flights(engine: Engine, tables: Tables, rng: Random, count: int, ack: Ack) -> int:
    """Commit so many flights together, each once; return their number."""
    results = engine.commit_many([flight_request(tables, rng) for _ in range(count)], ack=ack)
    for result in results:
        if not isinstance(result, Committed):
            raise result
    return count


def plain_flight(store: Store, tables: Tables, rng: Random) -> int:
    """The floor of a flight: a read of the cell that must be absent, and a write of each row."""
    request = flight_request(tables, rng)
    (absent,) = [key for assertion in request.assertions for key in list_keys(assertion)]
    assert store.read([absent])[absent] is None
    rows: dict[bytes, list[Edit]] = {}
    now = SystemClock().wall_ms()
    for mutation in request.mutations:
        assert isinstance(mutation, Mutation)
        edit = Edit(mutation.key, mutation.value, now)
        rows.setdefault(mutation.key.row, []).append(edit)
    for edits in rows.values():
        store.write(edits)
    return 1


def flight_request(tables: Tables, rng: Random) -> Request:
    """Return the transaction of a flight that nobody has seen before, with its token."""
    flight = make_flight(rng)
    once = f"flights/{data.flight_row(flight)}".encode()
    return replace(data.flight_request(tables.flights, flight), once=once)


def make_flight(rng: Random) -> data.Flight:
    """Return a flight of the size of those in the data set; its number is never given twice."""
    month, day, hour = rng.randint(1, 12), rng.randint(1, 28), rng.randint(5, 22)
    return {
        "year": str(data.YEAR),
        "month": str(month),
        "day": str(day),
        "sched_dep_time": str(hour * 100),
        "origin": rng.choice(("EWR", "JFK", "LGA")),
        "carrier": "UA",
        "flight": str(secrets.randbits(64)),
        "dest": rng.choice(AIRPORTS),
        "tailnum": f"N{rng.randrange(4_000):05}",
        "time_hour": f"{data.YEAR}-{month:02}-{day:02}T{hour:02}:00:00Z",
        "sched_arr_time": str(hour * 100 + 130),
        "dep_time": str(hour * 100 + 3),
        "dep_delay": "3",
        "arr_time": str(hour * 100 + 121),
        "arr_delay": "-9",
        "air_time": "112",
        "distance": "760",
    }


def _ten(tables: Tables, rng: Random) -> Sequence[Key]:
    return [tables.row(number) for number in rng.sample(range(ROWS), TEN)]


def _there(cell: Cell | None) -> Cell:
    assert cell is not None
    return cell
