"""The order of the versions of accounts, and the run as a history of transactions on them.

An account's versions are in the order of their commit timestamps, which the protocol promises;
`verdict` checks that they form a chain. What was read of an account without a cell is left out
where it cannot be told which of its empty versions it was.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.chaos.bank import FOUNDING, Money
from tests.chaos.history import Operation
from tests.history.events import Read, Transaction, Write

Versions = Mapping[str, Sequence[Operation]]
"""The committed writers of each account, in order. Before the first is the founding."""


def versions(committed: Iterable[Operation]) -> dict[str, list[Operation]]:
    """Order the committed transfers, which have their timestamps, by account."""
    found: dict[str, list[Operation]] = defaultdict(list)
    for operation in sorted(committed, key=lambda each: each.timestamp or 0):
        for account in operation.writes:
            found[account].append(operation)
    return found


def transactions(operations: Sequence[Operation], order: Versions) -> list[Transaction]:
    """Return what happened as registers that `tests.history` can check: a version of an account is
    named by its writer. All of these must have happened."""
    places = {
        (account, writer.name): place
        for account, writers in order.items()
        for place, writer in enumerate(writers)
    }
    return [
        Transaction(
            each.name,
            (*_reads(each, order, places), *_writes(each)),
            each.start_ns,
            each.end_ns if is_reported(each) else None,
        )
        for each in operations
    ]


def _reads(
    operation: Operation, order: Versions, places: Mapping[tuple[str, str], int]
) -> Iterator[Read]:
    for account, seen in operation.reads.items():
        writers = order.get(account, ())
        place = place_of(account, seen, operation, writers, places)
        if place is not None:
            yield Read(account, writers[place].name if place >= 0 else None)


def _writes(operation: Operation) -> Iterator[Write]:
    for account in operation.writes:
        yield Write(account, operation.name, operation.timestamp)


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


def is_reported(operation: Operation) -> bool:
    """Whether its client knew, at its end, that it had happened."""
    return operation.kind == "read" or operation.outcome == "committed"


def _end(operation: Operation) -> float:
    known = operation.end_ns is not None and is_reported(operation)
    return operation.end_ns if known and operation.end_ns is not None else float("inf")
