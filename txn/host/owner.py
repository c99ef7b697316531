"""Names of owners: of transactions, `program[process id]@host`, and of locks, the user's."""

from __future__ import annotations

import getpass
import os
import sys
from functools import lru_cache
from pathlib import Path

from txn.errors import InvalidRequestError

MAX_NAME = 64  # the most characters of a program's name, and of a host's


def name_owner(name: str | None = None) -> str:
    """Return the text for this process. name: of the program; None: of its script or module."""
    return _describe(name, os.getpid())  # a forked child has another


@lru_cache(maxsize=16)
def _describe(name: str | None, pid: int) -> str:
    program, host = name or _find_program(), os.uname().nodename
    text = f"{program[:MAX_NAME]}[{pid}]@{host[:MAX_NAME]}"
    return text.encode(errors="backslashreplace").decode()


def _find_program() -> str:
    """Return the name of the module that `python -m` runs, or of the script; never an argument."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return str(spec.name.removesuffix(".__main__"))
    script = Path(sys.argv[0]).name if getattr(sys, "argv", None) else ""
    return script if script.strip("-") not in ("", "c") else "python"


def check_name(name: str | None) -> None:
    """Raise InvalidRequestError unless the name of a program is None, or text of bounded length."""
    if name is None:
        return
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        words = f"name must be printable text of 1 to {MAX_NAME} characters"
        raise InvalidRequestError(words, given=ascii(name)[: 2 * MAX_NAME])


def login_name() -> str:
    """Return the user's name, or the user id if it has no name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
