"""The accesses of queries, alone or within INSERT, CREATE .. AS, MERGE, UPDATE and DELETE.

A predicate counts only if rows of the table for which it is false certainly have no effect. That
holds for conjuncts of the WHERE of the table's own SELECT, and of the ON of joins that drop such
rows. The name of a visible common table expression is not a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError

from txn.locks.hive.model import Access, Change, Constant, ConstantKind, FunctionCall, Read
from txn.locks.hive.words import (
    Rewrite,
    Statements,
    make_table_path,
    refuse_statement,
    replace_words,
    tokenize,
)
from txn.locks.model import Path

Known = dict[str, tuple[Constant, ...]]
SOURCES = (exp.Table, exp.Subquery, exp.Values, exp.Lateral, exp.Unnest)

_FORMAT = r" USING \w+(?: \. \w+)*(?: OPTIONS \([^()]*\))?"
_QUERY_BEHIND = "|".join(
    rf"(?<= {word})"
    for word in (r"\(", r"\)", "AS", "ALL", "DISTINCT", "UNION", "EXCEPT", "INTERSECT", "MINUS")
)
# Syntax that sqlglot does not know, as patterns of words, with its replacement.
_REWRITES: list[Rewrite] = [
    (re.compile(pattern), rewrite)
    for pattern, rewrite in (
        (r"(?<= \)) IF NOT EXISTS", lambda words, text: ""),  # after the partition of an INSERT
        (r"(?:(?<= INSERT)|(?<= MERGE)) WITH SCHEMA EVOLUTION", lambda words, text: ""),
        (rf"(?<= DIRECTORY '){_FORMAT}", lambda words, text: ""),
        (rf"(?<= DIRECTORY){_FORMAT}", lambda words, text: "''"),
        (rf"(?:^|{_QUERY_BEHIND}) TABLE(?= [\w`])", lambda words, text: "SELECT * FROM"),
        (r" X '", lambda words, text: f"X'{words[-1].text}'"),
        (r"(?: FOR)? (?:SYSTEM_)?VERSION(?= AS OF )", lambda words, text: "VERSION"),
        (r"(?: FOR)? (?:SYSTEM_TIME|TIMESTAMP)(?= AS OF )", lambda words, text: "TIMESTAMP"),
        (
            r" (?:MAP|REDUCE)(?: (?!(?:USING|ROW|SELECT|FROM|MAP|REDUCE)\b)\S+)+"
            r"(?= USING '| ROW FORMAT )",
            lambda words, text: f"SELECT TRANSFORM({text})",
        ),
    )
]


def list_query_accesses(statement: str, database: str) -> list[Access]:
    tree = _parse(statement)
    targets = list(_list_targets(tree, statement))
    found: list[Access] = [_make_change(target, statement, database) for target in targets]
    for table in tree.find_all(exp.Table):
        is_target = any(table is target for target in targets)
        if not (is_target or isinstance(table.this, exp.Func) or _is_common(table)):
            found += _list_reads(table, statement, database)
    return [*found, *_list_calls(tree, statement, database)]


def _parse(statement: str) -> exp.Expr:
    text = replace_words(statement, _REWRITES)
    tokens = tokenize(text)
    if any(token.token_type is TokenType.PIPE_GT for token in tokens):
        refuse_statement(statement)
    try:
        (tree,) = Statements().parser().parse(tokens, text)
    except (SqlglotError, ValueError, RecursionError) as error:
        refuse_statement(statement, cause=str(error).splitlines()[0])
    if tree is None or tree.find(exp.Parameter, exp.SessionParameter):
        refuse_statement(statement)
    for source in tree.find_all(exp.From, exp.Join):
        if not isinstance(source.this, SOURCES):
            refuse_statement(statement, "the name of a table is needed", given=source.sql("hive"))
    return tree


def _list_calls(tree: exp.Expr, statement: str, database: str) -> Iterator[FunctionCall]:
    """Return the functions called by name; a hint that looks like a call is not one."""
    for call in tree.find_all(exp.Func):
        around = call.parent
        is_behind = isinstance(around, exp.Dot) and around.expression is call
        has_database = is_behind or (isinstance(around, exp.Table) and around.args.get("db"))
        if has_database and not isinstance(call, exp.Anonymous):
            # A database's function that has the name of a built-in one with special syntax.
            refuse_statement(statement, "a function that is named as one built in")
    found: dict[FunctionCall, None] = {}
    for call in tree.find_all(exp.Anonymous):
        if call.find_ancestor(exp.Hint):
            continue
        around = call.parent
        parts = [call.name.lower()]
        if isinstance(around, exp.Table):
            parts = [*(around.text(each).lower() for each in ("catalog", "db")), *parts]
        elif isinstance(around, exp.Dot) and around.expression is call:
            names = list(around.this.find_all(exp.Identifier, bfs=False))
            parts = [*(name.name.lower() for name in names), *parts]
        named = tuple(filter(None, parts))
        if len(named) > 3:
            refuse_statement(statement, "not understood", at=".".join(named))
        found[FunctionCall(named, database)] = None
    return iter(found)


def _list_targets(tree: exp.Expr, statement: str) -> Iterator[exp.Table]:
    match tree:
        case exp.MultitableInserts():
            for each in tree.expressions:
                yield from _list_targets(each, statement)
        case exp.Insert() | exp.Merge() | exp.Update() | exp.Delete():
            target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
            columns = tree.this.expressions if isinstance(tree.this, exp.Schema) else []
            if isinstance(target, exp.Table) and not any(
                isinstance(column, exp.Literal) for column in columns
            ):
                yield target
            elif not isinstance(target, exp.Directory):
                refuse_statement(statement)
        case exp.Query() | exp.Values() | exp.Table():
            return
        case _:
            refuse_statement(statement)


def _make_change(target: exp.Table, statement: str, database: str) -> Change:
    partition = target.args.get("partition")
    spec = tuple(_read_part(each, statement) for each in partition.expressions) if partition else ()
    return Change(_read_path(target, statement, database), spec)


def _read_part(part: exp.Expr, statement: str) -> tuple[str, Constant | None]:
    column, value = (part.this, part.expression) if isinstance(part, exp.EQ) else (part, None)
    if not isinstance(column, exp.Column | exp.Identifier):
        refuse_statement(statement, "a partition has columns")
    return column.name.lower(), None if value is None else _read_constant(value)


def _read_path(table: exp.Table, statement: str, database: str) -> Path:
    names = [table.args.get("catalog"), table.args.get("db"), table.this]
    parts = [name for name in names if name]
    if not all(isinstance(part, exp.Identifier) and part.name for part in parts):
        refuse_statement(statement, "the name of a table is needed", given=table.sql("hive"))
    return make_table_path([part.name.lower() for part in parts], database, statement)


def _is_common(table: exp.Table) -> bool:
    if table.args.get("db"):
        return False
    name = table.name.lower()
    inside: exp.Expr = table
    for around in _list_ancestors(table):
        if any(each.alias.lower() == name for each in _list_visible(around, inside)):
            return True
        inside = around
    return False


def _list_visible(around: exp.Expr, inside: exp.Expr) -> list[exp.Expr]:
    """Return the common table expressions of `around` that `inside` can see."""
    if isinstance(around, exp.With):
        if around.args.get("recursive"):
            return around.expressions
        return around.expressions[: [each is inside for each in around.expressions].index(True)]
    withs = [given for given in around.args.values() if isinstance(given, exp.With)]
    return [each for given in withs if given is not inside for each in given.expressions]


def _list_ancestors(node: exp.Expr) -> Iterator[exp.Expr]:
    while node.parent is not None:
        node = node.parent
        yield node


def _list_reads(table: exp.Table, statement: str, database: str) -> list[Access]:
    """Return one read, or one per INSERT of a multi-insert: each has its own predicates."""
    path = _read_path(table, statement, database)
    if path.parts[-1] == "stream" and table.alias and not table.args.get("db"):
        refuse_statement(statement, "a stream: lock the table by hand", at=table.alias)
    scope = next((each for each in _list_ancestors(table) if isinstance(each, exp.Select)), None)
    several = table.find_ancestor(exp.MultitableInserts)
    if scope is not None:
        return [Read(path, _list_known(table, _list_conjuncts(scope, table)))]
    if several is None:
        return [Read(path)]
    around = list(_list_join_conjuncts(several, table))
    return [
        Read(path, _list_known(table, [*_list_conjuncts(each.expression, table), *around]))
        for each in several.expressions
    ]


def _list_conjuncts(scope: exp.Expr | None, table: exp.Table) -> Iterator[exp.Expr]:
    if not isinstance(scope, exp.Select):
        return
    where = scope.args.get("where")
    if where is not None:
        yield from _split_conjunction(where.this)
    yield from _list_join_conjuncts(scope, table)


def _list_join_conjuncts(scope: exp.Expr, table: exp.Table) -> Iterator[exp.Expr]:
    owner = table.find_ancestor(exp.Select, exp.MultitableInserts)
    for join in scope.find_all(exp.Join):
        on = join.args.get("on")
        is_near = join.find_ancestor(exp.Select, exp.MultitableInserts) is owner is scope
        if on is not None and is_near and _drops_rows(join, table):
            yield from _split_conjunction(on)


def _drops_rows(join: exp.Join, table: exp.Table) -> bool:
    """Return True if rows of the table for which the join's condition is false have no effect."""
    is_right = any(each is join for each in _list_ancestors(table))
    match join.side, join.kind:
        case "", "" | "INNER" | "CROSS":
            return True
        case ("LEFT", _) | ("", "SEMI" | "ANTI"):
            return is_right
        case "RIGHT", "" | "OUTER":
            return not is_right
    return False


