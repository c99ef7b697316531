"""A Thrift server with bounds on what its clients may use; it knows nothing of HBase."""
