"""What a statement locks beside what Spark's own analysis of it names, and a junk word behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from py4j.java_gateway import JavaObject
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from txn import Engine
from txn.errors import InvalidRequestError
from txn.locks.hive.model import BUILT_IN
from txn.locks.hive.sql import requests
from txn.locks.opening import open_stored
from txn.locks.spark import locked_sql, session_requests
from txn.stores import open_store

MADE = [
    "CREATE TABLE planned (v INT, p INT) USING parquet PARTITIONED BY (p)",
    "ALTER TABLE planned ADD PARTITION (p=1)",
    "ALTER TABLE planned ADD PARTITION (p=2)",
    "CREATE TABLE plain (a INT, b STRING) USING parquet",
    "CREATE TABLE target (a INT, b STRING) USING parquet",
    "CREATE TABLE days (v INT, ds STRING) USING parquet PARTITIONED BY (ds)",
    "CREATE VIEW seen AS SELECT * FROM planned WHERE p = 1",
    "CREATE FUNCTION top() RETURNS INT RETURN (SELECT max(v) FROM planned)",
    "CREATE FUNCTION above(x INT) RETURNS INT RETURN x + top()",
    "CREATE FUNCTION rows_of() RETURNS TABLE (v INT) RETURN SELECT v FROM planned",
    "CREATE FUNCTION given(x INT DEFAULT top() COMMENT 'x, y', y INT DEFAULT 1) RETURN x + y",
    "CREATE VIEW meant AS SELECT * FROM IDENTIFIER('plain')",
    "CREATE FUNCTION plus(x INT) RETURNS INT RETURN x + 1",
    "CREATE VIEW topped AS SELECT a, above(a) AS b FROM plain",
    "CREATE TEMPORARY FUNCTION passing() RETURNS INT RETURN (SELECT max(v) FROM planned)",
    "CREATE TEMPORARY FUNCTION upper(x STRING) RETURNS INT RETURN (SELECT max(v) FROM planned)",
    "DECLARE VARIABLE chosen INT",
]
DROPPED = [
    "DROP TEMPORARY VARIABLE chosen",
    "DROP TEMPORARY FUNCTION system.session.upper",
    "DROP TEMPORARY FUNCTION passing",
    "DROP VIEW topped",
    "DROP VIEW meant",
    "DROP VIEW seen",
    *(f"DROP FUNCTION {name}" for name in ("plus", "given", "rows_of", "above", "top")),
    *(f"DROP TABLE {name}" for name in ("days", "target", "plain", "planned")),
]
STATEMENTS = [
    "SELECT r'\\d', X'41', 'it''s', \"a\" FROM plain",
    "SELECT /* /* nested */ FROM days */ a FROM plain -- FROM days",
    "SELECT above(a) FROM plain",
    "SELECT * FROM plain JOIN LATERAL (SELECT * FROM planned WHERE v = a)",
    "SELECT passing(), default.top(), spark_catalog.default.plus(1)",
    "SELECT given()",
    "SELECT * FROM meant",
    "SELECT * FROM plain WHERE b = X 'FF' OR b LIKE 'a%' AND like(b, 'x')",
    "WITH RECURSIVE plain (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM plain) TABLE plain",
    "EXPLAIN EXTENDED INSERT INTO target TABLE plain",
    "SELECT * FROM plain TABLESAMPLE (3 ROWS) JOIN default.rows_of() x ON x.v = a",
    "SELECT * FROM topped",
    "SELECT extract(day FROM current_date), trim(BOTH 'x' FROM b), substring(b FROM 1 FOR 2), "
    "overlay(b PLACING 'x' FROM 1), cast(a AS DECIMAL(3, 1)), try_cast(b AS INT), "
    "position('a' IN b), date_add(DATE'2020-01-01', 1), percentile_cont(0.5) WITHIN GROUP "
    "(ORDER BY a), struct(1), named_struct('a', 1), count(DISTINCT a) FROM plain GROUP BY ALL",
    "SELECT * FROM IDENTIFIER('pla' || 'in')",
    "SET VAR chosen = (SELECT max(v) FROM planned)",
    "INSERT INTO planned PARTITION (p=3) SELECT a FROM plain",
    "INSERT OVERWRITE TABLE days PARTITION (ds='${day}') SELECT a FROM plain",
    "INSERT INTO target (a, b) SELECT top(), 'x'",
    "FROM plain INSERT INTO target SELECT a, b INSERT OVERWRITE days PARTITION (ds='x') SELECT a",
    "INSERT OVERWRITE DIRECTORY USING csv OPTIONS ('path' '/tmp/none') SELECT * FROM plain",
    "CREATE TABLE made USING parquet PARTITIONED BY (b) COMMENT 'x' AS SELECT * FROM plain",
    "CREATE OR REPLACE VIEW made AS SELECT above(a) AS x FROM plain",
    "CREATE TEMPORARY VIEW target AS SELECT * FROM plain",
    "ALTER VIEW seen AS SELECT * FROM plain",
    "ALTER TABLE planned DROP IF EXISTS PARTITION (p=1), PARTITION (p=2) PURGE",
    "ALTER TABLE planned ADD PARTITION (p=7) LOCATION '/tmp/none' PARTITION (p=8)",
    "ALTER TABLE plain RENAME TO made",
    "ANALYZE TABLE plain COMPUTE STATISTICS FOR COLUMNS a, b",
    "CACHE LAZY TABLE made OPTIONS ('storageLevel' 'DISK_ONLY') AS SELECT * FROM plain",
    "DROP VIEW seen",
]  # fmt: skip


@pytest.fixture(scope="module")
def made(spark: SparkSession) -> Iterator[SparkSession]:
    for statement in MADE:
        spark.sql(statement)
    spark.sql("SET day=2026-11-25")
    yield spark
    spark.conf.unset("day")
    for statement in DROPPED:
        spark.sql(statement)


def named_by_spark(spark: SparkSession, sql: str) -> set[str]:
    """The tables and views in the analysed plan of a statement, which is not run."""
    session, jvm = spark._jsparkSession, spark._jvm
    assert jvm is not None
    plan = session.sessionState().sqlParser().parsePlan(sql)
    modes = getattr(jvm.org.apache.spark.sql.execution, "CommandExecutionMode$")
    skip = getattr(modes, "MODULE$").SKIP()
    analyzed = session.sessionState().executePlan(plan, skip).analyzed()
    return {name for name in _names(analyzed) if name.startswith("default/")}


def _names(plan: Any) -> Iterator[str]:
    """Every name of a table within a plan and its subqueries."""
    elements = plan.productIterator()
    while elements.hasNext():
        yield from _identifiers(elements.next())
    for each in ("children", "innerChildren", "subqueries"):
        many = getattr(plan, each)()
        for at in range(many.size()):
            yield from _names(many.apply(at))


def _identifiers(element: Any) -> Iterator[str]:
    """The name of the table that an element of a plan is, or has."""
    # A Java object has any attribute that it is asked for: only its class tells.
    name = element.getClass().getSimpleName() if isinstance(element, JavaObject) else ""
    if name == "TableIdentifier":
        database = element.database()
        parts = (database.get() if database.isDefined() else "default", element.table())
        yield "/".join(parts).lower()
    elif name in {"CatalogTable", "Some"}:
        yield from _identifiers(element.identifier() if name == "CatalogTable" else element.get())


def test_spark_names_the_tables_of_a_plan(made: SparkSession) -> None:
    """Else the comparison below compares nothing."""
    named = named_by_spark(made, "INSERT INTO target SELECT a, string(top()) FROM seen, topped")
    assert named == {f"default/{name}" for name in ("target", "planned", "seen", "topped", "plain")}


@pytest.mark.parametrize("sql", STATEMENTS)
def test_what_spark_reads_or_writes_is_locked(made: SparkSession, sql: str) -> None:
    """A table that Spark's analysis finds and we do not is read under no lock."""
    found = session_requests(made, sql)
    if sql.startswith("EXPLAIN"):
        assert found == []
    else:
        locked = {"/".join(request.path.parts[:2]) for request in found}
        is_temporary = "TEMPORARY VIEW target" in sql or sql.startswith("CACHE LAZY")
        hidden = {"default/target", "default/made"} if is_temporary else set()
        if "RENAME TO made" in sql:
            hidden = {"default/made"}  # the new name: Hive locks the table alone
        assert named_by_spark(made, sql) - locked <= hidden - locked
        assert not any("$" in str(request) for request in found)
    parser = made._jsparkSession.sessionState().sqlParser()
    refused: list[str] = []
    for junk in (" FROBNICATE other words", " ) other", " {other}", " t_$other"):
        text = sql.replace(" -- FROM days", "") + junk
        try:
            parser.parsePlan(text)
        except PySparkException:
            refused.append(text)
    assert refused
    for text in refused:
        with pytest.raises(InvalidRequestError):
            session_requests(made, text)


@pytest.mark.slow
def test_the_functions_of_spark_and_their_examples_are_understood(made: SparkSession) -> None:
    """Without a session a function that is not in the list is refused."""
    there = {row[0] for row in made.sql("SHOW SYSTEM FUNCTIONS").collect()}
    words = {"and", "or", "not", "in", "case", "when", "between", "div"}
    assert {name for name in there if name.isidentifier()} - words <= BUILT_IN
    parser = made._jsparkSession.sessionState().sqlParser()
    assert made._jvm is not None
    functions = made._jvm.org.apache.spark.sql.api.python.PythonSQLUtils
    known = [each for each in functions.listBuiltinFunctionInfos() if each.getName() in BUILT_IN]
    assert {each.getName() for each in known} >= there & BUILT_IN
    assert len(known) > 400
    understood = 0
    for each in known:
        examples = each.getExamples().replace("_FUNC_", each.getName())
        for example in re.findall(r"> ((?:SELECT|WITH) [^;]*);\n", examples):
            try:
                parser.parsePlan(example)
            except PySparkException:
                continue  # an example that is not whole
            if ">>>" not in example:  # which sqlglot does not know
                requests(example)
                understood += 1
    assert understood > len(known)


def explain(spark: SparkSession, sql: str, args: Any = None) -> str:
    """What to lock, on one line, without the default database."""
    found = session_requests(spark, sql, args)
    return ", ".join(map(str, found)).replace(" default/", " ")


