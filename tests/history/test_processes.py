"""Histories of real processes on one embedded store, which are killed with SIGKILL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.anomalies import Kind
from tests.history.events import Ending
from tests.history.processes import Plan, run
from tests.history.workload import MODELS

KILLS = 8
FRACTURED = {Kind.G_SINGLE, Kind.G2_ITEM, Kind.G2}


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_what_killed_processes_leave_is_strictly_serialisable(tmp_path: Path, model: str) -> None:
    """Real concurrency, real deaths: whatever was acknowledged or seen has one order, in real
    time. Beside them somebody reads without the protocol, and must be seen to."""
    uri = f"embedded://{tmp_path}/store?sync=off"
    result = run(Plan(tmp_path, [uri], model, KILLS))
    check = MODELS[model].check
    assert check(result.writers) == []
    assert sum(t.ending is Ending.COMMITTED for t in result.writers) > 200
    kinds = {anomaly.kind for anomaly in check([*result.writers, *result.readers])}
    assert kinds & FRACTURED
    assert kinds <= FRACTURED | {Kind.REAL_TIME}
