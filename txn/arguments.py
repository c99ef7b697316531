"""Checks of arguments by their annotations, before anything is done.

For functions that are not called for each transaction. Text is refused where several texts are
meant, and text that UTF-8 cannot write everywhere. Whole numbers are from 0 to 2^63 - 1. The items
of an iterator are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from functools import cache, wraps
from inspect import iscoroutinefunction, signature
from math import isfinite
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from txn.errors import InvalidRequestError

P = ParamSpec("P")
R = TypeVar("R")
LIMIT = 1 << 63
SURROGATE = re.compile("[\ud800-\udfff]")
"""Text that UTF-8 cannot write."""

_get_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def check_calls(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function raise InvalidRequestError for an argument of another type than annotated. A
    wrong number or name of arguments remains a TypeError."""
    expected = signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        hints = _get_hints(function)
        for name, value in expected.bind(*args, **kwargs).arguments.items():
            if name in hints:
                _check(name, value, hints[name], expected.parameters[name].annotation)
        return function(*args, **kwargs)

    return call


def check_fields(record: Any) -> None:
    """Raise InvalidRequestError for a field of a dataclass of another type than annotated."""
    for field in fields(record):
        hint = _get_hints(type(record))[field.name]
        _check(field.name, getattr(record, field.name), hint, field.type)


def _check(name: str, value: object, hint: Any, shown: object) -> None:
    if not _is_of(value, hint):
        kinds = (hint, *get_args(hint))
        words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
        limits = ", from 0 to 2^63 - 1" if type(value) is int and int in kinds else ""
        raise InvalidRequestError(f"{name} must be {words or shown}{limits}: {name}={value!r}")


def _is_of(value: Any, hint: Any) -> bool:
    origin, parts = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, UnionType):
        return any(_is_of(value, part) for part in parts)
    if origin is Literal:
        return type(value) is str and value in parts
    if hint in (Any, object) or isinstance(hint, TypeVar):
        return True
    if origin is Callable:
        return callable(value) and not iscoroutinefunction(value)
    if getattr(hint, "_is_protocol", False):
        names = [*vars(hint), *getattr(hint, "__annotations__", ())]
        return all(hasattr(value, name) for name in names if not name.startswith("_"))
    if hint in (int, float):
        is_number = isinstance(value, int | hint) and not isinstance(value, bool)
        return is_number and (isfinite(value) if hint is float else 0 <= value < LIMIT)
    return isinstance(value, origin) and _has_content(value, origin, parts)


def _has_content(value: Any, origin: Any, parts: tuple[Any, ...]) -> bool:
    """Whether text can be written, and what is in a container is of the right type."""
    if isinstance(value, str | bytes | bytearray):
        return not parts and not (isinstance(value, str) and SURROGATE.search(value))
    if not parts and hasattr(origin, "_fields"):
        return all(map(_is_of, value, _get_hints(origin).values()))
    if isinstance(value, Mapping) and len(parts) == 2:
        return all(_is_of(k, parts[0]) and _is_of(v, parts[1]) for k, v in value.items())
    if origin is tuple and parts and parts[-1] is not ...:
        return len(value) == len(parts) and all(map(_is_of, value, parts))
    are_items = bool(parts) and isinstance(value, Collection) and issubclass(origin, Iterable)
    return not are_items or all(_is_of(each, parts[0]) for each in value)
