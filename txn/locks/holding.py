"""What a manager's `hold` returns: locks that are held, how to ask for them, how to give back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

from txn.errors import AbortedError, CommitOutcomeUnknown, StoreError
from txn.locks.manager import LockLost
from txn.locks.requests import LockRequest, Path
from txn.text import name_failure


class Holding:
    """All locks of one request. is_lost: costs nothing. are_there: asks the server."""

    def __init__(
        self,
        requests: tuple[LockRequest, ...],
        tokens: Mapping[Path, int],
        *,
        is_lost: Callable[[], bool],
        are_there: Callable[[], bool],
        give_back: Callable[[], None],
    ) -> None:
        self.requests = requests
        self.tokens = tokens
        self._is_lost = is_lost
        self._are_there = are_there
        self._give_back = give_back
        self._ending = False
        self._released = False

    @property
    def lost(self) -> bool:
        """Whether they are lost, or may be, for want of contact; explicit ones survive that."""
        return self._is_lost()

    def check(self) -> None:
        """Ask whether all of them are there."""
        named = [str(each) for each in self.requests]
        if self._ending or self.lost:
            raise LockLost("locks are lost", locks=named)
        try:
            there = self._are_there()
        except (StoreError, AbortedError, CommitOutcomeUnknown) as error:
            raise LockLost(
                "nobody says that locks are held", locks=named, cause=name_failure(error)
            ) from error
        if not there or self.lost:
            raise LockLost("locks are lost", locks=named)

    def release(self) -> None:
        """Give them back; after an error that may be tried again."""
        if not self._released:
            self._ending = True
            self._give_back()
            self._released = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
