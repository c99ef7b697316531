"""Which locks a statement needs. It is read to its last word: what is not known is refused, and
nothing is guessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest

from txn.errors import InvalidRequestError
from txn.locks.hive.model import Catalog, Column, Functions, Table, Tables
from txn.locks.hive.sql import requests
from txn.locks.hive.words import bind_values
from txn.locks.model import Path, path

DAY, HOUR = Column("p", "int"), Column("q", "string")
CATALOG = Tables(
    {
        path("default/t1"): Table((DAY,)),
        path("default/t2"): Table((DAY, HOUR)),
        path("default/plain"): Table(),
        path("default/named"): Table((Column("ds", "string"),)),
        path("default/dated"): Table((Column("ds", "date"),)),
        path("default/odd"): Table((Column("ds", "decimal(3,1)"),)),
        path("default/v"): Table(query="SELECT * FROM t1 WHERE p = 1"),
        path("other/w"): Table(query="SELECT * FROM default.v JOIN x", database="other"),
        path("default/loop"): Table(query="SELECT * FROM loop"),
    },
    {
        path("default/t1"): [("1",), ("2",)],
        path("default/t2"): [("1", "a"), ("1", "b"), ("2", "a")],
        path("default/named"): [("1",), ("01",)],
    },
)
ALL_T1 = "S t1, S t1/p=1, S t1/p=2"
STATEMENTS = [
    # each line of Hive's table
    ("SELECT * FROM t1 WHERE p = 1", "S t1, S t1/p=1"),
    ("INSERT INTO t1 PARTITION (p=3) SELECT a FROM t1 WHERE p = 1", "S t1, S t1/p=1, X t1/p=3"),
    ("INSERT INTO plain SELECT a FROM t1 WHERE p = 1", "X plain, S t1, S t1/p=1"),
    ("INSERT INTO t2 PARTITION (p=3, q='c') SELECT a FROM t1 WHERE p = 1",
     "S t1, S t1/p=1, S t2, S t2/p=3, X t2/p=3/q=c"),
    ("ALTER TABLE t1 RENAME TO t9", "X t1"),
    ("ALTER TABLE t1 ADD COLUMNS (a INT)", "X t1"),
    ("ALTER TABLE t1 ADD PARTITION (p=3)", "S t1, X t1/p=3"),
    ("ALTER TABLE t1 DROP PARTITION (p=1)", "S t1, X t1/p=1"),
    ("ALTER TABLE t1 SET FILEFORMAT ORC", "S t1"),
    ("ALTER TABLE t1 PARTITION (p=1) CONCATENATE", "S t1, X t1/p=1"),
    ("DROP TABLE t1", "X t1"),
    ("INSERT INTO t2 PARTITION (p=1, q) SELECT 1, 'a'", "S t2, X t2/p=1"),
    ("INSERT INTO t2 PARTITION (p, q) SELECT 1, 2, 'a'", "X t2"),
    # a table without partitions: there is nothing smaller to lock
    ("ALTER TABLE plain SET FILEFORMAT ORC", "X plain"),
    ("LOAD DATA INPATH '/x' INTO TABLE plain", "X plain"),
    # what defines and moves
    ("LOAD DATA LOCAL INPATH '/x' OVERWRITE INTO TABLE t1 PARTITION (p=1)", "S t1, X t1/p=1"),
    ("TRUNCATE TABLE t1 PARTITION (p=1)", "S t1, X t1/p=1"),
    ("MSCK REPAIR TABLE t1", "X t1"),
    ("EXPORT TABLE t1 PARTITION (p=1) TO '/x'", "S t1, S t1/p=1"),
    ("CREATE TABLE n (a INT) PARTITIONED BY (p INT) STORED AS ORC", "X n"),
    ("CREATE TABLE n LIKE t1", "X n, S t1"),
    ("CREATE TABLE IF NOT EXISTS n AS WITH t1 AS (SELECT 1) SELECT * FROM t1", "X n"),
    ("CREATE OR REPLACE VIEW n PARTITIONED ON (p) AS SELECT * FROM t1", f"X n, {ALL_T1}"),
    ("CREATE DATABASE IF NOT EXISTS d COMMENT 'x'", "X d"),
    ("DROP VIEW v", "X v"),
    ("ALTER TABLE t1 ADD IF NOT EXISTS PARTITION (p=3) LOCATION '/x' PARTITION (p=4)",
     "S t1, X t1/p=3, X t1/p=4"),
    ("ALTER TABLE t2 DROP PARTITION (p=1, q > 'a')", "S t2, X t2/p=1"),
    ("ALTER TABLE t1 PARTITION (p=1) RENAME TO PARTITION (p=3)", "S t1, X t1/p=1, X t1/p=3"),
    ("ALTER TABLE t1 EXCHANGE PARTITION (p=1) WITH TABLE t2", "S t1, X t1/p=1, S t2, X t2/p=1"),
    ("ALTER TABLE t1 PARTITION COLUMN (p STRING)", "X t1"),
    ("UPDATE t1 SET a = (SELECT MAX(b) FROM plain) WHERE p = 1", "S plain, X t1"),
    ("DELETE FROM plain WHERE a IN (SELECT a FROM t1 WHERE p = 2)", "X plain, S t1, S t1/p=2"),
    ("MERGE INTO plain USING v ON v.a = plain.a WHEN MATCHED THEN DELETE",
     "X plain, S t1, S t1/p=1, S v"),
    ("LOCK TABLE t1 PARTITION (p=1) EXCLUSIVE", "S t1, X t1/p=1"),
    ("LOCK DATABASE d SHARED", "S d"),
    # what touches no data
    ("USE d", ""),
    ("SET hive.exec.dynamic.partition=true", ""),
    ("SHOW LOCKS t1 PARTITION (p=1) EXTENDED", ""),
    ("EXPLAIN LOCKS SELECT * FROM t1", ""),
    ("DESCRIBE FORMATTED t1", ""),
    ("GRANT SELECT ON TABLE t1 TO USER u", ""),
    ("UNLOCK TABLE t1", ""),
    ("-- nothing\n;;", ""),
    # inserts
    ("FROM plain INSERT INTO a SELECT x INSERT OVERWRITE TABLE t1 PARTITION (p=1) SELECT y",
     "X a, S plain, S t1, X t1/p=1"),
    ("FROM t2 INSERT INTO a SELECT x WHERE p = 2 INSERT INTO b SELECT y WHERE p = 2",
     "X a, X b, S t2, S t2/p=2, S t2/p=2/q=a"),
    # queries: the partitions that they can read
    ("SELECT * FROM t1 WHERE 1 = t1.p AND (a > 3 AND b = 'x')", "S t1, S t1/p=1"),
    ("SELECT * FROM t1 WHERE p IN (1, a)", ALL_T1),
    ("SELECT * FROM v", "S t1, S t1/p=1, S v"),
    ("SELECT * FROM other.w", "S t1, S t1/p=1, S v, S other/w, S other/x"),
    ("SELECT * FROM plain JOIN t1 ON t1.a = plain.a AND t1.p = 1", "S plain, S t1, S t1/p=1"),
    ("SELECT * FROM t1 LEFT JOIN plain ON t1.p = 1", f"S plain, {ALL_T1}"),
    ("SELECT * FROM plain LEFT JOIN t1 ON t1.p = 1", "S plain, S t1, S t1/p=1"),
    ("SELECT * FROM plain FULL OUTER JOIN t1 ON t1.p = 1", f"S plain, {ALL_T1}"),
    ("SELECT * FROM plain LEFT SEMI JOIN t1 ON t1.p = 1", "S plain, S t1, S t1/p=1"),
    ("SELECT * FROM t1 LEFT ANTI JOIN plain ON t1.p = 1", f"S plain, {ALL_T1}"),
    ("SELECT * FROM t1 TABLESAMPLE (5 ROWS) z WHERE p = 1", ALL_T1),
    ("SELECT * FROM t1 PIVOT (SUM(a) FOR b IN (1 AS p)) WHERE p = 1", ALL_T1),
    ("SELECT * FROM plain LEFT SEMI JOIN t1 ON t1.a = plain.a WHERE p = 1", f"S plain, {ALL_T1}"),
    # the name of an expression is a table where it is not visible
    ("WITH t1 AS (SELECT * FROM t1 WHERE p = 1) SELECT * FROM t1", "S t1, S t1/p=1"),
    ("WITH b AS (SELECT * FROM a), a AS (SELECT 1) SELECT * FROM b", "S a"),
    ("SELECT * FROM (WITH plain AS (SELECT 1) SELECT * FROM plain) s, plain", "S plain"),
    ("WITH plain AS (SELECT 1) FROM plain INSERT INTO n SELECT *", "X n"),
    ("WITH RECURSIVE a AS (SELECT 1 UNION ALL SELECT * FROM a) SELECT * FROM a", ""),
    # a constant is a partition only where its type makes it certain
    ("SELECT * FROM t1 WHERE p = -1", "S t1, S t1/p=-1"),
    ("INSERT INTO named PARTITION (ds='') SELECT 1",
     "S named, X named/ds=__HIVE_DEFAULT_PARTITION__"),
    ("SELECT * FROM t1 WHERE p = '01'", ALL_T1),
    ("SELECT * FROM named WHERE ds = '1'", "S named, S named/ds=1"),
    ("SELECT * FROM named WHERE ds = 1", "S named, S named/ds=01, S named/ds=1"),
    ("SELECT * FROM dated WHERE ds = '2020-01-01'", "S dated, S dated/ds=2020-01-01"),
    ("SELECT * FROM dated WHERE ds = DATE '2020-01-01'", "S dated, S dated/ds=2020-01-01"),
    ("SELECT * FROM odd WHERE ds = 1", "S odd"),
    # what Spark and Hive accept
    ("INSERT OVERWRITE LOCAL DIRECTORY '/x' USING csv OPTIONS (a 'b') SELECT * FROM t", "S t"),
    ("CACHE LAZY TABLE c OPTIONS ('a' 'b') AS SELECT * FROM t", "S t"),
    ("CREATE MATERIALIZED VIEW v DISABLE REWRITE STORED AS ORC AS SELECT * FROM t", "S t, X v"),
    ("SELECT * FROM t SYSTEM_VERSION AS OF 3 x JOIN u SYSTEM_TIME AS OF '2020'", "S t, S u"),
    ("FROM t REDUCE a ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' USING 'cat' AS c", "S t"),
    ("INSERT OVERWRITE DIRECTORY '/x' USING parquet WITH a AS (TABLE t) FROM a", "S t"),
    ("COMMENT ON TABLE t IS 'x'", "X t"),
    # what is temporary needs no lock on its name
    ("CREATE TEMPORARY VIEW v AS SELECT * FROM t", "S t"),
    ("CREATE OR REPLACE GLOBAL TEMP VIEW v (a) COMMENT 'x' AS SELECT a FROM t", "S t"),
    ("CREATE TEMPORARY TABLE v (a INT) STORED AS ORC", ""),
    # a session variable needs what its value reads
    ("SET VAR x = (SELECT max(a) FROM t)", "S t"),
    ("SET VARIABLE (x, y) = (SELECT a, b FROM t), z = DEFAULT", "S t"),
    ("DECLARE OR REPLACE x, y INT DEFAULT (SELECT max(a) FROM t)", "S t"),
    # other forms
    ("ANALYZE TABLE t PARTITION (p=1) COMPUTE STATISTICS FOR COLUMNS a, b", "S t, X t/p=1"),
    ("CREATE TEMPORARY FUNCTION f AS 'x' USING JAR 'y', FILE 'z'", ""),
]  # fmt: skip
ENDLESS = ("SET hive", "SHOW", "DESCRIBE", "ADD JAR", "GRANT")  # of which the rest does not matter


def locks(sql: str, catalog: Catalog | None = None) -> str:
    """The requests on one line, without the default database, for people to compare."""
    found = requests(sql, None, catalog)
    return ", ".join(str(request) for request in found).replace(" default/", " ")


@pytest.mark.parametrize(("sql", "expected"), STATEMENTS)
def test_a_statement_locks_what_it_needs_and_is_read_to_its_last_word(
    sql: str, expected: str
) -> None:
    """A word behind the statement may be the name of another table."""
    assert locks(sql, CATALOG) == expected
    if not sql.startswith(ENDLESS):
        for junk in ("FROBNICATE other", ") other", "{other}", ", other x y z"):
            with pytest.raises(InvalidRequestError):
                requests(f"{sql} {junk}", None, CATALOG)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t1 WHERE 'open",
        "SELECT * FROM ${table}",
        "SELECT * FROM IDENTIFIER('t1')",
        "SELECT * FROM f(TABLE(t1))",
        "SELECT * FROM noop(ON t1 PARTITION BY p)",
        "CALL f('t1')",
        "SELECT * FROM far.away.t1",
        "ALTER INDEX i ON t1 REBUILD",
        "SELECT * FROM loop",
        "SELECT * FROM parquet.`/path`",
        "TRUNCATE TABLE delta.`/path`",
        "SELECT * FROM global_temp.v",
        "SELECT * FROM STREAM t",
        "SET CATALOG other",
        "SELECT * FROM t -- \\\n WHERE p = 1",
        "SELECT * FROM t@x",
        "SELECT * FROM t |> WHERE p = 1",
        "EXECUTE IMMEDIATE 'TRUNCATE TABLE t'",
        "BEGIN SELECT 1; END",
        "INSERT INTO TABLE FUNCTION f() SELECT 1",
        "INSERT INTO t1 PARTITION (p=(SELECT 1)) SELECT 2; TRUNCATE TABLE t1 PARTITION (p=(1))",
        "SELECT " + "(" * 3000 + "1" + ")" * 3000,
        "EXPLAIN ANALYZE " * 1_000 + "SELECT 1",
    ],
)
def test_what_is_not_understood_is_an_error(sql: str) -> None:
    """A statement that runs under too few locks is worse than one that does not run."""
    with pytest.raises(InvalidRequestError):
        requests(sql, None, CATALOG)


NAMED = [
    "SELECT * FROM t_{}",
    "INSERT OVERWRITE TABLE t PARTITION (ds='{}') SELECT 1",
    "CREATE TABLE t_{} AS SELECT 1",
    "USE d_{}",
    "LOCK TABLE t_{} SHARED",
    "SELECT 1 -- {}",
]


@pytest.mark.parametrize("sql", NAMED)
def test_a_variable_or_placeholder_is_refused_wherever_it_stands(sql: str) -> None:
    """Hive and Spark put its value there before they parse: nobody knows here which."""
    for variable in ("${x}", "${hiveconf:x}", "${env:HOME}", "a${x}b"):
        with pytest.raises(InvalidRequestError, match="variable"):
            requests(sql.format(variable))
    if "'{" not in sql and "--" not in sql:
        for marker in ("{env}", "{{ env }}", "$env"):
            with pytest.raises(InvalidRequestError):
                requests(sql.replace("{}", marker))


def test_without_a_catalogue_partitions_are_taken_as_they_are_written() -> None:
    """Writers exclude each other with no more than their statements; queries lock tables."""
    sql = "INSERT INTO T2 PARTITION (Q='x', p=1) SELECT * FROM `T1` WHERE p = 1"
    assert locks(sql) == "S t1, S t2, S t2/q=x, X t2/q=x/p=1"


def test_names_get_the_database_of_the_settings_and_of_use() -> None:
    setting = {"hive.current.database": "Sales"}
    assert [str(each) for each in requests("SELECT * FROM t", setting)] == ["S sales/t"]
    sql = "SELECT * FROM t; USE b; DROP TABLE t; USE DATABASE c; DROP TABLE b.u"
    assert locks(sql) == "X b/t, X b/u, S t"
    assert locks("SELECT * FROM spark_catalog.default.t1 WHERE p = 1", CATALOG) == "S t1, S t1/p=1"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("'x'", "S t, X t/ds=x"),
        ("r'x'", "S t, X t/ds=x"),
        ("'\\u0041'", "X t"),
        ("'a''b'", "X t"),
        ("'a' 'b'", "X t"),
        ("X'41'", "X t"),
        (":day", "X t"),
    ],
)
def test_a_partition_is_locked_only_where_its_spelling_is_certain(
    written: str, expected: str
) -> None:
    """Engines differ in what a backslash means and how two strings are put together."""
    for sql in ("TRUNCATE TABLE t PARTITION (ds={})", "INSERT INTO t PARTITION (ds={}) SELECT 1"):
        assert locks(sql.format(written)) == expected


@dataclass(frozen=True)
class Known:
    """A catalogue that knows functions as well."""

    tables: Tables
    made: dict[str, Table]

    def table(self, name: Path) -> Table | None:
        return self.tables.table(name)

    def partitions(self, name: Path) -> Sequence[Sequence[str]]:
        return list(self.tables.partitions(name))

    def functions(self, name: Path) -> Sequence[Table]:
        found = self.made.get("/".join(name.parts))
        return [] if found is None else [found]


KNOWN = Known(
    Tables(
        {
            path("default/t"): Table((Column("p", "int"),)),
            path("default/v"): Table(query="SELECT f(a) FROM u"),
        },
        {path("default/t"): [("1",), ("2",)]},
    ),
    {
        "default/f": Table(query="(SELECT max(a) FROM t WHERE p = 1)"),
        "default/twice": Table(query="SELECT 2 * f(x)"),
        "default/g": Table(query="SELECT a FROM u"),
        "other/h": Table(query="SELECT a FROM w", database="other"),
        "default/plain": Table(),
        "default/circle": Table(query="SELECT circle()"),
        "default/upper": Table(query="SELECT max(a) FROM w"),
    },
)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT f(1)", "S t, S t/p=1"),
        ("SELECT plain(1), max(a), `lower`(b) FROM n", "S n"),
        ("SELECT * FROM n, LATERAL g(a)", "S n, S u"),
        ("SELECT * FROM v", "S t, S t/p=1, S u, S v"),
        ("INSERT INTO n SELECT F(1)", "X n, S t, S t/p=1"),
        ("SET VAR x = f(1)", "S t, S t/p=1"),
        ("SELECT upper(1), builtin.max(1), system.builtin.min(1)", "S w"),
        ("SELECT /*+ plainly(x), broadcast(n) */ 1 FROM n", "S n"),
    ],
)
def test_a_function_needs_what_its_body_reads(sql: str, expected: str) -> None:
    assert isinstance(KNOWN, Functions)
    assert locks(sql, KNOWN) == expected


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("() RETURN (SELECT max(a) FROM t)", "S t"),
        ("(x INT DEFAULT 1) RETURNS INT COMMENT 'x' RETURN CASE x WHEN 1 THEN 2 END", ""),
        ("() RETURNS TABLE (v INT) LANGUAGE SQL READS SQL DATA RETURN SELECT v FROM t", "S t"),
        ("(a INT DEFAULT 1 COMMENT 'x', b INT DEFAULT (SELECT 1 FROM t)) RETURN a", "S t"),
    ],
)
def test_making_a_function_needs_what_its_body_reads(made: str, expected: str) -> None:
    for words in ("CREATE", "CREATE OR REPLACE TEMPORARY"):
        assert locks(f"{words} FUNCTION f{made}") == expected
    with pytest.raises(InvalidRequestError):
        requests(f"CREATE FUNCTION f{made} FROBNICATE u v")


VALUES = [
    "array({})[{}], map({}, {})[{}], list[{}], x[{}][{}], struct({}).a, (1, {})",
    "CASE {} WHEN {} THEN {} ELSE {} END, CAST({} AS INT), {}::int, {} IS NULL, NOT {}",
    "{} IN ({}, {}), {} BETWEEN {} AND {}, {} LIKE {} ESCAPE '/', {} RLIKE ANY ({}, {})",
    "sum({}) FILTER (WHERE {} > {}) OVER (PARTITION BY {}, {} ORDER BY {} DESC NULLS LAST)",
    "first({}) IGNORE NULLS, count(DISTINCT {}, {}), listagg({}, ',') WITHIN GROUP (ORDER BY {})",
    "trim({} FROM {}), substring({} FROM {} FOR {}), overlay({} PLACING {} FROM {} FOR {})",
    "position({} IN {}), extract(YEAR FROM {}), INTERVAL ({}) DAY, date_add({}, {})",
    "transform(a, x -> x + {}), aggregate({}, {}, (y, x) -> y + {}, y -> {}), struct({} AS a)",
    "{} FROM t WHERE {} GROUP BY {}, ROLLUP ({}) HAVING {} ORDER BY {} LIMIT {}",
    "1 FROM t DISTRIBUTE BY {} SORT BY {} DESC",
    "1 FROM t JOIN u ON {} = {} LATERAL VIEW explode({}) e, LATERAL explode({}) AS f (a)",
    "1 FROM t PIVOT (sum({}) FOR a IN ({}, {} AS b))",
    "1 FROM (VALUES ({}, {})), range({})",
]


@pytest.mark.parametrize("values", VALUES)
def test_a_function_is_found_wherever_a_value_may_stand(values: str) -> None:
    """What the parser drops from a statement would be read under no lock."""
    sql = f"SELECT {values}"
    places = sql.count("{}")
    for place in range(places):
        requests(sql.format(*["1"] * places))
        for value in ("nope(1)", "(SELECT max(a) FROM parquet.`/x`)"):
            with pytest.raises(InvalidRequestError):
                requests(sql.format(*[value if each == place else "1" for each in range(places)]))


@pytest.mark.parametrize(
    "sql",
    ["SELECT nope(1)", "SELECT other.f(1)", "SELECT default.max(1)", "SELECT * FROM nope()",
     "SELECT * FROM other.trim('x')", "SELECT 1 FROM n, LATERAL other.substring(a)",
     "SELECT circle()", "SELECT a.b.c.d(1)", "SELECT builtin.nope(1)"],
)  # fmt: skip
def test_a_function_that_nobody_knows_is_refused(sql: str) -> None:
    for catalog in (KNOWN, None):
        with pytest.raises(InvalidRequestError):
            requests(sql, None, catalog)


@pytest.mark.parametrize(
    ("sql", "args", "expected"),
    [
        ("SELECT :a, :b, :c, :d", {"a": None, "b": True, "c": -7, "d": 1.5},
         "SELECT NULL, TRUE, -7, 1.5"),
        ("SELECT :a, :b", {"a": date(2020, 1, 2), "b": Decimal("1E+2")},
         "SELECT DATE'2020-01-02', 100"),
        ("SELECT ?, ?", ["x", "y z"], "SELECT 'x', 'y z'"),
        ("SELECT ?, ?", ["x"], "SELECT 'x', ?"),
        ("SELECT ':a', \"?\" -- :a ?", {"a": 1}, "SELECT ':a', \"?\" -- :a ?"),
        ("SELECT a:b, s.`c`:b FROM t", {"b": 1}, "SELECT a:b, s.`c`:b FROM t"),
        ("SELECT :a", {"a": datetime(2020, 1, 1)}, "SELECT :a"),
        ("SELECT :a", {"a": float("nan")}, "SELECT :a"),
        ("SELECT :a", {"a": "it's"}, "SELECT '\\u0069\\u0074\\u0027\\u0073'"),
        ("SELECT :a", None, "SELECT :a"),
    ],
)  # fmt: skip
def test_a_marker_is_given_its_value(sql: str, args: Any, expected: str) -> None:
    """What has no certain spelling stays a marker, which says nothing about a partition."""
    assert bind_values(sql, args) == expected


@pytest.mark.parametrize(
    ("sql", "args", "expected"),
    [
        ("SELECT * FROM IDENTIFIER(:t)", {"t": "other.u"}, "S other/u"),
        ("SELECT * FROM IDENTIFIER(:d || '.u')", {"d": "`my base`"}, "S my base/u"),
        ("TRUNCATE TABLE IDENTIFIER(?)", ["u"], "X u"),
        ("SELECT * FROM t WHERE p = :p", {"p": 1}, "S t, S t/p=1"),
        ("INSERT INTO n PARTITION (ds=:d) SELECT 1", {"d": "${x}"}, "X n"),
    ],
)
def test_names_and_partitions_come_from_the_values(sql: str, args: Any, expected: str) -> None:
    assert locks(bind_values(sql, args), KNOWN) == expected


@pytest.mark.parametrize(
    ("sql", "args"),
    [
        ("SELECT * FROM IDENTIFIER(:t)", None),
        ("SELECT * FROM IDENTIFIER(:t)", {"t": 7}),
        ("SELECT * FROM IDENTIFIER(:t)", {"t": "it's"}),
        ("SELECT * FROM IDENTIFIER(lower(:t))", {"t": "u"}),
        ("SELECT ?; SELECT ?", [1]),
        ("SELECT 1", "x"),
    ],
)
def test_values_that_give_no_certain_name_are_refused(sql: str, args: Any) -> None:
    with pytest.raises(InvalidRequestError):
        requests(bind_values(sql, args))
