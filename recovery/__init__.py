"""The operator's side of hbase-txn: find and repair what crashed clients left behind."""

from recovery.backup import backup
from recovery.convert import convert, find_obstacles
from recovery.findings import (
    Finding,
    InGrace,
    Kind,
    LeftAlone,
    NothingToDo,
    Repaired,
    Result,
    Severity,
)
from recovery.fsck import check, compact, repair, repair_all
from recovery.inspect import Explanation, explain
from recovery.purge import purge_row, purge_token
from recovery.scan import Summary, summary

__all__ = [
    "Explanation",
    "Finding",
    "InGrace",
    "Kind",
    "LeftAlone",
    "NothingToDo",
    "Repaired",
    "Result",
    "Severity",
    "Summary",
    "backup",
    "check",
    "compact",
    "convert",
    "explain",
    "find_obstacles",
    "purge_row",
    "purge_token",
    "repair",
    "repair_all",
    "summary",
]
