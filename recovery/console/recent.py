"""What is looked at for many visitors at once: all of them get what one has found just now."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
FRESH_S = 1.0


class Recent(Generic[T]):
    """The result of a look that is not older than a second; whoever needs it first looks."""

    def __init__(self, look: Callable[[], T], fresh_s: float = FRESH_S) -> None:
        self._look = look
        self._fresh_s = fresh_s
        self._guard = threading.Lock()
        self._found: tuple[float, T] | None = None

    def get(self) -> T:
        """Return it, or raise what the look raises."""
        with self._guard:
            if self._found is None or time.monotonic() - self._found[0] >= self._fresh_s:
                self._found = (time.monotonic(), self._look())
            return self._found[1]
