"""Replies that count only once the client has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class Revocable(list[Any]):
    """A list to return; `revoke` undoes the call where the client certainly did not get it all."""

    __slots__ = ("revoke",)

    def __init__(self, items: Iterable[Any], revoke: Callable[[], None]) -> None:
        super().__init__(items)
        self.revoke = revoke
