"""HBase's own RPC: a call of the store is one request to each region server that it needs."""
