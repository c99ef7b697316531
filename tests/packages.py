"""Programs of Debian's packages for tests, fetched without root where they are not installed.

A package is downloaded with all that it needs and is not installed, by apt, which checks it, and
unpacked into a folder that is kept. `python -m tests.packages` fetches all that tests need and this
machine lacks; `make test` does so beside the unit tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path


class PackageError(Exception):
    """A package cannot be had, and why."""


def fetch_package(package: str, target: Path, is_whole: Callable[[Path], object]) -> None:
    """Unpack a package into a folder, which is moved to its place whole: two may do this at once.

    is_whole: whether what is wanted is in the unpacked folder; else PackageError.
    """
    if not shutil.which("apt-get"):
        raise PackageError(f"no apt-get to fetch it: install {package}, and put it on PATH")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{package}-", dir=target.parent) as place:
        folder = Path(place)
        unpacked = folder / "unpacked"
        for archive in _download(package, folder):
            _call(folder, "dpkg-deb", "-x", str(archive), str(unpacked))
        if not is_whole(unpacked):
            raise PackageError(f"apt-get has no package {package}: install it")
        unpacked.chmod(0o755)
        with suppress(OSError):
            unpacked.rename(target)
    if not target.exists():
        raise PackageError(f"cannot be kept: {target}")


def library_path(root: Path) -> dict[str, str]:
    """Return the variable by which a program that was unpacked finds the libraries that were
    unpacked with it; none for a program that is installed."""
    libraries = [*root.glob("usr/lib/*-linux-*"), *root.glob("lib/*-linux-*")]
    private = {each.parent for folder in libraries for each in folder.glob("*/lib*.so*")}
    folders = [*libraries, *sorted(private)]
    return {} if root == Path("/") else {"LD_LIBRARY_PATH": ":".join(map(str, folders))}


def _download(package: str, folder: Path) -> list[Path]:
    """Download it and all that it needs and is not installed, with this machine's package lists or
    with fresh ones of our own."""
    archives = folder / "cache" / "archives"
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    options = [f"-oDir::Cache={folder}/cache", "-oDebug::NoLocking=true"]
    own = [f"-oDir::State::lists={folder}/lists"]
    wanted = ("install", "--download-only", "--no-install-recommends", "--yes", package)
    try:
        _call(folder, "apt-get", "-qq", *options, *wanted)
    except PackageError:
        _call(folder, "apt-get", "-qq", *options, *own, "update")
        _call(folder, "apt-get", "-qq", *options, *own, *wanted)
    return sorted(archives.glob("*.deb"))


def _call(folder: Path, *command: str) -> None:
    environ = {**os.environ, "TMPDIR": str(folder)}
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise PackageError(f"not installed: {command[0]}") from error
    if done.returncode:
        raise PackageError(f"failed: {' '.join(command)}\n{done.stdout}{done.stderr}")


def main() -> None:
    # imported here: these fetch packages by this module
    from tests.console.browser import find_chromium  # noqa: PLC0415
    from tests.integration.postgresql import find_programs  # noqa: PLC0415
    from tests.model.spin import find_spin  # noqa: PLC0415
    from txn.cluster.jars import fetch  # noqa: PLC0415

    with ThreadPoolExecutor() as pool:
        finders = (fetch, find_chromium, find_programs, find_spin)
        for found in [pool.submit(find) for find in finders]:
            found.result()


if __name__ == "__main__":
    main()
