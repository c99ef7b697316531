"""Text for people from bytes, keys, assertions and errors; for logs, without values of cells.

Bytes and keys have the form of `txn.escapes`, which commands accept as they print it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from txn.assertions import And, Assertion, Exact, GreaterThan, Not, Operand, Or, Some, Version, fold
from txn.errors import (
    AbortedError,
    AssertionFailedError,
    CommitOutcomeUnknown,
    CorruptRowError,
    TxnError,
)
from txn.escapes import escape as escape  # noqa: PLC0414
from txn.escapes import show_text as show_text  # noqa: PLC0414
from txn.escapes import unescape as unescape  # noqa: PLC0414
from txn.model import ROW_KEY, Cell, Key, Stamp

LONGEST = 60
LONGEST_REASON = 2_000
CELLS_SHOWN = 10
LONGEST_FAILURE = 500


def shorten(value: bytes, longest: int = LONGEST) -> str:
    """Return the bytes as text for people; a long value is cut, and its length added."""
    text = escape(value[: 4 * longest])  # a character has at most four bytes, so none is cut in two
    if len(value) <= 4 * longest and len(text) <= longest:
        return text
    return f"{text[:longest]}… ({len(value):,} bytes)"


def key_text(key: Key) -> str:
    """Return the key in the form that `Key.parse` takes."""
    return key.text


def assertion_text(assertion: Assertion) -> str:
    """Return the assertion in words."""
    return fold(assertion, _leaf_text, _compound_text)


def _leaf_text(name: str, key: Key, operand: Operand) -> str:
    match name, operand:
        case "exact", bytes():
            return f"{key_text(key)} = {shorten(operand)}"
        case "greater", bytes():
            return f"{key_text(key)} > {shorten(operand)}"
        case "version", int():
            return f"{key_text(key)} has version {operand}"
        case "version", None:
            return f"{key_text(key)} has no version"
        case _:
            return f"{key_text(key)} has a value"


def _compound_text(name: str, parts: list[str]) -> str:
    return f"not ({parts[0]})" if name == "not" else f" {name} ".join(f"({part})" for part in parts)


def reason_text(error: AbortedError) -> str:
    """Return why a transaction was aborted, on one line of bounded length."""
    facts = ", ".join(f"{name} {_fact_text(fact)}" for name, fact in error.facts.items())
    text = f"{error.words}: {facts}" if facts else error.words
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}…"


def holder_text(holder: bytes) -> str:
    """Return the row key of a lock's holder. Other bytes in a lock cell may be foreign data, so
    only their length is shown."""
    return escape(holder) if ROW_KEY.fullmatch(holder) else f"no row key, {len(holder):,} bytes"


def name_failure(error: BaseException) -> str:
    """Return an error's class and cause, without values of cells."""
    return f"{type(error).__name__}: {explain_failure(error)}"


def explain_failure(error: BaseException) -> str:
    """Return why something failed, without values of cells or the text of foreign errors."""
    match error:
        case AssertionFailedError():
            keys = [key_text(key) for key in islice(error.seen, CELLS_SHOWN)]
            text = f"assertion failed: {', '.join(keys)}"
        case AbortedError():
            text = ", ".join([error.words, *_list_safe_facts(error)])
        case CommitOutcomeUnknown() if error.__cause__ is not None:
            text = f"the answer was lost: {type(error.__cause__).__name__}"
        case CorruptRowError():
            where = f": {_fact_text(error.place)}" if error.place else ""
            text = f"stored bytes do not decode{where}"
        case TxnError():
            text = str(error)
        case _:
            text = "broken off"
    return text[:LONGEST_FAILURE]


def _list_safe_facts(error: AbortedError) -> Iterator[str]:
    for name, fact in error.facts.items():
        if isinstance(fact, Key):
            yield f"{name} {key_text(fact)}"
        elif name == "holder" and isinstance(fact, bytes):
            yield f"{name} {holder_text(fact)}"
    if "cause" in error.facts:
        yield f"cause {type(error.__cause__).__name__}"


def _fact_text(fact: object) -> str:
    match fact:
        case bytes():
            return escape(fact)
        case Key():
            return key_text(fact)
        case Mapping():
            shown = [_seen_text(key, cell) for key, cell in islice(fact.items(), CELLS_SHOWN)]
            more = len(fact) - len(shown)
            return ", ".join([*shown, *([f"and {more:,} more"] if more else [])])
        case Exact() | Some() | GreaterThan() | Version() | Not() | And() | Or():
            return assertion_text(fact)
        case _:
            return str(fact)


def _seen_text(key: Key, cell: Cell | Stamp | None) -> str:
    if isinstance(cell, Stamp):
        return f"{key_text(key)} has version {cell.timestamp}"
    return f"{key_text(key)} {'absent' if cell is None else '= ' + shorten(cell.value)}"
