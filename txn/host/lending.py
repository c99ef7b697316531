"""Lends things of which there are few, such as connections, each to one thread at a time.

First come, first served; what was returned last is lent first. What a thread has taken is in its
loan, which counts while the thread is in the `with` of its hold (see `Holds`). What an interrupted
thread has not returned is closed by the next one.

    with (hold := Lock()):
        loan = lender.open_loan(hold)
        ...
        loan.end()
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock, RLock, get_ident
from typing import Generic, TypeVar

from txn.host.holds import Holds

POLL_MS = 50  # how often a waiting thread looks: an interrupted one wakes nobody
T = TypeVar("T")


class Loan(list[T | None]):
    """What one thread has taken. None: a place for a thing that it makes."""

    def __init__(self, lender: Lender[T], hold: Lock) -> None:
        super().__init__()
        self.lender = lender
        self.hold = hold
        self.thread = get_ident()

    def end(self) -> None:
        """Return what is in it."""
        self.lender.end_loan(self)


class Lender(Generic[T]):
    """At most `most` things; safe for threads. free: those that nobody has. Closed, it takes none.

    close_thing: may be called again after an interruption.
    """

    def __init__(
        self, most: int, now_ms: Callable[[], int], close_thing: Callable[[T], object]
    ) -> None:
        self.is_closed = False
        self.free: list[T] = []
        self._most = most
        self._now_ms = now_ms
        self._close_thing = close_thing
        self._loans: Holds[Loan[T]] = Holds()
        self._line: Holds[Lock] = Holds()  # of threads that wait, each with a lock that wakes it
        self._guard = RLock()  # a signal handler may take a thing as well

    def open_loan(self, hold: Lock) -> Loan[T]:
        """Begin to take things, with a lock that the caller holds by a `with`."""
        if self._loans.entries:
            self.list_loans()
        loan = Loan(self, hold)
        self._loans.add(hold, loan)
        return loan

    def list_loans(self) -> list[Loan[T]]:
        """Return the loans of living calls; close what others have left."""
        for each, loan in list(self._loans.entries.items()):
            if (lock := each()) is None or not lock.locked():
                with self._guard:
                    self.close_all(loan)
                    self._loans.entries.pop(each, None)
        return self._loans.list_held()

    def try_take(self, loan: Loan[T], *, is_first: bool = False) -> bool:
        """Add a thing, or a place for one, to a loan; return False if all are lent. is_first: not
        before a thread that waits."""
        if is_first and self._line.entries and self._line.list_held():
            return False
        with self._guard:
            if self.free:
                loan.append(self.free.pop())
            elif self.count_free() > 0:
                loan.append(None)
            else:
                return False
        return True

    def count_free(self) -> int:
        return 0 if self.is_closed else self._most - sum(map(len, self.list_loans()))

    def wait(self, loan: Loan[T], due_ms: int) -> bool:
        """Take like `try_take`, but wait until the deadline."""
        wakes = Lock()
        wakes.acquire()
        is_first = not self._line.list_held()
        self._line.add(loan.hold, wakes)
        while not (is_first and self.try_take(loan)):
            is_first = True
            left_ms = due_ms - self._now_ms()
            if left_ms <= 0 or self.is_closed:
                break
            wakes.acquire(timeout=min(left_ms, POLL_MS) / 1000)
        self._line.remove(loan.hold)
        return bool(loan)

    def end_loan(self, loan: Loan[T]) -> None:
        count = len(loan)
        if self.is_closed:
            self.close_all(loan)
        with self._guard:
            while loan:
                if (thing := loan.pop()) is not None:
                    self.free.append(thing)
        self._loans.remove(loan.hold)
        for wakes in self._line.list_held()[:count] if self._line.entries else ():
            with suppress(RuntimeError):  # it was woken before
                wakes.release()

    def close(self) -> None:
        """Close what nobody has now, and the rest when it is returned."""
        self.is_closed = True
        self.list_loans()
        self.close_free()

    def close_free(self) -> None:
        with self._guard:
            self.close_all(self.free)

    def close_all(self, things: list[T] | Loan[T]) -> None:
        """Empty a list; nothing leaves it before it is closed."""
        while things:
            if (thing := things[-1]) is not None:
                self._close_thing(thing)
            things.pop()
