"""Each extra alone, in an environment with the wheel and nothing else: it is enough for what it is
for, and where it is missing its name is said.

Those that take long to install are tried by `make release`, which sets HBASE_TXN_TEST_EXTRAS=all.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
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
MISSED = [extra for extra in TRIED if TRIALS[extra].missing]


class Environments:
    """One for each extra, made when it is first asked for."""

    def __init__(self, core: Environment, wheel: Path, place: Path) -> None:
        self._made = {"": core}
        self._wheel = wheel
        self._place = place

    def having(self, extra: str) -> Environment:
        if extra not in self._made:
            self._made[extra] = make_environment(self._place / extra, self._wheel, extra)
        return self._made[extra]


@pytest.fixture(scope="session")
def environments(
    core: Environment, built: Distributions, tmp_path_factory: pytest.TempPathFactory
) -> Environments:
    return Environments(core, built.wheel, tmp_path_factory.mktemp("extras"))


def test_every_extra_has_a_trial_and_is_named_on_a_page() -> None:
    assert sorted(TRIALS) == sorted(EXTRAS), "say how to try each extra in tests/release/trials.py"
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    text = "\n".join(page.read_text() for page in pages)
    assert [extra for extra in EXTRAS if f"`{extra}`" not in text] == []


@pytest.mark.long
@pytest.mark.parametrize("extra", TRIED)
def test_an_extra_is_enough_for_what_it_is_for(extra: str, environments: Environments) -> None:
    done = environments.having(extra).run_program(TRIALS[extra].works)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("extra", MISSED)
def test_an_extra_that_is_missing_is_named(extra: str, environments: Environments) -> None:
    trial = TRIALS[extra]
    done = environments.having(trial.within).run_program(trial.missing)
    assert done.returncode != 0
    assert f"install hbase-txn[{extra}]" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    "program",
    [
        "import txn.stores.hbase.thrift1, txn.stores.hbase.thrift2, txn.stores.hbase.native.store",
        TRIALS["emulator"].works,
        TRIALS["console"].works,
    ],
    ids=["hbase", "emulator", "console"],
)
def test_our_files_are_found_in_a_zip(program: str, tmp_path: Path) -> None:
    """`spark-submit --py-files` and pex import from a zip, where a file beside a module has no
    path."""
    with zipfile.ZipFile(tmp_path / "ours.zip", "w") as ours:
        for name in tracked_files(*PACKAGES):
            ours.write(ROOT / name, name)
    here = Path(sys.executable).parent
    path = f"{here}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", f"import txn; assert '.zip' in txn.__file__\n{program}"],
        env=clean_environ() | {"PYTHONPATH": str(tmp_path / "ours.zip"), "PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
