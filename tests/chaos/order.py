"""Whether a history can be told as one operation after the other, in real-time order.

Each operation is a node. An edge leads from a version's writer to the next version's writer and to
its readers, from a reader to whoever replaced what it read, and from whatever ended to all that
started afterwards. Strictly serialisable is: no cycle. An account's versions are in the order of
their commit timestamps, which the protocol promises; `verdict` checks that they form a chain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from tests.chaos.bank import FOUNDING, Money
from tests.chaos.history import Operation

Versions = Mapping[str, Sequence[Operation]]
"""The committed writers of each account, in order. Before the first is the founding."""

Node = str | int
"""The name of an operation, or a moment: the number of operations that have ended."""


def versions(committed: Iterable[Operation]) -> dict[str, list[Operation]]:
    """Order the committed transfers, which have their timestamps, by account."""
    found: dict[str, list[Operation]] = defaultdict(list)
    for operation in sorted(committed, key=lambda each: each.timestamp or 0):
        for account in operation.writes:
            found[account].append(operation)
    return found


def cycle(operations: Sequence[Operation], order: Versions) -> list[str]:
    """Return the names of operations that each come before the next, the first one last; empty
    where there is no such cycle. All must have happened."""
    graph: dict[Node, set[Node]] = defaultdict(set)
    for before, after in (*_data_edges(operations, order), *_time_edges(operations)):
        if before != after:
            graph[after].add(before)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[Node] = error.args[1]
        return [node for node in found if isinstance(node, str)]
    return []


def _data_edges(operations: Iterable[Operation], order: Versions) -> Iterator[tuple[Node, Node]]:
    places = {
        (account, writer.name): place
        for account, writers in order.items()
        for place, writer in enumerate(writers)
    }
    for writers in order.values():
        for one, next_one in pairwise(writers):
            yield one.name, next_one.name
    for reader in operations:
        for account, seen in reader.reads.items():
            writers = order.get(account, ())
            place = place_of(account, seen, reader, writers, places)
            if place is None:
                continue
            if place >= 0:
                yield writers[place].name, reader.name
            if place + 1 < len(writers):
                yield reader.name, writers[place + 1].name


def place_of(
    account: str,
    seen: Money | None,
    reader: Operation,
    writers: Sequence[Operation],
    places: Mapping[tuple[str, str], int],
) -> int | None:
    """Return which version was read; -1 is the founding. None: it cannot be told, since one empty
    account looks like another, or `verdict` tells that nobody wrote it."""
    if seen is not None:
        return -1 if seen.writer == FOUNDING else places.get((account, seen.writer))
    if account in reader.writes and (account, reader.name) in places:
        return places[account, reader.name] - 1
    possible = [
        place
        for place, writer in enumerate(writers)
        if writer.writes[account] is None
        and _may_have_been_read(writer, [*writers[place + 1 : place + 2]], reader)
    ]
    return possible[0] if len(possible) == 1 else None


def _may_have_been_read(writer: Operation, replaced: Sequence[Operation], by: Operation) -> bool:
    return writer.start_ns <= _end(by) and all(_end(other) >= by.start_ns for other in replaced)


def _time_edges(operations: Iterable[Operation]) -> Iterator[tuple[Node, Node]]:
    """An edge from each operation to the moment of its end, from each moment to the next, and from
    the last moment before it to each operation: as good as one from each to all later ones."""
    events = [(each.start_ns, False, each.name) for each in operations]
    events += [
        (each.end_ns, True, each.name)
        for each in operations
        if each.end_ns is not None and is_reported(each)
    ]
    moment = 0
    for _, is_end, name in sorted(events):
        if is_end:
            yield name, moment + 1
            yield moment, moment + 1
            moment += 1
        else:
            yield moment, name


def is_reported(operation: Operation) -> bool:
    """Whether its client knew, at its end, that it had happened."""
    return operation.kind == "read" or operation.outcome == "committed"


def _end(operation: Operation) -> float:
    known = operation.end_ns is not None and is_reported(operation)
    return operation.end_ns if known and operation.end_ns is not None else float("inf")
