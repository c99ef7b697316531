"""Spin, from PATH or else Debian's package in this user's cache, which needs no root.

It wants a C compiler (cc). A search that did not see every state is an error, never a result.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tests.packages import PackageError, fetch_package
from txn.host.java import cache_folder

MODEL = Path(__file__).parents[2] / "docs" / "model"
MAIN = "protocol.pml"
PROGRAM = "usr/bin/spin"
SNAPSHOTS = "SNAPSHOTS"  # the flag of a world of readers and planners, whose model is of both
FENCED = "FENCED"  # the flag of a world of the second protocol, whose model is a file of its own
LARGER = {"READS", "LOSES", "RETIRES", "SHAPE=3"}
"""The flags of six-phase worlds that have many states even where a property is violated."""
MEMORY_MB = 4_000
DEPTH = 100_000


class SpinError(Exception):
    """Spin is not to be had, or the search was not complete."""


@dataclass(frozen=True, slots=True)
class Search:
    """What a search found. states: those until a property was violated; story: how."""

    states: int
    seconds: float
    violated: str | None
    story: str


def text(folder: Path = MODEL) -> str:
    return "".join(path.read_text() for path in sorted(folder.glob("*.pml")))


def properties() -> dict[int, str]:
    names = re.findall(r"must\(([A-Z_]+),", text())
    numbers = dict(re.findall(r"#define ([A-Z_]+) +(\d+) ", text()))
    return {int(numbers[name]): name for name in names}


def safeguards() -> set[str]:
    return set(re.findall(r"\bWITHOUT_[A-Z0-9_]*[A-Z0-9]\b", text()))


def search(
    flags: Collection[str],
    only: str | None = None,
    *,
    shortest: bool = False,
    compressed: bool = False,
) -> Search:
    """Search all states of a world, until one violates a property. compressed: in half the
    memory."""
    spin = find_spin()
    other = "fenced.pml" if FENCED in flags else MAIN
    main = "instant.pml" if SNAPSHOTS in flags else other
    defines = [f"-D{flag}" for flag in flags]
    if only is not None:
        defines += [f"-DONLY={number}" for number, name in properties().items() if name == only]
    with tempfile.TemporaryDirectory(prefix="hbase-txn-model-") as place:
        folder = Path(place)
        for path in MODEL.glob("*.pml"):
            shutil.copy(path, folder)
        _run(folder, str(spin), "-a", *defines, main)
        options = ["-DSAFETY", "-DNOREDUCE", "-DNOFAIR", f"-DMEMLIM={MEMORY_MB}"]
        options += ["-DBFS"] if shortest else ["-DCOLLAPSE"] if compressed else []
        # Without a rule most worlds are soon searched: then most of it is to compile.
        is_large = FENCED not in flags and not LARGER.isdisjoint(flags)
        optimised = "-O1" if only is None or is_large else "-O0"
        _run(folder, "cc", optimised, "-w", *options, "-o", "pan", "pan.c")
        began = time.monotonic()
        said = _run(folder, "./pan", f"-m{DEPTH}")
        seconds = time.monotonic() - began
        story = ""
        if (folder / f"{main}.trail").exists():
            story = _run(folder, str(spin), "-t", "-p", "-g", *defines, main)
    return _judged(said, seconds, story)


def _judged(said: str, seconds: float, story: str) -> Search:
    stored = re.search(r"^\s*([\d.e+]+) states, stored", said, re.MULTILINE)
    errors = re.search(r"errors: (\d+)", said)
    if stored is None or errors is None:
        raise SpinError(f"no result: {said}")
    violated = None
    if errors[1] != "0":
        number = re.search(r"assertion violated \(\(\d+&&\(\d+!=(\d+)\)\)", said)
        if number is None:
            raise SpinError(f"an error that is no property: {said}")
        violated = properties()[int(number[1])]
    elif "not completed" in said or "reached -DMEMLIM" in said or "search depth too" in said:
        raise SpinError(f"the search is not complete: {said}")
    return Search(int(float(stored[1])), seconds, violated, story)


def find_spin() -> Path:
    """Return Spin: the one on PATH, or Debian's from the cache, fetched first where it lacks it."""
    found = shutil.which("spin")
    if found:
        return Path(found)
    root = cache_folder() / "spin"
    if not root.exists():
        try:
            fetch_package("spin", root, lambda unpacked: (unpacked / PROGRAM).exists())
        except PackageError as error:
            raise SpinError(f"no Spin: {error}") from error
    return root / PROGRAM


def _run(folder: Path, *command: str) -> str:
    environ = {**os.environ, "TMPDIR": str(folder)}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environ, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise SpinError(f"not installed: {command[0]}") from error
    if done.returncode and command[0] != "./pan":
        raise SpinError(f"failed: {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout
