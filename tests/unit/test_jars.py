"""The jars in the user's cache are those of the lock file, whatever has happened to them there."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from txn.cluster import jars
from txn.cluster.jars import Jar, JarError, fetch

GOOD = b"a jar"
JAR = Jar("group:artifact:1", sha256(GOOD).hexdigest())


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What a repository answers, one after the other; it is asked no more often."""
    answers: list[bytes] = []

    def resolve() -> Path:
        path = tmp_path / "fetched"
        path.write_bytes(answers.pop(0))
        return path

    artifact = SimpleNamespace(resolve=resolve, cached_path=None)
    context = SimpleNamespace(create_dependency=lambda _: SimpleNamespace(artifact=artifact))
    monkeypatch.setattr(jars, "_maven", lambda folder: context)
    return answers


def test_a_cached_jar_is_used_as_long_as_it_is_as_locked(
    tmp_path: Path, served: list[bytes]
) -> None:
    served += [GOOD, b"other", GOOD]
    (path,) = fetch(tmp_path / "jars", jars=[JAR])
    assert fetch(tmp_path / "jars", jars=[JAR]) == [path] and len(served) == 2
    path.write_bytes(b"evil!")
    assert fetch(tmp_path / "jars", jars=[JAR]) == [path]
    assert path.read_bytes() == GOOD and not served


def test_a_jar_that_is_never_as_locked_is_refused(tmp_path: Path, served: list[bytes]) -> None:
    served += [b"other"] * 3
    with pytest.raises(JarError, match="not as locked"):
        fetch(tmp_path / "jars", jars=[JAR])
    assert not (tmp_path / "jars" / JAR.name).exists()
