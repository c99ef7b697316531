"""A request committed in parts: one for each of its lock cells, by two tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

from recovery.purge import purge_row
from recovery.scan import whole_row
from tests.simulation.world import TRANSACTIONS, Wrapper
from txn import AbortedError, Cell, Committed, Delete, Engine, Key, Mutation, StoreError
from txn.assertions import Assertion, list_keys
from txn.client.parts import PartsClient
from txn.model import Row
from txn.protocol.context import Context
from txn.protocol.recovery import Resolver
from txn.protocol.row import PART, RowState, decode_row, is_row_key
from txn.stores.base import Store

TASKS = 2
Part = tuple[list[Mutation | Delete], list[Assertion]]


def split_request(
    engine: Engine, mutations: Iterable[Mutation | Delete], assertions: Iterable[Assertion]
) -> list[list[Part]]:
    lock_of = engine.context.rules.lock_of
    parts: dict[Key, Part] = {}
    for mutation in mutations:
        parts.setdefault(lock_of(mutation.key), ([], []))[0].append(mutation)
    for assertion in assertions:
        (name,) = list_keys(assertion)
        parts.setdefault(lock_of(name), ([], []))[1].append(assertion)
    listed = list(parts.values())
    return [listed[task::TASKS] for task in range(TASKS)]


def write_task(client: PartsClient, transaction: bytes, task: int, parts: list[Part]) -> int:
    written = (client.write(transaction, task, n, *part) for n, part in enumerate(parts))
    return max(written, default=0)


def commit_in_parts(
    engine: Engine,
    mutations: Iterable[Mutation | Delete],
    assertions: Iterable[Assertion] = (),
    once: str | None = None,
) -> Committed:
    client = PartsClient(engine)
    transaction = client.begin(once=once)
    tasks = split_request(engine, mutations, assertions)
    try:
        times = [write_task(client, transaction, n, parts) for n, parts in enumerate(tasks)]
        return client.commit(transaction, [len(parts) for parts in tasks], max(times))
    except (AbortedError, StoreError) as error:
        with suppress(StoreError):
            client.abort(transaction, str(error))
        raise


class Forgetful(Wrapper):
    """A store whose scans of parts miss some. of_old: reads show no transaction of a part."""

    def __init__(self, inner: Store, random: Random, *, of_old: bool = False) -> None:
        super().__init__(inner)
        self._random, self._of_old = random, of_old

    def read(self, *groups: Collection[Key]) -> dict[Key, Cell | None]:
        found = self._inner.read(*groups)
        wholes = {key.row.partition(PART)[0] for key in found if PART in key.row}
        if not self._of_old or self._random.random() < 0.5:
            return found
        return {key: None if key.row in wholes else found[key] for key in found}

    def scan(self, table: bytes, start: bytes = b"", *args: Any, **named: Any) -> Iterator[Row]:
        rows = self._inner.scan(table, start, *args, **named)
        if not start.endswith(PART):
            return rows
        return (row for row in rows if self._random.random() < 0.7)


def mislead(resolver: Resolver, random: Random) -> None:
    context = resolver._context
    resolver._context = replace(context, store=Forgetful(context.store, random, of_old=True))


def purge_one(context: Context, random: Random) -> None:
    rows = [row.row for row in context.store.scan(TRANSACTIONS) if is_row_key(row.row)]
    seen = whole_row(context, random.choice(rows)) if rows else None
    if seen is not None and decode_row(seen).state is RowState.UNDECIDED:
        purge_row(context, seen, unfinished=True)
