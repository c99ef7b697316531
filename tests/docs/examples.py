"""The Python examples of README, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()
EXAMPLES: list[str] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
