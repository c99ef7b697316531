"""The plugin of pytest as one that is installed, wherever the tests' own installation is from."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def install_plugin(folder: Path) -> str:
    """Make a distribution with the entry point that pyproject.toml has; return the PYTHONPATH with
    it and the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ((name, module),) = project["entry-points"]["pytest11"].items()
    told = folder / "as_installed-1.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: as-installed\nVersion: 1\n")
    (told / "entry_points.txt").write_text(f"[pytest11]\n{name} = {module}\n")
    return os.pathsep.join([str(folder), str(ROOT)])
