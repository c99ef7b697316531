"""HBase's own RPC: a store call sends one request to each region server involved."""
