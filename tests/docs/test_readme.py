"""What README says is tried as it stands there, with a folder of the test's own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import list_python
from txn.protocol.statuses import Status
from txn.stores import open_store

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
(EXAMPLE,) = list_python(ROOT / "README.md")
COMMANDS = re.findall(r"^txn (.+?)(?:  .*)?$", README, re.MULTILINE)

pytestmark = pytest.mark.fast


@pytest.fixture
def bank(tmp_path: Path) -> str:
    """The store that the example leaves in its user's home."""
    home = {**os.environ, "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", EXAMPLE], check=True, cwd=ROOT, env=home)
    return f"embedded://{tmp_path}/bank"


def test_the_example_does_what_its_own_assertions_say(bank: str) -> None:
    store = open_store(bank)
    try:
        statuses = [cell.value for row in store.scan(b"txn") for cell in row.cells.values()]
    finally:
        store.close()
    assert statuses.count(Status.COMPLETE.value) == 2
    assert statuses.count(Status.ABORTED.value) == 1


def test_the_commands_work_on_what_the_example_left(bank: str) -> None:
    store = open_store(bank)
    some_id = next(iter(store.scan(b"txn", b"transaction."))).row.decode()[-32:]
    store.close()
    assert COMMANDS
    for command in COMMANDS:
        arguments = [some_id if word == "ID" else word for word in command.split()]
        said = subprocess.run(
            [sys.executable, "-c", "import recovery.commands as c; c.main()", *arguments],
            env={**os.environ, "TXN_STORE": bank},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert said.returncode == 0, (command, said.stdout, said.stderr)


@pytest.mark.parametrize(
    ("module", "driver", "extra"),
    [
        ("txn.spark", "pyspark", "spark"),
        ("txn.locks.spark", "pyspark", "spark"),
        ("txn.locks.hive.sql", "sqlglot", "locks"),
        ("txn.metrics", "prometheus_client", "metrics"),
    ],
)
def test_a_module_that_lacks_its_extra_names_it(module: str, driver: str, extra: str) -> None:
    program = f"import sys; sys.modules[{driver!r}] = None; import {module}"
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    error = f"install hbase-txn[{extra}], or in a checkout .[{extra}] missing={driver!r}"
    assert said.stderr.splitlines()[-1] == f"ModuleNotFoundError: {error}"


def test_make_has_the_targets_that_the_readme_names() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    targets = {line.split()[1] for line in listed.stdout.splitlines()}
    assert set(re.findall(r"\bmake ([a-z]+)\b", README)) <= targets


def test_the_readme_can_be_read_in_one_go() -> None:
    prose = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
    words = [word for word in prose.split() if re.search(r"\w", word)]
    assert len(README.splitlines()) < 130
    assert len(words) < 800
    assert len(EXAMPLE.splitlines()) <= 22
