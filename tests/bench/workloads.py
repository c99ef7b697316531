"""What is measured: transfers between accounts, and ten cells on ten rows, each with its floor.

The floor is the same work without a transaction: the same reads and writes, one request each. A
transfer of ours reads its accounts in one plain batch and asserts their versions, which is what an
optimistic client does; one that meets a conflict or a changed version is run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from txn import Committed, Engine, Key, Mutation, Version
from txn.clock import SystemClock
from txn.model import Cell, Edit
from txn.request import Ack
from txn.stores.base import Store

TABLE = "bench"
BALANCE = b"1000"
TEN = 10
ROWS = 10_000

Cells = Mapping[Key, Cell | None]


def account(number: int) -> Key:
    return Key(f"account{number:04d}", "d", "balance", TABLE)


def row(number: int) -> Key:
    return Key(f"row{number:05d}", "d", "x", TABLE)


def found(engine: Engine, accounts: int) -> None:
    """Make the table, and give each account its balance."""
    engine.ensure_table(TABLE, ["d"])
    engine.commit_many([([Mutation(account(i), BALANCE)], []) for i in range(accounts)])


def transfers(engine: Engine, chance: Random, accounts: int, count: int, ack: Ack) -> int:
    """Commit so many transfers together; return how many attempts that took."""
    wanted, attempts = count, 0
    while wanted:
        attempts += wanted
        numbers = chance.sample(range(accounts), 2 * wanted)
        keys = [account(number) for number in numbers]
        seen = engine.context.store.read(keys)
        pairs = zip(keys[::2], keys[1::2], strict=True)
        results = engine.commit_many([_transfer(seen, pair) for pair in pairs], ack=ack)
        wanted -= sum(isinstance(result, Committed) for result in results)
    return attempts


def _transfer(seen: Cells, pair: tuple[Key, Key]) -> tuple[list[Mutation], list[Version]]:
    cells = [_there(seen[key]) for key in pair]
    mutations = [
        Mutation(key, b"%d" % (int(cell.value) + by))
        for key, cell, by in zip(pair, cells, (-1, 1), strict=True)
    ]
    return mutations, [Version(key, c.timestamp) for key, c in zip(pair, cells, strict=True)]


def plain_transfer(store: Store, chance: Random, accounts: int) -> int:
    """The floor of a transfer: two reads and two writes."""
    keys = [account(number) for number in chance.sample(range(accounts), 2)]
    cells = [_there(store.read([key])[key]) for key in keys]
    now = SystemClock().wall_ms()
    for key, cell, by in zip(keys, cells, (-1, 1), strict=True):
        value = b"%d" % (int(cell.value) + by)
        store.write([Edit(key, value, max(now, cell.timestamp + 1))])
    return 1


def ten_cells(engine: Engine, chance: Random, ack: Ack) -> int:
    """Write ten cells on ten rows, all or nothing."""
    engine.commit([Mutation(key, BALANCE) for key in _ten(chance)], ack=ack)
    return 1


def ten_plain_cells(store: Store, chance: Random) -> int:
    """The floor of ten cells: ten writes."""
    now = SystemClock().wall_ms()
    for key in _ten(chance):
        store.write([Edit(key, BALANCE, now)])
    return 1


def _ten(chance: Random) -> Sequence[Key]:
    return [row(number) for number in chance.sample(range(ROWS), TEN)]


def _there(cell: Cell | None) -> Cell:
    assert cell is not None
    return cell
