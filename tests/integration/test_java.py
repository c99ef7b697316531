"""Finding a Java: stand-ins for runtimes are short scripts that answer as a real one would."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import txn.host.java
from txn.host.java import JavaNotFoundError, find_java_home

pytestmark = pytest.mark.fast


def make_java(home: Path, version: str, *, vector: bool = True) -> Path:
    refusal = "" if vector else 'case "$*" in *jdk.incubator.vector*) exit 1;; esac\n'
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f'#!/bin/sh\n{refusal}case "$*" in\n*-version) echo \'openjdk version "{version}"\' >&2;;\n'
        '*) printf "%s\\n" "$@";;\nesac\n'
    )
    java.chmod(0o755)
    return home


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "user"), "PATH": "/nonexistent"}


def test_java_home_of_the_user_comes_first(tmp_path: Path, environ: dict[str, str]) -> None:
    """Who sets JAVA_HOME has a reason; another Java on the machine must not win over it."""
    environ["JAVA_HOME"] = str(make_java(tmp_path / "mine", "21.0.8"))
    make_java(tmp_path / "jvm" / "theirs", "17.0.15")
    assert find_java_home(environ, (f"{tmp_path}/jvm/*",)) == tmp_path / "mine"


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "25", "broken"])
def test_a_java_that_spark_does_not_run_on_is_passed_over(
    tmp_path: Path, environ: dict[str, str], version: str
) -> None:
    """A machine often has a newer or older Java in JAVA_HOME, on which Spark fails obscurely."""
    environ["JAVA_HOME"] = str(make_java(tmp_path / "unfit", version))
    fit = make_java(tmp_path / "jvm" / "fit", "17.0.15")
    assert find_java_home(environ, (f"{tmp_path}/jvm/*",)) == fit


def test_path_is_followed_to_the_home_behind_its_links(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """Systems put a link to java on PATH; JAVA_HOME must be the folder that it leads to."""
    home = make_java(tmp_path / "real", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    environ["PATH"] = str(tmp_path / "bin")
    assert find_java_home(environ, ()) == home


def test_a_java_without_the_vector_module_gets_a_home_that_drops_the_flag(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """Spark always asks for the module; a small runtime ends at once on that flag alone."""
    environ["JAVA_HOME"] = str(make_java(tmp_path / "small", "21.0.8", vector=False))
    home = find_java_home(environ, ())
    assert home.is_relative_to(tmp_path / "user" / ".cache" / "hbase-txn")
    module = "jdk.incubator.vector"
    asked = [f"--add-modules={module}", "--add-modules", module, "--add-modules", "java.sql"]
    said = subprocess.run(
        [home / "bin" / "java", "-Da=b c", *asked, "Main", "", "*"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split("\n") == ["-Da=b c", "--add-modules=java.sql", "Main", "", "*", ""]
    assert find_java_home(environ, ()) == home


def test_a_home_is_made_where_the_cache_cannot_be_written(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """Containers run without a home directory; Spark must still start there."""
    environ["XDG_CACHE_HOME"] = "/dev/null/cache"
    environ["JAVA_HOME"] = str(make_java(tmp_path / "small", "21.0.8", vector=False))
    assert (find_java_home(environ, ()) / "bin" / "java").is_file()


def test_the_java_from_pypi_is_the_last_resort_and_without_it_none_fits(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (find_java_home(environ, ()) / "bin" / "java").is_file()
    monkeypatch.setattr(txn.host.java, "find_spec", lambda name: None)
    with pytest.raises(JavaNotFoundError, match=r"versions=\(17, 21\)"):
        find_java_home(environ, ())
