"""Transactions from Apache Spark. Needs the extra `spark`.

`source` is the data source `txn`. It imports what a query needs: `reader` (rows of a table),
`views` (what is under way), `changes` (the feed of changes, as a stream), `writer` (rows as
transactions, of a data frame or a stream, with its `rejects`) or `atomic` (a data frame as one
transaction). They stand on `definitions` and `mapping` (columns as cells, by `codecs`), `ranges`
(of rows, divided among tasks), `requests` and `conditions` (rows as requests), `partitions` (a task
commits requests) and `workers` (a Python worker's engine).
"""

from txn.host.extras import import_extra

with import_extra("spark"):
    from txn.spark.partitions import Counts, PartitionError, Summary, commit_partition
    from txn.spark.source import TxnDataSource, register

__all__ = [
    "Counts",
    "PartitionError",
    "Summary",
    "TxnDataSource",
    "commit_partition",
    "register",
]