def _split_conjunction(condition: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(condition, exp.Paren):
        yield from _split_conjunction(condition.this)
    elif isinstance(condition, exp.And):
        yield from _split_conjunction(condition.this)
        yield from _split_conjunction(condition.expression)
    else:
        yield condition


def _list_known(table: exp.Table, conditions: Iterator[exp.Expr] | list[exp.Expr]) -> Known:
    known: Known = {}
    for condition in conditions:
        found = _read_equality(condition)
        if found is not None and _belongs_to(found[0], table):
            known.setdefault(found[0].name.lower(), found[1])
    return known


def _read_equality(condition: exp.Expr) -> tuple[exp.Column, tuple[Constant, ...]] | None:
    match condition:
        case exp.EQ(this=exp.Column() as column, expression=value):
            values = [value]
        case exp.EQ(this=value, expression=exp.Column() as column):
            values = [value]
        case exp.In(this=exp.Column() as column) if not condition.args.get("query"):
            values = condition.expressions
        case _:
            return None
    constants = [_read_constant(value) for value in values]
    known = tuple(constant for constant in constants if constant is not None)
    return (column, known) if known and len(known) == len(constants) else None


def _belongs_to(column: exp.Column, table: exp.Table) -> bool:
    """Return True if the column may be one of the table's; an unqualified one may."""
    alias = table.args.get("alias")
    if table.args.get("pivots") or table.find_ancestor(exp.TableSample):
        return False  # the predicate is about rows derived from the table's
    if table.args.get("sample") or (alias is not None and alias.columns):
        return False
    database = column.args.get("db")
    if database and database.name.lower() != table.text("db").lower():
        return False
    if not column.table:
        # The columns of a table in a SEMI or ANTI join are visible only in the ON.
        joins = (each for each in _list_ancestors(table) if isinstance(each, exp.Join))
        return not any(join.kind in {"SEMI", "ANTI"} for join in joins)
    return column.table.lower() == table.alias_or_name.lower()


def _read_constant(value: exp.Expr) -> Constant | None:
    kinds: dict[type[exp.Expr], ConstantKind] = {exp.Boolean: "boolean", exp.Null: "null"}
    match value:
        case exp.Paren():
            return _read_constant(value.this)
        case exp.Literal():
            return Constant("string" if value.is_string else "number", value.name)
        case exp.Neg(this=exp.Literal(is_string=False)):
            return Constant("number", f"-{value.this.name}")
        case exp.Cast(this=exp.Literal(is_string=True)) if value.is_type("date"):
            is_literal = type(value) is exp.Cast  # in this dialect CAST(..) is a TryCast
            return Constant("date", value.this.name) if is_literal else None
        case exp.Boolean() | exp.Null():
            return Constant(kinds[type(value)], str(value.this).lower())
    return None
