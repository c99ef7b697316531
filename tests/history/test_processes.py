"""Histories of real processes on one embedded store; TXN_HISTORY_KILLS of them are killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.history.events import Ending
from tests.history.processes import Plan, judge
from tests.history.recording import Recorder, load, to_file
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


@pytest.mark.parametrize("line", [1, 2])
def test_a_line_that_a_kill_has_cut_short_was_never_told(tmp_path: Path, line: int) -> None:
    """Some lines cross a page of the file, and the kernel may end a write there."""
    recorder = Recorder(to_file(tmp_path / "one.jsonl"))
    recorder.begin("one.1", [])
    recorder.end("one.1", Ending.COMMITTED)
    whole = (tmp_path / "one.jsonl").read_text().splitlines(keepends=True)
    for size in range(len(whole[line - 1])):
        (tmp_path / "one.jsonl").write_text("".join(whole[: line - 1]) + whole[line - 1][:size])
        assert [t.ending for t in load(tmp_path)] == [Ending.UNKNOWN] * (line - 1)
