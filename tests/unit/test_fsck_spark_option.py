"""`txn fsck --spark [MASTER]`: what stands behind the option, and what it needs."""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import MagicMock

import pytest

import recovery.spark as spark_module
from recovery.commands.fsck import check_on_executors, name_master
from recovery.findings import Ages, Tally
from txn.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--spark"], ["--spark", "local[*]"]),
        (["--spark", "--repair"], ["--spark", "local[*]", "--repair"]),
        (["--spark", "local[2]", "--json"], ["--spark", "local[2]", "--json"]),
        (["--scan", "t", "--spark=yarn"], ["--scan", "t", "--spark=yarn"]),
        ([], []),
    ],
)
def test_a_master_may_be_left_out(given: list[str], meant: list[str]) -> None:
    """Most people have one machine, and no master to name."""
    assert name_master(given) == meant


def test_the_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the tool works without Spark."""
    monkeypatch.delitem(sys.modules, "recovery.spark", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark", None)  # as where it is not installed
    options: Any = ("local[1]", ("memory://", "txn", Ages(), False), [], None, Tally())
    with pytest.raises(InvalidRequestError, match=r"install hbase-txn\[spark\].*--spark"):
        list(check_on_executors(*options))


def test_work_that_spark_does_not_take_is_not_told_as_done() -> None:
    """Its thread ended with nothing said, and a repair seemed to have found nothing."""
    session = MagicMock()
    session.sparkContext.setJobGroup.side_effect = ValueError("the context was stopped")
    with pytest.raises(ValueError, match="was stopped"):
        spark_module._run(session, MagicMock(), lambda done: None)
