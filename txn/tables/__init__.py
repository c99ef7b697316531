"""HBase's data model on one machine, over an ordered key-value store."""
