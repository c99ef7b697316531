"""Statements are read to their last word: what is not known is refused, and nothing is guessed."""

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

# One statement of each form, to which no other word can be added.
WHOLE = [
    "ALTER DATABASE d SET OWNER USER u",
    "ALTER VIEW v SET TBLPROPERTIES ('a'='b')",
    "ALTER MATERIALIZED VIEW v REBUILD",
    "ALTER TABLE t PARTITION (p=1) RENAME TO PARTITION (p=2)",
    "ALTER TABLE t EXCHANGE PARTITION (p=1) WITH TABLE u",
    "ALTER TABLE t ADD PARTITION (p=1) LOCATION '/x' PARTITION (p=2)",
    "ALTER TABLE t DROP IF EXISTS PARTITION (p=1), PARTITION (p=2) PURGE",
    "ALTER TABLE t TOUCH",
    "ALTER TABLE t SET SERDE 'x' WITH SERDEPROPERTIES ('a'='b')",
    "ALTER TABLE t SET FILEFORMAT ORC",
    "ALTER TABLE t RENAME TO u",
    "ALTER TABLE t ADD COLUMNS (a INT) CASCADE",
    "ALTER TABLE t CHANGE COLUMN a b STRUCT<x: ARRAY<INT>, y: DECIMAL(3, 1)> COMMENT 'x' AFTER c",
    "ALTER TABLE t SET LOCATION '/x'",
    "ANALYZE TABLE t PARTITION (p=1) COMPUTE STATISTICS FOR COLUMNS a, b",
    "CACHE LAZY TABLE t OPTIONS ('a' 'b')",
    "CREATE DATABASE d COMMENT 'x'",
    "CREATE TABLE n (a INT) PARTITIONED BY (p INT) STORED AS ORC TBLPROPERTIES ('a'='b')",
    "CREATE TEMPORARY FUNCTION f AS 'x' USING JAR 'y', FILE 'z'",
    "DROP FUNCTION IF EXISTS d.f",
    "CREATE TABLE n LIKE t LOCATION '/x'",
    "DROP TABLE IF EXISTS t PURGE",
    "DROP DATABASE d CASCADE",
    "EXPLAIN EXTENDED SELECT * FROM t WHERE a = 1",
    "EXPORT TABLE t PARTITION (p=1) TO '/x'",
    "IMPORT TABLE t FROM '/x'",
    "LOAD DATA LOCAL INPATH '/x' OVERWRITE INTO TABLE t PARTITION (p=1)",
    "LOCK TABLE t SHARED",
    "MSCK REPAIR TABLE t SYNC PARTITIONS",
    "REFRESH TABLE t",
    "REPAIR TABLE t",
    "TRUNCATE TABLE t PARTITION (p=1)",
    "UNLOCK TABLE t",
    "USE d",
    "SELECT * FROM t WHERE p = 1",
    "INSERT INTO t VALUES (1)",
    "DELETE FROM t WHERE a = 1",
]
NAMED = [
    "SELECT * FROM t_{}",
    "SELECT * FROM t WHERE ds = '{}'",
    "INSERT OVERWRITE TABLE t PARTITION (ds='{}') SELECT 1",
    "CREATE TABLE t_{} AS SELECT 1",
    "CREATE VIEW t_{} AS SELECT 1",
    "DROP TABLE t_{}",
    "TRUNCATE TABLE t_{}",
    "ANALYZE TABLE t_{} COMPUTE STATISTICS",
    "LOAD DATA INPATH '/x' INTO TABLE t_{}",
    "EXPORT TABLE t_{} TO '/x'",
    "USE d_{}",
    "LOCK TABLE t_{} SHARED",
    "ALTER TABLE t_{} RENAME TO u",
    "SELECT 1 -- {}",
]


def locks(sql: str, catalog: Catalog | None = None) -> str:
    """The requests on one line, without the default database, for people to compare."""
    found = requests(sql, None, catalog)
    return ", ".join(str(request) for request in found).replace(" default/", " ")


