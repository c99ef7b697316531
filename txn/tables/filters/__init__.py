"""HBase's filters."""
