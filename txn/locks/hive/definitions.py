"""The accesses of statements that define, move or repair: ALTER, CREATE, DROP, LOAD and the like.

The known forms are listed here in full. A statement of any other form is refused, since an unknown
clause may name another table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

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

# [..] is optional, {..} is optional and repeatable, (..|..) is a choice. <..> is a part with a rule
# of its own: in _ACCESSES if the statement accesses it, else in _PARTS or _SIGNS.
_FORMS = """
ALTER <db> <database> <set> (DBPROPERTIES|PROPERTIES) [IF EXISTS] <group>
ALTER <db> <database> SET OWNER (USER|ROLE|GROUP) <name>
ALTER <db> <database> SET (LOCATION|MANAGEDLOCATION) <text>
ALTER <db> <database> DEFAULT COLLATION <name>
ALTER VIEW <table> [<group>] {<clause>} AS <query>
ALTER VIEW <table> (RENAME TO <name>|<set> TBLPROPERTIES [IF EXISTS] <group>|WITH SCHEMA <schema>)
ALTER MATERIALIZED VIEW <table> (ENABLE|DISABLE) REWRITE
ALTER MATERIALIZED VIEW <again> REBUILD
ALTER TABLE <of> <parts> RENAME TO <renamed>
ALTER TABLE <of> EXCHANGE <parts> WITH TABLE <other>
ALTER TABLE <of> ADD [IF NOT EXISTS] <parts>
ALTER TABLE <of> DROP [IF EXISTS] <parts> [IGNORE PROTECTION] [PURGE]
ALTER TABLE <of> (TOUCH|ARCHIVE|UNARCHIVE) <parts>
ALTER TABLE <restore> SET SERDE <text> [WITH SERDEPROPERTIES <group>]
ALTER TABLE <restore> <set> SERDEPROPERTIES <group>
ALTER TABLE <restore> SET FILEFORMAT (<word>|INPUTFORMAT <text> OUTPUTFORMAT <text> [SERDE <text>])
ALTER TABLE <table> RENAME TO <name>
ALTER TABLE <table> PARTITION COLUMN <group>
ALTER TABLE <table> DEFAULT COLLATION <name>
ALTER TABLE <object> (ADD|REPLACE) (COLUMNS|COLUMN) (<group>|<field> {, <field>}) [CASCADE|RESTRICT]
ALTER TABLE <object> (ALTER|CHANGE) [COLUMN] <name> <field> [CASCADE|RESTRICT]
ALTER TABLE <object> (ALTER|CHANGE) [COLUMN] <altered> {, <altered>}
ALTER TABLE <object> DROP (COLUMNS|COLUMN) [IF EXISTS] (<group>|<names>)
ALTER TABLE <object> RENAME COLUMN <name> TO <name>
ALTER TABLE <object> ADD [CONSTRAINT <word>] (CHECK|UNIQUE|PRIMARY KEY) <group> {<flag>}
ALTER TABLE <object> ADD [CONSTRAINT <word>] FOREIGN KEY <group> REFERENCES <name> <group> {<flag>}
ALTER TABLE <object> DROP CONSTRAINT [IF EXISTS] <word> [CASCADE|RESTRICT]
ALTER TABLE <object> CLUSTERED BY <group> [SORTED BY <group>] INTO <word> BUCKETS
ALTER TABLE <object> (INTO <word> BUCKETS|CLUSTER BY (<group>|NONE))
ALTER TABLE <object> COMPACT <text> [AND WAIT] [WITH OVERWRITE TBLPROPERTIES <group>]
ALTER TABLE <object> (CONCATENATE|TOUCH|RECOVER PARTITIONS|UPDATE COLUMNS [CASCADE|RESTRICT])
ALTER TABLE <object> (ENABLE|DISABLE) (NO_DROP|OFFLINE) [CASCADE]
ALTER TABLE <object> NOT (CLUSTERED|SKEWED|SORTED|STORED AS DIRECTORIES)
ALTER TABLE <object> SET (LOCATION <text>|OWNER (USER|ROLE|GROUP) <name>|SKEWED LOCATION <group>)
ALTER TABLE <object> <set> TBLPROPERTIES [IF EXISTS] <group>
ALTER TABLE <object> SKEWED BY <group> ON <group> [STORED AS DIRECTORIES]
ALTER TABLE <object> UPDATE STATISTICS [FOR COLUMN <name>] SET <group>
ANALYZE TABLE <object> COMPUTE STATISTICS [FOR <counted>] [CACHE METADATA] [NOSCAN]
CACHE [LAZY] TABLE <read> [OPTIONS <group>]
CACHE [LAZY] TABLE <name> [OPTIONS <group>] [AS] <query>
CLEAR CACHE
COMMENT ON TABLE <table> IS (<text>|NULL)
COMMENT ON <db> <database> IS (<text>|NULL)
CREATE [OR REPLACE] [TEMPORARY] FUNCTION [IF NOT EXISTS] <name> AS <text> [USING <files>]
CREATE [OR REPLACE] [TEMPORARY] FUNCTION [IF NOT EXISTS] <name> <given> {<trait>} RETURN <body>
CREATE TEMPORARY MACRO <name> <group> <anything>
CREATE (ROLE|CATALOG|RESOURCE|APPLICATION|SCHEDULED) <anything>
CREATE [REMOTE] <db> [IF NOT EXISTS] <database> {<clause>}
CREATE [OR REPLACE] {<kind>} TABLE [IF NOT EXISTS] <table> [<group>] {<clause>} [AS <query>|<bare>]
CREATE {<kind>} TABLE [IF NOT EXISTS] <table> LIKE (FILE <word> <text>|<keep>) {<clause>}
CREATE TEMPORARY {<kind>} TABLE [IF NOT EXISTS] <name> [<group>] {<clause>} [AS <query>|<bare>]
CREATE TEMPORARY {<kind>} TABLE [IF NOT EXISTS] <name> LIKE (FILE <word> <text>|<keep>) {<clause>}
CREATE [OR REPLACE] [MATERIALIZED] VIEW [IF NOT EXISTS] <table> [<group>] {<clause>} AS <query>
CREATE [OR REPLACE] [GLOBAL] <temp> VIEW [IF NOT EXISTS] <name> [<group>] {<clause>} [AS <query>]
DECLARE [OR REPLACE] [VARIABLE|VAR] <names> [<type>] [(DEFAULT|=) <values>]
DROP [TEMPORARY] (FUNCTION|MACRO|VARIABLE) [IF EXISTS] <name>
DROP (ROLE|CATALOG|RESOURCE|APPLICATION|SCHEDULED) <anything>
DROP <db> [IF EXISTS] <database> [CASCADE|RESTRICT]
DROP (TABLE|VIEW|MATERIALIZED VIEW) [IF EXISTS] <table> [PURGE]
EXPLAIN ANALYZE <statement>
EXPLAIN {<how>} <explained>
EXPORT TABLE <read> TO <text> [FOR [METADATA] REPLICATION <group>]
IMPORT [EXTERNAL] TABLE <object> FROM <text> [LOCATION <text>]
LOAD DATA [LOCAL] INPATH <text> [OVERWRITE] INTO TABLE <object> [INPUTFORMAT <text> SERDE <text>]
LOCK TABLE <keep> SHARED
LOCK TABLE <object> EXCLUSIVE
LOCK <db> <kept> SHARED
LOCK <db> <database> EXCLUSIVE
MSCK [REPAIR] TABLE <table> [(ADD|DROP|SYNC) PARTITIONS [<group>]]
REFRESH TABLE <keep>
REFRESH MATERIALIZED VIEW <again>
REFRESH (<text>|FUNCTION <name>)
REPAIR TABLE <table> [(ADD|DROP|SYNC) PARTITIONS]
REPLACE TABLE <table> [<group>] {<clause>} [AS <query>|<bare>]
SET (VARIABLE|VAR) <values>
TRUNCATE [TABLE] <object> [COLUMNS <group>] [FORCE]
UNCACHE TABLE [IF EXISTS] <name>
UNLOCK TABLE <name> [PARTITION <group>]
UNLOCK <db> <name>
"""

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
_PARTS = {
    "altered": "<name> <alteration> {<alteration>}",
    "alteration": "TYPE <type>|COMMENT <text>|FIRST|AFTER <name>|(SET|DROP) NOT NULL"
    "|SET DEFAULT <value>|DROP DEFAULT",
    "counted": "ALL COLUMNS|COLUMNS [<names>]",
    "clause": "(COMMENT|LOCATION|MANAGEDLOCATION) <text>|USING <name>|INTO <word> BUCKETS"
    "|[WITH] (OPTIONS|TBLPROPERTIES|DBPROPERTIES|SERDEPROPERTIES) <group>"
    "|PARTITIONED (BY|ON) [SPEC] <group>|(CLUSTER|CLUSTERED|DISTRIBUTED|SORTED) (BY|ON) <group>"
    "|SKEWED BY <group> ON <group>|STORED (AS <format>|BY (<text>|<word>))"
    "|ROW FORMAT (SERDE <text>|DELIMITED {<delimiter>})|DEFAULT COLLATION <name>"
    "|DISABLE REWRITE|WITH SCHEMA <schema>",
    "db": "|".join(DATABASE),
    "delimiter": "(FIELDS|COLLECTION ITEMS|MAP KEYS|LINES) TERMINATED BY <text>"
    "|ESCAPED BY <text>|NULL DEFINED AS <text>",
    "field": "<name> <type> [NOT NULL] [DEFAULT <value>] [COMMENT <text>] [FIRST|AFTER <name>]",
    "files": "(JAR|FILE|ARCHIVE) <text> {, (JAR|FILE|ARCHIVE) <text>}",
    "flag": "ENABLE|DISABLE|VALIDATE|NOVALIDATE|RELY|NORELY|[NOT] ENFORCED",
    "format": "INPUTFORMAT <text> OUTPUTFORMAT <text> [SERDE <text>]|<word>",
    "how": "AST|AUTHORIZATION|CBO|CODEGEN|COST|DEPENDENCY|DETAIL|EXTENDED|FORMATTED|JOINCOST|LOCKS"
    "|LOGICAL|REOPTIMIZATION|VECTORIZATION",
    "kind": "EXTERNAL|MANAGED|TRANSACTIONAL",
    "names": "<name> {, <name>}",
    "schema": "BINDING|COMPENSATION|[TYPE] EVOLUTION",
    "set": "SET|UNSET",
    "temp": "TEMPORARY|TEMP",
    "trait": "RETURNS (TABLE [<group>]|<type>)|LANGUAGE <word>|[NOT] DETERMINISTIC|COMMENT <text>"
    "|CONTAINS SQL|READS SQL DATA|SQL SECURITY <word>|DEFAULT COLLATION <name>",
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
    """Return the forms, grouped by first word."""
    found: dict[str, list[re.Pattern[str]]] = {}
    for form in _FORMS.strip().splitlines():
        found.setdefault(form.split()[0], []).append(re.compile(_compile_form(form)))
    return found


def _compile_form(form: str) -> str:
    def part(found: re.Match[str]) -> str:
        name, word, bracket = found.groups()
        if name in _ACCESSES or name in _OF:
            return f"(?P<{name}>{_OF.get(name) or _ACCESSES[name][0]})"
        if name is not None:
            return _SIGNS.get(name) or f"(?:{_compile_form(_PARTS[name])})"
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


def _read_body(words: WordReader) -> Accesses:
    """Read the query or value that calls of a function evaluate, as for a view."""
    return _read_query(words) if words.key in _QUERIES else _read_values(words)


# The pattern of each accessed part, and the function that reads it.
_ACCESSES: dict[str, tuple[str, Callable[[WordReader], Accesses]]] = {
    "again": (_DOTTED, lambda words: [Change(view := words.read_table()), Read(view)]),
    "bare": (_BARE, _read_query),
    "body": (r" .+", _read_body),
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
