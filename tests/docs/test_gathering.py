"""What the page about many commits shows is tried as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs/gathering.md").read_text(), re.DOTALL)

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("number", range(2))
def test_an_example_does_what_its_own_assertions_say(number: int, tmp_path: Path) -> None:
    """Who copies it must not be the first to run it."""
    example = EXAMPLES[number].replace("/tmp/", f"{tmp_path}/")
    subprocess.run([sys.executable, "-c", example], check=True, cwd=ROOT)


def test_every_example_is_tried() -> None:
    """One that is added is run as well."""
    assert len(EXAMPLES) == 2
