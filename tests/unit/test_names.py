"""What is public: one word for one thing, what `import txn` loads, and errors."""

from __future__ import annotations

import ast
import importlib
import json
import pickle
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import recovery
import txn
from txn import errors
from txn.assertions import Some
from txn.model import Cell, Key
from txn.request import Committed

ROOT = Path(__file__).parents[2]
MODULES = [path for name in ("txn", "recovery") for path in sorted((ROOT / name).rglob("*.py"))]


def public_names(path: Path) -> Iterator[str]:
    """Yield the classes and functions of a module that others may use."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name


def place(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").as_posix()


def test_no_two_public_names_mean_different_things() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        if "commands" not in path.relative_to(ROOT).parts:  # those are the names of commands
            for name in public_names(path):
                found[name].append(place(path))
    twice = {name: places for name, places in found.items() if len(places) > 1}
    assert {name: places for name, places in twice.items() if name not in TWINS} == {}
    assert sorted(TWINS.keys() - twice.keys()) == []


def test_names_use_the_words_of_the_field() -> None:
    """docs/architecture.md has the table; whoever knows Percolator or HBase needs no dictionary."""
    found = {
        f"{place(path)}:{name}"
        for path in MODULES
        for name in list_names(ast.parse(path.read_text()))
        if name.strip("_") in REPLACED and (place(path), name) not in OF_OTHERS
    }
    assert found == set()


def list_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module defines, with those of parameters and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


REPLACED = {
    *("watch", "chance", "beat", "gatherer", "lanes", "buckets", "unless", "together", "overtaken"),
    *("stand_aside", "blame", "pass_by", "units", "whole_of", "part_key", "Wanted", "Met", "Told"),
    *("Seen", "Looked", "Young", "Watch", "tell", "told", "look", "settle", "crew", "Crew"),
}
"""Words of our own: docs/architecture.md has the standard word for each."""

OF_OTHERS = {
    ("txn/locks/zookeeper/client", "watch"),  # ZooKeeper's
    ("txn/metrics", "buckets"),  # of a histogram
    ("recovery/commands/common", "units"),  # of sizes and durations
}

BOTH = "the same for each of HBase's two services"
TWINS = {
    "Summary": "public in two packages: what was counted, of a partition or of a store",
    **dict.fromkeys(("explain_error", "handler", "is_durable", "scan_of"), BOTH),
}
"""Names that stand in several modules and mean the same there, and why."""


HEAVY = {
    *("asyncio", "difflib", "http", "kazoo", "lmdb", "opentelemetry"),
    *("pyspark", "prometheus_client", "rich", "shutil", "socket", "ssl", "subprocess"),
    *("tempfile", "thriftpy2", "typer"),
}
COMMIT = """
with txn.connect("memory://", table="t") as engine:
    engine.ensure_table("t", ["d"])
    engine.commit([txn.Mutation(txn.Key("r", "d", "c"), "1")])
"""


@pytest.mark.parametrize(("work", "most"), [("", 120), (COMMIT, 145)], ids=["import", "commit"])
def test_a_first_commit_loads_only_what_it_needs(work: str, most: int) -> None:
    code = "import json, sys; before = set(sys.modules)\nimport txn\n" + work
    code += "print(json.dumps(sorted(set(sys.modules) - before)))"
    words = [sys.executable, "-c", code]
    loaded = json.loads(subprocess.run(words, capture_output=True, check=True, cwd=ROOT).stdout)
    assert HEAVY & set(loaded) == set()
    assert len(loaded) <= most


def test_the_names_that_are_loaded_late_are_there() -> None:
    assert {name for name in txn.__all__ if not hasattr(txn, name)} == set()
    assert not hasattr(txn, "AsyncBoat")


def test_the_version_follows_the_last_release() -> None:
    unreleased, last = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:3]
    now = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (now == last.split()[0]) == ("\n- " not in unreleased)
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", txn.__version__)


KEY = Key("a", "d", "x", "t")


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequestError("bad"),
        errors.TokenReusedError("reused", b"o", b"t"),
        errors.Repeated(Committed(b"t", 5, repeated=True, digest=b"d", has_answer=True)),
        errors.AbortedError("reason", transaction=b"t"),
        errors.ConflictError("locked", key=KEY, holder=b"h", transaction=b"t"),
        errors.AssertionFailedError(Some(KEY), {KEY: Cell(b"1", 2)}, transaction=b"t"),
        errors.DeadlineError("late", transaction=b"t"),
        errors.CommitOutcomeUnknown(b"t"),
        errors.CorruptRowError("junk"),
        errors.NotApplied("down"),
        errors.MaybeApplied("lost"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_travel_between_processes(error: errors.TxnError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_facts_come_last_and_unknown_ones_not_at_all() -> None:
    error = errors.ConflictError("key is locked", key=KEY, holder=b"h")
    assert str(error) == f"key is locked key={KEY!r} holder=b'h'"


RETRYABLE = {"ConflictError", "DeadlineError", "NotApplied", "LockDenied", "SessionEnded"}
RETRYABLE |= {"LeaseAlreadyExistsError", "JobUnderWayError"}
UNKNOWN = {"CommitOutcomeUnknown", "StoreError", "MaybeApplied", "PartialFailure", "PartitionError"}
UNKNOWN |= {"ReplyLost", "TableUnavailable"}


def list_kinds(kind: type[errors.TxnError]) -> list[type[errors.TxnError]]:
    return [kind, *(each for sub in kind.__subclasses__() for each in list_kinds(sub))]


def test_every_error_says_whether_to_repeat_the_call_and_whether_it_wrote() -> None:
    """A program decides by it; one that is not named here is final, and wrote nothing."""
    for package in (txn, recovery):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    own = [each for each in list_kinds(errors.TxnError) if each.__module__.split(".")[0] != "tests"]
    assert {each.__name__ for each in own if each.retryable} == RETRYABLE
    assert {each.__name__ for each in own if each.written != "no"} == UNKNOWN
    assert {each.written for each in own} == {"no", "unknown"}


def test_the_table_of_the_docs_is_that_of_the_errors() -> None:
    page = Path(__file__).parents[2] / "docs" / "howto" / "service.md"
    rows = re.findall(r"^\| `(\w+)` \| (yes|no) \| (\w+) \|", page.read_text(), re.MULTILINE)
    assert {name for name, _, _ in rows} >= {"ConflictError", "NotApplied", "MaybeApplied"}
    for name, retryable, written in rows:
        kind = getattr(errors, name)
        assert (kind.retryable, kind.written) == (retryable == "yes", written), name
