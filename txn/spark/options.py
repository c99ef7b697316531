"""The options of `format("txn")`: an error names an unknown option or a bad value at once."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TypeVar, cast, get_args

from txn.errors import InvalidRequestError
from txn.policy import Policy
from txn.request import TRANSACTIONS, Ack
from txn.spark.partitions import Access

N = TypeVar("N", bound=int | None)

POLICY = tuple(field.name for field in fields(Policy) if field.name != "assertions")
COMMON = ("uri", "transactions", "view", *POLICY)
"""The options of every reader and writer, with the fields of Policy by their own names. But a
writer's `assertions` is a column."""

PATHS = ("path", "paths")
"""What Spark makes of the argument of `load`, `save` and `start`."""

_COMMA = re.compile(r"(`(?:[^`]|``)*`|\((?:`(?:[^`]|``)*`|[^()`]|\([^()]*\))*\))|,")


def is_number(text: str) -> bool:
    """Whether `int` reads this text, and it fits into 64 bits."""
    return text.isdecimal() and len(text) <= 18


class SourceOptions:
    """The options given with `option(name, value)`, as text. As everywhere in Spark, names ignore
    case; they also ignore underscores: `onceBy` is `once_by`."""

    def __init__(self, given: Mapping[str, str]) -> None:
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise InvalidRequestError("options are texts by their names", given=given)
        self._given = {_fold(name): value for name, value in given.items()}

    def check(self, known: Collection[str]) -> None:
        names = {_fold(name): name for name in sorted({*COMMON, *known})}
        for name in sorted(self._given.keys() - names.keys()):
            if name in PATHS:
                raise InvalidRequestError(
                    "a table has no path: leave it out, and name the store and the table with the "
                    "options uri and table",
                    path=self._given[name],
                )
            if near := get_close_matches(name, names, 1):
                raise InvalidRequestError("unknown option", option=name, nearest=names[near[0]])
            raise InvalidRequestError("unknown option", option=name, known=[*names.values()])

    def text(self, name: str, default: str | None = None) -> str | None:
        return self._given.get(_fold(name), default)

    def names(self, name: str) -> list[str]:
        """Return the names in a comma-separated option, or none if it is not given."""
        found = split_names(self.text(name))
        if not found and self.text(name) is not None:
            raise InvalidRequestError("an option names nothing", option=name)
        return found

    def require(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise InvalidRequestError("an option is missing", option=name)
        return value

    def whole(self, name: str, default: N, least: int = 1) -> int | N:
        value = self.text(name)
        if value is None:
            return default
        if not is_number(value) or int(value) < least:
            problem = "an option must be a whole number"
            raise InvalidRequestError(problem, option=name, value=value, least=least)
        return int(value)

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        value = self._given.get(_fold(name), default).lower()
        if value not in choices:
            problem = "an option has an unknown value"
            raise InvalidRequestError(problem, option=name, value=value, choices=list(choices))
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def ack(self, default: Ack) -> Ack:
        return cast(Ack, self.choice("ack", get_args(Ack), default))

    def access(self) -> Access:
        """Return the store with its transaction table and policy; it has no default table."""
        given: dict[str, Any] = {
            name: self.whole(name, 0, 0) for name in POLICY if self.text(name) is not None
        }
        return Access(
            self.require("uri"),
            transactions=self.text("transactions") or TRANSACTIONS,
            policy=Policy(**given) if given else None,
        )


def _fold(name: str) -> str:
    return name.replace("_", "").lower()


def split_list(text: str) -> list[str]:
    """Return the parts between the commas that are outside of backquotes and parentheses."""
    return _COMMA.sub(lambda match: match[1] or "\0", text).split("\0")


def split_names(text: str | None) -> list[str]:
    """Return the names in a comma-separated list; they may be in backquotes."""
    return [name for part in split_list(text or "") if (name := parse_name(part))]


def parse_name(name: str) -> str:
    """Return a name without backquotes around it; within them, two stand for one, as in SQL."""
    name = name.strip()
    if len(name) > 1 and name[0] == name[-1] == "`":
        return name[1:-1].replace("``", "`")
    return name


def match_name(name: str, names: Collection[str]) -> str:
    """Return the one of these columns that the name means: ignoring case, unless one has exactly
    this name. Spark does not tell a source whether `spark.sql.caseSensitive` is set. Without such a
    column the result is the name itself."""
    found = [each for each in names if each.lower() == name.lower()]
    if name in found or not found:
        return name
    if len(found) > 1:
        problem = "a name means several columns: write its case as it is"
        raise InvalidRequestError(problem, name=name, columns=found)
    return found[0]
