r"""Text for people from bytes, keys, assertions and errors; for logs, without values of cells.

Whatever is stored goes through `show_text` before a terminal, a page or a log gets it. Bytes are
UTF-8 where that is printable, else `\xNN`; a backslash is `\\`. So text is unambiguous, and
commands accept what they print. A key is `table/row/family:column`: the table ends at the first
slash and the row at the last one, so only a slash in a column must be written as `\x2f`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice

from txn.assertions import And, Assertion, Exact, GreaterThan, Not, Operand, Or, Some, Version, fold
from txn.errors import (
    AbortedError,
    AssertionFailedError,
    CommitOutcomeUnknown,
    CorruptRowError,
    InvalidRequestError,
    TxnError,
)
from txn.model import ROW_KEY, Cell, Key, Stamp

LONGEST = 60
LONGEST_REASON = 2_000
CELLS_SHOWN = 10
LONGEST_FAILURE = 500

_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(\\)|.?)", re.DOTALL)


def show_text(text: str) -> str:
    r"""Return a text as one line in which nothing is hidden: each letter that a terminal obeys, or
    that reorders or hides others, is `\xNN`. Backslashes stay, so to show it twice is harmless."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _show_bytes(letter) for letter in text)


def escape(value: bytes) -> str:
    """Return the bytes as printable text, which `unescape` turns back into the same bytes."""
    return show_text(value.decode("utf-8", "surrogateescape").replace("\\", r"\\"))


def unescape(text: str) -> bytes:
    """Return the bytes of an escaped text; raise InvalidRequestError for an unknown escape."""

    def replacement(match: re.Match[bytes]) -> bytes:
        if match[1] is not None:
            return bytes([int(match[1], 16)])
        if match[2] is not None:
            return b"\\"
        raise InvalidRequestError(r"a backslash must be \\ or \xNN", text=text)

    return _ESCAPE.sub(replacement, text.encode("utf-8", "surrogateescape"))


def shorten(value: bytes, longest: int = LONGEST) -> str:
    """Return the bytes as text for people; a long value is cut, and its length added."""
    text = escape(value[: 4 * longest])  # a character has at most four bytes, so none is cut in two
    if len(value) <= 4 * longest and len(text) <= longest:
        return text
    return f"{text[:longest]}… ({len(value):,} bytes)"


def key_text(key: Key) -> str:
    """Return the key in the form that `parse_key` takes."""
    column = escape(key.column).replace("/", r"\x2f")
    return f"{escape(key.table or b'')}/{escape(key.row)}/{escape(key.family)}:{column}"


def parse_key(text: str) -> Key:
    """Return the key of `table/row/family:column`; raise InvalidRequestError if it is none."""
    table, _, rest = text.partition("/")
    row, _, last = rest.rpartition("/")
    family, _, column = last.partition(":")
    if not (table and row and family and column):
        raise InvalidRequestError("a key is table/row/family:column", given=text)
    return Key(unescape(row), unescape(family), unescape(column), unescape(table))


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


def _show_bytes(letter: str) -> str:
    of_bytes = "surrogateescape" if "\udc80" <= letter <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", of_bytes))
