"""Folders and files that are still there after a power failure."""

from __future__ import annotations

import os
from contextlib import suppress


def make_folder(path: str) -> None:
    """Make a folder and those above it, unless they are there. Each is on disk before the next, so
    a process that is killed leaves at most one that is not: the first one found is flushed too."""
    path = os.path.realpath(path)
    above = os.path.dirname(path)
    if not os.path.isdir(path):
        make_folder(above)
        os.makedirs(path, exist_ok=True)  # alone, or made by another process meanwhile
    with suppress(PermissionError):  # then this process did not make what is in it
        flush(above)


def flush(path: str) -> None:
    """Put a file's content, or the names in a folder, on disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
