"""Conditions on stored cells that must hold for a transaction to commit, and functions on them.

An assertion is evaluated once, under the locks, against the newest visible version of each of its
keys. Combine assertions with `&`, `|` and `~`; `and`, `or`, `not` and `if` raise TypeError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, TypeVar, assert_never

from txn.errors import InvalidRequestError
from txn.model import Cell, Key, KeyValue, Stamp, check_value, require_cell

MAX_DEPTH = 100
T = TypeVar("T")


class _Operators:
    """`a & b`, `a | b` and `~a` for assertions. A chain is one: `a | b | c` is `Or(a, b, c)`."""

    __slots__ = ()

    def __and__(self, other: object) -> And:
        return And(*_list_children(And, self), *_list_children(And, other))

    def __or__(self, other: object) -> Or:
        return Or(*_list_children(Or, self), *_list_children(Or, other))

    def __invert__(self) -> Not:
        return Not(self)  # type: ignore[arg-type]

    def __bool__(self) -> NoReturn:
        # `a and b` would evaluate to b and silently drop a.
        raise TypeError("an assertion is neither true nor false yet: join with &, | and ~")


@dataclass(frozen=True, slots=True, init=False)
class Exact(_Operators, KeyValue):
    """The key's value is exactly this one."""


@dataclass(frozen=True, slots=True)
class Some(_Operators):
    """The key has any value."""

    key: Key


@dataclass(frozen=True, slots=True, init=False)
class GreaterThan(_Operators, KeyValue):
    """The key's value is greater than this one in HBase's byte order; false if it has none."""


@dataclass(frozen=True, slots=True)
class Version(_Operators):
    """The key's newest version has this timestamp (ms); None: the key has no value."""

    key: Key
    timestamp: int | None


@dataclass(frozen=True, slots=True, repr=False)
class Not(_Operators):
    """The assertion does not hold."""

    assertion: Assertion

    def __repr__(self) -> str:
        return f"~{self.assertion!r}"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class _Compound(_Operators):
    assertions: tuple[Assertion, ...]
    _sign: ClassVar[str]

    def __init__(self, *assertions: Assertion) -> None:
        object.__setattr__(self, "assertions", assertions)

    def __repr__(self) -> str:
        return f"({f' {self._sign} '.join(map(repr, self.assertions))})"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class And(_Compound):
    """All of two or more assertions hold."""

    _sign = "&"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Or(_Compound):
    """At least one of two or more assertions holds."""

    _sign = "|"


Assertion = Exact | Some | GreaterThan | Version | Not | And | Or
"""A condition on cells: one of these, combined with `&`, `|` and `~`."""

Operand = bytes | int | None
"""The operand of a leaf: a value or a timestamp (ms)."""

LEAVES: Mapping[str, Callable[..., Assertion]] = {
    "exact": Exact,
    "some": Some,
    "greater": GreaterThan,
    "version": Version,
}
COMPOUNDS: Mapping[str, Callable[..., Assertion]] = {"not": Not, "and": And, "or": Or}
"""Compound assertions by their names in rows and documents."""


def _list_children(kind: type[And | Or], joined: Any) -> tuple[Assertion, ...]:
    return joined.assertions if isinstance(joined, kind) else (joined,)


Evidence = Mapping[Key, Cell | Stamp | None]
"""What is known of keys: a stamp suffices for a key whose value no assertion compares."""


def holds(assertion: Assertion, cells: Evidence) -> bool:
    """Return whether the assertion holds for these cells, which include all its keys."""
    match assertion:
        case Version(key, timestamp):
            found = cells[key]
            return timestamp == (None if found is None else found.timestamp)
        case Exact(key, value):
            cell = require_cell(cells[key])
            return cell is not None and cell.value == value
        case Some(key):
            return cells[key] is not None
        case GreaterThan(key, value):
            cell = require_cell(cells[key])
            return cell is not None and cell.value > value
        case Not(inner):
            return not holds(inner, cells)
        case And(parts):
            return all(holds(part, cells) for part in parts)
        case Or(parts):
            return any(holds(part, cells) for part in parts)
        case _:
            assert_never(assertion)


def is_outdated(assertion: Assertion, cells: Evidence) -> bool:
    """Return whether the assertion can never hold again. Versions only grow, so a greater version
    rules out the asserted one for good."""
    if not isinstance(assertion, Version) or assertion.timestamp is None:
        return False
    cell = cells.get(assertion.key)
    return cell is not None and cell.timestamp > assertion.timestamp


def fold(
    assertion: Assertion,
    leaf: Callable[[str, Key, Operand], T],
    compound: Callable[[str, list[T]], T],
) -> T:
    """Combine the parts of an assertion, bottom-up and from left to right.

    leaf: called with a name in LEAVES, the key, and the operand if there is one.
    compound: called with a name in COMPOUNDS and the results of the parts.
    """
    match assertion:
        case Version(key, timestamp):
            return leaf("version", key, timestamp)
        case Exact(key, value):
            return leaf("exact", key, value)
        case Some(key):
            return leaf("some", key, None)
        case GreaterThan(key, value):
            return leaf("greater", key, value)
        case Not(inner):
            return compound("not", [fold(inner, leaf, compound)])
        case And(parts):
            return compound("and", [fold(part, leaf, compound) for part in parts])
        case Or(parts):
            return compound("or", [fold(part, leaf, compound) for part in parts])
        case _:
            assert_never(assertion)


def make_leaf(name: str, key: Key, operand: Operand = None) -> Assertion:
    """Return the leaf with these arguments of `fold`."""
    return Some(key) if name == "some" else LEAVES[name](key, operand)


def list_keys(assertion: Assertion) -> list[Key]:
    """Return the assertion's keys in the order of its text, with repetitions."""
    match assertion:
        case Not(inner):
            return list_keys(inner)
        case And(parts) | Or(parts):
            return [key for part in parts for key in list_keys(part)]
        case leaf:
            return [leaf.key]


def list_compared_keys(assertion: Assertion) -> list[Key]:
    """Return the keys whose values are needed. `Some` compares none, but its error shows it."""
    return fold(
        assertion,
        lambda name, key, _: [] if name == "version" else [key],
        lambda _, parts: [key for keys in parts for key in keys],
    )


def bind(assertion: object, bind_key: Callable[[Any], Key], depth: int = 1) -> Assertion:
    """Return the assertion with `bind_key`, which may refuse a key, applied to each key; raise
    InvalidRequestError if it is malformed."""
    match assertion:
        case Exact(given, value) | GreaterThan(given, value):
            key = bind_key(given)
            check_value(key, value)
            return assertion if key is given else type(assertion)(key, value)
        case Version(given, timestamp):
            key = bind_key(given)
            if timestamp is not None and not (
                isinstance(timestamp, int) and 0 < timestamp < 1 << 63
            ):
                message = "version must be a timestamp in ms or None"
                raise InvalidRequestError(message, key=key, given=timestamp)
            return assertion if key is given else Version(key, timestamp)
        case Some(given):
            return Some(bind_key(given))
        case _ if depth == MAX_DEPTH:
            raise InvalidRequestError("assertion is nested too deeply", limit=MAX_DEPTH)
        case Not(inner):
            return Not(bind(inner, bind_key, depth + 1))
        case And(parts) | Or(parts):
            if len(parts) < 2:
                message = f"{type(assertion).__name__} takes two or more assertions"
                raise InvalidRequestError(message, given=len(parts))
            return type(assertion)(*[bind(part, bind_key, depth + 1) for part in parts])
        case _:
            message = "not an assertion"
            raise InvalidRequestError(message, given=assertion, type=type(assertion).__name__)
