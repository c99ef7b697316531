"""The directory of an embedded store: ours, of a format that we know, and writable, or refused.

The file `format` says so. It is complete from the moment it exists (written aside, flushed,
renamed) and comes before any data, so a directory with other files and without it belongs to
somebody else.
"""

from __future__ import annotations

import os
import re
import tempfile

from txn.errors import InvalidRequestError, NotApplied

FORMAT = 1

_NAME = "format"
_ASIDE = ".format-"
_TEXT = "hbase-txn embedded store, format {}\n"
_PATTERN = re.compile(re.escape(_TEXT).replace(r"\{\}", r"(\d{1,9})"))


def prepare_directory(path: str, create: bool) -> str:
    """Return the real path of the store's directory, which is made if it is absent or empty.

    create: otherwise InvalidRequestError is raised, and nothing is written.
    """
    path = os.path.realpath(path)
    try:
        text = _read(path)
        if text is None:
            if not create:
                raise InvalidRequestError("no such store", path=path)
            os.makedirs(path, exist_ok=True)
            _claim(path)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotApplied("the store's path is not a directory", path=path) from error
    except OSError as error:
        raise NotApplied(
            "cannot use the store's directory", path=path, reason=error.strerror
        ) from error
    if text is not None:
        _check(path, text)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise NotApplied("the store's directory is read-only", path=path)
    return path


def _read(path: str) -> str | None:
    try:
        with open(os.path.join(path, _NAME), "rb") as file:
            return file.read(200).decode("ascii", "replace")
    except FileNotFoundError:
        return None


def _check(path: str, text: str) -> None:
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise NotApplied("the directory is not a store of ours", path=path, format=text)
    if int(found[1]) > FORMAT:
        raise NotApplied(
            "the store is of a newer format: use a newer hbase-txn",
            path=path,
            format=int(found[1]),
            known=FORMAT,
        )


def _claim(path: str) -> None:
    """Write the format file; two processes that do so at once write the same."""
    others = [name for name in os.listdir(path) if not name.startswith(_ASIDE)]
    if others and _read(path) is None:
        raise NotApplied(
            "the directory is not a store of ours", path=path, contains=sorted(others)[:5]
        )
    handle, aside = tempfile.mkstemp(prefix=_ASIDE, dir=path)
    with open(handle, "w", encoding="ascii") as file:
        file.write(_TEXT.format(FORMAT))
        os.fchmod(file.fileno(), 0o644)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, os.path.join(path, _NAME))
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
