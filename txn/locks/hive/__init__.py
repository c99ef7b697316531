"""The locks that Hive's statements need."""
