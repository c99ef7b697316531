"""The bank: accounts on two region servers, and transfers that can be traced.

A balance carries the name of the transfer that wrote it, so no two versions of an account are
equal, and a read says which transfers it has seen. An account without money has no cell: emptying
one is a delete. Each transfer puts a receipt, a row of its own, in the same transaction.
"""

import json
from collections.abc import Mapping
from random import Random
from typing import NamedTuple

from txn import Delete, Engine, Key, Mutation, Policy, Request, Version, connect
from txn.model import Cell, Family
from txn.protocol.statuses import ProtocolName

TABLE = "chaos"
ACCOUNTS = tuple(f"account{number:02d}" for number in range(100))
BALANCE = 1000
TOTAL = BALANCE * len(ACCOUNTS)
FOUNDING = "founding"
BUCKETS = 4
SPLITS = (b"account25", b"account50", b"account75", b"receipt/", b"receipt/w4")
LABEL = "transfer"
VERSIONS = 100  # more than changes of an account during a read in tasks
RECEIPTS = (b"receipt/", b"receipt0")
POLICY = Policy(lock_ttl_ms=3_000, attempts=20, longest_pause_ms=200)
OPTIONS = "?timeout_ms=10000"


class Money(NamedTuple):
    """One version of an account: what is in it, and which transfer left it so."""

    balance: int
    writer: str
    timestamp: int = 0


class Transfer(NamedTuple):
    """Money on its way, and what its transaction does."""

    name: str
    payer: str
    payee: str
    amount: int
    reads: Mapping[str, Money | None]
    writes: Mapping[str, Money | None]


def account(name: str) -> Key:
    return Key(name, "d", "balance", TABLE)


def receipt(name: str) -> Key:
    return Key(f"receipt/{name}", "d", "x", TABLE)


def open_bank(uri: str, protocol: ProtocolName | None = None) -> Engine:
    return connect(
        uri + OPTIONS, table=TABLE, salt_buckets=BUCKETS, policy=POLICY, protocol=protocol
    )


def found_bank(engine: Engine) -> None:
    """Make the table, in several regions, and give each account its balance."""
    engine.context.store.ensure_table(TABLE.encode(), {b"d": Family(versions=VERSIONS)}, SPLITS)
    first = _text(Money(BALANCE, FOUNDING))
    engine.commit([Mutation(account(name), first) for name in ACCOUNTS])


def read_accounts(engine: Engine, names: tuple[str, ...]) -> dict[str, Money | None]:
    """The accounts as of one instant."""
    cells = engine.read([account(name) for name in names])
    return {name: money(cells[account(name)]) for name in names}


def money(cell: Cell | None) -> Money | None:
    """What a cell of an account says."""
    if cell is None:
        return None
    balance, _, writer = cell.value.decode().partition(" ")
    return Money(int(balance), writer, cell.timestamp)


def plan(name: str, rng: Random, found: Mapping[str, Money | None]) -> Transfer:
    """Decide how much goes from the richer of two accounts to the other: some, or all of it."""
    payer, payee = sorted(found, key=lambda each: -_balance(found[each]))
    has = _balance(found[payer])
    amount = has if rng.random() < 0.05 else min(has, rng.randint(1, 10))
    writes = {
        payer: Money(has - amount, name) if has > amount else None,
        payee: Money(_balance(found[payee]) + amount, name),
    }
    return Transfer(name, payer, payee, amount, found, writes)


def to_request(transfer: Transfer) -> Request:
    """Return what a transfer's transaction is to do."""
    mutations: list[Mutation | Delete] = [Mutation(receipt(transfer.name), receipt_text(transfer))]
    for name, left in transfer.writes.items():
        key = account(name)
        mutations.append(Delete(key) if left is None else Mutation(key, _text(left)))
    versions = tuple(
        Version(account(name), seen.timestamp if seen else None)
        for name, seen in transfer.reads.items()
    )
    return Request(tuple(mutations), versions, labels={LABEL: transfer.name})


def receipt_text(transfer: Transfer) -> str:
    return json.dumps([transfer.payer, transfer.payee, transfer.amount])


def total(found: Mapping[str, Money | None]) -> int:
    return sum(map(_balance, found.values()))


def _balance(found: Money | None) -> int:
    return found.balance if found else 0


def _text(left: Money) -> str:
    return f"{left.balance} {left.writer}"
