"""The examples about leases, in docs/leases.md, are run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recovery.commands import app
from tests.docs.blocks import list_python
from txn.leases import open_leases
from txn.locks.statements import parse_statements

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/leases.md"
EXAMPLES = [code for code in list_python(PAGE) if "open_leases(" in code]

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_examples_of_the_page_run_and_leave_nothing(code: str, tmp_path: Path) -> None:
    place = "sqlite:////tmp/leases"
    assert place in code
    exec(code.replace(place, f"sqlite:///{tmp_path}/leases"), {})
    with open_leases(f"sqlite:///{tmp_path}/leases") as leases:
        assert leases.list_lease() == []


def test_the_commands_of_the_page_run_in_their_order(tmp_path: Path) -> None:
    commands = re.findall(r"^txn (leases .+?)(?:  .*)?$", PAGE.read_text(), re.MULTILINE)
    environment = {"TXN_LEASES": f"sqlite:///{tmp_path}/leases"}
    done = [CliRunner().invoke(app, command.split(), env=environment) for command in commands]
    assert [each.exit_code for each in done] == [0, 0, 0, 0, 1, 0], done


def test_the_statements_of_the_page_are_understood() -> None:
    forms = re.findall(
        r"^((?:SHOW|DROP FORCE) LEASE) \* \| table \[PARTITION", PAGE.read_text(), re.MULTILINE
    )
    assert len(forms) == 2
    for form in forms:
        for of_what in ("*", "t", "d.t PARTITION (day=1)"):
            assert len(parse_statements(f"{form} {of_what}")) == 1
