"""`spark.read.format("txn")`: rows of a table as a data frame, by the protocol of reads."""

from txn.spark.reader.ranges import (
    BOUNDS,
    PARTITIONS,
    Range,
    divide_ranges,
    parse_bounds,
    parse_partitions,
)
from txn.spark.reader.tables import infer_schema, make_reader

__all__ = [
    "BOUNDS",
    "PARTITIONS",
    "Range",
    "divide_ranges",
    "infer_schema",
    "make_reader",
    "parse_bounds",
    "parse_partitions",
]
