"""Tokens that servers and their clients share, kept in files."""

from __future__ import annotations

from pathlib import Path

from txn.errors import InvalidRequestError


def read_token(path: Path) -> str:
    """Return the token in a file: its text, without white space around it."""
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeError) as error:
        raise InvalidRequestError(
            "cannot read the token", file=str(path), cause=str(error)
        ) from error
    if not token:
        raise InvalidRequestError("the token's file is empty", file=str(path))
    return token
