"""HBase's filter language: what can be said in it, and `parse`, which reads it as HBase does.

    filter     = part *(AND / OR part)          AND binds closer than OR
    part       = simple / SKIP part / WHILE part / "(" filter ")"
    simple     = name *SP "(" [argument *("," argument)] ")"
    argument   = "'" bytes, each ' written twice, "'" / number / operator / true / false
    operator   = < / <= / = / != / >= / >
    comparator = binary: / binaryprefix: / regexstring: / substring:, and bytes; in quotes

Keywords are upper case; AND and OR stand between spaces or parentheses. HBase reads a parenthesis
wrongly where OR comes before AND in it, and refuses it: so does this. What filters do is in
`txn.tables.filters.filtering`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from txn.tables.refusal import Refused

ProofCheck = Literal["<", "<=", "=", "!=", ">=", ">"]


@dataclass(frozen=True, slots=True)
class Comparator:
    """What a part of a cell is compared with, and how."""

    kind: Literal["binary", "binaryprefix", "regexstring", "substring"]
    value: bytes


@dataclass(frozen=True, slots=True)
class Simple:
    """A filter by its name, with its arguments in their types."""

    name: str
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class All:
    """AND: the furthest step that any of the filters wants."""

    filters: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """OR: the nearest step that any of the filters wants."""

    filters: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Skip:
    """SKIP: leave out the rows of which the filter leaves out anything."""

    filter: Filter


@dataclass(frozen=True, slots=True)
class While:
    """WHILE: end the scan where the filter first leaves out anything."""

    filter: Filter


Filter = Simple | All | AnyOf | Skip | While

_PRECEDENCE = {"SKIP": 1, "WHILE": 1, "AND": 2, "OR": 3}
_LONGEST = (1 << 63) - 1
_INTEGER = (1 << 31) - 1


def parse_filter(text: bytes) -> Filter:
    """Return the filter that the text says; Refused (illegal argument) names the bad place."""
    return _Parser(text).parse()


class _Parser:
    """Two stacks, of operators and of filters, as in HBase's own parser."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._operators: list[str] = []
        self._filters: list[Filter] = []

    def parse(self) -> Filter:
        at = 0
        while at < len(self._text):
            letter = self._text[at : at + 1]
            if letter == b"(":
                self._operators.append("(")
            elif letter == b")":
                self._close(at)
            elif letter not in b" \t":
                at = self._word(at) - 1
            at += 1
        while self._operators:
            self._reduce(at)
        if len(self._filters) != 1:
            raise self._bad("filters stand side by side" if self._filters else "no filter", at)
        return self._filters[0]

    def _word(self, at: int) -> int:
        """Read an operator or a simple filter; return where it ends."""
        for keyword, precedence in _PRECEDENCE.items():
            if self._is_keyword(keyword, at):
                while self._operators and _PRECEDENCE.get(self._operators[-1], 9) < precedence:
                    self._reduce(at)
                self._operators.append(keyword)
                return at + len(keyword)
        end = self._end_of_simple(at)
        self._filters.append(_simple(self._text[at:end], at))
        return end

    def _is_keyword(self, keyword: str, at: int) -> bool:
        end = at + len(keyword)
        before, after = self._text[at - 1 : at] if at else b"", self._text[end : end + 1]
        if self._text[at:end] != keyword.encode() or after not in {b" ", b"("}:
            return False
        return before in ({b" ", b")"} if keyword in {"AND", "OR"} else {b"", b" ", b")", b"("})

    def _close(self, at: int) -> None:
        """Finish what stands in a parenthesis."""
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
        """Replace the topmost operator, and all like it below, and its filters by one filter."""
        operator = self._operators[-1]
        if operator in {"AND", "OR"}:
            count = 1
            while self._operators and self._operators[-1] == operator:
                self._operators.pop()
                count += 1
            taken = tuple(self._take(count, at))
            self._filters.append(All(taken) if operator == "AND" else AnyOf(taken))
            return
        self._operators.pop()
        (inner,) = self._take(1, at)
        wrapped: dict[str, Callable[[Filter], Filter]] = {"SKIP": Skip, "WHILE": While}
        self._filters.append(wrapped[operator](inner) if operator in wrapped else inner)

    def _take(self, count: int, at: int) -> list[Filter]:
        if len(self._filters) < count:
            raise self._bad("an operator lacks a filter", at)
        taken = self._filters[-count:]
        del self._filters[-count:]
        return taken

    def _end_of_simple(self, start: int) -> int:
        at, quoted = start, False
        while at < len(self._text):
            letter = self._text[at : at + 1]
            if letter == b"'":
                if self._text[at + 1 : at + 2] == b"'":
                    at += 1
                else:
                    quoted = not quoted
            elif letter == b")" and not quoted:
                return at + 1
            at += 1
        raise self._bad("a filter does not end", start)

    def _bad(self, message: str, at: int) -> Refused:
        return _bad(message, at, self._text)


def _bad(message: str, at: int, text: bytes) -> Refused:
    return Refused("illegal argument", f"not a filter: {message}", at=at, text=text)


def _simple(text: bytes, at: int) -> Filter:
    """Return a filter of a name and arguments; `at` is where it stands."""
    name = text.partition(b"(")[0].partition(b" ")[0]
    reader = _ARGUMENTS.get(name.decode("utf-8", "replace"))
    if reader is None:
        raise _bad("no such filter", at, text)
    try:
        arguments = reader(_arguments(text[text.index(b"(") + 1 :]))
    except ValueError as error:
        raise _bad(str(error), at, text) from error
    return Simple(name.decode(), arguments)


