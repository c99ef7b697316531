"""HBase's Thrift 2 service."""
