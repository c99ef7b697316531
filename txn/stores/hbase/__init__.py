"""HBase, by its own RPC or its Thrift gateways."""
