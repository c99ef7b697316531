"""The accesses of statements that define, move or repair: ALTER, CREATE, DROP, LOAD and the like.

The file `statements.txt` has all known forms. A statement of any other form is refused, since an
unknown clause may name another table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files

from txn.locks.hive.model import Access, Change, Keep, Read, Restore, Spec
from txn.locks.hive.queries import list_query_accesses
from txn.locks.hive.words import Shape, WordReader, refuse_statement

Accesses = list[Access]
DATABASE = ("DATABASE", "SCHEMA", "NAMESPACE")
# Statements that neither change nor read data. The settings they change have been read already.
NOTHING = frozenset(
    {"ADD", "DESC", "DESCRIBE", "GRANT", "LIST", "RELOAD", "RESET", "REVOKE", "SET",
     "SHOW", "USE"}
)  # fmt: skip

_NAME = r" (?:\w+|`)"
_DOTTED = rf"{_NAME}(?: \.{_NAME})*"
_OBJECT = rf"{_DOTTED}(?: PARTITION \(\))?"
_QUERIES = ("SELECT", "WITH", "FROM", "VALUES", "MAP", "REDUCE", "TABLE")
_BARE = rf" (?:{'|'.join(_QUERIES)})(?: .*)?"
# The text between < and > of a type, with nesting; `>>` is one sign. Each text matches in one way
# only, so a text that does not match is refused at once.
_INSIDE = r"(?: [^ '<>]+| ')*+"
for _ in range(16):
    _INSIDE = rf"(?: [^ '<>]+| '| <{_INSIDE} ?>)*+"
_SIGNS = {
    "anything": r"(?: \S+)+",
    "group": r" \(\)",
    "name": _DOTTED,
    "text": r" '",
    "type": rf" \w+(?: \(\)| <{_INSIDE} ?>| PRECISION| TO \w+| \w+ TO \w+"
    r"| WITH(?:OUT)?(?: LOCAL)? TIME ZONE| COLLATE \w+)?",
    "value": r"(?: -)? (?:[\w.]+|')(?: \(\)| ')?",
    "word": r" \w+",
}
_OF = {
    "of": _DOTTED,
    "other": _DOTTED,
    "parts": r"(?:(?: ,)? PARTITION \(\)(?: LOCATION ')?)+",
    "renamed": r" PARTITION \(\)",
}
_NOTATION = re.compile(r"<(\w+)>|([A-Z_]+|[,=])|([][{}()|])| ")
_BRACKETS = {"[": "(?:", "]": ")?", "{": "(?:", "}": ")*", "(": "(?:", ")": ")", "|": "|"}


def list_accesses(statement: str, database: str) -> Accesses:
    words = WordReader(statement, database)
    forms = _compile_forms().get(words.key, [])
    shape = words.shape()
    if " IDENTIFIER ()" in shape.text and words.key not in NOTHING:
        words.refuse("only the session knows a name that is given by IDENTIFIER")
    for form in forms:
        if match := form.fullmatch(shape.text):
            return list(_list_form_accesses(words, shape, match))
    if words.accept("SET", "CATALOG") or words.accept("SET", "PATH"):
        words.refuse("only the session's own catalogue is known")
    if words.key in NOTHING:
        return []
    return refuse_statement(statement) if forms else list_query_accesses(statement, database)


def _list_form_accesses(words: WordReader, shape: Shape, match: re.Match[str]) -> Iterator[Access]:
    parts: list[Spec] = []
    for role, text in match.groupdict().items():
        if text is None:
            continue
        start = match.start(role)
        words.seek(shape.words[start])
        if role == "of":
            table = words.read_table()
        elif role == "other":
            other = words.read_table()
            yield from (Change(other, part) for part in parts)
        elif role in _OF:
            for each in re.finditer(r" PARTITION \(\)", text):
                words.seek(shape.words[start + each.start()])
                parts.append(words.read_partition())
                yield Change(table, parts[-1])
        else:
            yield from _ACCESSES[role][1](words)


@cache
def _compile_forms() -> dict[str, list[re.Pattern[str]]]:
    found: dict[str, list[re.Pattern[str]]] = {}
    lines = files(__package__).joinpath("statements.txt").read_text().replace("\n    ", "")
    parts = dict(re.findall(r"^(\w+) = (.+)$", lines, re.MULTILINE))
    for form in re.findall(r"^[A-Z].*$", lines, re.MULTILINE):
        found.setdefault(form.split()[0], []).append(re.compile(_compile_form(form, parts)))
    return found


def _compile_form(form: str, parts: Mapping[str, str]) -> str:
    def part(found: re.Match[str]) -> str:
        name, word, bracket = found.groups()
        if name in _ACCESSES or name in _OF:
            return f"(?P<{name}>{_OF.get(name) or _ACCESSES[name][0]})"
        if name is not None:
            return _SIGNS.get(name) or f"(?:{_compile_form(parts[name], parts)})"
        return f" {word}" if word else _BRACKETS.get(bracket, "")

    return _NOTATION.sub(part, form)


def _make_read(words: WordReader) -> Read:
    table, partition = words.read_table(), words.read_partition()
    return Read(table, {name: (value,) for name, value in partition if value is not None})


def _make_restore(words: WordReader) -> Access:
    table, partition = words.read_table(), words.read_partition()
    return Change(table, partition) if partition else Restore(table)


def _read_query(words: WordReader) -> Accesses:
    return list_query_accesses(words.read_rest(), words.database)


def _check_explained(words: WordReader) -> Accesses:
    """EXPLAIN reads only the catalogue, but what it explains must be understood."""
    _find_explained(words)
    return []


def _find_explained(words: WordReader) -> Accesses:
    if words.key == "EXPLAIN":
        words.refuse()
    return list_accesses(words.read_rest(), words.database)


def _read_values(words: WordReader) -> Accesses:
    """Read the values of variables, after ORDER BY, where no word can be an alias."""
    return list_query_accesses(f"SELECT 1 ORDER BY {words.read_rest()}", words.database)


def _read_defaults(words: WordReader) -> Accesses:
    """Read the defaults of parameters, which calls of the function may evaluate."""
    words.expect("(")
    return [
        access
        for value in words.read_defaults()
        for access in _read_values(WordReader(value, words.database))
    ]


# The pattern of each accessed part, and the function that reads it.
_ACCESSES: dict[str, tuple[str, Callable[[WordReader], Accesses]]] = {
    "again": (_DOTTED, lambda words: [Change(view := words.read_table()), Read(view)]),
    "bare": (_BARE, _read_query),
    # The query or value that calls of a function evaluate, as for a view.
    "body": (r" .+", lambda w: _read_query(w) if w.key in _QUERIES else _read_values(w)),
    "database": (_DOTTED, lambda words: [Change(words.read_database())]),
    "explained": (r" .+", _check_explained),
    "given": (r" \(\)", _read_defaults),
    "keep": (_OBJECT, lambda words: [Keep(words.read_table(), words.read_partition())]),
    "kept": (_DOTTED, lambda words: [Keep(words.read_database())]),
    "object": (_OBJECT, lambda words: [Change(words.read_table(), words.read_partition())]),
    "query": (rf"{_BARE}| \(\)(?: .*)?", _read_query),
    "read": (_OBJECT, lambda words: [_make_read(words)]),
    "restore": (_OBJECT, lambda words: [_make_restore(words)]),
    "statement": (r" .+", _find_explained),
    "table": (_DOTTED, lambda words: [Change(words.read_table())]),
    "values": (r" .+", _read_values),
}
