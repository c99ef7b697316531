"""The end of a run: fsck until it is clean, and what the store then holds.

The servers may still be recovering from the last fault, and their gateways may still be sending
requests of clients that are long dead: both are waited for, within bounds.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TypeVar

from recovery import check, repair, summary
from recovery.scan import transactions
from tests.chaos.bank import ACCOUNTS, LABEL, RECEIPTS, TABLE, open_bank, read_accounts
from tests.chaos.history import History
from tests.chaos.verdict import Ending
from txn import Engine, Outcome, StoreError

ROUNDS = 10
PATIENCE_S = 180
PAUSE_S = 1.0

T = TypeVar("T")


def resolve(uris: Mapping[str, str], history: History) -> tuple[Ending, list[str]]:
    """Bring the store to rest; return what it holds, and what fsck could not bring to rest."""
    with open_bank(uris["native"]) as engine:
        left = patiently(lambda: bring_to_rest(engine))
        ending = patiently(lambda: find_ending(engine, history))
    return ending, left


def patiently(work: Callable[[], T]) -> T:
    """Do work that may be done again until the store lets it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return work()
        except StoreError:
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)


def bring_to_rest(engine: Engine) -> list[str]:
    """Repair until there is nothing to repair and nothing is locked. One look is not enough: a
    request of a dead client may land between the check and the count."""
    left: list[str] = []
    for _ in range(ROUNDS):
        findings = list(check(engine.context, grace_ms=0, scan=[TABLE.encode()]))
        for finding in findings:
            repair(engine.context, finding)
        left = [f"fsck does not end clean: {finding}" for finding in findings]
        counted = summary(engine.context, [TABLE.encode()])
        if not counted.is_quiet:
            left.append(f"left at the end: {counted}")
        if not left:
            break
        time.sleep(PAUSE_S)
    return left


def find_ending(engine: Engine, history: History) -> Ending:
    """Return what the store holds once it is at rest."""
    return Ending(
        accounts=read_accounts(engine, ACCOUNTS),
        receipts=_receipts(engine),
        outcomes=_outcomes(engine, history),
    )


def _receipts(engine: Engine) -> dict[str, tuple[int, str, str, int]]:
    found = {}
    for row in engine.context.store.scan(TABLE.encode(), *RECEIPTS):
        for key, cell in row.cells.items():
            if key.column == b"x":
                name = row.row.decode().partition("/")[2]
                found[name] = (cell.timestamp, *json.loads(cell.value))
    return found


def _outcomes(engine: Engine, history: History) -> dict[str, dict[str, Outcome]]:
    """What became of each transaction, by the transfer that its row names. Those of transfers whose
    clients did not know are asked for one by one, as their clients would."""
    found: dict[str, dict[str, Outcome]] = defaultdict(dict)
    for row in transactions(engine.context):
        name = row.buffer.request.labels.get(LABEL) if row.buffer else None
        if name is None:
            continue
        is_known = history.operations[name].outcome != "unknown"
        if is_known and row.status is not None and row.status.is_finished:
            outcome = Outcome.COMMITTED if row.status.is_decided else Outcome.ABORTED
        else:
            outcome = engine.outcome(row.row_key)
        found[name][row.row_key.decode()] = outcome
    return found
