"""What `txn` offers is imported when it is used, and is all there."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import txn


@pytest.mark.parametrize("name", txn.__all__)
def test_a_public_name_is_there_and_is_what_its_module_has(name: str) -> None:
    """A name is listed in three places of `txn/__init__.py`, and would be missed in none."""
    assert getattr(txn, name) is getattr(import_module(txn._PLACES[name]), name)


def test_no_other_name_has_a_place() -> None:
    """What is not public is no name of `txn`."""
    assert sorted(txn._PLACES) == sorted(txn.__all__)
    with pytest.raises(AttributeError, match="'txn' has no attribute 'Nothing'"):
        txn.Nothing  # noqa: B018
    assert set(txn.__all__) <= set(dir(txn))


def test_a_part_of_the_library_does_not_import_all_of_it() -> None:
    """The plugin of pytest is imported by each test run of each project beside us."""
    program = "import sys, txn.errors; print(*sorted(n for n in sys.modules if n[:3] == 'txn'))"
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout == "txn txn.errors\n"
