"""Histories of client processes on a real HBase, natively and through both gateways at
once; some are killed: TXN_HISTORY_KILLS says how many, and `make long` kills more."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from tests.history.processes import Plan, judge
from tests.history.workload import MODELS
from tests.integration.hbase import HBase
from txn.protocol.statuses import ProtocolName

KILLS = int(os.environ.get("TXN_HISTORY_KILLS", "5"))
ROUNDS = 20  # as a rule the first one shows it, and on a busy machine it may take some


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "protocol"), [*((model, "six-phase") for model in MODELS), ("lists", "fenced")]
)
def test_what_killed_clients_of_hbase_leave_is_strictly_serialisable(
    hbase: HBase, tmp_path: Path, model: str, protocol: ProtocolName
) -> None:
    """The ways are mixed on the same tables, but for a fenced database, which Thrift 1 cannot do.
    What a plain client of HBase sees meanwhile is fractured; a checker that did not find that would
    not find anything."""
    uris = [hbase.native, hbase.thrift2, *([hbase.thrift1] if protocol == "six-phase" else [])]
    rows_of_its_own = uuid.uuid4().int % 10**9
    judge(
        Plan(
            tmp_path / f"{turn}", uris, model, KILLS, seed=rows_of_its_own + turn, protocol=protocol
        )
        for turn in range(ROUNDS)
    )
