"""What a manager's `hold` returns: locks that are held, how to ask for them, how to give back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

from txn.errors import AbortedError, CommitOutcomeUnknown, StoreError
from txn.locks.manager import LockLost
from txn.locks.requests import LockRequest, Path


class HolderCalls(NamedTuple):
    """What the manager does for a holder. lost: costs nothing. there: asks the server."""

    lost: Callable[[], bool]
    there: Callable[[], bool]
    give_back: Callable[[], None]


class Holding:
    """All locks of one request."""

    def __init__(
        self, requests: tuple[LockRequest, ...], tokens: Mapping[Path, int], ways: HolderCalls
    ) -> None:
        self.requests = requests
        self.tokens = tokens
        self._ways = ways
        self._ending = False
        self._released = False

    @property
    def lost(self) -> bool:
        """Whether they are lost, or may be, for want of contact; explicit ones survive that."""
        return self._ways.lost()

    def check(self) -> None:
        """Ask whether all of them are there."""
        named = [str(each) for each in self.requests]
        if self._ending or self.lost:
            raise LockLost("locks are lost", locks=named)
        try:
            there = self._ways.there()
        except (StoreError, AbortedError, CommitOutcomeUnknown) as error:
            raise LockLost("nobody says that locks are held", locks=named) from error
        if not there or self.lost:
            raise LockLost("locks are lost", locks=named)

    def release(self) -> None:
        """Give them back; after an error that may be tried again."""
        if not self._released:
            self._ending = True
            self._ways.give_back()
            self._released = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
