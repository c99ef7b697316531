"""The options of `format("txn")`: an error names an unknown option or a bad value at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, TypeVar, cast, get_args

from txn.errors import InvalidRequestError
from txn.policy import Policy
from txn.request import TRANSACTIONS, Ack
from txn.spark.partitions import Access

N = TypeVar("N", bound=int | None)

POLICY = tuple(field.name for field in fields(Policy))
COMMON = ("uri", "transactions", "view", *POLICY)
"""The options of every reader and writer, with the fields of Policy by their own names."""


class SourceOptions:
    """The options given with `option(name, value)`, as text. As everywhere in Spark, names ignore
    case; they also ignore underscores: `onceBy` is `once_by`."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {_fold(name): value for name, value in given.items()}

    def check(self, known: Collection[str]) -> None:
        """Raise InvalidRequestError for an option that is neither common nor known."""
        names = sorted({*COMMON, *known})
        unknown = self._given.keys() - {_fold(name) for name in names}
        for name in sorted(unknown):
            raise InvalidRequestError("unknown option", option=name, known=names)

    def text(self, name: str, default: str | None = None) -> str | None:
        return self._given.get(_fold(name), default)

    def names(self, name: str) -> list[str]:
        """Return the names in a comma-separated option, or none if it is not given."""
        found = split_names(self.text(name))
        if not found and self.text(name) is not None:
            raise InvalidRequestError("an option names nothing", option=name)
        return found

    def require(self, name: str) -> str:
        """Return an option's text, or raise InvalidRequestError if it is not given."""
        value = self.text(name)
        if not value:
            raise InvalidRequestError("an option is missing", option=name)
        return value

    def whole(self, name: str, default: N, least: int = 1) -> int | N:
        value = self.text(name)
        if value is None:
            return default
        if not value.isdecimal() or int(value) < least:
            raise InvalidRequestError(
                "an option must be a whole number", option=name, value=value, least=least
            )
        return int(value)

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        value = self._given.get(_fold(name), default).lower()
        if value not in choices:
            raise InvalidRequestError(
                "an option has an unknown value", option=name, value=value, choices=list(choices)
            )
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def ack(self, default: Ack) -> Ack:
        return cast(Ack, self.choice("ack", get_args(Ack), default))

    def access(self) -> Access:
        """Return the store with its transaction table and policy; it has no default table."""
        given: dict[str, Any] = {
            name: self.text(name) if name == "assertions" else self.whole(name, 0, 0)
            for name in POLICY
            if self.text(name) is not None
        }
        return Access(
            self.require("uri"),
            transactions=self.text("transactions") or TRANSACTIONS,
            policy=Policy(**given) if given else None,
        )


def _fold(name: str) -> str:
    return name.replace("_", "").lower()


def split_names(text: str | None) -> list[str]:
    """Return the names in a comma-separated list; they may be in backquotes."""
    return [name.strip(" `") for name in (text or "").split(",") if name.strip(" `")]
