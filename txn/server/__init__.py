"""A Thrift server that bounds what its clients may take; it knows nothing of HBase."""
