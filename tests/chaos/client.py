"""One client process: `python -m tests.chaos.client ROLE URI NAME SEED LOG`, until it is killed.

It ends by itself when its standard input does, so that none outlives whoever started it. A store
that fails is a fact of life; anything else that goes wrong ends the process, which is a finding.
"""

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, count, pairwise
from pathlib import Path
from random import Random

from recovery import Severity, check, repair
from tests.chaos.bank import (
    ACCOUNTS,
    OPTIONS,
    TABLE,
    Money,
    money,
    open_bank,
    plan,
    read_accounts,
    to_request,
)
from tests.chaos.history import Log, now_ns
from tests.chaos.parts import TaskProcesses, commit_in_parts
from txn import (
    AbortedError,
    CommitOutcomeUnknown,
    Committed,
    Engine,
    Request,
    StoreError,
    TxnError,
)
from txn.model import Row
from txn.reading.feed import Bounds
from txn.reading.instants import find_instant, restore_rows
from txn.request import Ack
from txn.spans import Span

PAUSE_S = 0.02
AFTER_FAILURE_S = 0.3
READ_EACH_S = 0.2
FSCK_GRACE_MS = 4_000
FSCK_IDLE_S = 2.0
SCAN_EACH = 3
BATCH = 8
THREADS = 4
TURNS = 3
SUBMITTED = 2
BOUNDS = Bounds(0, lateness_ms=600_000)

Work = Callable[[Engine, str, Random, Log], None]
Result = Committed | TxnError
Commit = Callable[[Engine, Sequence[Request], Ack], list[Result]]


def commit_alone(engine: Engine, requests: Sequence[Request], ack: Ack) -> list[Result]:
    """Commit one request after the other."""
    results: list[Result] = []
    for r in requests:
        try:
            results.append(engine.commit(r.mutations, r.assertions, labels=r.labels, ack=ack))
        except TxnError as error:
            results.append(error)
    return results


def commit_all(engine: Engine, requests: Sequence[Request], ack: Ack) -> list[Result]:
    """Commit all requests in one call, which raises StoreError where nothing is written."""
    try:
        return engine.commit_many(requests, ack=ack)
    except StoreError as error:
        return [error for _ in requests]


def submit_all(engine: Engine, requests: Sequence[Request], ack: Ack) -> list[Result]:
    """Have all requests committed with what other threads have handed in, and wait for them."""
    results: list[Result] = []
    for future in [engine.submit(request, ack=ack) for request in requests]:
        try:
            results.append(future.result())
        except TxnError as error:
            results.append(error)
    return results


def transfer(
    engine: Engine,
    name: str,
    rng: Random,
    log: Log,
    *,
    commit: Commit = commit_alone,
    count: int = 1,
) -> None:
    """Read pairs of accounts as of one instant, and move money between the two of each. Where pairs
    overlap, the later transfers have not seen the earlier, and must not commit."""
    pairs = [rng.sample(ACCOUNTS, 2) for _ in range(count)]
    start_ns = now_ns()
    found = read_accounts(engine, tuple(dict.fromkeys(each for pair in pairs for each in pair)))
    log.did(f"{name}r", "read", start_ns, reads=found)
    wanted = [
        plan(f"{name}-{number}", rng, {each: found[each] for each in pair})
        for number, pair in enumerate(pairs)
        if any(found[each] for each in pair)
    ]
    ack: Ack = rng.choice(["complete", "decided"])
    begun_ns = now_ns()
    for each in wanted:
        log.begin(each, begun_ns)
    results = commit(engine, [to_request(each) for each in wanted], ack)
    for each, result in zip(wanted, results, strict=True):
        tell(log, each.name, result)
    if any(isinstance(result, StoreError | CommitOutcomeUnknown) for result in results):
        time.sleep(AFTER_FAILURE_S)


def tell(log: Log, name: str, result: Result) -> None:
    """Write down what has become of a transfer, as far as its client was told."""
    match result:
        case Committed():
            transaction = result.transaction.decode()
            log.end(name, "committed", transaction=transaction, timestamp=result.timestamp)
        case CommitOutcomeUnknown():
            log.end(name, "unknown", transaction=result.transaction.decode(), error=said(result))
        case AbortedError() | StoreError():
            log.end(name, "aborted", error=said(result))
        case _:
            raise result


