"""Which kind of schedule a seed has: a history, one with snapshots, or one that moves money."""

from __future__ import annotations

from tests.history.simulated import Snapshots, run_history
from tests.simulation.schedule import FINDINGS, Schedule, Trace, replay_line
from txn.protocol.statuses import ProtocolName

HISTORY_EACH = 10
SNAPSHOTS_EACH = 25


def run(seed: int, trace: Trace | None = None, protocol: ProtocolName = "six-phase") -> None:
    if seed % HISTORY_EACH == 0:
        run_history(seed // HISTORY_EACH, trace, protocol)
    elif seed % SNAPSHOTS_EACH == 1:
        run_history(seed // SNAPSHOTS_EACH, trace, protocol, Snapshots)
    else:
        Schedule(seed, trace, protocol).run()


def run_chunk(seeds: range, protocol: ProtocolName = "six-phase") -> str | None:
    for seed in seeds:
        try:
            run(seed, protocol=protocol)
        except FINDINGS as error:
            return f"{error}\n{replay_line(seed, protocol)}"
    return None
