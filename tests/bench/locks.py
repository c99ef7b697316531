"""`python -m tests.bench.locks`: both lock managers beside kazoo's own read and write locks.

Acquire and release, of one object and of 100 partitions with their two parents, from 1 client and
from 8, each client with objects of its own, so that nobody waits. One ZooKeeper serves all subjects
of a run, with its log on disk as by default; the embedded store is measured with and without
waiting for the disk.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path as Folder

from kazoo.client import KazooClient

from tests.bench.cycles import Bench, Case, Cycle, Uris
from tests.integration.zookeeper import ZooKeeper
from txn.locks import LockRequest, Path, exclusive, open_manager
from txn.locks.model import Mode, in_order

PARTITIONS = 100
ZOOKEEPER, KAZOO, EMBEDDED, UNSYNCED = SUBJECTS = (
    "zookeeper",
    "kazoo's own",
    "embedded",
    "embedded, sync=off",
)
ONE, MANY = WORKS = ("one object", f"{PARTITIONS} partitions")


def opened(case: Case, uris: Uris, clients: Sequence[int], stack: ExitStack) -> list[Cycle]:
    """What clients do, each with a manager or a session of its own."""
    start = kazoo_cycle if case.subject == KAZOO else cycle
    return [start(uris[case.subject], wanted(case.work, one), stack) for one in clients]


def wanted(work: str, client: int) -> tuple[LockRequest, ...]:
    """The objects of one client."""
    if work == ONE:
        return in_order([exclusive(f"t{client}")])
    return in_order(exclusive(f"d/t{client}/p={number}") for number in range(PARTITIONS))


def cycle(uri: str, requests: Sequence[LockRequest], stack: ExitStack) -> Cycle:
    """Acquire and release with a manager of ours."""
    manager = stack.enter_context(closing(open_manager(uri)))
    return lambda: manager.hold(requests).release()


def kazoo_cycle(uri: str, requests: Sequence[LockRequest], stack: ExitStack) -> Cycle:
    """Acquire and release with kazoo's locks: one for each object, in the same order."""
    hosts, _, base = uri.removeprefix("zookeeper://").partition("/")
    zookeeper = KazooClient(hosts)
    zookeeper.start()
    stack.callback(zookeeper.close)
    stack.callback(zookeeper.stop)

    def place(at: Path) -> str:
        return f"/{base}/{'/'.join(at.parts)}/locks"

    def run() -> None:
        taken = []
        for request in requests:
            kind = zookeeper.ReadLock if request.mode is Mode.SHARED else zookeeper.WriteLock
            taken.append(kind(place(request.path)))
            taken[-1].acquire()
        for lock in reversed(taken):
            lock.release()

    return run


@contextmanager
def serving() -> Iterator[Uris]:
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(place)
        server = ZooKeeper(folder / "zookeeper")
        server.start()
        base = f"zookeeper://{server.hosts}/bench/{uuid.uuid4().hex}"
        try:
            yield {
                ZOOKEEPER: base,
                KAZOO: f"{base}-kazoo",
                EMBEDDED: f"embedded://{folder}/durable",
                UNSYNCED: f"embedded://{folder}/quick?sync=off",
            }
        finally:
            server.kill()


BENCH = Bench("pairs", SUBJECTS, WORKS, (1, 8), serving, opened)

if __name__ == "__main__":
    BENCH.main(__doc__)
