"""Buildah with a storage of its own, and what every step needs: commands, errors, progress."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class ImagesError(Exception):
    """The images cannot be tried here, or one does not do what it should."""


@contextmanager
def step(text: str) -> Iterator[None]:
    """Print a line for what the block does, with the seconds that it took."""
    print(f"== {text} ", end="", flush=True)
    began = time.monotonic()
    try:
        yield
    except BaseException:
        print("FAILED", flush=True)
        raise
    print(f"{time.monotonic() - began:.1f} s", flush=True)


def run(*command: str | Path) -> str:
    """Return what a command prints; one that fails raises ImagesError with its last words."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise ImagesError(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{said}")
    return done.stdout.strip()


@dataclass(frozen=True)
class Buildah:
    """Buildah's images and containers below a folder; RUN and run use chroot, so need no daemon."""

    folder: Path

    def line(self, command: str, *arguments: str | Path) -> list[str | Path]:
        """Return a command line of buildah."""
        storage = ("--root", self.folder / "storage", "--runroot", self.folder / "run")
        isolation = ("--isolation", "chroot") if command in ("build", "run") else ()
        return ["buildah", *storage, command, *isolation, *arguments]

    def run(self, command: str, *arguments: str | Path) -> str:
        return run(*self.line(command, *arguments))

    def build(self, image: str) -> None:
        """Build docker/IMAGE as Docker does: its own format has health checks, OCI's has none."""
        dockerfile = f"docker/{image}/Dockerfile"
        options = ("--format", "docker", "--pull-never", "--file", dockerfile, "--tag", image)
        self.run("build", *options, ".")

    def describe(self, image: str) -> dict[str, Any]:
        """Return what the image's Dockerfile says: User, Cmd, Healthcheck, ..."""
        described = json.loads(self.run("inspect", "--type", "image", image))
        config: dict[str, Any] = described["Docker"]["config"]
        return config


PACKAGES = "python3-venv,ca-certificates"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
FILES = (CERTIFICATES, "/etc/pip.conf")
VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
"""This machine's settings for downloads, which builds get with the base."""


def read_base() -> str:
    """Return the name of the base, which all stages of all Dockerfiles share."""
    text = "".join(path.read_text() for path in (ROOT / "docker").glob("*/Dockerfile"))
    (name,) = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE))
    return f"docker.io/library/{name}"


def make_base(buildah: Buildah) -> None:
    """Make an image of such a Debian, under the name of the base."""
    name = read_base()
    python, suite = re.findall(r"python:([\d.]+)-slim-(\w+)$", name)[0]
    container = buildah.run("from", "scratch")
    tree = buildah.run("mount", container)
    mirror = [os.environ["MIRROR"]] if "MIRROR" in os.environ else []
    run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", suite, tree, *mirror)
    if not os.path.exists(f"{tree}/usr/bin/python{python}"):
        raise ImagesError(f"Debian {suite} has no Python {python}, which {name} has")
    os.symlink("python3", f"{tree}/usr/bin/python")
    for file in filter(os.path.exists, FILES):
        shutil.copyfile(file, f"{tree}{file}")
    settings = {each: os.environ[each] for each in VARIABLES if each in os.environ}
    settings["REQUESTS_CA_BUNDLE"] = CERTIFICATES  # else requests trusts the list that it brings
    given = [word for item in settings.items() for word in ("--env", "=".join(item))]
    buildah.run("config", *given, container)
    buildah.run("commit", "--quiet", "--rm", container, name)
