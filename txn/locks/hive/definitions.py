"""What the statements touch that define, move and mend: ALTER, CREATE, DROP, LOAD and the like.

Each form that is known stands here, to its last word. A statement of any other form is refused: an
unknown clause may name another table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

from txn.locks.hive.model import Change, Keep, Read, Restore, Spec, Touch
from txn.locks.hive.queries import query_touches
from txn.locks.hive.words import Shape, Words, refuse_statement
from txn.locks.requests import Path

Touches = list[Touch]
DATABASE = ("DATABASE", "SCHEMA", "NAMESPACE")
# Change no data and read none, whatever they say; what they set has been read before them.
NOTHING = frozenset(
    {"ADD", "DESC", "DESCRIBE", "GRANT", "LIST", "RELOAD", "RESET", "REVOKE", "SET",
     "SHOW", "USE"}
)  # fmt: skip

# [..] may be missing, {..} may be missing or repeated, (..|..) is one of several. <..> is a part
# with a rule of its own: in _TOUCHES if the statement touches it, else in _PARTS or _SIGNS.
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
# What stands between the < and > of a type, within others or not; `>>` is one sign. Each text fits
# in one way only, so that one that does not fit is refused at once.
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
# Partitions of a table: ALTER TABLE <of> DROP <parts>.
_OF = {
    "of": _DOTTED,
    "other": _DOTTED,
    "parts": r"(?:(?: ,)? PARTITION \(\)(?: LOCATION ')?)+",
    "renamed": r" PARTITION \(\)",
}
_NOTATION = re.compile(r"<(\w+)>|([A-Z_]+|[,=])|([][{}()|])| ")
_BRACKETS = {"[": "(?:", "]": ")?", "{": "(?:", "}": ")*", "(": "(?:", ")": ")", "|": "|"}


def statement_touches(statement: str, database: str) -> Touches:
    """Return what one statement touches."""
    words = Words(statement, database)
    forms = _compile_forms().get(words.key, [])
    shape = words.shape()
    if " IDENTIFIER ()" in shape.text and words.key not in NOTHING:
        words.refuse("only the session knows a name that is given by IDENTIFIER")
    for form in forms:
        if match := form.fullmatch(shape.text):
            return list(_list_touches(words, shape, match))
    if words.accept("SET", "CATALOG") or words.accept("SET", "PATH"):
        words.refuse("only the session's own catalogue is known")
    if words.key in NOTHING:
        return []
    return refuse_statement(statement) if forms else query_touches(statement, database)


def _list_touches(words: Words, shape: Shape, match: re.Match[str]) -> Iterator[Touch]:
    """What a statement of this form touches, in the order in which it is named."""
    parts: list[Spec] = []
    for role, text in match.groupdict().items():
        if text is None:
            continue
        start = match.start(role)
        words.seek(shape.words[start])
        if role == "of":
            table = words.table()
        elif role == "other":
            other = words.table()
            yield from (Change(other, part) for part in parts)
        elif role in _OF:
            for each in re.finditer(r" PARTITION \(\)", text):
                words.seek(shape.words[start + each.start()])
                parts.append(words.partition())
                yield Change(table, parts[-1])
        else:
            yield from _TOUCHES[role][1](words)


@cache
def _compile_forms() -> dict[str, list[re.Pattern[str]]]:
    """The forms by their first words."""
    found: dict[str, list[re.Pattern[str]]] = {}
    for form in _FORMS.strip().splitlines():
        found.setdefault(form.split()[0], []).append(re.compile(_compile(form)))
    return found


def _compile(form: str) -> str:
    def part(found: re.Match[str]) -> str:
        name, word, bracket = found.groups()
        if name in _TOUCHES or name in _OF:
            return f"(?P<{name}>{_OF.get(name) or _TOUCHES[name][0]})"
        if name is not None:
            return _SIGNS.get(name) or f"(?:{_compile(_PARTS[name])})"
        return f" {word}" if word else _BRACKETS.get(bracket, "")

    return _NOTATION.sub(part, form)


def _read(words: Words) -> Read:
    table, partition = words.table(), words.partition()
    return Read(table, {name: (value,) for name, value in partition if value is not None})


def _restore(words: Words) -> Touch:
    table, partition = words.table(), words.partition()
    return Change(table, partition) if partition else Restore(table)


def _change_and_read(view: Path) -> Touches:
    return [Change(view), Read(view)]


def _query(words: Words) -> Touches:
    return query_touches(words.rest(), words.database)


def _explain(words: Words) -> Touches:
    """EXPLAIN looks at nothing but the catalogue; what it explains must be understood."""
    _find_explained(words)
    return []


def _find_explained(words: Words) -> Touches:
    if words.key == "EXPLAIN":
        words.refuse()
    return statement_touches(words.rest(), words.database)


def _values(words: Words) -> Touches:
    """What the values read that variables are given; in ORDER BY no word can be a name for one."""
    return query_touches(f"SELECT 1 ORDER BY {words.rest()}", words.database)


def _defaults(words: Words) -> Touches:
    """What the calls of a function will read that leave out a parameter."""
    words.expect("(")
    return [touch for value in words.defaults() for touch in _values(Words(value, words.database))]


def _body(words: Words) -> Touches:
    """What the calls of a function will read, a query or a value, as if it were a view."""
    return _query(words) if words.key in _QUERIES else _values(words)


# What is touched, and how it is read from where it begins.
_TOUCHES: dict[str, tuple[str, Callable[[Words], Touches]]] = {
    "again": (_DOTTED, lambda words: _change_and_read(words.table())),
    "bare": (_BARE, _query),
    "body": (r" .+", _body),
    "database": (_DOTTED, lambda words: [Change(words.database_path())]),
    "explained": (r" .+", _explain),
    "given": (r" \(\)", _defaults),
    "keep": (_OBJECT, lambda words: [Keep(words.table(), words.partition())]),
    "kept": (_DOTTED, lambda words: [Keep(words.database_path())]),
    "object": (_OBJECT, lambda words: [Change(words.table(), words.partition())]),
    "query": (rf"{_BARE}| \(\)(?: .*)?", _query),
    "read": (_OBJECT, lambda words: [_read(words)]),
    "restore": (_OBJECT, lambda words: [_restore(words)]),
    "statement": (r" .+", _find_explained),
    "table": (_DOTTED, lambda words: [Change(words.table())]),
    "values": (r" .+", _values),
}
