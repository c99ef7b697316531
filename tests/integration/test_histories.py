"""Histories of client processes on a real HBase, through both gateways; some are killed."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.history.anomalies import Kind
from tests.history.events import Ending
from tests.history.processes import Plan, run
from tests.history.workload import MODELS
from tests.integration.hbase import HBase

KILLS = 8
FRACTURED = {Kind.G_SINGLE, Kind.G2_ITEM, Kind.G2}


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_what_killed_clients_of_hbase_leave_is_strictly_serialisable(
    hbase: HBase, tmp_path: Path, model: str
) -> None:
    """The gateways are mixed on the same tables. What a plain client of HBase sees meanwhile is
    fractured; a checker that did not find that would not find anything."""
    uris = [hbase.thrift2, hbase.thrift1]  # the first one makes the tables
    rows_of_its_own = uuid.uuid4().int % 10**9
    result = run(Plan(tmp_path, uris, model, KILLS, seed=rows_of_its_own))
    check = MODELS[model].check
    assert check(result.writers) == []
    committed = [t for t in result.writers if t.writes() and t.ending is Ending.COMMITTED]
    assert len(committed) > 50
    kinds = {anomaly.kind for anomaly in check([*result.writers, *result.readers])}
    assert kinds & FRACTURED
    assert kinds <= FRACTURED | {Kind.REAL_TIME}
