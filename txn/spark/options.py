"""The options of `format("txn")`. An unknown name or a value that does not fit is an error that
names it, before anything is done."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import TypeVar, cast, get_args

from txn.errors import InvalidRequestError
from txn.policy import Policy
from txn.request import TRANSACTIONS, Ack
from txn.spark.workers import Access

N = TypeVar("N", bound=int | None)

POLICY = tuple(field.name for field in fields(Policy))
COMMON = ("uri", "transactions", "view", *POLICY)
"""What every reader and writer takes; fields of Policy are options by their own names."""


def refuse_overwrite(
    overwrite: bool, instead: str = "use mode append; a table is not overwritten"
) -> None:
    """Raise InvalidRequestError where a write is to take the place of what is there."""
    if overwrite:
        raise InvalidRequestError(f"rows are only put and deleted by name: {instead}")


class SourceOptions:
    """What was given with `option(name, value)`; values as text. As everywhere in Spark the case of
    names does not matter, nor do underscores in them: `onceBy` is `once_by`."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {_fold(name): value for name, value in given.items()}

    def check(self, known: Collection[str]) -> None:
        """Raise InvalidRequestError for an option that is neither common nor known."""
        names = sorted({*COMMON, *known})
        unknown = self._given.keys() - {_fold(name) for name in names}
        for name in sorted(unknown):
            raise InvalidRequestError("unknown option", option=name, known=names)

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return an option's text."""
        return self._given.get(_fold(name), default)

    def names(self, name: str) -> list[str]:
        """Return the names of an option that is a list with commas; none where it is not given."""
        found = split_names(self.text(name))
        if not found and self.text(name) is not None:
            raise InvalidRequestError("an option names nothing", option=name)
        return found

    def require(self, name: str) -> str:
        """Return an option's text; InvalidRequestError where it is not given."""
        value = self.text(name)
        if not value:
            raise InvalidRequestError("an option is missing", option=name)
        return value

    def whole(self, name: str, default: N, least: int = 1) -> int | N:
        """Return an option that is a whole number."""
        value = self.text(name)
        if value is None:
            return default
        if not value.isdecimal() or int(value) < least:
            raise InvalidRequestError(
                "an option must be a whole number", option=name, value=value, least=least
            )
        return int(value)

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """Return an option that is one of several words."""
        value = self._given.get(_fold(name), default).lower()
        if value not in choices:
            raise InvalidRequestError(
                "an option has an unknown value", option=name, value=value, choices=list(choices)
            )
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an option that is true or false."""
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def ack(self, default: Ack) -> Ack:
        """Return the option `ack`."""
        return cast(Ack, self.choice("ack", get_args(Ack), default))

    def access(self) -> Access:
        """Return the store that is meant, with its transaction table, default table and policy."""
        given = {name: self.whole(name, 0, 0) for name in POLICY if self.text(name) is not None}
        return Access(
            self.require("uri"),
            self.text("table"),
            self.text("transactions") or TRANSACTIONS,
            Policy(**given) if given else None,
        )


def _fold(name: str) -> str:
    return name.replace("_", "").lower()


def split_names(text: str | None) -> list[str]:
    """Return the names of a list with commas; they may stand in backquotes."""
    return [name.strip(" `") for name in (text or "").split(",") if name.strip(" `")]
