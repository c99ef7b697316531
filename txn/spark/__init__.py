"""Transactions from Apache Spark. Needs the extra `spark`.

`source` is the data source `txn`, which imports only what a query needs: `reader` (rows of a
table), `views` (unfinished transactions, held locks), `changes` (the change feed as a stream),
`writer` (each row a transaction) or `atomic` (a data frame as one transaction). They build on
`definitions`, `mapping` and `codecs` (columns to cells), `ranges` (rows to tasks), `requests` (rows
to requests), `tokens` and `partitions` (a task's engine and commits). `blocks` has `run_partition`.
"""

from txn.host.extras import import_extra

with import_extra("spark"):
    from txn.spark.blocks import RowRefusedError, run_partition
    from txn.spark.partitions import (
        Counts,
        PartitionError,
        Summary,
        bind_partition,
        commit_partition,
    )
    from txn.spark.source import TxnDataSource, make_batch_writer, register

__all__ = [
    "Counts",
    "PartitionError",
    "RowRefusedError",
    "Summary",
    "TxnDataSource",
    "bind_partition",
    "commit_partition",
    "make_batch_writer",
    "register",
    "run_partition",
]
