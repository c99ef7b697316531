"""The directory of an embedded store: ours, of a format that we know, and complete, or refused.

The file `format` says so. It is written last, when LMDB's files are there: a directory with it and
without them has lost them. Until then the file `.format-begun`, written first, tells a store that
is being made, or whose making was cut short, from a directory that belongs to somebody else.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress

from txn.errors import InvalidRequestError, NotApplied
from txn.tables.kv import data_file, exclusion, lock_file

FORMAT = 1

_SHOWN = 5  # names of files, in an error
_NAME = "format"
_ASIDE = ".format-"
_BEGUN = ".format-begun"
_FILES = (data_file.NAME, lock_file.NAME, exclusion.FILE)
_TEXT = "hbase-txn embedded store, format {}\n"
_PATTERN = re.compile(re.escape(_TEXT).replace(r"\{\}", r"(\d{1,9})"))


def prepare_directory(path: str, create: bool) -> str:
    """Return the real path of a store's directory. One that is absent or empty is begun.

    create: otherwise InvalidRequestError is raised, and nothing is written.
    """
    path = os.path.realpath(path)
    try:
        text = _read(path)
        if text is None:
            if not create:
                found = sorted(os.listdir(path))[:_SHOWN] if os.path.exists(path) else None
                raise InvalidRequestError(
                    "no such store: make it with `txn init`", path=path, contains=found or None
                )
            _begin(path)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotApplied("the store's path is not a directory", path=path) from error
    except OSError as error:
        raise NotApplied(
            "cannot use the store's directory", path=path, reason=error.strerror
        ) from error
    if text is not None:
        _check(path, text)
    return path


def is_complete(path: str) -> bool:
    """Return whether the store was made."""
    return os.path.exists(os.path.join(path, _NAME))


def is_writable(path: str) -> bool:
    """Return whether this process may write to the directory, and to its files."""
    files = [os.path.join(path, name) for name in _FILES]
    return os.access(path, os.R_OK | os.W_OK | os.X_OK) and all(
        os.access(file, os.R_OK | os.W_OK) or not os.path.exists(file) for file in files
    )


def complete_directory(path: str) -> None:
    """Write down that the store was made, after its data file, unless that was done."""
    if not is_complete(path):
        _write_format(path)
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(path, _BEGUN))


def _write_format(path: str) -> None:
    _flush(os.path.join(path, data_file.NAME))
    handle, aside = tempfile.mkstemp(prefix=_ASIDE, dir=path)
    with open(handle, "w", encoding="ascii") as file:
        file.write(_TEXT.format(FORMAT))
        os.fchmod(file.fileno(), 0o644)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, os.path.join(path, _NAME))
    _flush(path)


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


def _begin(path: str) -> None:
    os.makedirs(path, exist_ok=True)
    names = os.listdir(path)
    asides = [name for name in names if name.startswith(_ASIDE)]
    others = set(names).difference(asides, _FILES if asides else ())
    if others and not is_complete(path):  # another process may have made it just now
        raise NotApplied(
            "the directory is not a store of ours", path=path, contains=sorted(others)[:_SHOWN]
        )
    os.close(os.open(os.path.join(path, _BEGUN), os.O_WRONLY | os.O_CREAT, 0o644))


def _flush(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
