"""Mutants of the protocol's rules: `python -m tests.simulation.mutants [WORD]`.

Each rule that docs/protocol.md argues for is broken by one small change in a copy of the product;
then the teeth and some unit tests must fail. Prints which test did, and exits with 1 if a mutant
lives. WORD: only the mutants with it in their names. It takes some ten minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
KEPT = ("tests", "docs", "pyproject.toml", "README.md")
TEETH = "commit fenced locks parts ranges reads recovery retiring timestamps validated power"
UNITS = (
    "parts parts_edges fsck_safety poison fenced commit single_row reads purge protocols databases "
    "validated ranges retire once damaged_rows statuses heartbeats waiting one_write"
)
TESTS = (
    *(f"tests/simulation/test_teeth_{name}.py" for name in TEETH.split()),
    *(f"tests/unit/test_{name}.py" for name in UNITS.split()),
)


class Mutant(NamedTuple):
    """A rule, and the change without it of a file, which is in txn/protocol if it names no folder.
    A line of mutants.tsv, with `\\n` for line ends."""

    rule: str
    file: str
    old: str
    new: str


def list_mutants() -> list[Mutant]:
    lines = Path(__file__).with_suffix(".tsv").read_text().splitlines()
    return [Mutant(*line.replace("\\n", "\n").split("\t")) for line in lines]


def main() -> int:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    alive = 0
    with TemporaryDirectory() as name:
        folder = Path(name)
        for kept in KEPT:
            (folder / kept).symlink_to(ROOT / kept)
        for package in ("txn", "recovery"):
            shutil.copytree(ROOT / package, folder / package)
        for mutant in list_mutants():
            if word in mutant.rule:
                killer = find_killer(folder, mutant)
                alive += killer is None
                print(f"{mutant.rule:58} {killer or 'LIVES'}", flush=True)
    print(f"{alive} mutants live")
    return 1 if alive else 0


def find_killer(folder: Path, mutant: Mutant) -> str | None:
    """Return the first test that fails with a mutant; None if all pass."""
    file = folder / (mutant.file if "/" in mutant.file else f"txn/protocol/{mutant.file}")
    text = file.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.rule}: found {text.count(mutant.old)} times"
    file.write_text(text.replace(mutant.old, mutant.new))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *TESTS],
            cwd=folder,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        file.write_text(text)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert failed or done.returncode == 0, done.stdout[-2000:] + done.stderr
    return failed[0].split(" - ")[0].rpartition("::")[2] if failed else None


if __name__ == "__main__":
    sys.exit(main())
