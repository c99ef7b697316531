"""Which columns of a data frame make the row key, and which cell each of the others is.

It is told by our own options, by those of HBase's Spark connector, or by a catalog as SHC has it.
"""

from txn.spark.mapping.outline import MAPPING
from txn.spark.mapping.table import KeyPart, MappedColumn, TableMapping

__all__ = ["MAPPING", "KeyPart", "MappedColumn", "TableMapping"]
