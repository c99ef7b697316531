"""Transactions from Apache Spark. Needs the extra `spark`."""

from txn.extras import needing

with needing("spark"):
    from txn.spark.partitions import Counts, PartitionError, Summary, commit_partition

__all__ = ["Counts", "PartitionError", "Summary", "commit_partition"]
