"""Parse the arguments of HBase's filters, and run comparators."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1
COMPARISONS: dict[str, Callable[[bytes, bytes], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


@dataclass(frozen=True, slots=True)
class Comparator:
    """A value and the way to compare it with a part of a cell."""

    kind: Literal["binary", "binaryprefix", "regexstring", "substring"]
    value: bytes

    def make_test(self, comparison: str) -> Callable[[bytes], bool]:
        """Return a function that returns True for bytes that fail the comparison."""
        value = self.value
        if self.kind == "regexstring":
            from txn.tables.filters.patterns import searcher  # noqa: PLC0415  (of an extra)

            holds = searcher(value)
        elif self.kind == "substring":
            part = _decode(value).lower()

            def holds(found: bytes) -> bool:
                return part in _decode(found).lower()

        else:
            compare = COMPARISONS[comparison]
            size = len(value) if self.kind == "binaryprefix" else None
            return lambda found: not compare(found[:size], value)
        return holds if comparison == "!=" else lambda found: not holds(found)


Reader = Callable[[list[bytes]], tuple[Any, ...]]
"""Reads the arguments of a filter; raises ValueError for wrong ones."""


def _decode(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def unquote(argument: bytes) -> bytes:
    if len(argument) < 2 or argument[:1] != b"'" or argument[-1:] != b"'":
        raise ValueError(f"needs quotes: {argument!r}")
    return argument[1:-1]


def read_long(argument: bytes, limit: int = LONG_MAX) -> int:
    digits = argument.removeprefix(b"-")
    if digits.strip(b"0123456789"):
        raise ValueError(f"not a number: {argument!r}")
    number = int(digits or b"0")
    if number > limit:
        raise ValueError(f"the number is too large: {argument!r}")
    if number and digits != argument:
        raise ValueError(f"must be positive: {argument!r}")
    return number


def read_int(argument: bytes) -> int:
    return read_long(argument, INT_MAX)


def read_boolean(argument: bytes) -> bool:
    found = {b"true": True, b"false": False}.get(argument.lower())
    if found is None:
        raise ValueError(f"neither true nor false: {argument!r}")
    return found


def read_operator(argument: bytes) -> str:
    if _decode(argument) not in COMPARISONS:
        raise ValueError(f"no such operator: {argument!r}")
    return argument.decode()


def read_comparator(argument: bytes) -> Comparator:
    kind, colon, value = unquote(argument).partition(b":")
    if not colon:
        raise ValueError(f"a comparator is kind:value: {argument!r}")
    match kind:
        case b"binary" | b"binaryprefix" | b"regexstring" | b"substring":
            return Comparator(kind.decode(), value)  # type: ignore[arg-type]
    raise ValueError(f"no such comparator: {argument!r}")


def take(*readers: Callable[[bytes], object], lengths: tuple[int, ...] = ()) -> Reader:
    """Return a reader that applies one of the readers to each argument."""
    allowed = lengths or (len(readers),)

    def read(arguments: list[bytes]) -> tuple[object, ...]:
        if len(arguments) not in allowed:
            raise ValueError(f"takes {allowed} arguments, not {len(arguments)}")
        found = tuple(reader(each) for reader, each in zip(readers, arguments, strict=False))
        for comparison, comparator in pairwise(found):
            if (
                isinstance(comparator, Comparator)
                and comparator.kind in {"regexstring", "substring"}
                and comparison not in {"=", "!="}
            ):
                raise ValueError(f"{comparator.kind} goes with = and != only")
        return found

    return read


def take_each(reader: Callable[[bytes], object]) -> Reader:
    return lambda arguments: tuple(reader(each) for each in arguments)
