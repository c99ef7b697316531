"""README's example for Spark, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.sql import Row, SparkSession

from txn import Key, Mutation, Request, connect

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_example_commits_every_row(spark: SparkSession, tmp_path: Path) -> None:
    """It is what somebody with a Spark job copies."""

    def to_request(row: Row) -> Request:
        return Request((Mutation(Key(row.id, "f", "value", "rows"), "here"),))

    uri = f"embedded://{tmp_path}/data"
    with connect(uri) as engine:
        engine.ensure_table("rows", ["f"])
    (example,) = (
        code
        for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL)
        if "commit_partition" in code
    )
    frame = spark.createDataFrame([("a",), ("b",), ("c",)], "id string")
    exec(
        example.replace("embedded:///data", uri),
        {"frame": frame, "to_request": to_request},
    )
    with connect(uri, table="rows") as engine:
        cells = engine.read([Key(row, "f", "value") for row in "abc"])
    assert all(cells.values())
