"""The examples about locks, in docs/locks.md, are run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import list_python
from txn import AssertionFailedError, Key, Mutation, connect
from txn.locks import exclusive, open_manager, path
from txn.locks.hive.sql import requests

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/locks.md"

pytestmark = pytest.mark.fast


def example(word: str) -> str:
    """The example that has this word."""
    (found,) = (code for code in list_python(PAGE) if word in code)
    return found


def test_the_example_takes_and_checks_locks(tmp_path: Path) -> None:
    code = example("with open_manager")
    assert "/var/lib/app" in code
    exec(code.replace("/var/lib/app", f"{tmp_path}/store"), {})
    with open_manager(f"embedded://{tmp_path}/store") as manager:
        assert manager.locks() == []


@pytest.mark.parametrize("word", ["from txn.locks.hive.sql import requests", "import Column"])
def test_the_examples_of_statements_say_what_is_locked(word: str) -> None:
    code = example(word)
    (said,) = re.findall(r"# (.*)", code)
    before, call = code.rstrip().rsplit("\n", 1)
    names = {"requests": requests}
    exec(before, names)
    assert ", ".join(map(str, eval(call, names))) == said


def test_the_example_of_a_fencing_token_refuses_who_comes_late() -> None:
    with connect("memory://", table="t") as engine, open_manager("memory://locks") as manager:
        engine.ensure_table("t", ["d"])
        late = manager.hold([exclusive("sales/orders/day=1")])
        late.release()
        with manager.hold([exclusive("sales/orders/day=1")]) as held:
            names = {"engine": engine, "path": path}
            names |= {"mutations": [Mutation(Key("x", "d", "v"), "new")]}
            code = example("GreaterThan")
            exec(code, names | {"held": held})
            with pytest.raises(AssertionFailedError):
                exec(
                    code, names | {"held": late, "mutations": [Mutation(Key("x", "d", "v"), "old")]}
                )
        cell = engine.read([Key("x", "d", "v")])[Key("x", "d", "v")]
        assert cell is not None
        assert cell.value == b"new"
