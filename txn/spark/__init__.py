"""Transactions from Apache Spark."""

from txn.spark.partitions import Counts, PartitionError, Summary, commit_partition

__all__ = ["Counts", "PartitionError", "Summary", "commit_partition"]