@pytest.mark.parametrize("variable", ["${x}", "${hiveconf:x}", "${env:HOME}", "a${x}b"])
@pytest.mark.parametrize("sql", NAMED)
def test_a_variable_is_refused_wherever_it_stands(sql: str, variable: str) -> None:
    """Hive and Spark put its value there before they parse: nobody knows here which."""
    with pytest.raises(InvalidRequestError, match="variable"):
        requests(sql.format(variable))


@pytest.mark.parametrize("sql", [each for each in NAMED if "'{" not in each and "--" not in each])
def test_a_placeholder_is_refused_outside_of_strings(sql: str) -> None:
    """It was taken for no table at all."""
    for marker in ("{env}", "{{ env }}", "$env"):
        with pytest.raises(InvalidRequestError):
            requests(sql.replace("{}", marker))


@pytest.mark.parametrize("sql", WHOLE)
def test_a_word_that_is_not_understood_is_refused(sql: str) -> None:
    """It may be the name of another table."""
    requests(sql)
    for junk in ("FROBNICATE other", ") other", "{other}", ", other x y z"):
        with pytest.raises(InvalidRequestError):
            requests(f"{sql} {junk}")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT r'\\d' FROM t WHERE a RLIKE R'^x'", "S t"),
        ("SELECT X'41' FROM t", "S t"),
        ("SELECT X\"41\", x '' FROM t WHERE a = X \"42\"", "S t"),
        ("INSERT OVERWRITE DIRECTORY '/x' USING parquet SELECT * FROM t", "S t"),
        ("INSERT OVERWRITE LOCAL DIRECTORY '/x' USING csv OPTIONS (a 'b') SELECT * FROM t", "S t"),
        ("INSERT OVERWRITE DIRECTORY USING csv OPTIONS ('path'='/x') SELECT * FROM t", "S t"),
        ("REFRESH TABLE t", "S t"),
        ("REFRESH '/x'", ""),
        ("CACHE TABLE t", "S t"),
        ("CACHE LAZY TABLE c OPTIONS ('a' 'b') AS SELECT * FROM t", "S t"),
        ("UNCACHE TABLE IF EXISTS t", ""),
        ("CLEAR CACHE", ""),
        ("INSERT WITH SCHEMA EVOLUTION INTO t SELECT * FROM u", "X t, S u"),
        ("CREATE MATERIALIZED VIEW v DISABLE REWRITE STORED AS ORC AS SELECT * FROM t", "S t, X v"),
        ("ALTER MATERIALIZED VIEW v DISABLE REWRITE", "X v"),
        ("DROP MATERIALIZED VIEW IF EXISTS v", "X v"),
        ("SELECT * FROM t FOR SYSTEM_VERSION AS OF 3 WHERE p = 1", "S t"),
        ("SELECT * FROM t FOR SYSTEM_TIME AS OF '2020-01-01' x JOIN u", "S t, S u"),
        ("SELECT * FROM t FOR VERSION AS OF 'a'", "S t"),
        ("SELECT * FROM t FOR TIMESTAMP AS OF '2020-01-01'", "S t"),
        ("SELECT * FROM t VERSION AS OF 3", "S t"),
        ("SELECT * FROM t SYSTEM_VERSION AS OF 3 x JOIN u SYSTEM_TIME AS OF '2020'", "S t, S u"),
        ("SELECT timestampdiff(DAY, a, b), timestampadd(DAY, 1, a) FROM t", "S t"),
        ("ALTER TABLE t DEFAULT COLLATION UNICODE", "X t"),
        ("FROM t MAP a, b USING 'cat' AS c, d", "S t"),
        ("FROM t REDUCE a ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' USING 'cat' AS c", "S t"),
        ("INSERT OVERWRITE DIRECTORY '/x' USING parquet TABLE t", "S t"),
        ("INSERT OVERWRITE DIRECTORY '/x' USING parquet WITH a AS (TABLE t) FROM a", "S t"),
        ("FROM (FROM t MAP (a, b) USING 'cat' AS c CLUSTER BY c) m INSERT OVERWRITE TABLE n "
         "REDUCE m.c USING 'x' AS (e STRING)", "X n, S t"),
        ("TABLE t UNION ALL TABLE u", "S t, S u"),
        ("CREATE TABLE n USING parquet SELECT * FROM t", "X n, S t"),
        ("REPLACE TABLE n USING parquet AS SELECT * FROM t", "X n, S t"),
        ("COMMENT ON TABLE t IS 'x'", "X t"),
    ],
)  # fmt: skip
def test_what_spark_and_hive_accept_is_understood(sql: str, expected: str) -> None:
    """A job that cannot be run under locks is run without."""
    assert locks(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("CREATE TEMPORARY VIEW v AS SELECT * FROM t", "S t"),
        ("CREATE OR REPLACE GLOBAL TEMP VIEW v (a) COMMENT 'x' AS SELECT a FROM t", "S t"),
        ("CREATE TEMP VIEW v USING parquet OPTIONS (path '/x')", ""),
        ("CREATE TEMPORARY TABLE v (a INT) STORED AS ORC", ""),
        ("CREATE TEMPORARY TABLE v AS SELECT * FROM t", "S t"),
        ("CREATE TEMPORARY TABLE v LIKE t", "S t"),
    ],
)
def test_what_is_temporary_needs_no_lock_on_its_name(sql: str, expected: str) -> None:
    """It is of one session, and touches no table that has the same name."""
    assert locks(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SET VAR x = (SELECT max(a) FROM t)", "S t"),
        ("SET VARIABLE (x, y) = (SELECT a, b FROM t), z = DEFAULT", "S t"),
        ("DECLARE OR REPLACE x, y INT DEFAULT (SELECT max(a) FROM t)", "S t"),
        ("DECLARE VARIABLE x = 3", ""),
        ("DROP TEMPORARY VARIABLE IF EXISTS x", ""),
    ],
)
def test_a_session_variable_needs_what_its_value_reads(sql: str, expected: str) -> None:
    """The value is used long after another job has changed the table."""
    assert locks(sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM parquet.`/path`",
        "SELECT * FROM `json`.`s3://a/b` x JOIN t",
        "SELECT * FROM parquet.`data`",
        "SELECT * FROM `org.apache.spark.sql.parquet`.`x`",
        "INSERT INTO orc.`/path` SELECT 1",
        "TRUNCATE TABLE delta.`/path`",
        "SELECT * FROM global_temp.v",
        "SELECT * FROM STREAM t",
        "SET CATALOG other",
        "SET PATH = other",
        "SELECT * FROM t -- \\\n WHERE p = 1",
        "SELECT * FROM t@x",
        "SELECT * FROM t |> WHERE p = 1",
        "EXECUTE IMMEDIATE 'TRUNCATE TABLE t'",
        "BEGIN SELECT 1; END",
        "INSERT INTO IDENTIFIER(x) SELECT 1",
        "INSERT INTO IDENTIFIER(concat('a', 'b')) VALUES (1)",
        "CREATE TABLE IDENTIFIER(:x) AS SELECT 1",
        "CREATE VIEW IDENTIFIER(x) AS SELECT 1",
        "SELECT * FROM libsvm.`x`",
    ],
)
def test_what_names_no_table_that_we_know_is_refused(sql: str) -> None:
    """An invented object keeps nobody out."""
    with pytest.raises(InvalidRequestError):
        requests(sql)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("'x'", "S t, X t/ds=x"),
        ("r'x'", "S t, X t/ds=x"),
        ('"x"', "S t, X t/ds=x"),
        ("'\\u0041'", "X t"),
        ("'\\101'", "X t"),
        ("'a\\%'", "X t"),
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
        ("SELECT 1 WHERE 3 > twice(f(1))", "S t, S t/p=1"),
        ("SELECT plain(1), max(a), `lower`(b) FROM n", "S n"),
        ("SELECT * FROM g(1) x", "S u"),
        ("SELECT * FROM n, LATERAL g(a)", "S n, S u"),
        ("SELECT * FROM other.h(1)", "S other/w"),
        ("SELECT * FROM n LATERAL VIEW other.h(a) x", "S n, S other/w"),
        ("SELECT * FROM v", "S t, S t/p=1, S u, S v"),
        ("INSERT INTO n SELECT F(1)", "X n, S t, S t/p=1"),
        ("SET VAR x = f(1)", "S t, S t/p=1"),
        ("SELECT upper(1), builtin.max(1), system.builtin.min(1)", "S w"),
        ("SELECT /*+ plainly(x), broadcast(n) */ 1 FROM n", "S n"),
    ],
)
def test_a_function_needs_what_its_body_reads(sql: str, expected: str) -> None:
    """Whoever calls it reads the table, in whatever clause."""
    assert isinstance(KNOWN, Functions)
    assert locks(sql, KNOWN) == expected


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("() RETURN (SELECT max(a) FROM t)", "S t"),
        ("(x INT DEFAULT 1) RETURNS INT COMMENT 'x' RETURN CASE x WHEN 1 THEN 2 END", ""),
        ("() RETURNS TABLE (v INT) LANGUAGE SQL READS SQL DATA RETURN SELECT v FROM t", "S t"),
        ("() RETURNS TABLE RETURN WITH c AS (TABLE t) SELECT * FROM c", "S t"),
        ("(a INT DEFAULT 1 COMMENT 'x', b INT DEFAULT (SELECT 1 FROM t)) RETURN a", "S t"),
    ],
)
def test_making_a_function_needs_what_its_body_reads(made: str, expected: str) -> None:
    """A statement behind it, in the same text, may call it."""
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
    """It may read any table."""
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
        ("SELECT :a", {"a": [1]}, "SELECT :a"),
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
        ("SELECT IDENTIFIER('max')(a) FROM u", None, "S u"),
        ("SELECT * FROM t WHERE p = :p", {"p": 1}, "S t, S t/p=1"),
        ("INSERT INTO n PARTITION (ds=:d) SELECT 1", {"d": "${x}"}, "X n"),
    ],
)
def test_names_and_partitions_come_from_the_values(sql: str, args: Any, expected: str) -> None:
    """What is locked must be what the statement runs on."""
    assert locks(bind_values(sql, args), KNOWN) == expected


