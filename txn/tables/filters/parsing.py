"""HBase's filter language, and `parse_filter`, which parses it as HBase does.

    filter     = part *(AND / OR part)          AND binds closer than OR
    part       = simple / SKIP part / WHILE part / "(" filter ")"
    simple     = name *SP "(" [argument *("," argument)] ")"
    argument   = "'" bytes, each ' written twice, "'" / number / operator / true / false
    operator   = < / <= / = / != / >= / >
    comparator = binary: / binaryprefix: / regexstring: / substring:, and bytes; in quotes

Keywords are upper case; AND and OR stand between spaces or parentheses. HBase misreads and refuses
a parenthesis with an OR before an AND, and so does this parser. `txn.tables.filters.standard` has
the filters; the table at the end has the arguments of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from txn.tables.filters import standard
from txn.tables.filters.standard import COMPARISONS, Comparator, Filter, decode
from txn.tables.operations import Expression, Refused

LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1
MOST_LEVELS = 100  # of filters in filters, which are built and applied level by level
SHOWN_BYTES = 100
_PRECEDENCE = {"SKIP": 1, "WHILE": 1, "AND": 2, "OR": 3}
_KEYWORD = re.compile(rb"((?<=[ )])(?:AND|OR)|(?<![^ ()])(?:SKIP|WHILE))(?=[ (])")
_SIMPLE = re.compile(rb"(?>''|'(?:''|[^'])*+'|[^')])*+\)")
_ARGUMENT = re.compile(rb"'(?:''|[^'])*+'|[^' ,)][^ ,)]*+(?=[ ,)])")

ArgumentReader = Callable[[list[bytes]], tuple[Any, ...]]  # it raises ValueError


def parse_filter(text: bytes) -> Expression:
    """Return the filter of a text; Refused (illegal argument) names the bad place."""
    return _Parser(text).parse()


class _Parser:
    """Two stacks, of operators and of filters, as in HBase's own parser."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._operators: list[str] = []
        self._filters: list[Expression] = []
        self._levels: list[int] = []  # of each filter

    def parse(self) -> Expression:
        at = 0
        while at < len(self._text):
            letter = self._text[at : at + 1]
            if letter == b"(":
                self._operators.append("(")
            elif letter == b")":
                self._close(at)
            elif letter not in b" \t":
                at = self._read_word(at) - 1
            at += 1
        while self._operators:
            self._reduce(at)
        if len(self._filters) != 1:
            raise self._bad("filters stand side by side" if self._filters else "no filter", at)
        return self._filters[0]

    def _read_word(self, at: int) -> int:
        found = _KEYWORD.match(self._text, at)
        if found is not None:
            keyword = found[0].decode()
            precedence = _PRECEDENCE[keyword]
            while self._operators and _PRECEDENCE.get(self._operators[-1], 9) < precedence:
                self._reduce(at)
            self._operators.append(keyword)
            return found.end()
        found = _SIMPLE.match(self._text, at)
        if found is None:
            raise self._bad("a filter does not end", at)
        self._filters.append(_read_simple(found[0], at))
        self._levels.append(1)
        return found.end()

    def _close(self, at: int) -> None:
        if not self._operators:
            raise self._bad("a parenthesis is closed that was not opened", at)
        top = self._operators[-1]
        if top == "(":
            self._operators.pop()
        while top != "(":
            self._reduce(at)
            if not self._operators:
                raise self._bad("HBase takes no OR before an AND in a parenthesis", at)
            top = self._operators.pop()

    def _reduce(self, at: int) -> None:
        """Replace the top operator, all equal ones below it, and their filters by one filter."""
        operator = self._operators.pop()
        count = 1
        if operator in {"AND", "OR"}:
            count = 2
            while self._operators and self._operators[-1] == operator:
                self._operators.pop()
                count += 1
        if len(self._filters) < count:
            raise self._bad("an operator lacks a filter", at)
        if operator != "(":
            self._filters[-count:] = [Expression(operator, tuple(self._filters[-count:]))]
            self._levels[-count:] = [levels := 1 + max(self._levels[-count:])]
            if levels > MOST_LEVELS:
                raise self._bad(f"more than {MOST_LEVELS} levels of filters", at)

    def _bad(self, message: str, at: int) -> Refused:
        return _bad(message, at, self._text)


def _bad(message: str, at: int, text: bytes) -> Refused:
    shown = text[max(0, at - SHOWN_BYTES) : at + SHOWN_BYTES]
    return Refused("illegal argument", f"not a filter: {message[:1000]}", at=at, text=shown)


def _read_simple(text: bytes, at: int) -> Expression:
    name = text.partition(b"(")[0].partition(b" ")[0].decode("utf-8", "replace")
    kind = FILTERS.get(name)
    if kind is None:
        raise _bad("no such filter", at, text)
    try:
        return Expression(name, _SIGNATURES[kind](_split_arguments(text[text.index(b"(") + 1 :])))
    except ValueError as error:
        raise _bad(str(error), at, text) from error


def _split_arguments(text: bytes) -> list[bytes]:
    """Return the unescaped arguments; quoted ones keep their quotes."""
    found = []
    at = 0
    while at < len(text):
        if text[at : at + 1] in b" ,)":
            at += 1
            continue
        match = _ARGUMENT.match(text, at)
        if match is None:
            raise ValueError("an argument does not end")
        argument, at = match[0], match.end()
        if argument[:1] == b"'":
            argument = b"'" + argument[1:-1].replace(b"''", b"'") + b"'"
            at += 1  # HBase ignores the byte after a quote
        found.append(argument)
    return found


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
    if decode(argument) not in COMPARISONS:
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


def take(*readers: Callable[[bytes], object], lengths: tuple[int, ...] = ()) -> ArgumentReader:
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


def take_each(reader: Callable[[bytes], object]) -> ArgumentReader:
    return lambda arguments: tuple(reader(each) for each in arguments)


_COLUMN = (unquote, unquote, read_operator, read_comparator, read_boolean, read_boolean)
_PART = take(read_operator, read_comparator)
_SIGNATURES: dict[type[Filter], ArgumentReader] = {
    standard.KeyOnlyFilter: take(read_boolean, lengths=(0, 1)),
    standard.FirstKeyOnlyFilter: take(),
    standard.PrefixFilter: take(unquote),
    standard.ColumnPrefixFilter: take(unquote),
    standard.MultipleColumnPrefixFilter: take_each(unquote),
    standard.ColumnRangeFilter: take(unquote, read_boolean, unquote, read_boolean),
    standard.ColumnCountGetFilter: take(read_int),
    standard.ColumnPaginationFilter: take(read_int, read_int),
    standard.PageFilter: take(read_long),
    standard.InclusiveStopFilter: take(unquote),
    standard.TimestampsFilter: take_each(read_long),
    standard.RowFilter: _PART,
    standard.FamilyFilter: _PART,
    standard.QualifierFilter: _PART,
    standard.ValueFilter: _PART,
    standard.SingleColumnValueFilter: take(*_COLUMN, lengths=(4, 6)),
    standard.SingleColumnValueExcludeFilter: take(*_COLUMN, lengths=(4, 6)),
    standard.DependentColumnFilter: take(
        unquote, unquote, read_boolean, read_operator, read_comparator, lengths=(2, 3, 5)
    ),
    standard.ColumnValueFilter: take(*_COLUMN[:4]),
}
FILTERS = {kind.__name__: kind for kind in _SIGNATURES}
