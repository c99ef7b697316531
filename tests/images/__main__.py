"""`make images`: build both images of docker/ without a Docker engine, and use them.

It needs root. Buildah builds and runs them in a folder that is removed afterwards, in namespaces of
its own: no process and no mount stays behind. Their base is made here from Debian's packages, under
the name that the Dockerfiles ask for; with --pull it comes from the registry.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.images.buildah import ROOT, Buildah, ImagesError, make_base, read_base, run, step

TOOLS = {
    "buildah": "buildah",
    "debootstrap": "debootstrap debian-archive-keyring",
    "ip": "iproute2",
    "unshare": "util-linux",
}
"""The programs that this calls, and their packages on Debian."""

IMAGES = ("emulator", "hbase")
NEW_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
AS_INIT = ("sh", "-c", '"$@"; exit $?', "sh")  # it reaps orphans, as compose's `init: true` does
NEW_NETWORK = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def main() -> int:
    options = parse()
    began = time.monotonic()
    try:
        if options.folder:
            return build_and_try(Buildah(options.folder), options.pull)
        find_tools()
    except ImagesError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="txn-images-") as folder:
        again = [sys.executable, *sys.orig_argv[1:], "--folder", folder]
        line = [*NEW_NAMESPACES, *AS_INIT, *again]
        status = subprocess.run(line, cwd=ROOT, check=False).returncode
    print(f"== images: {'FAILED' if status else 'all is well'}, {time.monotonic() - began:.0f} s")
    return status


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.images", description=__doc__)
    parser.add_argument("--pull", action="store_true", help="take the base from the registry")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def find_tools() -> None:
    """Under CI=true install what is missing; anywhere else say what is."""
    if os.geteuid():
        raise ImagesError("only root builds and runs images without a Docker engine: use sudo")
    missing = " ".join(package for name, package in TOOLS.items() if not shutil.which(name))
    if not missing:
        return
    if os.environ.get("CI") != "true" or not shutil.which("apt-get"):
        raise ImagesError(f"programs are missing: apt install {missing}")
    with step(f"tools: apt install {missing}"):
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-qq", "--yes", "--no-install-recommends", *missing.split())


def build_and_try(buildah: Buildah, is_pulled: bool) -> int:
    """Make or fetch the base; build the images beside each other; let a trial use each."""
    with step(f"base: {read_base()}, {'fetched' if is_pulled else 'a Debian in its place'}"):
        if is_pulled:
            buildah.run("pull", read_base())
        else:
            make_base(buildah)
    with ThreadPoolExecutor(len(IMAGES)) as pool:
        builds = {image: pool.submit(buildah.build, image) for image in IMAGES}
        for image, built in builds.items():
            with step(f"{image}: wait until it is built"):
                built.result()
            trial = [sys.executable, "-m", "tests.images.trial", str(buildah.folder), image]
            if subprocess.run([*NEW_NETWORK, *trial], cwd=ROOT, check=False).returncode:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
