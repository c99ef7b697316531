"""What `txn console` shows of a store, read in bounded steps."""
