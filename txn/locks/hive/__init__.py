"""Which locks Hive's statements need."""
