"""HBase's Thrift 1 service."""
