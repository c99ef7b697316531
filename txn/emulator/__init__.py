"""HBase's Thrift services over tables on this machine, and transactions: `txn serve`."""
