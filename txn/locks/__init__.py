"""Shared and exclusive locks on databases, tables and partitions, as Hive has them."""
