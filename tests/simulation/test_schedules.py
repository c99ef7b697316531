"""Clients, readers and fsck interleaved at random, TXN_SCHEDULES times."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.schedule import Schedule, run_many
from txn.protocol.statuses import PROTOCOLS, ProtocolName

SCHEDULES = int(os.environ.get("TXN_SCHEDULES", "3000"))
GROUPS = 12
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_money_is_neither_made_nor_lost(group: int) -> None:
    """The sum of all accounts, the truth of every reply, the order of every read."""
    each = -(-SCHEDULES // GROUPS)
    protocol: ProtocolName = "fenced" if group % 3 == 2 else "six-phase"
    run_many(range(group * each, (group + 1) * each), protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_schedule_is_the_same_each_time(protocol: ProtocolName) -> None:
    told: list[list[str]] = [[], []]
    for lines in told:
        Schedule(37, lines.append, protocol).run()
    assert told[0] == told[1]
    assert len(told[0]) > 40
    assert any("/status:" in line and "->2-ASSERTED" in line for line in told[0])


def test_the_command_runs_schedules_in_processes() -> None:
    options = ["--schedules", "30", "--seed", "7", "--processes", "2"]
    command = [sys.executable, "-m", "tests.simulation", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "30 schedules from seed 7: everything held" in done.stdout
