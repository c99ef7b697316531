"""What `import txn` loads, and what it says about itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import txn

pytestmark = pytest.mark.fast
ROOT = Path(__file__).parents[2]
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
    """A command, a function in the cloud and each Spark worker wait for it."""
    code = "import json, sys; before = set(sys.modules)\nimport txn\n" + work
    code += "print(json.dumps(sorted(set(sys.modules) - before)))"
    words = [sys.executable, "-c", code]
    loaded = json.loads(subprocess.run(words, capture_output=True, check=True, cwd=ROOT).stdout)
    assert HEAVY & set(loaded) == set()
    assert len(loaded) <= most


def test_the_names_that_are_loaded_late_are_there() -> None:
    """Each name of `__all__` is, and no other."""
    assert {name for name in txn.__all__ if not hasattr(txn, name)} == set()
    assert not hasattr(txn, "AsyncBoat")


def test_the_version_follows_the_last_release() -> None:
    """Unreleased changes refuse the databases of the release, so they need another number."""
    unreleased, last = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:3]
    now = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (now == last.split()[0]) == ("\n- " not in unreleased)
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", txn.__version__)
