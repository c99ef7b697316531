"""The doctor's last visit: one at a time, and what it said is kept until the next."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from recovery.console.jobs import JobUnderWayError
from recovery.doctor import Diagnosis, examine
from txn.protocol.context import Context


class Examination:
    """What the doctor has said, and when; nothing before the first visit."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._guard = threading.Lock()
        self.diagnoses: tuple[Diagnosis, ...] = ()
        self.at_ms: int | None = None

    def run(self, tables: Sequence[bytes]) -> None:
        """Examine the store and these tables. It writes to the row `doctor`."""
        if not self._guard.acquire(blocking=False):
            raise JobUnderWayError("nothing was done: the doctor is at work already")
        try:
            self.diagnoses = tuple(examine(self._context, tables))
            self.at_ms = self._context.clock.wall_ms()
        finally:
            self._guard.release()
