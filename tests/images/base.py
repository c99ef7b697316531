"""A base for the images where the registry is out of reach: Debian with its own Python.

It has the release and the minor version of Python that the name of the real one asks for.
"""

from __future__ import annotations

import os
import re
import shutil

from tests.images.buildah import ROOT, Buildah, ImagesError, run

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
