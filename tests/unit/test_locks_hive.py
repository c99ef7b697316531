"""Which locks a statement needs: each line of Hive's table, and the statements around it."""

from __future__ import annotations

import pytest

from txn.errors import InvalidRequestError
from txn.locks.hive.model import Column, Table, Tables
from txn.locks.hive.sql import requests
from txn.locks.model import path

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


def locks(sql: str, **settings: str) -> str:
    """The requests on one line, without the default database, for people to compare."""
    found = requests(sql, settings, CATALOG)
    return ", ".join(str(request) for request in found).replace(" default/", " ")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM t1 WHERE p = 1", "S t1, S t1/p=1"),
        ("SELECT * FROM plain", "S plain"),
        ("INSERT INTO t1 PARTITION (p=3) SELECT a FROM t1 WHERE p = 1", "S t1, S t1/p=1, X t1/p=3"),
        ("INSERT INTO plain SELECT a FROM t1 WHERE p = 1", "X plain, S t1, S t1/p=1"),
        (
            "INSERT INTO t2 PARTITION (p=3, q='c') SELECT a FROM t1 WHERE p = 1",
            "S t1, S t1/p=1, S t2, S t2/p=3, X t2/p=3/q=c",
        ),
        ("ALTER TABLE t1 RENAME TO t9", "X t1"),
        ("ALTER TABLE t1 ADD COLUMNS (a INT)", "X t1"),
        ("ALTER TABLE t1 REPLACE COLUMNS (a INT)", "X t1"),
        ("ALTER TABLE t1 CHANGE COLUMN a b INT COMMENT 'x' AFTER c", "X t1"),
        ("ALTER TABLE t1 CONCATENATE", "X t1"),
        ("ALTER TABLE t1 SET TBLPROPERTIES ('a' = 'b')", "X t1"),
        ("ALTER TABLE t1 ADD PARTITION (p=3)", "S t1, X t1/p=3"),
        ("ALTER TABLE t1 DROP PARTITION (p=1)", "S t1, X t1/p=1"),
        ("ALTER TABLE t1 TOUCH PARTITION (p=1)", "S t1, X t1/p=1"),
        ("ALTER TABLE t1 SET SERDEPROPERTIES ('a' = 'b')", "S t1"),
        ("ALTER TABLE t1 SET SERDE 'x' WITH SERDEPROPERTIES ('a' = 'b')", "S t1"),
        ("ALTER TABLE t1 SET FILEFORMAT ORC", "S t1"),
        ("ALTER TABLE t1 PARTITION (p=1) CONCATENATE", "S t1, X t1/p=1"),
        ("DROP TABLE t1", "X t1"),
        ("INSERT INTO t2 PARTITION (p=1, q) SELECT 1, 'a'", "S t2, X t2/p=1"),
        ("INSERT INTO t2 PARTITION (p, q) SELECT 1, 2, 'a'", "X t2"),
    ],
)
def test_each_line_of_hives_table(sql: str, expected: str) -> None:
    """Programs that lock by this table and those that lock by Hive's must exclude each other."""
    assert locks(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("ALTER TABLE plain SET FILEFORMAT ORC", "X plain"),
        ("ALTER TABLE plain TOUCH", "X plain"),
        ("LOAD DATA INPATH '/x' INTO TABLE plain", "X plain"),
        ("TRUNCATE TABLE plain", "X plain"),
        ("INSERT OVERWRITE TABLE plain VALUES (1)", "X plain"),
    ],
)
def test_all_but_reading_a_table_without_partitions_is_exclusive(sql: str, expected: str) -> None:
    """There is nothing smaller to lock."""
    assert locks(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("LOAD DATA LOCAL INPATH '/x' OVERWRITE INTO TABLE t1 PARTITION (p=1)", "S t1, X t1/p=1"),
        ("LOAD DATA INPATH 'into table x' INTO TABLE t1", "X t1"),
        ("TRUNCATE TABLE t1 PARTITION (p=1)", "S t1, X t1/p=1"),
        ("MSCK REPAIR TABLE t1", "X t1"),
        ("MSCK TABLE t1 ADD PARTITIONS", "X t1"),
        ("REPAIR TABLE t1", "X t1"),
        ("ANALYZE TABLE t1 PARTITION (p=1) COMPUTE STATISTICS", "S t1, X t1/p=1"),
        ("EXPORT TABLE t1 PARTITION (p=1) TO '/x'", "S t1, S t1/p=1"),
        ("EXPORT TABLE t1 TO '/x'", ALL_T1),
        ("IMPORT EXTERNAL TABLE t1 PARTITION (p=1) FROM '/x'", "S t1, X t1/p=1"),
        ("CREATE TABLE n (a INT) PARTITIONED BY (p INT) STORED AS ORC", "X n"),
        ("CREATE TABLE n (as_of INT COMMENT 'like t1') LOCATION '/x'", "X n"),
        ("CREATE TABLE n LIKE t1", "X n, S t1"),
        ("CREATE TABLE n LIKE FILE ORC '/x'", "X n"),
        ("CREATE TABLE n STORED AS ORC AS SELECT * FROM t1 WHERE p = 1", "X n, S t1, S t1/p=1"),
        ("CREATE TABLE IF NOT EXISTS n AS WITH t1 AS (SELECT 1) SELECT * FROM t1", "X n"),
        ("CREATE OR REPLACE VIEW n PARTITIONED ON (p) AS SELECT * FROM t1", f"X n, {ALL_T1}"),
        ("CREATE DATABASE IF NOT EXISTS d COMMENT 'x'", "X d"),
        ("CREATE TEMPORARY FUNCTION f AS 'x'", ""),
        ("DROP DATABASE IF EXISTS d CASCADE", "X d"),
        ("DROP VIEW v", "X v"),
        ("DROP TABLE IF EXISTS other.t PURGE", "X other/t"),
        ("DROP FUNCTION f", ""),
        ("ALTER DATABASE d SET OWNER USER u", "X d"),
        ("ALTER VIEW v AS SELECT * FROM plain", "S plain, X v"),
        ("ALTER VIEW v RENAME TO n", "X v"),
        ("ALTER TABLE t1 ADD IF NOT EXISTS PARTITION (p=3) LOCATION '/x' PARTITION (p=4)",
         "S t1, X t1/p=3, X t1/p=4"),
        ("ALTER TABLE t1 DROP IF EXISTS PARTITION (p=1), PARTITION (p=2) PURGE",
         "S t1, X t1/p=1, X t1/p=2"),
        ("ALTER TABLE t2 DROP PARTITION (p=1)", "S t2, X t2/p=1"),
        ("ALTER TABLE t2 DROP PARTITION (p=1, q > 'a')", "S t2, X t2/p=1"),
        ("ALTER TABLE t2 DROP PARTITION (q='a')", "X t2"),
        ("ALTER TABLE t1 PARTITION (p=1) RENAME TO PARTITION (p=3)", "S t1, X t1/p=1, X t1/p=3"),
        ("ALTER TABLE t1 EXCHANGE PARTITION (p=1) WITH TABLE t2",
         "S t1, X t1/p=1, S t2, X t2/p=1"),
        ("ALTER TABLE t1 PARTITION (p=1) SET SERDE 'x'", "S t1, X t1/p=1"),
        ("ALTER TABLE t1 RENAME COLUMN a TO b", "X t1"),
        ("ALTER TABLE t1 PARTITION COLUMN (p STRING)", "X t1"),
        ("ALTER TABLE t1 ARCHIVE PARTITION (p=1)", "S t1, X t1/p=1"),
        ("UPDATE t1 SET a = (SELECT MAX(b) FROM plain) WHERE p = 1", "S plain, X t1"),
        ("DELETE FROM plain WHERE a IN (SELECT a FROM t1 WHERE p = 2)", "X plain, S t1, S t1/p=2"),
        ("MERGE INTO plain USING v ON v.a = plain.a WHEN MATCHED THEN DELETE",
         "X plain, S t1, S t1/p=1, S v"),
        ("EXPLAIN ANALYZE SELECT * FROM plain", "S plain"),
        ("LOCK TABLE t1 PARTITION (p=1) EXCLUSIVE", "S t1, X t1/p=1"),
        ("LOCK DATABASE d SHARED", "S d"),
    ],
)  # fmt: skip
def test_statements_that_define_and_move(sql: str, expected: str) -> None:
    """Each changes data or what the data means under the feet of whoever reads it."""
    assert locks(sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "USE d",
        "SET hive.exec.dynamic.partition=true",
        "SHOW TABLES",
        "SHOW LOCKS t1 PARTITION (p=1) EXTENDED",
        "EXPLAIN LOCKS SELECT * FROM t1",
        "EXPLAIN EXTENDED SELECT * FROM t1",
        "DESCRIBE FORMATTED t1",
        "ADD JAR x.jar",
        "GRANT SELECT ON TABLE t1 TO USER u",
        "UNLOCK TABLE t1",
        "SELECT 1",
        "VALUES (1, 2)",
        "-- nothing\n;;",
    ],
)
def test_statements_that_touch_no_data_lock_nothing(sql: str) -> None:
    """An operator must be able to look while everything is locked."""
    assert locks(sql) == ""


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("INSERT OVERWRITE DIRECTORY '/x' SELECT * FROM t1 WHERE p = 1", "S t1, S t1/p=1"),
        ("INSERT INTO t1 PARTITION (p=3) IF NOT EXISTS SELECT 1", "S t1, X t1/p=3"),
        ("INSERT INTO TABLE t1 PARTITION (p=3) (a, b) VALUES (1, 2)", "S t1, X t1/p=3"),
        ("INSERT INTO TABLE t1 PARTITION (p=3) TABLE plain", "S plain, S t1, X t1/p=3"),
        ("INSERT OVERWRITE TABLE t1 PARTITION (p=1) SELECT a FROM t1 WHERE p = 1",
         "S t1, X t1/p=1"),
        ("INSERT INTO t2 PARTITION (q='a', p=1) SELECT 1", "S t2, S t2/p=1, X t2/p=1/q=a"),
        ("INSERT INTO t2 PARTITION (q='a', p) SELECT 1", "X t2"),
        ("INSERT INTO t1 SELECT 1, 2", "X t1"),
        ("WITH t1 AS (SELECT * FROM plain) INSERT INTO n SELECT * FROM t1", "X n, S plain"),
        ("FROM plain INSERT INTO a SELECT x INSERT OVERWRITE TABLE t1 PARTITION (p=1) SELECT y",
         "X a, S plain, S t1, X t1/p=1"),
        ("FROM t1 INSERT INTO a SELECT x WHERE p = 1 INSERT INTO b SELECT y WHERE p = 2",
         f"X a, X b, {ALL_T1}"),
        ("FROM t2 INSERT INTO a SELECT x WHERE p = 2 INSERT INTO b SELECT y WHERE p = 2",
         "X a, X b, S t2, S t2/p=2, S t2/p=2/q=a"),
        ("FROM t1 INSERT INTO a SELECT x WHERE p = 1 INSERT INTO b SELECT y",
         f"X a, X b, {ALL_T1}"),
        ("FROM (SELECT * FROM t1 WHERE p = 1) s INSERT INTO a SELECT x", "X a, S t1, S t1/p=1"),
    ],
)  # fmt: skip
def test_inserts_lock_what_they_write_and_what_they_read(sql: str, expected: str) -> None:
    """A bulk job is one of these."""
    assert locks(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM t1", ALL_T1),
        ("SELECT * FROM t1 WHERE p = 9", "S t1, S t1/p=9"),
        ("SELECT * FROM t1 WHERE 1 = t1.p AND (a > 3 AND b = 'x')", "S t1, S t1/p=1"),
        ("SELECT * FROM t1 z WHERE z.p IN (1, 3)", "S t1, S t1/p=1, S t1/p=3"),
        ("SELECT * FROM t1 WHERE p = 1 OR p = 2", ALL_T1),
        ("SELECT * FROM t1 WHERE NOT p = 1", ALL_T1),
        ("SELECT * FROM t1 WHERE p < 2", ALL_T1),
        ("SELECT * FROM t1 WHERE p = 1 + 1", ALL_T1),
        ("SELECT * FROM t1 WHERE p = NULL", ALL_T1),
        ("SELECT * FROM t1 WHERE p IN (SELECT p FROM plain)", f"S plain, {ALL_T1}"),
        ("SELECT * FROM t1 WHERE p IN (1, a)", ALL_T1),
        ("SELECT a FROM t1 GROUP BY a HAVING p = 1", ALL_T1),
        ("SELECT * FROM t2 WHERE p = 1", "S t2, S t2/p=1, S t2/p=1/q=a, S t2/p=1/q=b"),
        ("SELECT * FROM t2 WHERE q = 'a'", "S t2, S t2/p=1, S t2/p=1/q=a, S t2/p=2, S t2/p=2/q=a"),
        ("SELECT * FROM t2 WHERE q = 'z' AND p = 1", "S t2, S t2/p=1, S t2/p=1/q=z"),
        ("SELECT * FROM v", "S t1, S t1/p=1, S v"),
        ("SELECT * FROM other.w", "S t1, S t1/p=1, S v, S other/w, S other/x"),
        ("SELECT * FROM plain JOIN t1 ON t1.a = plain.a AND t1.p = 1", "S plain, S t1, S t1/p=1"),
        ("SELECT * FROM plain, t1 WHERE p = 1", "S plain, S t1, S t1/p=1"),
        ("SELECT * FROM t1 LEFT JOIN plain ON t1.p = 1", f"S plain, {ALL_T1}"),
        ("SELECT * FROM plain LEFT JOIN t1 ON t1.p = 1", "S plain, S t1, S t1/p=1"),
        ("SELECT * FROM t1 RIGHT JOIN plain ON t1.p = 1", "S plain, S t1, S t1/p=1"),
        ("SELECT * FROM plain RIGHT JOIN t1 ON t1.p = 1", f"S plain, {ALL_T1}"),
        ("SELECT * FROM plain FULL OUTER JOIN t1 ON t1.p = 1", f"S plain, {ALL_T1}"),
        ("SELECT * FROM plain LEFT SEMI JOIN t1 ON t1.p = 1", "S plain, S t1, S t1/p=1"),
        ("SELECT * FROM t1 LEFT ANTI JOIN plain ON t1.p = 1", f"S plain, {ALL_T1}"),
        ("SELECT * FROM (t1 JOIN plain ON t1.p = 1)", "S plain, S t1, S t1/p=1"),
        ("SELECT * FROM (SELECT * FROM t1) s WHERE s.p = 1", ALL_T1),
        ("SELECT * FROM t1 WHERE p = 1 UNION ALL SELECT * FROM plain", "S plain, S t1, S t1/p=1"),
        ("SELECT (SELECT MAX(a) FROM t1 WHERE p = 2) FROM plain", "S plain, S t1, S t1/p=2"),
        ("SELECT * FROM plain WHERE EXISTS (SELECT 1 FROM t1 WHERE p = 1)",
         "S plain, S t1, S t1/p=1"),
        ("SELECT * FROM t1 LATERAL VIEW EXPLODE(a) e AS b WHERE p = 1", "S t1, S t1/p=1"),
        ("SELECT * FROM t1 TABLESAMPLE (5 ROWS) z WHERE p = 1", ALL_T1),
        ("SELECT * FROM t1 PIVOT (SUM(a) FOR b IN (1 AS p)) WHERE p = 1", ALL_T1),
        ("SELECT * FROM t1 AS z (p, a) WHERE p = 1", ALL_T1),
        ("SELECT * FROM plain LEFT SEMI JOIN t1 ON t1.a = plain.a WHERE p = 1",
         f"S plain, {ALL_T1}"),
        ("SELECT * FROM t1 LEFT ANTI JOIN t2 ON t1.a = t2.a AND t2.p = 2 WHERE p = 1",
         "S t1, S t1/p=1, S t2, S t2/p=2, S t2/p=2/q=a"),
        ("SELECT TRANSFORM (a) USING 'cat' AS (b) FROM t1 WHERE p = 1", "S t1, S t1/p=1"),
        ("SELECT * FROM RANGE(10)", ""),
    ],
)  # fmt: skip
def test_queries_lock_the_partitions_that_they_can_read(sql: str, expected: str) -> None:
    """One too few, and a job reads half of what another one is writing."""
    assert locks(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("WITH t1 AS (SELECT * FROM plain) SELECT * FROM t1", "S plain"),
        ("WITH t1 AS (SELECT * FROM default.t1 WHERE p = 1) SELECT * FROM T1", "S t1, S t1/p=1"),
        ("WITH t1 AS (SELECT * FROM t1 WHERE p = 1) SELECT * FROM t1", "S t1, S t1/p=1"),
        ("WITH a AS (SELECT 1), b AS (SELECT * FROM a) SELECT * FROM b", ""),
        ("WITH b AS (SELECT * FROM a), a AS (SELECT 1) SELECT * FROM b", "S a"),
        ("WITH a AS (SELECT 1) SELECT * FROM (WITH b AS (SELECT * FROM a) SELECT * FROM b) c", ""),
        ("SELECT * FROM (WITH t1 AS (SELECT 1) SELECT * FROM t1) s, plain", "S plain"),
        ("SELECT * FROM (WITH plain AS (SELECT 1) SELECT * FROM plain) s, plain", "S plain"),
        ("WITH plain AS (SELECT 1) FROM plain INSERT INTO n SELECT *", "X n"),
        ("WITH RECURSIVE a AS (SELECT 1 UNION ALL SELECT * FROM a) SELECT * FROM a", ""),
    ],
)
def test_the_name_of_an_expression_is_a_table_where_it_is_not_visible(
    sql: str, expected: str
) -> None:
    """In its own definition the name of a common table expression still means the table."""
    assert locks(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM t1 WHERE p = '1'", "S t1, S t1/p=1"),
        ("SELECT * FROM t1 WHERE p = '01'", ALL_T1),
        ("SELECT * FROM t1 WHERE p = -1", "S t1, S t1/p=-1"),
        ("SELECT * FROM t1 WHERE p = 1.0", ALL_T1),
        ("SELECT * FROM named WHERE ds = '1'", "S named, S named/ds=1"),
        ("SELECT * FROM named WHERE ds = 1", "S named, S named/ds=01, S named/ds=1"),
        ("SELECT * FROM dated WHERE ds = '2020-01-01'", "S dated, S dated/ds=2020-01-01"),
        ("SELECT * FROM dated WHERE ds = DATE '2020-01-01'", "S dated, S dated/ds=2020-01-01"),
        ("SELECT * FROM dated WHERE ds = '2020-1-1'", "S dated"),
        ("SELECT * FROM odd WHERE ds = 1", "S odd"),
        ("INSERT INTO named PARTITION (ds=1) SELECT 1", "S named, X named/ds=1"),
        ("INSERT INTO named PARTITION (ds=01) SELECT 1", "X named"),
        ("INSERT INTO named PARTITION (ds='a/b') SELECT 1", "S named, X named/ds=a%2Fb"),
        ("INSERT INTO named PARTITION (ds='') SELECT 1",
         "S named, X named/ds=__HIVE_DEFAULT_PARTITION__"),
        ("INSERT INTO t1 PARTITION (p=null) SELECT 1",
         "S t1, X t1/p=__HIVE_DEFAULT_PARTITION__"),
        ("INSERT INTO dated PARTITION (ds=DATE '2020-01-01') SELECT 1",
         "S dated, X dated/ds=2020-01-01"),
        ("INSERT INTO odd PARTITION (ds=1) SELECT 1", "X odd"),
    ],
)  # fmt: skip
def test_a_constant_is_a_partition_only_where_its_type_makes_it_certain(
    sql: str, expected: str
) -> None:
    """`ds = 1` is true for the text `01` too: a name made from it would miss a partition."""
    assert locks(sql) == expected


