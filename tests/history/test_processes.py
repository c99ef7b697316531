"""Histories of real processes on one embedded store, which are killed with SIGKILL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.processes import Plan, judge
from tests.history.workload import MODELS

KILLS = 8
ROUNDS = 5


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_what_killed_processes_leave_is_strictly_serialisable(tmp_path: Path, model: str) -> None:
    """Real concurrency, real deaths: whatever was acknowledged or seen has one order, in real
    time. Beside them somebody reads without the protocol, and must be seen to."""
    uri = f"embedded://{tmp_path}/store?sync=off"
    judge(Plan(tmp_path / f"{turn}", [uri], model, KILLS, seed=turn) for turn in range(ROUNDS))
