"""README's example for Spark, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.sql import SparkSession

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
