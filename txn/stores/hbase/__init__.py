"""HBase behind its Thrift gateways."""
