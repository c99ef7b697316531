"""What the statements touch that define, move and mend: ALTER, CREATE, DROP, LOAD and the like.

Each form that is known is named here. A form that is not is refused: an unknown clause may name
another table.
"""

from __future__ import annotations

from collections.abc import Callable

from txn.locks.hive.model import Change, Keep, Read, Restore, Spec, Touch
from txn.locks.hive.queries import query_touches
from txn.locks.hive.words import Words
from txn.locks.requests import Path

Touches = list[Touch]
DATABASE = ("DATABASE", "SCHEMA")
NOT_DATA = ("FUNCTION", "ROLE", "MACRO", "CATALOG", "RESOURCE", "APPLICATION", "SCHEDULED")
QUERY = ("SELECT", "WITH", "FROM", "VALUES", "(", "MAP", "REDUCE", "TABLE")

# Behind ALTER TABLE t [PARTITION (..)]: what changes the whole of it and names nothing else.
ALTERS = (
    ("ADD", "COLUMNS"), ("ADD", "COLUMN"), ("ALTER", "COLUMN"), ("DROP", "COLUMN"),
    ("DROP", "COLUMNS"), ("RENAME", "COLUMN"), ("ADD", "CONSTRAINT"), ("CHANGE",),
    ("CLUSTERED", "BY"), ("COMPACT",), ("CONCATENATE",), ("DISABLE",), ("DROP", "CONSTRAINT"),
    ("ENABLE",), ("INTO",),
    ("NOT", "CLUSTERED"), ("NOT", "SKEWED"), ("NOT", "SORTED"), ("NOT", "STORED"),
    ("PARTITION", "COLUMN"), ("RECOVER", "PARTITIONS"), ("REPLACE", "COLUMNS"),
    ("SET", "LOCATION"), ("SET", "OWNER"), ("SET", "SKEWED"), ("SET", "TBLPROPERTIES"),
    ("SKEWED", "BY"), ("TOUCH",), ("UNSET", "TBLPROPERTIES"), ("UPDATE", "COLUMNS"),
    ("UPDATE", "STATISTICS"),
)  # fmt: skip
STORES = (
    ("SET", "SERDEPROPERTIES"), ("SET", "SERDE"), ("SET", "FILEFORMAT"),
    ("UNSET", "SERDEPROPERTIES"),
)  # fmt: skip
MOVES = ("ADD", "DROP", "TOUCH", "ARCHIVE", "UNARCHIVE")


def definition_touches(statement: str, database: str) -> Touches | None:
    """Return what such a statement touches; None if it does not begin as one of them."""
    words = Words(statement, database)
    read = _FIRST.get(words.key)
    if read is None:
        return None
    words.skip()
    return read(words)


def _alter(words: Words) -> Touches:
    if words.accept_one(*DATABASE):
        return [Change(words.database_path())]
    if words.accept("VIEW"):
        view = words.table()
        return [Change(view), *(_query(words) if words.accept("AS") else [])]
    words.expect("TABLE")
    table = words.table()
    if words.accept("PARTITION", "COLUMN"):
        return [Change(table)]
    return _alter_table(words, table, words.partition())


def _alter_table(words: Words, table: Path, partition: Spec) -> Touches:
    if words.accept("RENAME", "TO"):
        renamed = words.columns() if words.accept("PARTITION") else ()
        return [Change(table, partition), *([Change(table, renamed)] if renamed else [])]
    if words.accept("EXCHANGE"):
        moved = words.partition()
        words.expect("WITH", "TABLE")
        return [Change(table, moved), Change(words.table(), moved)]
    if any(words.accept(*form) for form in STORES):
        return [Change(table, partition) if partition else Restore(table)]
    if not partition:
        moved_ones = _partitions_of(words, table)
        if moved_ones:
            return moved_ones
    if any(words.accept(*form) for form in ALTERS):
        return [Change(table, partition)]
    return words.refuse()


def _partitions_of(words: Words, table: Path) -> Touches:
    """`ADD`, `DROP`, `TOUCH` .. and the partitions that follow; nothing if none do."""
    found: Touches = []
    for action in MOVES:
        for exists in ((), ("IF", "EXISTS"), ("IF", "NOT", "EXISTS")):
            if not found and words.accept(action, *exists, "PARTITION"):
                found.append(Change(table, words.columns()))
    while found and not words.at_end:
        if words.accept("PARTITION"):
            found.append(Change(table, words.columns()))
        else:
            words.skip()  # commas, LOCATION '..', PURGE
    return found


