"""Clients, readers and fsck interleaved at random, TXN_SCHEDULES times."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.__main__ import main
from tests.simulation.schedule import Schedule, replay_line, run_many
from tests.simulation.seeds import run_chunk
from txn.protocol import six_phase as six_phase_module
from txn.protocol.statuses import PROTOCOLS, ProtocolName

SCHEDULES = int(os.environ.get("TXN_SCHEDULES", "3000"))
GROUPS = 12
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_money_is_neither_made_nor_lost(group: int) -> None:
    """The sum of all accounts, the truth of every reply, the order of every read: whatever fails,
    whoever stops, whatever comes late."""
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


def test_a_failure_says_how_to_run_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(self: Schedule) -> None:
        raise AssertionError("lost update")

    monkeypatch.setattr(Schedule, "run", lose)
    with pytest.raises(AssertionError, match="lost update") as caught:
        run_many([41])
    assert replay_line(41) in str(caught.value)
    with pytest.raises(AssertionError, match="lost update") as caught:
        run_many([41], "fenced")
    assert replay_line(41, "fenced") in str(caught.value)


def test_one_schedule_in_ten_makes_a_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(six_phase_module, "find_failed", lambda t: None)
    failures = (run_chunk(range(seed, seed + 1)) for seed in range(0, 2000, 10))
    told = next(told for told in failures if told and "lost update: " in told)
    assert re.search(r"--schedules 1 --seed \d*0 --trace", told)


def test_the_command_runs_schedules_in_processes() -> None:
    options = ["--schedules", "30", "--seed", "7", "--processes", "2"]
    command = [sys.executable, "-m", "tests.simulation", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "30 schedules from seed 7: everything held" in done.stdout


def test_a_trace_names_each_call_and_each_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schedules", "3", "--seed", "36", "--trace"]) == 0
    told = capsys.readouterr().out
    assert "/status:1-LOCKED->2-ASSERTED" in told
    assert main(["--schedules", "3", "--seed", "16", "--trace", "--protocol", "fenced"]) == 0
    told += capsys.readouterr().out
    assert "/status:0-WRITTEN->2-ASSERTED" in told
    assert "!! maybe applied" in told