def test_without_a_catalogue_partitions_are_taken_as_they_are_written() -> None:
    """Writers exclude each other with no more than their statements; queries lock tables."""
    sql = "INSERT INTO T2 PARTITION (Q='x', p=1) SELECT * FROM `T1` WHERE p = 1"
    assert [str(each) for each in requests(sql)] == [
        "S default/t1",
        "S default/t2",
        "S default/t2/q=x",
        "X default/t2/q=x/p=1",
    ]


def test_names_get_the_database_of_the_settings_and_of_use() -> None:
    """The same name in two databases is two tables."""
    setting = {"hive.current.database": "Sales"}
    assert [str(each) for each in requests("SELECT * FROM t", setting)] == ["S sales/t"]
    sql = "SELECT * FROM t; USE b; DROP TABLE t; USE DATABASE c; DROP TABLE b.u"
    assert [str(each) for each in requests(sql)] == ["X b/t", "X b/u", "S default/t"]
    assert locks("SELECT * FROM spark_catalog.default.t1 WHERE p = 1") == "S t1, S t1/p=1"


@pytest.mark.parametrize(
    "sql",
    [
        "OPTIMIZE TABLE t1",
        "SELECT FROM WHERE",
        "SELECT * FROM t1 WHERE 'open",
        "SELECT * FROM ${table}",
        "SELECT * FROM IDENTIFIER('t1')",
        "INSERT INTO IDENTIFIER('t1') SELECT 1",
        "INSERT INTO TABLE FUNCTION f() SELECT 1",
        "DROP TABLE IDENTIFIER('t1')",
        "DROP TABLE t1, t2",
        "TRUNCATE TABLE t1, t2",
        "SELECT * FROM f(TABLE(t1))",
        "SELECT * FROM plain LATERAL VIEW f(TABLE(t1)) e",
        "SELECT * FROM noop(ON t1 PARTITION BY p)",
        "SELECT * FROM table_changes('t1', 1)",
        "FROM t1 |> LIMIT 3 |> WHERE p = 1",
        "FROM t1 INSERT INTO a TABLE",
        "EXECUTE IMMEDIATE 'SELECT * FROM t1'",
        "CALL f('t1')",
        "SELECT * FROM far.away.t1",
        "ALTER TABLE t1 FROBNICATE",
        "ALTER TABLE t1",
        "ALTER INDEX i ON t1 REBUILD",
        "CREATE TABLE n AS FROBNICATE",
        "CREATE SOMETHING n",
        "DROP SOMETHING n",
        "LOAD DATA INPATH '/x'",
        "INSERT INTO t1 PARTITION (p=(SELECT 1)) SELECT 2; TRUNCATE TABLE t1 PARTITION (p=(1))",
        "LOCK TABLE t1",
        "EXPLAIN ANALYZE FROBNICATE",
        "TRUNCATE TABLE 'x'",
        "INSERT INTO t1 PARTITION (nope=1) SELECT 1",
        "SELECT * FROM loop",
        "SELECT " + "(" * 3000 + "1" + ")" * 3000,
    ],
)
def test_what_is_not_understood_is_an_error(sql: str) -> None:
    """A statement that runs under too few locks is worse than one that does not run."""
    with pytest.raises(InvalidRequestError):
        requests(sql, None, CATALOG)


def test_the_error_names_the_beginning_of_the_statement() -> None:
    """Scripts are long."""
    with pytest.raises(InvalidRequestError, match="statement='optimize table t1'"):
        requests("SELECT 1; optimize\n  table t1")