def transfer_many(engine: Engine, name: str, rng: Random, log: Log) -> None:
    """Transfer in a batch."""
    transfer(engine, name, rng, log, commit=commit_all, count=BATCH)


def transfer_in_threads(engine: Engine, name: str, rng: Random, log: Log) -> None:
    """Transfer from a few threads, several times each, whose commits the engine gathers."""

    def work(thread: int) -> None:
        own = Random(f"{seed}/{thread}")
        for turn in range(TURNS):
            part = f"{name}-{thread}-{turn}"
            transfer(engine, part, own, log, commit=submit_all, count=SUBMITTED)

    seed = rng.random()
    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work, thread) for thread in range(THREADS)]:
            done.result()


def read(engine: Engine, name: str, rng: Random, log: Log) -> None:
    """Read all accounts, or a few, as of one instant."""
    wanted = ACCOUNTS if rng.random() < 0.5 else tuple(rng.sample(ACCOUNTS, 10))
    start_ns = now_ns()
    log.did(name, "read", start_ns, reads=read_accounts(engine, wanted))
    time.sleep(rng.uniform(0, 2 * READ_EACH_S))


def read_snapshot(engine: Engine, name: str, rng: Random, log: Log) -> None:
    """Read some accounts in two tasks, as of an instant that was found before. All would rarely do,
    since HBase does not show what one that was emptied since has had."""
    start_ns = now_ns()
    instant = find_instant(engine.context, BOUNDS)
    end_ns = now_ns()
    first, middle, last = sorted(rng.sample(range(len(ACCOUNTS)), 3))
    ends = [ACCOUNTS[number].encode() for number in (first, middle, last)]
    spans = [Span(TABLE.encode(), *pair) for pair in pairwise(ends)]
    found: dict[str, Money | None] = dict.fromkeys(ACCOUNTS[first:last])

    def restore(span: Span) -> list[Row]:
        return list(restore_rows(engine.context, [span], instant, engine.backend.scan(span)))

    with ThreadPoolExecutor(len(spans)) as pool:
        for row in chain.from_iterable(pool.map(restore, spans)):
            found[row.row.decode()] = money(next(iter(row.cells.values()), None))
    log.did(name, "read", start_ns, end_ns, reads=found)


def fsck(engine: Engine, name: str, rng: Random, log: Log) -> None:
    """Check and repair, now and then with a scan of the accounts."""
    start_ns = now_ns()
    scan = [TABLE.encode()] if rng.randrange(SCAN_EACH) == 0 else []
    found: Counter[str] = Counter()
    wrong = []
    for finding in check(engine.context, grace_ms=FSCK_GRACE_MS, scan=scan):
        found[finding.kind.value] += 1
        if finding.kind.severity is Severity.REPORT_ONLY:
            wrong.append(repr(finding))
        repair(engine.context, finding)
    log.did(name, "fsck", start_ns, found=found, wrong=wrong)
    time.sleep(FSCK_IDLE_S + 2 * (now_ns() - start_ns) / 1e9)


ROLES: dict[str, Work] = {
    "writer": transfer,
    "batch-writer": transfer_many,
    "thread-writer": transfer_in_threads,
    "parts-writer": partial(transfer, commit=commit_in_parts),
    "reader": read,
    "snapshot-reader": read_snapshot,
    "fsck": fsck,
}


def work(role: str, uri: str, name: str, rng: Random, log: Log) -> None:
    """Do the role's work again and again, connecting first, whatever the store does."""
    engine: Engine | None = None
    for number in count(1):
        operation, start_ns = f"{name}-{number}", now_ns()
        try:
            engine = engine or open_bank(uri)
            ROLES[role](engine, operation, rng, log)
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
    if role == "parts-writer":
        in_processes = partial(commit_in_parts, write=TaskProcesses(uri + OPTIONS).write)
        ROLES[role] = partial(transfer, commit=in_processes)
    work(role, uri, name, Random(seed), Log(Path(path)))


if __name__ == "__main__":
    main()
