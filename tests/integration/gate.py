"""Where a Spark job stops in the middle: a function for its queries, and a pair of named pipes.

It is in a module of its own, which Spark's Python workers can import.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import LongType


@dataclass(frozen=True)
class Gate:
    """reached: a pipe that the job writes to; open: one that it then reads from."""

    folder: Path

    def make(self) -> None:
        for name in ("reached", "open"):
            os.mkfifo(self.folder / name)

    def register(self, spark: SparkSession) -> None:
        """Make it the function `gate` of a session."""
        spark.udf.register("gate", self.pass_through, LongType())

    def pass_through(self, value: int) -> int:
        """Runs in Spark's Python worker: the first row to come waits, the others go on."""
        try:
            os.close(os.open(self.folder / "passed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return value
        (self.folder / "reached").write_bytes(b"!")
        (self.folder / "open").read_bytes()
        return value

    def wait_until_reached(self) -> None:
        (self.folder / "reached").read_bytes()

    def let_go(self) -> None:
        (self.folder / "open").write_bytes(b"!")
