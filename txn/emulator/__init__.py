"""HBase's Thrift services over local tables, and the Transactional service: `txn serve`."""
