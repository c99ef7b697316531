"""Transactions from Apache Spark. Needs the extra `spark`."""

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
