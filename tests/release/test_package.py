"""What is published, as it is built and as it is found by who installs it and nothing else; and the
workflow that GitHub runs, as far as that can be told without GitHub."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
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

COMMAND = "from recovery.commands import main; sys.argv[1:] = "
(EXAMPLE,) = list_python(ROOT / "README.md")
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
JOBS: dict[str, dict[str, Any]] = yaml.safe_load(WORKFLOW.read_text())["jobs"]
STEPS = [step for job in JOBS.values() for step in job["steps"]]
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


def test_what_is_built_has_what_git_has_and_nothing_else(built: Distributions) -> None:
    """Who installs misses a template that is not packaged; no other test does."""
    files = {name for name in read_wheel(built.wheel) if ".dist-info/" not in name}
    assert files == set(tracked_files(*PACKAGES))
    assert {f"{package}/py.typed" for package in PACKAGES} <= files
    data = {".lock", ".proto", ".thrift", ".txt", ".typed", ".xml"}
    assert {Path(name).suffix for name in files} >= data
    source = {name for name in list_sdist(built.sdist) if ".egg-info/" not in name}
    assert source - {"PKG-INFO", "setup.cfg"} == set(tracked_files())


def test_the_sdist_makes_the_wheel_that_the_checkout_makes(built: Distributions) -> None:
    assert read_wheel(built.wheel) == read_wheel(built.direct)


def test_the_metadata_is_what_an_index_takes(built: Distributions) -> None:
    metadata = Metadata.from_email(read_metadata(built.wheel), validate=True)
    assert str(metadata.version) == PROJECT["version"]
    assert not metadata.version.is_devrelease or "HBASE_TXN_TEST_DIST" not in os.environ
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description == (ROOT / "README.md").read_text()
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.author
    assert sorted(metadata.provides_extra or []) == sorted(EXTRAS)


@pytest.mark.fast
def test_pythons_that_are_promised_are_the_ones_that_are_tried() -> None:
    minors = re.findall(r":: 3\.(\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    assert minors == ["11", "12", "13", "14"]
    assert SpecifierSet(PROJECT["requires-python"]) == SpecifierSet(f">=3.{minors[0]}")
    assert {*minors} <= {*re.findall(r"\bpython3\.(\d+)", (ROOT / "Makefile").read_text())}
    tried = JOBS["versions"]["strategy"]["matrix"]["python"]
    assert tried == [f"3.{minor}" for minor in minors]


@pytest.mark.fast
def test_the_changes_of_the_version_are_told() -> None:
    heads = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == "Unreleased"
    last, version = re.sub(r" - \d{4}-\d\d-\d\d$", "", heads[1]), Version(PROJECT["version"])
    assert Version(last) < version if version.is_devrelease else last == PROJECT["version"]


@pytest.mark.long
def test_the_example_and_the_command_run_without_an_extra(
    core: Environment, tmp_path: Path
) -> None:
    done = core.run(core.python, "-c", EXAMPLE, HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nothing was written:")
    shown = core.run("txn", "--help")
    assert (shown.returncode, shown.stderr, "fsck" in shown.stdout) == (0, "", True)
    assert core.run("txn", "--version").stdout == f"hbase-txn {PROJECT['version']}\n"


@pytest.mark.long
def test_the_example_is_typed_for_who_installs(core: Environment, tmp_path: Path) -> None:
    """Without py.typed `mypy --strict` complains there and not here."""
    (tmp_path / "example.py").write_text(EXAMPLE)
    (tmp_path / "revealed.py").write_text(REVEALED)
    options: list[str | Path] = ["--strict", "--config-file=", "--cache-dir", core.folder / "mypy"]
    options += ["--python-executable", core.python]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "example.py", "revealed.py"],
        cwd=tmp_path,
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.count("error:") == 0, done.stdout
    assert re.findall(r'Revealed type is ".* -> (\S+)"', done.stdout) == [
        "typing.Iterator[recovery.findings.Finding]",
        "txn.client.engine.Engine",
    ]


@pytest.mark.parametrize(
    "program",
    [
        f"{COMMAND}['--help']; main()",
        f"{EXAMPLE}\n{COMMAND}['ls', '--store', f'embedded://{{Path.home()}}/bank']; main()",
    ],
    ids=["help", "the example and a command"],
)
def test_what_needs_no_extra_imports_none(program: str, tmp_path: Path) -> None:
    """Here all are installed: an import at the wrong place costs each start of a program."""
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
    named = {read_name(line) for line in list_requirements()}
    return {
        module
        for module, distributions in packages_distributions().items()
        if named.difference(core).intersection(map(canonicalize_name, distributions))
    }


def list_requirements() -> list[str]:
    extras = PROJECT["optional-dependencies"].values()
    return [*PROJECT["dependencies"], *(line for lines in extras for line in lines)]


def read_name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


@pytest.mark.long
def test_two_builds_of_a_commit_have_the_same_bytes(tmp_path: Path) -> None:
    """In other folders, at other times and with another umask."""
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


@pytest.mark.fast
def test_lower_bounds_have_no_known_weakness() -> None:
    """An environment that already has an old version keeps it, unless the bound forbids it."""
    bounds = {read_name(line): Requirement(line).specifier for line in list_requirements()}
    for name, weak in WEAK.items():
        assert not any(version in bounds[name] for version in weak), name


@pytest.mark.fast
def test_the_workflow_runs_what_a_change_must_pass() -> None:
    assert ".ci/run" in [step.get("run") for step in JOBS["tests"]["steps"]]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    makefile = (ROOT / "Makefile").read_text()
    programs = "\n".join(step["run"] for step in STEPS if "run" in step)
    targets = set(re.findall(r"\bmake ([a-z]+)", programs))
    assert targets and targets <= set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    assert all(0 < job["timeout-minutes"] <= 120 for job in JOBS.values())
    shown = {path.name for path in (ROOT / ".github").glob("*.md")}
    assert shown == {"CONTRIBUTING.md", "SECURITY.md"}  # GitHub looks for these names


@pytest.mark.fast
def test_the_workflow_may_read_and_nothing_else() -> None:
    """What a pull request brings runs with these rights; a tag can be moved to other code."""
    text = WORKFLOW.read_text()
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    assert [name for name, job in JOBS.items() if "permissions" in job] == []
    kept = [step for step in STEPS if "checkout" in step.get("uses", "")]
    assert len(kept) == len(JOBS)
    assert all(step["with"]["persist-credentials"] is False for step in kept)
    assert "pull_request_target" not in text
    lines = [line for line in text.splitlines() if "uses:" in line]
    assert len(lines) == len([step for step in STEPS if "uses" in step])
    for line in lines:
        assert re.search(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line
