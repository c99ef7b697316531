"""`txn console`: a store in a browser. What it shows, commands show as well; it is read within
bounds, and written by `fsck` alone."""
