"""The workflow that GitHub runs, as far as that can be told without GitHub."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
import yaml

from tests.release.building import PROJECT, ROOT

FOLDER = ROOT / ".github"
PATH = FOLDER / "workflows" / "ci.yml"
WORKFLOW: dict[str, Any] = yaml.safe_load(PATH.read_text())
JOBS: dict[str, dict[str, Any]] = WORKFLOW["jobs"]
STEPS = [step for job in JOBS.values() for step in job["steps"]]
PROGRAMS = [step["run"] for step in STEPS if "run" in step]

pytestmark = pytest.mark.fast


def test_it_runs_what_a_change_must_pass() -> None:
    assert ".ci/run" in [step.get("run") for step in JOBS["tests"]["steps"]]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_its_targets_are_in_the_makefile() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    targets = {line.split()[1] for line in listed.stdout.splitlines()}
    named = {name for program in PROGRAMS for name in re.findall(r"\bmake ([a-z]+)", program)}
    assert named
    assert named <= targets


def test_it_tries_each_python_that_is_promised() -> None:
    promised = re.findall(r":: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    assert JOBS["versions"]["strategy"]["matrix"]["python"] == promised


def test_it_may_read_and_nothing_else() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert [name for name, job in JOBS.items() if "permissions" in job] == []
    kept = [step for step in STEPS if "checkout" in step.get("uses", "")]
    assert len(kept) == len(JOBS)
    assert all(step["with"]["persist-credentials"] is False for step in kept)
    assert "pull_request_target" not in PATH.read_text()


def test_its_actions_are_fixed_to_a_commit_and_say_which_version() -> None:
    lines = [line for line in PATH.read_text().splitlines() if "uses:" in line]
    assert len(lines) == len([step for step in STEPS if "uses" in step])
    for line in lines:
        assert re.search(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_every_job_ends_by_itself() -> None:
    assert all(0 < job["timeout-minutes"] <= 120 for job in JOBS.values())


def test_github_finds_what_it_shows_to_people() -> None:
    assert {path.name for path in FOLDER.glob("*.md")} == {"CONTRIBUTING.md", "SECURITY.md"}
