"""What is looked at for many visitors at once: all of them get what one has found just now."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from txn.errors import TxnError

T = TypeVar("T")
FRESH_S = 1.0


class Recent(Generic[T]):
    """The result of a look that is not older than a second; whoever needs it first looks. So it is
    with an error: those who have waited for a server that does not answer are not to ask it again,
    one after the other."""

    def __init__(self, look: Callable[[], T], fresh_s: float = FRESH_S) -> None:
        self._look = look
        self._fresh_s = fresh_s
        self._guard = threading.Lock()
        self._found: Callable[[], T] | None = None
        self._until = 0.0

    def get(self) -> T:
        """Return it, or raise what the look has raised."""
        with self._guard:
            if self._found is None or time.monotonic() >= self._until:
                self._found = _find(self._look)
                self._until = time.monotonic() + self._fresh_s
            found = self._found
        return found()


def _find(look: Callable[[], T]) -> Callable[[], T]:
    try:
        value = look()
    except TxnError as error:
        failure = error

        def fail() -> T:
            raise failure

        return fail
    return lambda: value
