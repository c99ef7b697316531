"""Which kind of schedule a seed has: one in ten makes a history, whose transactions must have an
order; the others move money. A failure says how to run its seed again."""

from __future__ import annotations

from tests.history.simulated import run_history
from tests.simulation.schedule import Schedule, Trace, replay_line
from txn.protocol.statuses import ProtocolName

HISTORY_EACH = 10


def run(seed: int, trace: Trace | None = None, protocol: ProtocolName = "six-phase") -> None:
    """Run one schedule; it raises AssertionError if anything does not hold."""
    if seed % HISTORY_EACH == 0:
        run_history(seed // HISTORY_EACH, trace, protocol)
    else:
        Schedule(seed, trace, protocol).run()


def run_chunk(seeds: range, protocol: ProtocolName = "six-phase") -> str | None:
    """Run some schedules; return how the first one failed that did."""
    for seed in seeds:
        try:
            run(seed, protocol=protocol)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is to be told
            return f"{error}\n{replay_line(seed, protocol)}"
    return None
