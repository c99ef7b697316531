"""`txn console`: a store in a browser. It reads within limits, and writes only by `fsck`."""
