"""One client process: `python -m tests.chaos.client ROLE URI NAME SEED LOG`, until it is killed.

It ends by itself when its standard input does, so that none outlives whoever started it. A store
that fails is a fact of life; anything else that goes wrong ends the process, which is a finding.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random

from recovery import Severity, check, repair
from tests.chaos.bank import ACCOUNTS, TABLE, commit, open_bank, plan, read_accounts
from tests.chaos.history import Log, now_ns
from txn import AbortedError, CommitOutcomeUnknown, Engine, StoreError, TxnError

PAUSE_S = 0.02
AFTER_FAILURE_S = 0.3
READ_EACH_S = 0.2
FSCK_GRACE_MS = 4_000
FSCK_IDLE_S = 2.0
SCAN_EACH = 3

Work = Callable[[Engine, str, Random, Log], None]


def transfer(engine: Engine, name: str, chance: Random, log: Log) -> None:
    """Read two accounts and move money between them."""
    first, second = chance.sample(ACCOUNTS, 2)
    start_ns = now_ns()
    found = read_accounts(engine, (first, second))
    log.did(f"{name}r", "read", start_ns, reads=found)
    if not any(found.values()):
        return
    wanted = plan(name, chance, found)
    log.begin(wanted, now_ns())
    try:
        transaction, timestamp = commit(engine, wanted, chance.choice(["complete", "decided"]))
    except CommitOutcomeUnknown as error:
        log.end(name, "unknown", transaction=error.transaction.decode(), error=said(error))
        time.sleep(AFTER_FAILURE_S)
    except (AbortedError, StoreError) as error:
        log.end(name, "aborted", error=said(error))
        time.sleep(0 if isinstance(error, AbortedError) else AFTER_FAILURE_S)
    else:
        log.end(name, "committed", transaction=transaction.decode(), timestamp=timestamp)


def read(engine: Engine, name: str, chance: Random, log: Log) -> None:
    """Read all accounts, or a few, as of one instant."""
    wanted = ACCOUNTS if chance.random() < 0.5 else tuple(chance.sample(ACCOUNTS, 10))
    start_ns = now_ns()
    log.did(name, "read", start_ns, reads=read_accounts(engine, wanted))
    time.sleep(chance.uniform(0, 2 * READ_EACH_S))


def fsck(engine: Engine, name: str, chance: Random, log: Log) -> None:
    """Check and repair, now and then with a scan of the accounts."""
    start_ns = now_ns()
    scan = [TABLE.encode()] if chance.randrange(SCAN_EACH) == 0 else []
    found: Counter[str] = Counter()
    wrong = []
    for finding in check(engine.context, grace_ms=FSCK_GRACE_MS, scan=scan):
        found[finding.kind.value] += 1
        if finding.kind.severity is Severity.REPORT_ONLY:
            wrong.append(repr(finding))
        repair(engine.context, finding)
    log.did(name, "fsck", start_ns, found=found, wrong=wrong)
    time.sleep(FSCK_IDLE_S + 2 * (now_ns() - start_ns) / 1e9)


ROLES: dict[str, Work] = {"writer": transfer, "reader": read, "fsck": fsck}


def work(role: str, uri: str, name: str, chance: Random, log: Log) -> None:
    """Do the role's work again and again, connecting first, whatever the store does."""
    engine: Engine | None = None
    for number in count(1):
        operation, start_ns = f"{name}-{number}", now_ns()
        try:
            engine = engine or open_bank(uri)
            ROLES[role](engine, operation, chance, log)
        except (AbortedError, StoreError, CommitOutcomeUnknown) as error:
            log.did(f"{operation}f", "failed", start_ns, error=said(error))
            time.sleep(AFTER_FAILURE_S)
        time.sleep(PAUSE_S)


def said(error: TxnError) -> str:
    """The error in a line; the one that it came from is where the reason is."""
    cause = f" < {type(error.__cause__).__name__}: {error.__cause__}" if error.__cause__ else ""
    return f"{type(error).__name__}: {error}{cause}"[:500]


def end_with_input() -> None:
    os.read(sys.stdin.fileno(), 1)  # a buffered read could not be left when the process falls
    os._exit(3)


def main() -> None:
    role, uri, name, seed, path = sys.argv[1:]
    threading.Thread(target=end_with_input, daemon=True).start()
    work(role, uri, name, Random(seed), Log(Path(path)))


if __name__ == "__main__":
    main()
