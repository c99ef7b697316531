"""A look at the locks in ZooKeeper that makes and moves no node."""

from __future__ import annotations

from itertools import islice

from txn.clock import SystemClock
from txn.locks.manager import SeenLocks
from txn.locks.zookeeper.ensemble import Ensemble
from txn.locks.zookeeper.keeper import Keeper
from txn.locks.zookeeper.nodes import Folders
from txn.locks.zookeeper.queue import BASE
from txn.locks.zookeeper.view import View

SESSION_MS = 10_000


class ZooKeeperLook:
    """Sees the locks under one base path, in a session that owns nothing."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._keeper = Keeper(
            ensemble.hosts, SESSION_MS, SystemClock(), lambda: None, ensemble.credentials
        )
        self._view = View(self._keeper, Folders(ensemble.base or BASE))

    def list_first(self, most: int) -> SeenLocks:
        """Return who holds and who waits."""
        found = list(islice(self._view.within(None), most + 1))
        locks = sorted(found[:most], key=lambda lock: lock.request.path)
        return SeenLocks(tuple(locks), len(found) <= most)

    def close(self) -> None:
        """End the session."""
        self._keeper.close()