def _arguments(text: bytes) -> list[bytes]:
    """Return the arguments, those in quotes with their quotes, but unescaped."""
    found = []
    at = 0
    while at < len(text):
        if text[at : at + 1] in b" ,)":
            at += 1
            continue
        end = _end_of_argument(text, at)
        if text[at : at + 1] == b"'":
            found.append(b"'" + text[at + 1 : end - 1].replace(b"''", b"'") + b"'")
            end += 1  # HBase does not look at what follows a quote
        else:
            found.append(text[at:end])
        at = end
    return found


def _end_of_argument(text: bytes, start: int) -> int:
    quoted = text[start : start + 1] == b"'"
    at = start + 1 if quoted else start
    while at < len(text):
        letter = text[at : at + 1]
        if not quoted and letter in b" ,)":
            return at
        if quoted and letter == b"'":
            if text[at + 1 : at + 2] != b"'":
                return at + 1
            at += 1
        at += 1
    raise ValueError("an argument does not end")


def _unquote(argument: bytes) -> bytes:
    if len(argument) < 2 or argument[:1] != b"'" or argument[-1:] != b"'":
        raise ValueError(f"needs quotes: {argument!r}")
    return argument[1:-1]


def _number(argument: bytes, limit: int = _LONGEST) -> int:
    digits = argument[1:] if argument[:1] == b"-" else argument
    if digits.strip(b"0123456789"):
        raise ValueError(f"not a number: {argument!r}")
    number = int(digits or b"0")
    if number > limit:
        raise ValueError(f"the number is too large: {argument!r}")
    return -number if digits != argument else number


def _count(argument: bytes) -> int:
    return _number(argument, _INTEGER)


def _positive(argument: bytes) -> int:
    number = _number(argument)
    if number < 0:
        raise ValueError(f"must be positive: {argument!r}")
    return number


def _positive_count(argument: bytes) -> int:
    _count(argument)
    return _positive(argument)


def _boolean(argument: bytes) -> bool:
    found = {b"true": True, b"false": False}.get(argument.lower())
    if found is None:
        raise ValueError(f"neither true nor false: {argument!r}")
    return found


def _operator(argument: bytes) -> str:
    if argument not in {b"<", b"<=", b"=", b"!=", b">=", b">"}:
        raise ValueError(f"no such operator: {argument!r}")
    return argument.decode()


def _comparator(argument: bytes) -> Comparator:
    kind, colon, value = _unquote(argument).partition(b":")
    if not colon:
        raise ValueError(f"a comparator is kind:value: {argument!r}")
    match kind:
        case b"binary" | b"binaryprefix" | b"regexstring" | b"substring":
            return Comparator(kind.decode(), value)  # type: ignore[arg-type]
    raise ValueError(f"no such comparator: {argument!r}")


_Read = Callable[[bytes], object]
_Reader = Callable[[list[bytes]], tuple[object, ...]]


def _of(*readers: _Read, lengths: tuple[int, ...] = ()) -> _Reader:
    """Return what reads so many arguments, each in its way."""
    allowed = lengths or (len(readers),)

    def read(arguments: list[bytes]) -> tuple[object, ...]:
        if len(arguments) not in allowed:
            raise ValueError(f"takes {allowed} arguments, not {len(arguments)}")
        found = tuple(reader(each) for reader, each in zip(readers, arguments, strict=False))
        for operator, comparator in pairwise(found):
            if (
                isinstance(comparator, Comparator)
                and comparator.kind in {"regexstring", "substring"}
                and operator not in {"=", "!="}
            ):
                raise ValueError(f"{comparator.kind} goes with = and != only")
        return found

    return read


def _take_each(reader: _Read) -> _Reader:
    return lambda arguments: tuple(reader(each) for each in arguments)


_COMPARE = _of(_operator, _comparator)
_COLUMN = (_unquote, _unquote, _operator, _comparator, _boolean, _boolean)
_ARGUMENTS: dict[str, _Reader] = {
    "KeyOnlyFilter": _of(_boolean, lengths=(0, 1)),
    "FirstKeyOnlyFilter": _of(lengths=(0,)),
    "PrefixFilter": _of(_unquote),
    "ColumnPrefixFilter": _of(_unquote),
    "MultipleColumnPrefixFilter": _take_each(_unquote),
    "ColumnCountGetFilter": _of(_positive_count),
    "PageFilter": _of(_positive),
    "ColumnPaginationFilter": _of(_positive_count, _positive_count),
    "InclusiveStopFilter": _of(_unquote),
    "TimestampsFilter": _take_each(_positive),
    "RowFilter": _COMPARE,
    "FamilyFilter": _COMPARE,
    "QualifierFilter": _COMPARE,
    "ValueFilter": _COMPARE,
    "ColumnRangeFilter": _of(_unquote, _boolean, _unquote, _boolean),
    "SingleColumnValueFilter": _of(*_COLUMN, lengths=(4, 6)),
    "SingleColumnValueExcludeFilter": _of(*_COLUMN, lengths=(4, 6)),
    "DependentColumnFilter": _of(
        _unquote, _unquote, _boolean, _operator, _comparator, lengths=(2, 3, 5)
    ),
    "ColumnValueFilter": _of(*_COLUMN[:4]),
}