def _create(words: Words) -> Touches:
    words.accept("OR", "REPLACE")
    while words.accept_one("TEMPORARY", "TEMP", "GLOBAL", "EXTERNAL", "MANAGED", "TRANSACTIONAL"):
        pass
    if words.accept_one(*NOT_DATA):
        return []
    kind = words.accept_one("TABLE", "VIEW", *DATABASE) or words.refuse()
    words.skip_if_exists()
    if kind in DATABASE:
        return [Change(words.database_path())]
    found: Touches = [Change(words.table())]
    while not words.at_end:
        if words.accept("STORED", "AS"):
            continue
        if words.accept("AS"):
            return found + _query(words)
        if words.accept("LIKE") and words.key != "FILE":
            found.append(Keep(words.table()))
        else:
            words.skip()
    return found


def _drop(words: Words) -> Touches:
    words.accept("TEMPORARY")
    if words.accept_one(*NOT_DATA):
        return []
    kind = words.accept_one("TABLE", "VIEW", *DATABASE) or words.refuse()
    words.skip_if_exists()
    path = words.database_path() if kind in DATABASE else words.table()
    while words.accept_one("CASCADE", "RESTRICT", "PURGE"):
        pass
    words.end()
    return [Change(path)]


def _load(words: Words) -> Touches:
    words.expect("DATA")
    while not words.accept("INTO", "TABLE"):
        if words.at_end:
            words.refuse()
        words.skip()
    return [_object(words)]


def _truncate(words: Words) -> Touches:
    words.accept("TABLE")
    return [_object(words)]


def _msck(words: Words) -> Touches:
    words.accept("REPAIR")
    words.expect("TABLE")
    return [Change(words.table())]


def _repair(words: Words) -> Touches:
    words.expect("TABLE")
    return [Change(words.table())]


def _analyze(words: Words) -> Touches:
    words.expect("TABLE")
    return [_object(words)]


def _export(words: Words) -> Touches:
    words.expect("TABLE")
    table, partition = words.table(), words.partition()
    return [Read(table, {name: (value,) for name, value in partition if value is not None})]


def _import(words: Words) -> Touches:
    words.accept("EXTERNAL")
    words.expect("TABLE")
    return [_object(words)]


def _explain(words: Words) -> Touches:
    """EXPLAIN ANALYZE runs what it explains; the others look at nothing but the catalogue."""
    if words.accept("ANALYZE"):
        return _any(words)
    return []


def _lock(words: Words) -> Touches:
    kind = words.accept_one("TABLE", *DATABASE) or words.refuse()
    path = words.database_path() if kind in DATABASE else words.table()
    partition = words.partition()
    mode = words.accept_one("SHARED", "EXCLUSIVE") or words.refuse()
    words.end()
    return [(Keep if mode == "SHARED" else Change)(path, partition)]


def _nothing(words: Words) -> Touches:
    return []


def _object(words: Words) -> Touch:
    """The table or the partition that comes next."""
    found = Change(words.table(), words.partition())
    if words.key == ",":
        words.refuse()
    return found


def _query(words: Words) -> Touches:
    if words.key not in QUERY:
        words.refuse()
    return query_touches(words.rest(), words.database)


def _any(words: Words) -> Touches:
    if words.key in QUERY or words.key in {"INSERT", "MERGE", "UPDATE", "DELETE"}:
        return query_touches(words.rest(), words.database)
    read = _FIRST.get(words.key) or words.refuse()
    words.skip()
    return read(words)


_FIRST: dict[str, Callable[[Words], Touches]] = {
    "ALTER": _alter,
    "ANALYZE": _analyze,
    "CREATE": _create,
    "DROP": _drop,
    "EXPLAIN": _explain,
    "EXPORT": _export,
    "IMPORT": _import,
    "LOAD": _load,
    "LOCK": _lock,
    "MSCK": _msck,
    "REPAIR": _repair,
    "TRUNCATE": _truncate,
    **dict.fromkeys(
        ("ADD", "DESC", "DESCRIBE", "GRANT", "LIST", "RELOAD", "RESET", "REVOKE", "SET", "SHOW"),
        _nothing,
    ),
    "UNLOCK": _nothing,
    "USE": _nothing,
}