@pytest.mark.parametrize(
    ("sql", "args"),
    [
        ("SELECT * FROM IDENTIFIER(:t)", None),
        ("SELECT * FROM IDENTIFIER(:t)", {"t": 7}),
        ("SELECT * FROM IDENTIFIER(:t)", {"t": "u WHERE"}),
        ("SELECT * FROM IDENTIFIER(:t)", {"t": "it's"}),
        ("SELECT * FROM IDENTIFIER(lower(:t))", {"t": "u"}),
        ("SELECT ?; SELECT ?", [1]),
        ("SELECT 1", "x"),
        ("SELECT 1", 7),
    ],
)
def test_values_that_give_no_certain_name_are_refused(sql: str, args: Any) -> None:
    """Better no job than one on a table that is not locked."""
    with pytest.raises(InvalidRequestError):
        requests(bind_values(sql, args))


@pytest.mark.parametrize("name", ["parquet.`x`", "global_temp.x"])
def test_a_refused_name_is_shown_as_a_path(name: str) -> None:
    """It is the name that people know, and no object of Python."""
    with pytest.raises(InvalidRequestError, match=r"='(parquet|global_temp)/x'"):
        requests(f"SELECT * FROM {name}")


@pytest.mark.parametrize(("words", "is_known"), [("", True), (" FROBNICATE u", False)])
def test_many_columns_are_read_in_one_go(words: str, is_known: bool) -> None:
    """However many there are: to try each way in which types may end took for ever."""
    column = "a MAP<STRING, ARRAY<STRUCT<b: INT, c: ARRAY<INT>>>> NOT NULL COMMENT 'x'"
    sql = f"ALTER TABLE t ADD COLUMNS {', '.join([column] * 100)}{words}"
    if is_known:
        assert locks(sql) == "X t"
    else:
        with pytest.raises(InvalidRequestError):
            requests(sql)


@pytest.mark.parametrize("word", ["EXPLAIN ", "EXPLAIN ANALYZE "])
def test_an_explain_within_another_is_refused(word: str) -> None:
    """However many there are."""
    with pytest.raises(InvalidRequestError):
        requests(word * 1_000 + "SELECT 1")