ALL = "S planned, S planned/p=1, S planned/p=2"


@pytest.mark.parametrize(
    ("sql", "args", "expected"),
    [
        ("SELECT default.top()", None, ALL),
        ("SELECT passing()", None, ALL),
        ("SELECT upper('x')", None, ""),
        ("SELECT plus(1)", None, ""),
        ("SELECT * FROM topped", None, f"S plain, {ALL}, S topped"),
        ("TRUNCATE TABLE days PARTITION (ds='${day}')", None, "S days, X days/ds=2026-11-25"),
        ("SELECT * FROM ${place} WHERE p = 1", None, "S planned, S planned/p=1"),
        ("SELECT * FROM days WHERE ds = :day", {"day": "x"}, "S days, S days/ds=x"),
        ("SELECT * FROM days WHERE ds = ?", ["${day}"], "S days"),
        ("SELECT * FROM IDENTIFIER(:t) WHERE p = 1", {"t": "planned"}, "S planned, S planned/p=1"),
    ],
)
def test_a_session_gives_a_meaning(made: SparkSession, sql: str, args: Any, expected: str) -> None:
    made.sql("SET place=planned")
    try:
        assert explain(made, sql, args) == expected
    finally:
        made.conf.unset("place")


def test_a_statement_runs_on_what_is_locked(made: SparkSession) -> None:
    with Engine(open_store("memory://")) as engine, open_stored(engine) as manager:
        write = "INSERT OVERWRITE TABLE days PARTITION (ds='${day}') SELECT :v"
        locked_sql(made, manager, write, {"v": 7})
        read = "SELECT v, ds FROM IDENTIFIER(?) WHERE ds = ?"
        assert locked_sql(made, manager, read, ["days", "2026-11-25"]) == [(7, "2026-11-25")]
        with pytest.raises(InvalidRequestError, match="placeholder"):
            locked_sql(made, manager, "SELECT * FROM {frame}")
        with pytest.raises(InvalidRequestError, match="SET"):  # its value then is not known
            session_requests(made, f"SET day=x; {write}")
        assert manager.locks() == []


@pytest.mark.parametrize(
    ("setting", "value", "sql"),
    [
        ("spark.sql.variable.substitute", "false", "SELECT '${day}'"),
        ("spark.sql.ansi.doubleQuotedIdentifiers", "true", 'SELECT * FROM days WHERE ds = "a"'),
        ("spark.sql.parser.escapedStringLiterals", "true", "SELECT '\\' FROM days"),
        ("spark.sql.path.enabled", "true", "SELECT * FROM days"),
        ("spark.sql.caseSensitive", "true", "WITH DAYS AS (SELECT 1) SELECT * FROM days"),
    ],
)
def test_other_meanings_are_refused(made: SparkSession, setting: str, value: str, sql: str) -> None:
    made.conf.set(setting, value)
    try:
        with pytest.raises(InvalidRequestError):
            session_requests(made, sql)
    finally:
        made.conf.unset(setting)


def test_a_temporary_view_is_found_behind_use_and_in_a_function(made: SparkSession) -> None:
    made.sql("CREATE DATABASE elsewhere")
    made.range(3).createOrReplaceTempView("fleeting")
    made.sql("CREATE TEMPORARY FUNCTION counted() RETURN (SELECT count(*) FROM fleeting)")
    try:
        for sql in ("USE elsewhere; SELECT * FROM fleeting", "SELECT * FROM session.fleeting",
                    "SELECT counted()"):  # fmt: skip
            with pytest.raises(InvalidRequestError):
                session_requests(made, sql)
    finally:
        made.sql("DROP TEMPORARY FUNCTION counted")
        made.catalog.dropTempView("fleeting")
        made.sql("DROP DATABASE elsewhere")
