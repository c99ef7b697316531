"""HBase's jars: their lock files, their cache and their download.

`jars-VERSION.lock` names every jar of a version and its SHA-256, so all machines run the same bytes
and none resolves dependencies. jgo fetches the jars that the user's cache lacks or has with another
hash. A jar is hashed before it gets its name in the cache, and again at each use.
`python -m txn.cluster.jars VERSION` prints a lock file, also for `group:artifact:version`.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from txn.errors import TxnError
from txn.host.extras import require_extra
from txn.host.java import cache_folder

if TYPE_CHECKING:
    from jgo.maven import MavenContext

HBASE_VERSION = "2.6.1"  # the default
HBASE_VERSIONS = ("2.4.17", "2.5.8", HBASE_VERSION)  # those with a lock file, oldest first
DOWNLOADS_AT_ONCE = 8
REPOSITORY_TIMEOUT_S = 60
TRIES = 3


class JarError(TxnError):
    """A jar cannot be fetched, or its hash differs from the lock file: check the network."""


class Jar(NamedTuple):
    coordinates: str
    sha256: str

    @property
    def name(self) -> str:
        _, artifact, version = self.coordinates.split(":")
        return f"{artifact}-{version}.jar"


def read_locked(version: str = HBASE_VERSION) -> list[Jar]:
    """Return the jars of a version, in class path order."""
    return parse_lock(files("txn.cluster").joinpath(f"jars-{version}.lock").read_text())


def parse_lock(text: str) -> list[Jar]:
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return [Jar(coordinates, sha256) for coordinates, sha256 in lines]


def fetch(
    folder: Path | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    jars: Sequence[Jar] | None = None,
) -> list[Path]:
    """Return the class path, after fetching the jars that the folder lacks. Raises JarError.

    folder: by default in the user's cache. on_progress: receives the number of fetched jars and of
    missing jars. jars: by default those of HBASE_VERSION.
    """
    folder = folder or cache_folder() / "jars"
    jars = read_locked() if jars is None else jars
    with ThreadPoolExecutor() as pool:
        places = (folder / jar.name for jar in jars)
        cached = list(pool.map(lambda at: _sha256(at) if at.exists() else None, places))
    missing = [jar for jar, sha256 in zip(jars, cached, strict=True) if sha256 != jar.sha256]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as place,
            ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool,
        ):
            context = _maven(Path(place))
            on_progress(0, len(missing))
            tasks = [pool.submit(_fetch_one, context, jar, folder) for jar in missing]
            try:
                for done, task in enumerate(as_completed(tasks), start=1):
                    task.result()
                    on_progress(done, len(missing))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return [folder / jar.name for jar in jars]


def _fetch_one(context: MavenContext, jar: Jar, folder: Path) -> None:
    artifact = context.create_dependency(jar.coordinates).artifact
    for left in reversed(range(TRIES)):
        try:
            path = artifact.resolve()
        except (OSError, RuntimeError) as error:  # what jgo and its HTTP library raise
            if not left:
                raise JarError(f"cannot fetch a jar: {error}", jar=jar.name) from error
        else:
            if (found := _sha256(path)) == jar.sha256:
                os.replace(path, folder / jar.name)
                return
            if not left:
                raise JarError("a jar is not as locked", jar=jar.name, sha256=found)
        if artifact.cached_path is not None:
            artifact.cached_path.unlink(missing_ok=True)  # jgo would accept a truncated file


def _maven(folder: Path) -> MavenContext:
    """Return a context for Maven Central, or for the repositories in the user's jgo settings."""
    with require_extra("cluster"):  # imported here: most users of the package start no cluster
        from jgo.config import GlobalSettings  # noqa: PLC0415
        from jgo.maven import MavenContext, ProfileConstraints, PythonResolver  # noqa: PLC0415
    # HBase 2.4 names Hadoop's jars in a default profile, which jgo does not activate by itself.
    profiles = ProfileConstraints(properties={"!hadoop.profile": ""})
    context = MavenContext(
        PythonResolver(profiles), repo_cache=folder, local_repos=[], timeout=REPOSITORY_TIMEOUT_S
    )
    context.remote_repos.update(GlobalSettings.load().repositories)
    return context


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lock(wanted: str) -> Iterator[str]:
    """Yield the lines of a new lock file for an HBase version, or for `group:artifact:version`."""
    about, roots = wanted, [wanted]
    if ":" not in wanted:  # the dependencies of these two include all others
        about = f"HBase {wanted}"
        roots = [f"org.apache.hbase:hbase-{name}:{wanted}" for name in ("server", "thrift")]
    yield f"# The class path of {about}; written by `python -m txn.cluster.jars {wanted}`."
    with tempfile.TemporaryDirectory() as place:
        context = _maven(Path(place))
        needed_by = [context.create_dependency(root) for root in roots]
        resolved, others = context.resolver.resolve(needed_by)
        for needed in [*resolved, *others]:
            path = needed.artifact.resolve()
            name = f"{needed.groupId}:{needed.artifactId}:{needed.version}"
            yield f"{name} {_sha256(path)}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in lock(*sys.argv[1:]))
