"""What is published, as it is built and as it is found by who installs it and nothing else."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from uv import find_uv_bin

from tests.docs.blocks import list_python
from tests.release.building import (
    EXTRAS,
    PACKAGES,
    PROJECT,
    ROOT,
    Distributions,
    Environment,
    clean_environ,
    list_sdist,
    read_metadata,
    read_wheel,
    tracked_files,
)
from tests.release.repack import repack

COMMAND = "from recovery.commands import main; sys.argv[1:] = "
(EXAMPLE,) = list_python(ROOT / "README.md")
PYTHON_VERSION = "Programming Language :: Python :: 3."
WEAK = {
    "h11": ["0.14.0"],  # CVE-2025-43859
    "jinja2": ["3.1.5"],  # CVE-2025-27516
    "msgpack": ["1.1.2", "1.2.0"],  # CVE-2026-57585
    "protobuf": ["5.29.4", "6.30.2", "6.31.0"],  # CVE-2025-4565
    "starlette": ["1.0.1", "1.2.0"],  # CVE-2026-48710, CVE-2026-54283
}
"""Versions with known weaknesses of what reads from a network or a table."""
REVEALED = """
from recovery import check
from txn import connect

reveal_type(check)
reveal_type(connect)
"""

LIST_MODULES = """
import atexit, json, runpy, sys
atexit.register(lambda: print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules}))))
"""


def test_the_wheel_has_what_git_has_and_nothing_else(built: Distributions) -> None:
    files = {name for name in read_wheel(built.wheel) if ".dist-info/" not in name}
    assert files == set(tracked_files(*PACKAGES))
    assert {f"{package}/py.typed" for package in PACKAGES} <= files
    data = {".lock", ".proto", ".thrift", ".txt", ".typed", ".xml"}
    assert {Path(name).suffix for name in files} >= data


def test_the_sdist_makes_the_wheel_that_the_checkout_makes(built: Distributions) -> None:
    assert read_wheel(built.wheel) == read_wheel(built.direct)


def test_the_sdist_is_the_whole_repository(built: Distributions) -> None:
    files = {name for name in list_sdist(built.sdist) if ".egg-info/" not in name}
    assert files - {"PKG-INFO", "setup.cfg"} == set(tracked_files())


def test_the_metadata_is_what_an_index_takes(built: Distributions) -> None:
    metadata = Metadata.from_email(read_metadata(built.wheel), validate=True)
    assert str(metadata.version) == PROJECT["version"]
    assert not metadata.version.is_devrelease or "HBASE_TXN_TEST_DIST" not in os.environ
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description == (ROOT / "README.md").read_text()
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.author
    assert sorted(metadata.provides_extra or []) == sorted(EXTRAS)


def test_pythons_that_are_promised_are_the_ones_that_are_tried() -> None:
    minors = [
        int(line.removeprefix(PYTHON_VERSION))
        for line in PROJECT["classifiers"]
        if line.startswith(PYTHON_VERSION)
    ]
    assert minors == [11, 12, 13, 14]
    assert SpecifierSet(PROJECT["requires-python"]) == SpecifierSet(f">=3.{minors[0]}")
    sought = re.findall(r"\bpython3\.(\d+)", (ROOT / "Makefile").read_text())
    assert set(map(str, minors)) <= set(sought)


def test_the_changes_of_the_version_are_told() -> None:
    heads = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == "Unreleased"
    last, version = re.sub(r" - \d{4}-\d\d-\d\d$", "", heads[1]), Version(PROJECT["version"])
    assert Version(last) < version if version.is_devrelease else last == PROJECT["version"]


def test_the_example_runs_without_an_extra(core: Environment, tmp_path: Path) -> None:
    done = core.run(core.python, "-c", EXAMPLE, HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nothing was written:")


def test_the_command_is_there_and_says_its_version(core: Environment) -> None:
    shown = core.run("txn", "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "fsck" in shown.stdout
    assert core.run("txn", "--version").stdout == f"hbase-txn {PROJECT['version']}\n"


def test_the_example_is_typed_for_who_installs(core: Environment, tmp_path: Path) -> None:
    example, revealed = tmp_path / "example.py", tmp_path / "revealed.py"
    example.write_text(EXAMPLE)
    revealed.write_text(REVEALED)
    done = run_mypy(core, example, revealed)
    assert done.stdout.count("error:") == 0, done.stdout
    assert re.findall(r'Revealed type is ".* -> (\S+)"', done.stdout) == [
        "typing.Iterator[recovery.findings.Finding]",
        "txn.client.engine.Engine",
    ]


def test_a_wrong_call_is_seen_from_outside(core: Environment, tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    program.write_text("from txn import Key, Mutation\nMutation(Key('a', 'b', 'c'), 17)\n")
    done = run_mypy(core, program)
    assert done.returncode == 1
    assert "[arg-type]" in done.stdout


def run_mypy(core: Environment, *programs: Path) -> subprocess.CompletedProcess[str]:
    """Run the mypy of the tests on programs of the environment, in which it is not installed."""
    arguments = ["--strict", "--config-file=", "--cache-dir", core.folder / "mypy"]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *arguments, "--python-executable", core.python, *programs],
        cwd=programs[0].parent,
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "program",
    [
        EXAMPLE,
        f"{COMMAND}['--help']; main()",
        f"{EXAMPLE}\n{COMMAND}['ls', '--store', f'embedded://{{Path.home()}}/bank']; main()",
    ],
    ids=["the example", "help", "a command"],
)
def test_what_needs_no_extra_imports_none(program: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIST_MODULES + program],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "80", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    imported = set(json.loads(done.stdout.splitlines()[-1]))
    assert {"txn", "msgpack"} <= imported
    assert imported & modules_of_extras() == set()


def modules_of_extras() -> set[str]:
    """The modules of what the extras name, but not those that every installation has."""
    core = {read_name(line) for line in PROJECT["dependencies"]} | {PROJECT["name"]}
    named = {
        read_name(line) for lines in PROJECT["optional-dependencies"].values() for line in lines
    }
    return {
        module
        for module, distributions in packages_distributions().items()
        if named.difference(core).intersection(map(canonicalize_name, distributions))
    }


def read_name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def test_a_repacked_sdist_does_not_depend_on_where_it_was_built(tmp_path: Path) -> None:
    packed = []
    for number, names in enumerate((["a", "b"], ["b", "a"])):
        sdist = tmp_path / f"{number}.tar.gz"
        with tarfile.open(sdist, "w:gz") as archive:
            for name in names:
                member = tarfile.TarInfo(f"x/{name}")
                member.mtime, member.uid, member.uname = number, number, f"user{number}"
                member.mode, member.size = (0o664, 0o600)[number], 1
                archive.addfile(member, io.BytesIO(name.encode()))
        repack(sdist, 1_700_000_000)
        packed.append(sdist.read_bytes())
    assert packed[0] == packed[1]


@pytest.mark.long
def test_two_builds_of_a_commit_have_the_same_bytes(tmp_path: Path) -> None:
    found = []
    for number, mask in enumerate((0o022, 0o077)):
        out, place = tmp_path / f"out{number}", tmp_path / f"place{number}"
        place.mkdir()
        environ = clean_environ() | {"TMPDIR": str(place)}
        path = f"{Path(find_uv_bin()).parent}{os.pathsep}{environ['PATH']}"
        command = [str(ROOT / "tests/release/build.sh"), str(out)]
        subprocess.run(command, env=environ | {"PATH": path}, check=True, umask=mask)
        found.append({each.name: each.read_bytes() for each in out.glob("hbase_txn*")})
    assert len(found[0]) == 2 and found[0] == found[1]


def test_lower_bounds_have_no_known_weakness() -> None:
    extras = PROJECT["optional-dependencies"].values()
    lines = [*PROJECT["dependencies"], *(line for lines in extras for line in lines)]
    bounds = {read_name(line): Requirement(line).specifier for line in lines}
    for name, weak in WEAK.items():
        assert not any(version in bounds[name] for version in weak), name
