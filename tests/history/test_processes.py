"""Histories of real processes on one embedded store; TXN_HISTORY_KILLS of them are killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.history.processes import Plan, judge
from tests.history.workload import MODELS
from txn.protocol.statuses import ProtocolName

KILLS = int(os.environ.get("TXN_HISTORY_KILLS", "5"))
ROUNDS = 20  # as a rule the first one shows it, and on a busy machine it may take some


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "protocol"), [*((model, "six-phase") for model in MODELS), ("registers", "fenced")]
)
def test_what_killed_processes_leave_is_strictly_serialisable(
    tmp_path: Path, model: str, protocol: ProtocolName
) -> None:
    uri = f"embedded://{tmp_path}/store?sync=off"
    judge(
        Plan(tmp_path / f"{turn}", [uri], model, KILLS, seed=turn, protocol=protocol)
        for turn in range(ROUNDS)
    )
