"""Access tokens in files, shared by servers and clients."""

from __future__ import annotations

from pathlib import Path

from txn.errors import InvalidRequestError


def read_token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeError) as error:
        raise InvalidRequestError(
            "cannot read the token", file=str(path), cause=str(error)
        ) from error
    if not token:
        raise InvalidRequestError("the token's file is empty", file=str(path))
    return token
