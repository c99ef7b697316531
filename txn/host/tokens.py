"""Access tokens in files, shared by servers and clients."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Callable
from pathlib import Path

from txn.errors import InvalidRequestError, annotate

MOST_PEERS = 1_000
PAUSE_MS = 500  # how long the answer to a wrong token takes


class WrongTokens:
    """Counts wrong tokens by address, and logs the first, second, fourth and so on of each."""

    def __init__(self, log: Callable[[str], object]) -> None:
        self._log = log
        self._counts: dict[str, int] = {}

    def note(self, peer: str) -> None:
        count = self._counts[peer] = self._counts.pop(peer, 0) + 1
        while len(self._counts) > MOST_PEERS:
            self._counts.pop(next(iter(self._counts)), None)
        if count.bit_count() == 1:
            self._log(annotate("a wrong token", peer=peer, count=count))


def read_token(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        is_open = stat.S_ISREG(mode) and mode & 0o006
        token = path.read_text().strip()
    except (OSError, UnicodeError) as error:
        facts = {"file": str(path), "cause": str(error)}
        raise InvalidRequestError("cannot read the token", **facts) from error
    if is_open:
        words = f"others can read or write the token's file: chmod 600 {shlex.quote(str(path))}"
        raise InvalidRequestError(words)
    if not token:
        raise InvalidRequestError("the token's file is empty", file=str(path))
    return token
