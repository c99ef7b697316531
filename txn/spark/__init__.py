"""Transactions from Apache Spark. Needs the extra `spark`."""

from txn.host.extras import import_extra

with import_extra("spark"):
    from txn.spark.committing import Counts, PartitionError, Summary
    from txn.spark.partitions import SUMMARY_SCHEMA, commit_arrow, commit_frame, commit_partition
    from txn.spark.source import TxnDataSource, register

__all__ = [
    "SUMMARY_SCHEMA",
    "Counts",
    "PartitionError",
    "Summary",
    "TxnDataSource",
    "commit_arrow",
    "commit_frame",
    "commit_partition",
    "register",
]
