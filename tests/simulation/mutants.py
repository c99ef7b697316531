"""Mutants of the protocol's rules: `python -m tests.simulation.mutants [WORD]`. Each line of
mutants.tsv has a rule, a file, its text with the rule and without, and the tests of which one must
fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """A line of mutants.tsv."""

    rule: str
    file: str
    old: str
    new: str
    tests: str

    @property
    def path(self) -> str:
        return self.file if "/" in self.file else f"txn/protocol/{self.file}"


def list_mutants() -> list[Mutant]:
    lines = Path(__file__).with_suffix(".tsv").read_text().splitlines()
    return [Mutant(*line.replace("\\n", "\n").split("\t")) for line in lines]


def main() -> int:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    alive = 0
    with TemporaryDirectory() as name:
        folder = Path(name)
        for kept in ("tests", "docs", "pyproject.toml"):
            (folder / kept).symlink_to(ROOT / kept)
        for package in ("txn", "recovery"):
            shutil.copytree(ROOT / package, folder / package)
        for mutant in list_mutants():
            if word in mutant.rule:
                killer = find_killer(folder, mutant)
                alive += killer is None
                print(f"{mutant.rule:52} {killer or 'LIVES'}", flush=True)
    print(f"{alive} mutants live")
    return 1 if alive else 0


def find_killer(folder: Path, mutant: Mutant) -> str | None:
    file = folder / mutant.path
    text = file.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.rule}: found {text.count(mutant.old)} times"
    file.write_text(text.replace(mutant.old, mutant.new))
    pytest = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*pytest, *mutant.tests.split()],
            cwd=folder,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        file.write_text(text)
    failed = [
        line
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED tests", "ERROR tests"))
    ]
    assert failed or done.returncode == 0, done.stdout[-2000:] + done.stderr
    return failed[0].split(" - ")[0].rpartition("::")[2] if failed else None


if __name__ == "__main__":
    sys.exit(main())
