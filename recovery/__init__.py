"""The operator's side of hbase-txn: what crashed clients left behind, and its repair."""

from recovery.findings import Finding, Kind, Severity, Young
from recovery.fsck import LeftAlone, NothingToDo, Repaired, Result, check, compact, repair
from recovery.inspect import Explanation, explain
from recovery.scan import Summary, summary

__all__ = [
    "Explanation",
    "Finding",
    "Kind",
    "LeftAlone",
    "NothingToDo",
    "Repaired",
    "Result",
    "Severity",
    "Summary",
    "Young",
    "check",
    "compact",
    "explain",
    "repair",
    "summary",
]
