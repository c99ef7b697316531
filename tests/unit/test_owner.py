"""The owner that a transaction row names: who ran the client that died."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from txn import connect
from txn.errors import InvalidRequestError
from txn.host.owner import name_owner
from txn.model import Key, Mutation
from txn.protocol.row import read_rows

X = Key("r", "d", "x", "t")
HERE = f"[{os.getpid()}]@{os.uname().nodename}"


def read_owner(engine: Any, transaction: bytes) -> str:
    return str(read_rows(engine.context, [transaction])[transaction].owner)


def test_a_row_names_the_program_the_process_and_the_host(tmp_path: Path) -> None:
    for name, program in {"billing": "billing", None: name_owner()[: -len(HERE)]}.items():
        with connect(f"embedded://{tmp_path}", table="t", name=name) as engine:
            engine.ensure_table("t", ["d"])
            done = engine.commit([Mutation(X, "1")])
            assert read_owner(engine, done.transaction) == program + HERE


def test_a_forked_child_is_another_owner(tmp_path: Path) -> None:
    with connect(f"embedded://{tmp_path}", table="t", name="pool") as engine:
        engine.ensure_table("t", ["d"])
        engine.commit([Mutation(X, "1")])
        child = os.fork()
        if not child:
            done = engine.commit([Mutation(X, "2")])
            os._exit(read_owner(engine, done.transaction) != name_owner("pool"))
        assert os.waitpid(child, 0)[1] == 0
        assert f"[{child}]" not in name_owner("pool")


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["-c", "import txn.host.owner as o; print(o.name_owner())", "SECRET"], "python"),
        (["FILE/etl \udcff.py", "SECRET"], "etl \\udcff.py"),
        (["-m", "jobs.night", "SECRET"], "jobs.night"),
        (["-m", "jobs", "SECRET"], "jobs"),
    ],
)
def test_a_program_is_named_by_its_script_or_module(
    command: list[str], program: str, tmp_path: Path
) -> None:
    """Never by its arguments, which may hold a password."""
    (tmp_path / "jobs").mkdir()
    for name in ("etl \udcff.py", "jobs/night.py", "jobs/__main__.py", "jobs/__init__.py"):
        text = "import txn.host.owner as o\nif __name__ == '__main__': print(o.name_owner())\n"
        (tmp_path / name).write_text(text)
    command = [part.replace("FILE", str(tmp_path)) for part in command]
    places = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"}
    shown = subprocess.check_output([sys.executable, *command], env=places, cwd=tmp_path, text=True)
    assert shown.startswith(f"{program}[")
    assert "SECRET" not in shown


@pytest.mark.parametrize("name", ["", "a" * 65, "a\nb", "\udcff", 5, b"billing"])
def test_a_name_that_cannot_be_shown_is_refused(name: Any) -> None:
    for uri in ("memory://", "txn://127.0.0.1:1"):
        with pytest.raises(InvalidRequestError, match="name must be "):
            connect(uri, name=name)
