"""Transactions from Apache Spark. Needs the extra `spark`."""

from txn.errors import describe

try:
    from txn.spark.partitions import Counts, PartitionError, Summary, commit_partition
except ModuleNotFoundError as error:
    message = describe("install hbase-txn[spark]", missing=error.name)
    raise ModuleNotFoundError(message, name=error.name) from error

__all__ = ["Counts", "PartitionError", "Summary", "commit_partition"]
