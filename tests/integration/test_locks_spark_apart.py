"""A Spark application on the tables of a Hive metastore, which others made."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.metastore import metastore
from tests.integration.spark_cluster import run_application

pytestmark = pytest.mark.long
EXPLAIN = "tests.integration.spark_jobs:explain_locks"
MADE = [
    "CREATE TABLE measured (v BIGINT) PARTITIONED BY (p INT) STORED AS PARQUET",
    "INSERT INTO measured PARTITION (p=1) SELECT id FROM RANGE(3)",
    "INSERT INTO measured PARTITION (p=2) VALUES (7)",
    "CREATE TABLE days (v INT) PARTITIONED BY (d DATE, s STRING) STORED AS PARQUET",
    "INSERT INTO days PARTITION (d=DATE'2020-01-02', s='a/b') VALUES (1)",
    "CREATE VIEW both AS SELECT v FROM days JOIN measured USING (v) WHERE p = 2",
]
THEIRS = "SELECT `m`.`v` FROM `default`.`measured` `m`"


def test_locks_are_known_from_the_metastore(spark: SparkSession, tmp_path: Path) -> None:
    """Partitions, types and views of Hive's own kind, made by another application or by Hive, whose
    views say nothing of the session that made them: all names in them are whole."""
    with metastore(spark, tmp_path) as shared:
        with run_application(tmp_path / "writer", None, shared.settings) as writer:
            for sql in MADE:
                writer.run("tests.integration.spark_jobs:run_statement", sql=sql)
        shared.create_view(spark, "theirs", {"v": "bigint"}, THEIRS)
        with run_application(tmp_path / "reader", None, shared.settings) as reader:
            assert reader.run(EXPLAIN, sql="SELECT * FROM both") == [
                "S default/both",
                "S default/days",
                "S default/days/d=2020-01-02",
                "S default/days/d=2020-01-02/s=a%2Fb",
                "S default/measured",
                "S default/measured/p=2",
            ]
            partitions = [f"S default/measured/p={number}" for number in (1, 2)]
            expected = ["S default/measured", *partitions, "S default/theirs"]
            assert reader.run(EXPLAIN, sql="SELECT * FROM theirs") == expected
            dynamic = "INSERT OVERWRITE TABLE measured PARTITION (p) SELECT 1, 2"
            assert reader.run(EXPLAIN, sql=dynamic) == ["X default/measured"]
