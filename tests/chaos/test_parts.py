"""A transaction whose parts come from several processes, on one store."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.chaos import client
from tests.chaos.bank import POLICY, TABLE, found_bank
from tests.chaos.history import Log, load
from tests.chaos.parts import TaskProcesses, commit_in_parts
from tests.chaos.test_client import violations
from txn import connect

pytestmark = pytest.mark.long


def test_parts_of_a_transfer_are_written_by_processes(tmp_path: Path) -> None:
    """They share only the transaction's row key; of one task there are two, which both succeed."""
    uri = f"embedded://{tmp_path / 'store'}"
    with connect(uri, table=TABLE, policy=POLICY) as engine:
        found_bank(engine)
        processes = TaskProcesses(uri)
        commit = partial(commit_in_parts, write=processes.write)
        log, rng = Log(tmp_path / "p0.1.jsonl"), Random(1)
        client.transfer(engine, "p0.1-0", rng, log, commit=commit)
        processes.close()
        history = load(tmp_path)
        assert [each.is_committed for each in history.transfers()] == [True]
        assert violations(engine, history) == []
