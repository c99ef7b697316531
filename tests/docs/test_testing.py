"""The examples of docs/testing.md are run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast


def test_the_examples_of_the_page_run_one_after_the_other() -> None:
    """They assert what they say."""
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 2
    exec("\n".join(examples), {})
