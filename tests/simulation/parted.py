"""A request committed in parts: one for each of its lock cells, by two tasks."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from txn import AbortedError, Committed, Delete, Engine, Key, Mutation, StoreError
from txn.assertions import Assertion, list_keys
from txn.client.parts import PartsClient

TASKS = 2
Part = tuple[list[Mutation | Delete], list[Assertion]]


def split_request(
    engine: Engine, mutations: Iterable[Mutation | Delete], assertions: Iterable[Assertion]
) -> list[list[Part]]:
    """Return the parts of each task. An assertion is of one key here."""
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
    """Write all the parts of a task; return the greatest of their timestamps."""
    written = (client.write(transaction, task, n, *part) for n, part in enumerate(parts))
    return max(written, default=0)


def commit_in_parts(
    engine: Engine,
    mutations: Iterable[Mutation | Delete],
    assertions: Iterable[Assertion] = (),
    once: str | None = None,
) -> Committed:
    """Commit a request in parts, one after the other, as `Engine.commit` does."""
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
