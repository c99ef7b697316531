"""Histories of client processes on a real HBase, through both gateways; some are killed."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.history.processes import Plan, judge
from tests.history.workload import MODELS
from tests.integration.hbase import HBase

KILLS = 8
ROUNDS = 5


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_what_killed_clients_of_hbase_leave_is_strictly_serialisable(
    hbase: HBase, tmp_path: Path, model: str
) -> None:
    """The gateways are mixed on the same tables. What a plain client of HBase sees meanwhile is
    fractured; a checker that did not find that would not find anything."""
    uris = [hbase.thrift2, hbase.thrift1]  # the first one makes the tables
    rows_of_its_own = uuid.uuid4().int % 10**9
    judge(
        Plan(tmp_path / f"{turn}", uris, model, KILLS, seed=rows_of_its_own + turn)
        for turn in range(ROUNDS)
    )
