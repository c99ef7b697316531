"""What the pages are made of: the store that is looked at, and what is kept of earlier looks.

One of these is shared by all requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from recovery.bounds import LookLimits
from recovery.console.background import Background
from recovery.console.claims import LeaseClaims, LockClaims
from recovery.console.examination import Examination
from recovery.console.exposing import Findings, measure
from recovery.console.jobs import Jobs
from recovery.console.settings import ConsoleSettings
from recovery.opening import open_store_of
from txn.policy import Policy
from txn.protocol.context import Context

PATIENT = Policy(store_patience_ms=1_000)
"""For how long a page goes on asking a store that fails; checks and repairs have more patience."""


class Console:
    """The store of a console, and what has been found out about it."""

    def __init__(self, settings: ConsoleSettings, opened: Context) -> None:
        counted, self.registry = measure(opened)
        context = replace(counted, policy=PATIENT)
        self.settings = settings
        self.context = context
        self.limits = LookLimits()
        self.background = Background(context, settings.gateways)
        self.jobs = Jobs(counted)
        self.registry.register(Findings(self.background))
        self.examination = Examination(context)
        self.locks = LockClaims(settings, context)
        self.leases = LeaseClaims(settings)

    def close(self) -> None:
        """End what is under way."""
        for each in (self.background, self.jobs, self.locks, self.leases):
            each.close()


@contextmanager
def open_console(settings: ConsoleSettings) -> Iterator[Console]:
    """Open the store and look in the background until the block is left."""
    with ExitStack() as ends:
        context = ends.enter_context(open_store_of(settings.store, settings.transactions))
        console = Console(settings, context)
        ends.callback(console.close)
        yield console
