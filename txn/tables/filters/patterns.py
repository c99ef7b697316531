"""Untrusted regular expressions, run by RE2 in linear time.

HBase uses Java's, which can run for ever. RE2 supports most of their syntax except what needs
backtracking. Lookaround, backreferences, and possessive or atomic groups are refused.
"""

from __future__ import annotations

from collections.abc import Callable

import re2

from txn.tables.operations import Refused

MAX_PATTERN = 10_000

_OPTIONS = re2.Options()
_OPTIONS.dot_nl = True
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True


def searcher(pattern: bytes) -> Callable[[bytes], bool]:
    """Return a function that searches a value (UTF-8, repaired if need be) for the expression."""
    compiled = _compile(pattern)
    return lambda value: compiled.search(_make_utf8(value)) is not None


def matcher(pattern: bytes) -> Callable[[bytes], bool]:
    """Return a function that returns True if the expression matches a whole name."""
    compiled = _compile(pattern)
    return lambda name: compiled.fullmatch(name) is not None


def _compile(pattern: bytes) -> re2._Regexp:
    if len(pattern) > MAX_PATTERN:
        raise Refused("illegal argument", "the regular expression is too long", limit=MAX_PATTERN)
    try:
        return re2.compile(_make_utf8(pattern), _OPTIONS)
    except re2.error as error:
        facts = {"pattern": pattern, "because": error.args[0].decode(errors="replace")}
        raise Refused("illegal argument", "not a regular expression", **facts) from error


def _make_utf8(value: bytes) -> bytes:
    return value.decode(errors="replace").encode()
