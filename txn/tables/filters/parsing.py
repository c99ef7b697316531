"""HBase's filter language, and `parse_filter`, which parses it as HBase does.

    filter     = part *(AND / OR part)          AND binds closer than OR
    part       = simple / SKIP part / WHILE part / "(" filter ")"
    simple     = name *SP "(" [argument *("," argument)] ")"
    argument   = "'" bytes, each ' written twice, "'" / number / operator / true / false
    operator   = < / <= / = / != / >= / >
    comparator = binary: / binaryprefix: / regexstring: / substring:, and bytes; in quotes

Keywords are upper case; AND and OR stand between spaces or parentheses. HBase misreads and refuses
a parenthesis with an OR before an AND, and so does this parser. `txn.tables.filters.standard` has
the filters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from txn.tables.filters.standard import FILTERS
from txn.tables.refusal import Refused

_PRECEDENCE = {"SKIP": 1, "WHILE": 1, "AND": 2, "OR": 3}
_KEYWORD = re.compile(rb"((?<=[ )])(?:AND|OR)|(?<![^ ()])(?:SKIP|WHILE))(?=[ (])")
_SIMPLE = re.compile(rb"(?>''|'(?:''|[^'])*+'|[^')])*+\)")
_ARGUMENT = re.compile(rb"'(?:''|[^'])*+'|[^' ,)][^ ,)]*+(?=[ ,)])")


@dataclass(frozen=True, slots=True)
class Expression:
    """A filter's name and typed arguments; for AND, OR, SKIP and WHILE these are filters.

    AND takes the furthest step of its filters, OR the nearest. SKIP leaves out a row if its filter
    leaves out any part of it. WHILE ends the scan there.
    """

    name: str
    arguments: tuple[Any, ...]


def parse_filter(text: bytes) -> Expression:
    """Return the filter of a text; Refused (illegal argument) names the bad place."""
    return _Parser(text).parse()


class _Parser:
    """Two stacks, of operators and of filters, as in HBase's own parser."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._operators: list[str] = []
        self._filters: list[Expression] = []

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

    def _bad(self, message: str, at: int) -> Refused:
        return _bad(message, at, self._text)


def _bad(message: str, at: int, text: bytes) -> Refused:
    return Refused("illegal argument", f"not a filter: {message}", at=at, text=text)


def _read_simple(text: bytes, at: int) -> Expression:
    name = text.partition(b"(")[0].partition(b" ")[0].decode("utf-8", "replace")
    kind = FILTERS.get(name)
    if kind is None:
        raise _bad("no such filter", at, text)
    try:
        return Expression(name, kind.arguments(_split_arguments(text[text.index(b"(") + 1 :])))
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
