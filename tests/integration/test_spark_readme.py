"""What README and the page for users of Spark show, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.sql import SparkSession

from tests.docs.blocks import reader
from txn import Key, connect

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_example_commits_every_row(spark: SparkSession, tmp_path: Path) -> None:
    """It is what somebody with a Spark job copies."""
    uri = f"embedded://{tmp_path}/data"
    with connect(uri) as engine:
        engine.ensure_table("rows", ["f"])
    (example,) = (
        code
        for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL)
        if 'format("txn")' in code
    )
    frame = spark.createDataFrame(
        [("a", "new"), ("b", "new"), ("c", "old")], "id string, state string"
    )
    exec(example.replace("embedded:///data", uri), {"frame": frame, "spark": spark})
    with connect(uri, table="rows") as engine:
        cells = engine.read([Key(row, "f", "state") for row in "abc"]).values()
    assert [cell.value for cell in cells if cell] == [b"new", b"new", b"old"]


def test_the_page_for_users_of_spark_can_be_followed(spark: SparkSession, tmp_path: Path) -> None:
    """A load that is started again must not load twice, as the page promises."""
    page = Path(__file__).parents[2] / "docs/howto/spark.md"
    uri = f"embedded://{tmp_path}/data"
    with reader(tmp_path, names={"spark": spark}, instead={"embedded:///data": uri}) as somebody:
        somebody.follow(page)
    with connect(uri) as engine:
        tokens = [row.row for row in engine.scan("txn", prefix="once.")]
    assert len([each for each in tokens if b"flights-2026-11-25" in each]) == 2
