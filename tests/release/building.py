"""The wheel and the sdist of this checkout, and environments into which they are installed.

uv makes both: it links what it has fetched once, so that a clean environment takes a second.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uv import find_uv_bin

ROOT = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = PYPROJECT["project"]
EXTRAS: list[str] = list(PROJECT["optional-dependencies"])
PACKAGES = ("txn", "recovery")
OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables by which an environment would find this checkout, or the one that the tests run in."""


@dataclass(frozen=True)
class Distributions:
    """What was built from the files that git knows."""

    sdist: Path
    wheel: Path  # from the sdist, as it is published
    direct: Path  # a wheel from the checkout itself


@dataclass(frozen=True)
class Environment:
    """A virtual environment with nothing of ours but what was installed into it."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run(self, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment, in an empty folder."""
        place = self.folder / "empty"
        place.mkdir(exist_ok=True)
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            command,
            cwd=place,
            env=clean_environ() | {"PATH": path, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    def run_program(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python source."""
        return self.run(self.python, "-c", program, *arguments)


def clean_environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in OURS}


def run_uv(*arguments: str | Path) -> str:
    """Return what uv prints; what it says where it fails is in the error."""
    said = subprocess.run(
        [find_uv_bin(), *arguments],
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, f"uv {' '.join(map(str, arguments))}: {said.stderr}"
    return said.stdout


def tracked_files(*folders: str) -> list[str]:
    """The paths of what git knows, as they are in the work tree."""
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def build_distributions(place: Path) -> Distributions:
    """Build from a copy: what earlier builds left in the checkout would come into the wheel.

    `make release` names the folder of what is to be published, which is then taken in its place.
    """
    tree, made = place / "tree", place / "built"
    for name in tracked_files():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)
    if given := os.environ.get("HBASE_TXN_TEST_DIST"):
        made = ROOT / given
    else:
        run_uv("build", "--quiet", "--out-dir", made, tree)
    run_uv("build", "--quiet", "--wheel", "--out-dir", place / "direct", tree)
    (sdist,) = made.glob("*.tar.gz")
    (wheel,) = made.glob("*.whl")
    (direct,) = (place / "direct").glob("*.whl")
    return Distributions(sdist, wheel, direct)


def make_environment(folder: Path, wheel: Path, extra: str = "") -> Environment:
    """Make an environment of the Python that runs the tests, with the wheel and one extra."""
    run_uv("venv", "--quiet", "--python", sys.executable, folder)
    wanted = f"{PROJECT['name']}[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
    run_uv("pip", "install", "--quiet", "--python", folder, wanted)
    run_uv("pip", "check", "--quiet", "--python", folder)
    return Environment(folder)


def read_wheel(wheel: Path) -> dict[str, str]:
    """Each file of a wheel and what it hashes to, but for the list of these hashes."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/RECORD")]
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in names}


def read_metadata(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name)


def list_sdist(sdist: Path) -> Iterator[str]:
    """Yield the files of an sdist, below its one folder."""
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            if member.isfile():
                yield member.name.partition("/")[2]
