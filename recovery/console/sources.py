"""What the pages are made of: the store that is looked at, and what is kept of earlier looks.

One of these is shared by all requests. The background looks go on only while somebody visits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from recovery.console.claims import LeaseClaims, LockClaims
from recovery.console.examination import Examination
from recovery.console.jobs import Jobs
from recovery.console.settings import Settings
from recovery.opening import open_store_of
from txn.protocol.attempt import Context

LOG = logging.getLogger("txn.console")


class Console:
    """The store of a console, and what has been found out about it."""

    def __init__(self, settings: Settings, context: Context) -> None:
        self.settings = settings
        self.context = context
        self.jobs = Jobs(context)
        self.examination = Examination(context)
        self.locks = LockClaims(settings, context)
        self.leases = LeaseClaims(settings)

    def visit(self) -> None:
        """Say that somebody looks, so that the background does too."""

    def close(self) -> None:
        """End what is under way."""
        for each in (self.jobs, self.locks, self.leases):
            each.close()


@contextmanager
def open_console(settings: Settings) -> Iterator[Console]:
    """Open the store and look in the background until the block is left."""
    with ExitStack() as ends:
        context = ends.enter_context(open_store_of(settings.store, settings.transactions))
        console = Console(settings, context)
        ends.callback(console.close)
        yield console
